"""Addresses of the web process."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from jobs import hooks

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("admin/", admin.site.urls),
    # Written out once more in jobs/webhook_address.py, for processes that load no pages.
    path("hooks/<str:provider>/<uuid:task_id>/<str:nonce>/", hooks.receive, name="hook"),
    path("api/", include("jobs.api.urls")),
]

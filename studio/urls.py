"""Addresses of the web process."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from jobs import hooks, preferences

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("i18n/setlang/", preferences.set_language, name="set_language"),
    path("admin/", admin.site.urls),
    # Written out once more in jobs/webhook_address.py, for processes that load no pages.
    path("hooks/<str:provider>/<uuid:task_id>/<str:nonce>/", hooks.receive, name="hook"),
    path("api/", include("jobs.api.urls")),
]

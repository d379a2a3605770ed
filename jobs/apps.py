from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = _("Generation desk")

    def ready(self) -> None:
        from jobs import checks  # noqa: F401  registers the system checks

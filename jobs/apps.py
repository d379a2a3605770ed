from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = _("Generation desk")

    def ready(self) -> None:
        from jobs import checks, roles  # noqa: F401  registers the system checks

        post_migrate.connect(roles.grant, dispatch_uid="desk_roles")

"""Puts the desk's own admin site in the place of Django's stock one."""

from django.contrib.admin.apps import AdminConfig


class DeskAdminConfig(AdminConfig):
    default_site = "jobs.admin.site.DeskAdminSite"

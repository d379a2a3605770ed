"""Visit: up to when a person has read the handover. The permission to read it, and the trail, hangs here."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _


class Visit(models.Model):
    """One row a person. `read_at` is the time of what they had before them, set by their own word, never by looking."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="+"
    )
    read_at = models.DateTimeField()

    class Meta:
        verbose_name = _("visit")
        verbose_name_plural = _("visits")
        default_permissions = ()
        permissions = [("view_trail", _("Can read the trail and the handover"))]

    def __str__(self) -> str:
        return f"{self.user_id} {self.read_at:%F %T}"

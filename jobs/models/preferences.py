"""Preferences: how a person wants things written."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from jobs.manner import Calendar, Digits, Manner


class Preferences(models.Model):
    """One row a person who has chosen anything; written by lifecycle.preferences only."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="+"
    )
    language = models.CharField(_("language"), max_length=16, blank=True, default="")
    zone = models.CharField(_("time zone"), max_length=64, blank=True, default="")
    calendar = models.CharField(
        _("calendar"), max_length=16, choices=Calendar.choices, default=Calendar.GREGORIAN
    )
    digits = models.CharField(
        _("digits"), max_length=16, choices=Digits.choices, default=Digits.LATIN
    )
    changed_at = models.DateTimeField()

    class Meta:
        verbose_name = _("preferences")
        verbose_name_plural = _("preferences")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.user_id} {self.language} {self.zone} {self.calendar} {self.digits}"

    def manner(self, language: str | None) -> Manner:
        """`language`: of the request, for whoever has chosen none."""
        return Manner(
            self.language or language, self.zone, Calendar(self.calendar), Digits(self.digits)
        )

"""ApiToken: what another program shows to act for a tenant."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

MOST_PER_MINUTE = 100_000


class ApiToken(models.Model):
    """Its text is shown once and kept nowhere: `digest` is the sha256 of it, `prefix` the part that names it to people.

    `paced_at` runs ahead of the clock by what was asked lately (lifecycle/tokens.py). A token that replaces another has
    the other in `replaces`; that one ends when the overlap does.
    """

    class Scope(models.TextChoices):
        SUBMIT = "submit", _("create jobs")
        READ = "read", _("read jobs, results, states and the budget")
        CANCEL = "cancel", _("cancel jobs")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(
        "jobs.Tenant", on_delete=models.PROTECT, related_name="api_tokens", verbose_name=_("tenant")
    )
    name = models.CharField(_("name"), max_length=80, help_text=_("Which program uses it."))
    prefix = models.CharField(_("begins with"), max_length=24, unique=True)
    digest = models.CharField(max_length=64)
    scopes = ArrayField(
        models.CharField(max_length=10, choices=Scope.choices), verbose_name=_("scopes")
    )
    per_minute = models.PositiveIntegerField(
        _("requests a minute"),
        default=600,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_PER_MINUTE)],
        help_text=_("As many may also come at once."),
    )
    created_at = models.DateTimeField(_("made"))
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    expires_at = models.DateTimeField(
        _("expires"), null=True, blank=True, help_text=_("Empty: never.")
    )
    revoked_at = models.DateTimeField(_("revoked"), null=True, blank=True)
    revoked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    replaces = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="successors"
    )
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True)
    paced_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("API token")
        verbose_name_plural = _("API tokens")
        permissions = [
            ("rotate_apitoken", _("Can replace an API token")),
            ("revoke_apitoken", _("Can revoke an API token")),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(digest__regex=r"^[0-9a-f]{64}$"), name="api_token_digest"),
            models.CheckConstraint(
                condition=Q(per_minute__gte=1, per_minute__lte=MOST_PER_MINUTE), name="api_token_pace_in_bounds"
            ),
            models.CheckConstraint(
                condition=Q(scopes__contained_by=["submit", "read", "cancel"], scopes__len__gt=0),
                name="api_token_scopes_known",
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    def works(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

"""SavedFilter: a list narrowed in a way somebody wants again, by name."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class SavedFilter(models.Model):
    """`place` names the list, `query` is what its address carries. Shared ones are seen by everybody who may open the list."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    place = models.CharField(max_length=40)
    name = models.CharField(_("name"), max_length=60)
    query = models.CharField(max_length=1000)
    shared = models.BooleanField(_("for everybody"), default=False)
    created_at = models.DateTimeField()

    class Meta:
        verbose_name = _("saved filter")
        verbose_name_plural = _("saved filters")
        default_permissions = ()
        permissions = [
            ("share_savedfilter", _("Can save filters for everybody")),
            ("forget_savedfilter", _("Can remove filters that others share")),
        ]
        constraints = [
            models.UniqueConstraint(fields=["user", "place", "name"], name="saved_filter_once")
        ]
        indexes = [
            # The chips of a list: what others share.
            models.Index(fields=["place"], name="saved_filter_shared", condition=Q(shared=True))
        ]

    def __str__(self) -> str:
        return self.name

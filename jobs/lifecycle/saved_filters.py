"""Keeping and forgetting a list's filters under a name."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from jobs.lifecycle.errors import Refused
from jobs.models import SavedFilter
from jobs.narrowing import PLACES, plain

MOST_EACH = 20  # of a person and list


def save(
    *, user_id: int, place: str, query: str, name: str, shared: bool, now: datetime
) -> SavedFilter:
    """The same name once more replaces what it stood for. Raises Refused where there is nothing to keep."""
    name, wanted = " ".join(name.split()), plain(query)
    if place not in PLACES:
        raise Refused(_("This list keeps no filters."))
    if not name or len(name) > 60:
        raise Refused(_("Give the filter a name of at most 60 characters."))
    if not wanted or len(wanted) > 1000:
        raise Refused(_("Choose a filter first; then it can be kept."))
    with transaction.atomic():
        own = SavedFilter.objects.select_for_update().filter(user_id=user_id, place=place)
        if len(own.exclude(name=name)) >= MOST_EACH:
            raise Refused(_("You keep %(most)d filters of this list already. Remove one first.") % {"most": MOST_EACH})  # fmt: skip
        kept, _made = SavedFilter.objects.update_or_create(
            user_id=user_id, place=place, name=name, defaults={"query": wanted, "shared": shared, "created_at": now}
        )  # fmt: skip
    return kept


def forget(*, pk: int, user_id: int, others: bool) -> SavedFilter | None:
    """One's own; with `others` also what somebody shares. None: it is gone already. Raises Refused."""
    kept = SavedFilter.objects.filter(pk=pk).first()
    if kept is None:
        return None
    if kept.user_id != user_id and not (others and kept.shared):
        raise Refused(_("It belongs to somebody else."))
    kept.delete()
    return kept

"""What staff may ask of a lane: to end what it does and begin anew, or to stay out of work.

A lane hears it with its next heartbeat, so within five seconds: it claims and sends nothing more, lets the calls under way
come to their end, and frees its slot. Nothing is lost by it, and nothing is paid twice.
"""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _

from jobs import bell
from jobs.lifecycle.errors import Refused
from jobs.models import Lane


def restart(*, slot: int, now: datetime) -> None:
    """Its run ends; another takes the slot as soon as there is work."""
    with transaction.atomic():
        lane = _locked(slot)
        if lane.run_id is None:
            raise Refused(_("This lane is not running."))
        if lane.draining:
            raise Refused(_("This lane is ending already."))
        Lane.objects.filter(slot=slot).update(draining=True)


def drain(*, slot: int, now: datetime) -> None:
    """Its run ends, and no other takes the slot until somebody opens it again."""
    with transaction.atomic():
        # All of them: two people must not take out the last two at once.
        rows = list(
            Lane.objects.select_for_update(no_key=True)
            .filter(slot__lte=settings.WORKER_LANES)
            .order_by("slot")
        )
        lane = next((row for row in rows if row.slot == slot), None)
        if lane is None:
            raise Refused(_("No run takes this lane: the settings have fewer of them."))
        if lane.closed_at is not None:
            raise Refused(_("This lane is out of work already."))
        if all(row.closed_at is not None or row.slot == slot for row in rows):
            raise Refused(
                _("This is the last lane at work. Press the red button to stop all sends, or stop the workers.")
            )  # fmt: skip
        Lane.objects.filter(slot=slot).update(closed_at=now, draining=lane.run_id is not None)
        bell.ring()


def reopen(*, slot: int, now: datetime) -> None:
    """The slot may be taken again."""
    with transaction.atomic():
        if _locked(slot).closed_at is None:
            raise Refused(_("This lane is at work."))
        Lane.objects.filter(slot=slot).update(closed_at=None)
        bell.ring()


def _locked(slot: int) -> Lane:
    lane = Lane.objects.select_for_update(no_key=True).filter(slot=slot).first()
    if lane is None:
        raise Refused(_("There is no such lane."))
    return lane

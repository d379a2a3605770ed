"""`manage.py qcluster`: workers with lanes in them, until SIGTERM or SIGINT. Replaces django-q2's command."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connections, transaction
from django.utils.translation import gettext as _
from django_q.models import Schedule

from jobs import bell, lanes, tasks
from jobs.checks import LANE_TIMEOUTS, transactions_end
from jobs.cluster import LaneCluster

MINUTE_RING = f"{tasks.ring_each_minute.__module__}.{tasks.ring_each_minute.__name__}"


class Command(BaseCommand):
    help = _(
        "Start workers. They end within 15 seconds after SIGTERM or SIGINT, but wait for calls under way whose answer is the"
        " result, each up to its own deadline (SYNC_DEADLINE_SEC). Restart them always."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        _bound_transactions()
        self._check_database()
        lanes.ensure_slots(settings.WORKER_LANES)
        schedule_minute_ring()
        lanes.free_killed()
        bell.ring()
        connections.close_all()
        cluster = LaneCluster()
        cluster.start()
        self.stderr.write(_("Workers are running; stop them with Ctrl-C."))
        status = cluster.wait()
        self._hand_over()
        sys.exit(status)

    def _check_database(self) -> None:
        """What only the running server can tell; `manage.py check` leaves the database out."""
        found = checks.run_checks(tags=[checks.Tags.database], databases=["default"])
        if not any(message.is_serious() for message in found):
            found += transactions_end()
        for message in found:
            self.stderr.write(str(message))
        if any(message.is_serious() for message in found):
            raise CommandError(_("The database is not fit for this. See above for the cure."))

    def _hand_over(self) -> None:
        """A message that our workers popped and did not read is locked away; other clusters need a new one."""
        try:
            tasks.ring_if_work_waits()
        except Error as error:
            self.stderr.write(_("Could not tell other clusters: %(error)s") % {"error": error})


def _bound_transactions() -> None:
    """For this process and its workers; web and commands may take longer. Behind a pooler the role must have them."""
    if settings.DATABASE_DIRECT_URL:
        return
    options = connections["default"].settings_dict["OPTIONS"]
    timeouts = " ".join(f"-c {name}={value}" for name, value in LANE_TIMEOUTS.items())
    options["options"] = f"{options.get('options', '')} {timeouts}".strip()
    connections.close_all()


def schedule_minute_ring() -> None:
    """The net under every lost bell. Any number of clusters may start at once: one row comes out."""
    with transaction.atomic(), connections["default"].cursor() as cursor:
        # Nothing in django-q2's table is unique that we could rely on.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [MINUTE_RING])
        wanted = {
            "func": MINUTE_RING,
            "schedule_type": Schedule.MINUTES,
            "minutes": 1,
            "repeats": -1,
        }
        rows = list(Schedule.objects.filter(name=MINUTE_RING).order_by("pk"))
        for extra in rows[1:]:
            extra.delete()
        if not rows:
            Schedule.objects.create(name=MINUTE_RING, **wanted)
        elif any(getattr(rows[0], name) != value for name, value in wanted.items()):
            Schedule.objects.filter(pk=rows[0].pk).update(**wanted)

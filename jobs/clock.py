"""The one place that reads a clock; the simulation replaces `clock`.

Rows take the database's clock, deadlines the boot clock (it goes on while the machine sleeps and is not set by NTP).
"""

from __future__ import annotations

import time
from datetime import datetime

from django.db import connection


class Clock:
    """`now` asks the database; `boot` is seconds since boot. `both` reads boot first, so a stall between makes us early."""

    def now(self) -> datetime:
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            row = cursor.fetchone()
        assert row is not None
        moment: datetime = row[0]
        return moment

    def boot(self) -> float:
        return (
            time.clock_gettime(time.CLOCK_BOOTTIME)
            if hasattr(time, "CLOCK_BOOTTIME")
            else time.monotonic()
        )

    def both(self) -> tuple[float, datetime]:
        boot = self.boot()
        return boot, self.now()


clock = Clock()

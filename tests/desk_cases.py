"""A desk full of cases: one of each kind that holds a job up, and a lost send for each way of settling one. The rows are made
directly, as the lifecycle would have left them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from jobs.models import Case, Job, ProviderTask, SpoolHost
from jobs.states import CaseKind, JobState
from providers import registry
from tests import factories

KEY = "pza_test"
MINUTE = timedelta(minutes=1)
ID = "gen_93ab77"


def account(now: datetime) -> Any:
    """Of the key in the settings, so that its history may be read."""
    return factories.account(now, fingerprint=registry.fingerprint(KEY))


def job(now: datetime, kind: CaseKind, reference: str, **values: Any) -> Job:
    return factories.job(
        now, JobState.MANUAL, reference=reference, reason=kind.value, created_at=now - 100 * MINUTE, **values
    )  # fmt: skip


def _case(now: datetime, kind: CaseKind, task: ProviderTask, **values: Any) -> Case:
    return factories.case(kind, now, of=task.job, by=task, opened_at=now - 60 * MINUTE, **values)


def candidate(now: datetime, number: int = 0, **values: Any) -> dict[str, str]:
    """What a look at the history keeps of one generation, made a little after a send 90 minutes ago."""
    made = now - 90 * MINUTE + timedelta(seconds=1.4 + 9 * number)
    return {
        "id": ID if not number else f"{ID}-{number}", "created_at": made.isoformat(), "model": factories.MODEL, "status": "completed",
        "cost": "7.84",
    } | values  # fmt: skip


def lost(
    now: datetime, reference: str, *, kind: CaseKind = CaseKind.UNKNOWN_SEND, **values: Any
) -> Case:
    """Sent 90 minutes ago, its answer lost; its host's spool has been looked through since."""
    SpoolHost.objects.update_or_create(host="desk-1", defaults={"clear_at": now})
    task = factories.lost(
        job(now, kind, reference), now, armed_at=now - 90 * MINUTE, account=account(now), **values
    )
    return _case(now, kind, task)


def with_candidates(now: datetime, reference: str) -> Case:
    found = [
        candidate(now),
        candidate(now, 1, status="failed", cost="0", model="openai/gpt-5-image"),
    ]
    return lost(now, reference, candidates=found)


def _send(kind: CaseKind, **facts: Any) -> Callable[[datetime, str], Case]:
    """A send that was accepted, and what is known of it besides; durations mean ago."""

    def make(now: datetime, reference: str) -> Case:
        known = {
            name: now - value if isinstance(value, timedelta) else value
            for name, value in facts.items()
        }
        task = factories.accepted(
            job(now, kind, reference), now, armed_at=now - 90 * MINUTE, account=account(now), **known
        )  # fmt: skip
        return _case(now, kind, task)

    return make


def restored(now: datetime, reference: str) -> Case:
    return lost(now, reference, kind=CaseKind.RESTORE)


def by_hand(now: datetime, reference: str) -> Case:
    return factories.case(
        CaseKind.BY_HAND, now, of=job(now, CaseKind.BY_HAND, reference), money_at_risk=Decimal(0)
    )


def late_result(now: datetime, reference: str) -> Case:
    """A person had given up; then the picture came."""
    of = factories.job(
        now, JobState.FAILED, reference=reference, reason="gave_up", reason_text="no answer", decided_at=now - 5 * MINUTE,
        created_at=now - 100 * MINUTE,
    )  # fmt: skip
    task = factories.accepted(
        of, now, armed_at=now - 90 * MINUTE, completed_at=now - MINUTE, stored_at=now - MINUTE, cost_poll=Decimal("7.84"),
        blocks_send=False, released_by="person", account=account(now),
    )  # fmt: skip
    factories.result(of, now, by=task, deliver=False)
    return _case(now, CaseKind.LATE_RESULT, task)


failed_but_charged = _send(
    CaseKind.FAILED_BUT_CHARGED, failed_at=89 * MINUTE, receipt_final_at=80 * MINUTE, cost_receipt=Decimal("7.84"),
    failure_class="down", failure_text="generation failed", last_status="failed",
)  # fmt: skip

# Each kind that holds a job up, and how the row looks that has it.
OF_KIND: Mapping[CaseKind, Callable[[datetime, str], Case]] = {
    CaseKind.UNKNOWN_SEND: lost,
    CaseKind.PAID_WITHOUT_RESULT: _send(
        CaseKind.PAID_WITHOUT_RESULT, completed_at=88 * MINUTE, cost_poll=Decimal("7.84"), last_status="completed"
    ),
    CaseKind.FAILED_BUT_CHARGED: failed_but_charged,
    CaseKind.LOST_AT_PROVIDER: _send(CaseKind.LOST_AT_PROVIDER, missing_since=70 * MINUTE),
    CaseKind.NEVER_ANSWERED: _send(CaseKind.NEVER_ANSWERED, polls=900),
    CaseKind.FETCH_FAILED: _send(
        CaseKind.FETCH_FAILED, completed_at=88 * MINUTE, cost_poll=Decimal("7.84"), fetch_failures=5,
        fetch_trouble="not downloaded: HTTP 404",
    ),
    CaseKind.CONFLICT: _send(CaseKind.CONFLICT),
    CaseKind.POISON: _send(CaseKind.POISON, deaths=3),
    CaseKind.RESTORE: restored,
    CaseKind.BY_HAND: by_hand,
    CaseKind.LATE_RESULT: late_result,
}  # fmt: skip


def png(hue: int = 120) -> bytes:
    out = io.BytesIO()
    factories.picture(hue).save(out, "PNG")
    return out.getvalue()

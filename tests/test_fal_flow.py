"""Jobs through fal's queue from the intent to their end, by a lane of ours against the sandbox's fal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from jobs.lane import LaneContext
from jobs.models import Case, ProviderTask
from jobs.pictures import PictureProcess
from jobs.states import JobState, Release
from providers import registry
from providers.adapters.fal import Fal
from providers.contract import Account, Charge
from providers.models import Account as AccountRow
from providers.models import Target
from tests.flow import Desk

pytestmark = [pytest.mark.flow, pytest.mark.django_db]


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


class FalDesk(Desk):
    """A desk whose account and target are fal's."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        key = Fal.sandbox_key
        fingerprint = registry.fingerprint(key)
        self.account = Account("fal", "http://fal.test/fal", fingerprint, key)
        self.account_row = AccountRow.objects.create(
            provider="fal", fingerprint=fingerprint, created_at=self.clock.now()
        )
        self.target = Target.objects.create(
            provider="fal", model=Fal.default_model, price=Fal.default_price, currency="USD"
        )

    def _lane(self, *args: Any) -> LaneContext:
        return replace(
            super()._lane(*args),
            accounts={"fal": self.account},
            account_ids={"fal": self.account_row.pk},
        )


@pytest.mark.parametrize(
    ("fate", "state", "charge", "released", "kinds"),
    [
        ("", JobState.SUCCEEDED, Charge.CHARGED, Release.STORED, []),
        ("cut_after_id", JobState.SUCCEEDED, Charge.CHARGED, Release.STORED, []),
        ("failed_timeout", JobState.FAILED, Charge.NONE, Release.FREE, ["refused_by_all"]),
        ("failed_charged", JobState.MANUAL, Charge.POSSIBLE, "", ["failed_but_charged"]),
        ("reset_after_accept", JobState.MANUAL, Charge.POSSIBLE, "", ["unknown_send"]),
    ],
)
def test_a_job_ends_as_fal_lets_it_end(
    settings: Settings,
    tmp_path: Path,
    pictures: PictureProcess,
    fate: str,
    state: JobState,
    charge: Charge,
    released: str,
    kinds: list[str],
) -> None:
    desk = FalDesk(settings, tmp_path, pictures)
    job = desk.job(f"a cat [[fault:{fate}]]" if fate else "a cat")
    desk.live(job)
    task = ProviderTask.objects.get(job=job)
    assert (job.state, task.charge, task.released_by) == (state, charge, released)
    cases = Case.objects.filter(job=job, resolved_at__isnull=True)
    assert [case.kind for case in cases] == kinds
    # Beside it there may be the desk's own canary.
    (made,) = (one for one in desk.world.ledger.tasks.values() if one.prompt == job.prompt)
    assert desk.world.ledger.standing(made.id) == (Decimal(0) if charge == Charge.NONE else made.price)  # fmt: skip
    assert len(desk.world.ledger.posts) == ProviderTask.objects.count()

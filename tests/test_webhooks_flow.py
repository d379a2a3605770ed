"""Jobs whose end a webhook tells, by a lane of ours, the view, and the sandbox; the hours pass by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.test import Client
from pytest_django import Settings

from jobs import hooks
from jobs.models import Case, Job, JobEvent, ProviderTask, Result
from jobs.pictures import PictureProcess
from jobs.states import JobState
from providers import webhooks
from providers.contract import Answer
from providers.sandbox.reactions import Request
from tests.flow import Desk
from tests.test_fal_flow import FalDesk

pytestmark = [pytest.mark.flow, pytest.mark.django_db]


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


class Called(Desk):
    """A desk that hears its sandbox's webhooks between two passes of the lane."""

    def switch_on(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        provider = self.account.provider
        settings.WEBHOOKS = frozenset({provider})
        settings.PUBLIC_URL = "http://localhost"
        settings.PROVIDER_KEYS = settings.PROVIDER_KEYS | {provider: self.account.key}
        ring = webhooks.KeyRing(self._keys)
        monkeypatch.setattr(hooks, "_ring_at", lambda url: ring)
        monkeypatch.setattr(hooks, "clock", self.clock)
        self.heard: list[int] = []  # what the view answered
        self.others: list[Job] = []  # whose end is waited for too
        self.client = Client()

    def _keys(self) -> Answer:
        reaction = self.world.handle(Request("GET", "/fal/.well-known/jwks.json"))
        return Answer(reaction.status, {}, reaction.body)

    def _ended(self, job: Job) -> bool:
        here = Request("GET", "/", headers={"host": urlsplit(self.account.base_url).netloc})
        for delivery in self.world.hooks.due(self.world.tick(), here):
            answer = self.client.post(
                urlsplit(delivery.url).path, delivery.body, content_type="application/json",
                headers=dict(delivery.headers),
            )  # fmt: skip
            self.heard.append(answer.status_code)
            self.world.hooks.answered(delivery, answer.status_code, self.clock.unix())
        ended = [super(Called, self)._ended(one) for one in (job, *self.others)]
        return all(ended)

    @property
    def reads(self) -> int:
        """Of status and result."""
        return self.world.ledger.requests["polls"] + self.world.ledger.requests["results"]


class CalledByPolza(Called):
    pass


class CalledByFal(Called, FalDesk):
    pass


@pytest.mark.parametrize(
    ("by", "fault", "heard", "reads", "hints"),
    [
        (CalledByFal, "", [200], 2, 1),
        (CalledByPolza, "", [200], 1, 1),
        # Whatever becomes of the call, the picture comes home once; at the latest the net finds it.
        (CalledByFal, "webhook_twice", [200, 200], 2, 1),
        (CalledByFal, "webhook_late=400", [200], 2, 0),
        (CalledByFal, "webhook_lost", [], 2, 0),
        (CalledByFal, "webhook_forged", [401] * 5, 2, 0),
        (CalledByFal, "webhook_old", [400] * 5, 2, 0),
        (CalledByPolza, "webhook_lost", [], 1, 0),
    ],
)
def test_a_job_ends_once_and_is_seldom_asked_about(
    settings: Settings,
    tmp_path: Path,
    pictures: PictureProcess,
    monkeypatch: pytest.MonkeyPatch,
    by: type[Called],
    fault: str,
    heard: list[int],
    reads: int,
    hints: int,
) -> None:
    desk = by(settings, tmp_path, pictures, latency_fixed_s=60)
    desk.switch_on(settings, monkeypatch)
    desk.canary = job = desk.job(f"a cat [[fault:{fault}]]" if fault else "a cat")
    desk.live(job)
    while desk.world.hooks.open:
        desk.clock.advance(10)
        desk._ended(job)
    assert (job.state, desk.heard) == (JobState.SUCCEEDED, heard)
    assert (desk.reads, Result.objects.count(), len(desk.world.ledger.posts)) == (reads, 1, 1)
    assert JobEvent.objects.filter(kind="hinted").count() == hints
    assert not Case.objects.exists()


def test_a_call_that_comes_too_early_makes_us_look_and_no_more(
    settings: Settings, tmp_path: Path, pictures: PictureProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = CalledByFal(settings, tmp_path, pictures, latency_fixed_s=300)
    desk.switch_on(settings, monkeypatch)
    desk.canary = job = desk.job("a cat [[fault:webhook_early]]")
    desk.live(job)
    assert (job.state, desk.heard) == (JobState.SUCCEEDED, [200])
    assert Result.objects.count() == 1


@pytest.mark.parametrize(
    ("fault", "latency_s", "case"),
    [
        ("reset_after_accept", 60, False),
        ("edge_504_after", 60, False),
        ("hang_after_accept", 7200, True),
    ],
)
def test_a_lost_send_at_fal_comes_home_by_its_webhook(
    settings: Settings,
    tmp_path: Path,
    pictures: PictureProcess,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    latency_s: float,
    case: bool,
) -> None:
    """Without one it stays a case: fal has no listing to search. Late, one was opened meanwhile."""
    desk = CalledByFal(settings, tmp_path, pictures, fault=fault, latency_fixed_s=latency_s)
    desk.switch_on(settings, monkeypatch)
    desk.canary = job = desk.job()
    desk.live(job)
    task = ProviderTask.objects.get(job=job)
    assert (job.state, task.state, desk.heard) == (JobState.SUCCEEDED, "stored", [200])
    cases = [(one.kind, one.resolved_at is not None) for one in Case.objects.all()]
    assert cases == ([("unknown_send", True)] if case else [])
    assert len(desk.world.ledger.posts) == 1

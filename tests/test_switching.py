"""Where a job goes: what moves it to the next target of its route, what does not, and what it waits for.

The real stages against two accounts, each a world of its own (tests/switchboard.py); their ledgers judge.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from jobs import engine
from jobs.lifecycle import arm, limits, providers
from jobs.lifecycle.record import Fact, record
from jobs.models import Case, JobEvent, ProviderTask
from jobs.phases import why_waiting
from jobs.pictures import PictureProcess
from providers import registry
from providers.models import ProviderEvent, ProviderState, Target
from providers.word import Word, word
from tests.flow import LIMITS, MODEL
from tests.switchboard import FIRST, SECOND, Switchboard

pytestmark = [pytest.mark.flow, pytest.mark.django_db]

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = LIMITS.concurrency
Make = Callable[..., Switchboard]


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


@pytest.fixture
def make(settings: Settings, tmp_path: Path, pictures: PictureProcess) -> Make:
    def board(**values: Any) -> Switchboard:
        return Switchboard(settings, tmp_path, pictures, **values)

    return board


def switched() -> int:
    """Jobs that the claim moved."""
    return JobEvent.objects.filter(kind="switched").count()


def down(board: Switchboard, provider: str = FIRST, **values: Any) -> None:
    now = board.clock.now()
    told = {
        "gate": "open", "cause": "failures", "opened_at": now, "next_try_at": now + timedelta(hours=1), "open_s": 3600.0,
        "reason": "HTTP 503",
    } | values  # fmt: skip
    ProviderState.objects.create(
        account=board.rows[provider], model="", state="down", since=now, **told
    )


def block(board: Switchboard, provider: str, seconds: float, kind: str = "quota_exhausted") -> None:
    now = board.clock.now()
    ProviderState.objects.create(
        account=board.rows[provider], model="", state=kind, block=kind, since=now,
        blocked_until=now + timedelta(seconds=seconds), reason="weekly limit",
    )  # fmt: skip


# --- quota ------------------------------------------------------------------------------------------------------------


def test_a_used_up_quota_is_met_once_and_everybody_else_goes_round_it(make: Make) -> None:
    board = make(first={"key_limit": 20 * 5})
    board.order(50)
    board.work(60)
    assert board.states() == {"succeeded": 50}
    refused = [post for post in board.posts(FIRST) if not post.accepted]
    assert 1 <= len(refused) <= AT_ONCE
    assert max(post.at for post in board.posts(FIRST)) == refused[-1].at
    assert len(board.posts(FIRST)) - len(refused) == 20
    assert len(board.posts(SECOND)) == 30
    assert switched() == 30 - len(refused)
    assert board.events(FIRST) == ["quota_exhausted"]
    assert board.events(SECOND) == []
    assert word(board.state(FIRST).health(), now=board.clock.now()).word is Word.QUOTA_EXHAUSTED
    assert board.wrong() == []


def test_a_refusals_place_is_free_only_once_its_block_stands(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded first, its place was given to a job that ran into the same refusal."""
    board = make(first={"key_limit": 0})
    blocks: list[bool] = []

    def watched(*, facts: list[Fact]) -> set[int]:
        if any(fact.refusal_class is not None for fact in facts):
            blocks.append(ProviderState.objects.filter(block="quota_exhausted").exists())
        return record(facts=facts)

    monkeypatch.setattr(engine, "record", watched)
    board.order(3)
    board.work(4)
    assert blocks
    assert all(blocks)


@pytest.mark.parametrize(
    ("wait_s", "moves"), [(LIMITS.patience_s - 1, False), (LIMITS.patience_s + 60, True)]
)
def test_a_wait_within_the_jobs_patience_is_waited_for_and_a_longer_one_is_not(
    make: Make, wait_s: float, moves: bool
) -> None:
    board = make()
    block(board, FIRST, wait_s, "throttled")
    board.order()
    board.work(10)
    assert bool(board.posts(SECOND)) is moves
    board.work(LIMITS.patience_s + 40, step_s=10)
    assert board.states() == {"succeeded": 1}
    assert (len(board.posts(FIRST)), len(board.posts(SECOND))) == (int(not moves), int(moves))


def test_an_answer_is_dated_no_earlier_than_it_came(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of requests count from it: too early, and ours opens before the provider's, which sees one more."""
    board = make()
    plain = arm.arm

    def slowly(**values: Any) -> Any:
        board.clock.advance(3)  # a busy machine, between the claim and the call
        return plain(**values)

    monkeypatch.setattr(arm, "arm", slowly)
    board.order()
    board.work(3)
    [post] = board.posts(FIRST)
    [task] = ProviderTask.objects.all()
    assert task.accepted_at is not None
    assert task.accepted_at.timestamp() >= post.at


# --- the breaker ------------------------------------------------------------------------------------------------------


@pytest.mark.condition("R75")
def test_an_open_breaker_is_gone_round_before_any_call(make: Make) -> None:
    """R75: with a breaker configured, every request still waited for the first target."""
    board = make()
    down(board)
    board.order(15)
    board.work(40)
    assert board.states() == {"succeeded": 15}
    assert board.posts(FIRST) == []
    assert not board.worlds[FIRST].ledger.requests, (
        "neither a send nor a read: its next try is an hour off"
    )
    assert switched() == 15
    told = JobEvent.objects.filter(kind="switched").values_list("data", flat=True)[0]
    assert told == {"target": MODEL, "from_target": MODEL}


@pytest.mark.condition("R75")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FALLBACK_ON", "refused,timeout"),
        ("AI_MODEL_FALLBACK", "google/gemini-3.1-flash-image-preview"),
    ],
)
def test_a_fallback_that_can_not_be_done_is_refused_at_the_start(name: str, value: str) -> None:
    """A word that nothing acts on, and a fallback that is the primary itself."""
    done = _check(**{name: value})
    assert done.returncode != 0
    assert name in done.stderr


def test_after_an_outage_the_work_comes_back_to_the_first(make: Make) -> None:
    board = make()
    board.worlds[FIRST].start_outage("503", scope="posts")
    board.order(20)
    board.work(20)
    assert board.events(FIRST) == ["opened"]
    lost = len(board.posts(FIRST))
    assert 5 <= lost <= AT_ONCE + 5
    board.order(5)
    board.work(12)
    assert len(board.posts(FIRST)) == lost, "nobody asks what is down"
    board.worlds[FIRST].stop_outage()
    board.work(60)
    assert board.events(FIRST) == ["opened", "half_open"], "no job waits, so none is the probe"
    [probe, *_others] = board.order(5)
    board.work(2)
    assert len(board.posts(FIRST)) == lost + 1
    assert board.state(FIRST).probe_id == ProviderTask.objects.get(job=probe).pk
    board.work(40)
    assert board.events(FIRST)[2:] == ["probe_taken", "closed"]
    before = len(board.posts(SECOND))
    board.order(5)
    board.work(60)
    assert len(board.posts(SECOND)) == before, "the first takes all again"
    assert board.states() == {"succeeded": 35}
    assert board.charged() == 35
    assert board.wrong() == []


def test_a_rejected_key_sends_the_others_to_the_other_account(make: Make) -> None:
    board = make(first={"revoked_keys": ["pza_first"]})
    board.order(30)
    board.work(60)
    assert board.states() == {"succeeded": 30}
    assert 1 <= len(board.posts(FIRST)) <= AT_ONCE
    assert board.events(FIRST) == ["key_rejected"]


def test_what_staff_have_paused_waits_for_staff(make: Make) -> None:
    board = make()
    providers.pause(
        account_id=board.rows[FIRST].pk, actor=None, now=board.clock.now(), reason="the bill"
    )
    [job] = board.order()
    board.work(60)
    assert board.posts(FIRST) == board.posts(SECOND) == []
    assert "paused by staff" in why_waiting([job], board.clock.now())[job.pk].text
    providers.resume(account_id=board.rows[FIRST].pk, actor=None, now=board.clock.now())
    board.work(20)
    assert board.states() == {"succeeded": 1}
    assert board.posts(SECOND) == []


@pytest.mark.parametrize("word_left_out", ["quota", "down"])
def test_what_fallback_on_leaves_out_is_waited_for(
    make: Make, settings: Settings, word_left_out: str
) -> None:
    settings.FALLBACK_ON = frozenset({"refused", "quota", "down"} - {word_left_out})
    board = make()
    if word_left_out == "quota":
        block(board, FIRST, 600)
    else:
        down(board)
    board.order(3)
    board.work(60)
    assert board.posts(FIRST) == board.posts(SECOND) == []
    assert board.states() == {"pending": 3}


# --- nothing takes anything -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first_s", "second_s", "goes_to"), [(300, 900, FIRST), (900, 300, SECOND)]
)
def test_where_all_are_blocked_jobs_wait_with_a_reason_and_go_on_by_themselves(
    make: Make, first_s: float, second_s: float, goes_to: str
) -> None:
    board = make()
    until = board.clock.now() + timedelta(seconds=first_s)
    block(board, FIRST, first_s)
    block(board, SECOND, second_s)
    jobs = board.order(5)
    board.work(280, step_s=20)
    assert board.states() == {"pending": 5}
    assert board.posts(FIRST) == board.posts(SECOND) == []
    told = why_waiting(jobs, board.clock.now())[jobs[0].pk]
    assert told.text == f"waiting for {board.targets[FIRST].name}: quota exhausted"
    assert told.until == until
    board.work(80)
    assert board.states() == {"succeeded": 5}
    assert {len(board.posts(name)) for name in (FIRST, SECOND) if name != goes_to} == {0}
    assert not Case.objects.exists()


# --- what never moves a job -------------------------------------------------------------------------------------------

# Made and paid at the first, although its answer does not say so.
AMBIGUOUS = [
    "reset_after_accept", "hang_after_accept", "cut_before_id", "edge_502_after", "internal_after", "own_504_after",
    "ok_no_id_after",
]  # fmt: skip


@pytest.mark.parametrize("fault", AMBIGUOUS)
def test_an_ambiguous_answer_never_moves_a_job(make: Make, fault: str) -> None:
    board = make(first={"faults": {fault: 1.0}})
    board.order(2)
    board.work(400, step_s=10)
    assert board.posts(SECOND) == []
    assert board.states() == {"succeeded": 2}
    assert board.charged() == len(board.posts(FIRST)) == 2


# Nothing was made, but only the history can say so.
ABSENT = ["reset_before_accept", "hang_before_accept", "internal", "edge_502"]


@pytest.mark.parametrize("fault", ABSENT)
def test_what_may_have_been_made_is_not_sent_elsewhere_before_there_is_evidence(
    make: Make, fault: str
) -> None:
    board = make(first={"faults": {fault: 1.0}})
    [job] = board.order()
    board.work(20)
    [task] = ProviderTask.objects.filter(job=job)
    assert (task.state, task.charge, task.blocks_send) == ("unknown", "possible", True)
    assert board.posts(SECOND) == []
    assert len(board.posts(FIRST)) == 1


def test_a_slow_job_stays_where_it_is_while_its_provider_is_down(make: Make) -> None:
    board = make(first={"latency_fixed_s": 100})
    board.order(3)
    board.work(10)
    board.worlds[FIRST].start_outage("503", scope="all", seconds=200)
    board.work(500, step_s=10)
    assert board.posts(SECOND) == []
    assert board.states() == {"succeeded": 3}
    assert board.charged() == 3


# --- refusals of the content ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked_for", [True, False])
def test_a_refused_content_moves_only_where_that_was_asked_for_and_is_nobodys_fault(
    make: Make, settings: Settings, asked_for: bool
) -> None:
    settings.FALLBACK_ON = frozenset({"quota", "down"} | ({"refused"} if asked_for else set()))
    board = make(first={"faults": {"moderation": 1.0}})
    board.order(12)
    board.work(30)
    assert board.states() == ({"succeeded": 12} if asked_for else {"failed": 12})
    assert (len(board.posts(FIRST)), len(board.posts(SECOND))) == (12, 12 if asked_for else 0)
    assert not ProviderState.objects.exists()
    assert not ProviderEvent.objects.exists()
    assert all(target.open for target in Target.objects.all())


# --- how often --------------------------------------------------------------------------------------------------------

# What both accounts answer to everything -> POSTs that the first and the second see. FREE_REFUSAL_ATTEMPTS is 3.
ALWAYS = {
    "rate_limited_seconds=2": (3, 3),
    "rate_limited": (3, 3),
    "overloaded": (1, 3),  # down: the next at once, and the last of the route gets its tries
    "moderation": (1, 1),
    "bad_request": (1, 1),
    "no_balance": (1, 1),  # then both are blocked, and the job waits
}


@pytest.mark.parametrize("fault", ALWAYS)
def test_each_provider_sees_as_many_posts_as_are_configured(
    make: Make, settings: Settings, fault: str
) -> None:
    settings.FREE_REFUSAL_ATTEMPTS = 3
    answer = {"faults": {fault: 1.0}}
    board = make(first=answer, second=answer)
    board.order()
    board.work(300, step_s=10)
    assert (len(board.posts(FIRST)), len(board.posts(SECOND))) == ALWAYS[fault]
    assert board.states() == {"pending" if fault == "no_balance" else "failed": 1}
    assert board.charged() == 0
    assert board.wrong() == []


# --- a wrong model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fallback", [True, False])
def test_a_wrong_model_stops_its_target_and_fails_nobody(make: Make, fallback: bool) -> None:
    board = make()
    wrong = board.target(FIRST, "unknown/painter")
    jobs = board.order(40, route=[wrong, board.targets[SECOND]] if fallback else [wrong])
    board.work(60)
    assert 1 <= len(board.posts(FIRST)) <= AT_ONCE
    assert board.states() == ({"succeeded": 40} if fallback else {"pending": 40})
    assert len(board.posts(SECOND)) == (40 if fallback else 0)
    wrong.refresh_from_db()
    assert wrong.stopped_reason
    assert board.events(FIRST) == ["target_stopped"], "one notice, and no outage"
    assert not ProviderState.objects.exists()
    if not fallback:
        assert "is closed" in why_waiting(jobs, board.clock.now())[jobs[0].pk].text
        Target.objects.filter(pk=wrong.pk).update(model="known/painter")
        limits.open_target(target_id=wrong.pk, actor=None, now=board.clock.now())
        board.work(60)
        assert board.states() == {"succeeded": 40}


def test_jobs_of_a_wrong_model_wait_where_refusals_are_no_reason_to_go_elsewhere(
    make: Make, settings: Settings
) -> None:
    settings.FALLBACK_ON = frozenset({"quota", "down"})
    board = make()
    wrong = board.target(FIRST, "unknown/painter")
    board.order(15, route=[wrong, board.targets[SECOND]])
    board.work(60)
    assert board.states() == {"pending": 15}
    assert board.posts(SECOND) == []


def test_a_target_that_staff_have_closed_is_not_gone_round(make: Make) -> None:
    board = make()
    Target.objects.filter(pk=board.targets[FIRST].pk).update(enabled=False)
    board.order(3)
    board.work(20)
    assert board.states() == {"pending": 3}
    assert board.posts(SECOND) == []


# --- a second account of a provider -----------------------------------------------------------------------------------


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {
        "DEMO": "1",
        "DATABASE_URL": "postgres://nobody@127.0.0.1/none",
        "PATH": os.environ["PATH"],
    }
    empty = dict.fromkeys(
        ("AI_PROVIDER", "AI_MODEL", "AI_MODEL_FALLBACK", "AI_ACCOUNTS", "FALLBACK_ON"), ""
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=plain | empty | environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def _check(**environment: str) -> subprocess.CompletedProcess[str]:
    """What `manage.py check` says to an environment."""
    code = (
        "import os, sys; os.environ['DJANGO_SETTINGS_MODULE'] = 'studio.settings';"
        "from django.core.management import execute_from_command_line as run; run(['manage.py', 'check'])"
    )
    return _run(code, **environment)


def test_a_second_account_has_its_own_key_and_address_and_the_same_adapter() -> None:
    code = (
        "import os, django; os.environ['DJANGO_SETTINGS_MODULE'] = 'studio.settings'; django.setup();"
        "from providers import registry as r; a, b = r.account('polza'), r.account('polza_b');"
        "print(a.fingerprint != b.fingerprint, b.provider, b.base_url, r.adapter('polza_b') is r.adapter('polza'),"
        " r.split_target('polza_b:google/veo3'))"
    )
    done = _run(
        code, AI_ACCOUNTS="polza_b=polza", POLZA_API_KEY="pza_a", POLZA_B_API_KEY="pza_b",
        POLZA_B_BASE_URL="http://127.0.0.1:1/api/v1",
    )  # fmt: skip
    assert done.stdout.strip() == (
        "True polza_b http://127.0.0.1:1/api/v1 True ('polza_b', 'google/veo3')"
    ), done.stderr


@pytest.mark.parametrize(
    "accounts",
    [
        "polza_b",
        "polza_b=nobody",
        "polza=polza",
        "Polza=polza",
        "b:c=polza",
        "ai=polza",
        "b=polza,b=polza",
    ],
)
def test_an_account_that_makes_no_sense_stops_the_start(accounts: str) -> None:
    done = _check(AI_ACCOUNTS=accounts)
    assert done.returncode != 0
    assert "AI_ACCOUNTS" in done.stderr


def test_an_unknown_account_is_no_provider() -> None:
    assert registry.split_target("polza_c:google/veo3")[1] == "polza_c:google/veo3"

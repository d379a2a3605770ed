"""The commands for whoever is on call: what they print, what they change, and what their exit codes mean."""

from __future__ import annotations

import io
import json
import re
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings

from jobs import prompt_files
from jobs.clock import clock
from jobs.models import Batch, Case, Hold, Job, JobEvent
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from providers import registry
from providers.models import Account
from providers.sandbox.server import running_sandbox
from tests import factories

pytestmark = pytest.mark.django_db
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def now() -> datetime:
    return clock.now()


def run(*words: str) -> tuple[int, str]:
    """Exit code and what was printed."""
    out = io.StringIO()
    try:
        call_command(*words, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    except CommandError as error:
        return error.returncode, str(error)
    return 0, out.getvalue()


def told(*words: str) -> tuple[int, Any]:
    code, text = run(*words, "--json")
    return code, json.loads(text)


def state(job: Job) -> str:
    return Job.objects.get(pk=job.pk).state


# --- generate ---------------------------------------------------------------------------------------------------------


def test_one_job_is_one_job_and_several_are_several() -> None:
    assert "1 job created (batch" in run("generate", "A lighthouse")[1]
    assert "3 jobs created (batch" in run("generate", "A lighthouse", "--count", "3")[1]


def test_copies_get_numbers_behind_their_reference() -> None:
    run("generate", "A lighthouse", "--reference", "B-1")
    assert list(Job.objects.values_list("reference", flat=True)) == ["B-1"]
    code, answer = told("generate", "A lighthouse", "--count", "3", "--reference", "B-2")
    assert code == 0
    assert [row["reference"] for row in answer["jobs"]] == ["B-2-1", "B-2-2", "B-2-3"]


def test_a_long_reference_keeps_room_for_its_number() -> None:
    code, answer = told("generate", "A lighthouse", "--count", "10", "--reference", "x" * 200)
    assert code == 0
    references = [row["reference"] for row in answer["jobs"]]
    assert {len(reference) for reference in references} == {200}
    assert len(set(references)) == 10


# --- jobs list, jobs show ---------------------------------------------------------------------------------------------


def test_the_list_says_in_words_why_each_job_waits(now: datetime) -> None:
    job = factories.job(now, reference="B-1")
    Hold.objects.create(kind=Hold.Kind.RED_BUTTON, set_at=now)
    code, text = run("jobs", "list")
    assert code == 0
    assert f"#{job.pk}  waiting" in text
    assert "all sends are held: red button" in text


def test_the_filters_narrow_the_list_together(now: datetime) -> None:
    dealer = factories.tenant("dealer")
    batch = Batch.objects.create(tenant=dealer, created_at=now)
    wanted = factories.job(now, JobState.FAILED, tenant=dealer, reference="VIN-1", batch=batch)
    factories.job(now, tenant=dealer, reference="VIN-2", batch=batch)
    factories.job(now, JobState.FAILED, tenant=dealer, reference="B-1")
    factories.job(now, JobState.FAILED, reference="VIN-3")
    code, answer = told(
        "jobs", "list", "--state", "failed", "--tenant", "dealer", "--reference", "VIN", "--batch", str(batch.pk),
    )  # fmt: skip
    assert code == 0
    assert [row["id"] for row in answer["jobs"]] == [wanted.pk]
    assert answer["jobs"][0]["tenant"] == "dealer"


def test_a_tenant_or_batch_that_does_not_exist_is_bad_input() -> None:
    assert run("jobs", "list", "--tenant", "nobody") == (2, "“nobody” is not a tenant.")
    assert run("jobs", "list", "--batch", "77") == (2, "There is no batch 77.")
    assert run("jobs", "show", "77") == (2, "There is no job 77.")


def test_show_tells_sends_cases_and_timeline(now: datetime) -> None:
    job = factories.everything(now)["unknown"]
    code, answer = told("jobs", "show", str(job.pk))
    assert code == 0
    assert answer["phase"] == "manual"
    assert [send["state"] for send in answer["sends"]] == ["unknown"]
    assert answer["sends"][0]["estimated_cost"] == "8"
    assert [case["kind"] for case in answer["cases"]] == ["unknown_send"]
    assert "armed" in [event["kind"] for event in answer["events"]]
    code, text = run("jobs", "show", str(job.pk))
    assert code == 0
    assert "outcome unknown  charge possible  ≈\xa0₽8.00" in text
    assert "case       sent, outcome unknown  open" in text
    assert "phase      needs a person" in text
    assert "reason     sent, outcome unknown" in text


def test_people_read_words_and_programs_constants(now: datetime) -> None:
    factories.everything(now)
    code, text = run("jobs", "list", "--limit", "100")
    assert code == 0
    assert not re.findall(r"[a-z]+_[a-z]+", text)
    for words in ("checking what it cost", "late, still watched", "at the provider", "needs a person"):  # fmt: skip
        assert words in text
    code, answer = told("jobs", "list", "--limit", "100")
    assert {"checking_cost", "at_provider", "manual"} <= {row["phase"] for row in answer["jobs"]}
    for job in Job.objects.all():
        lines = run("jobs", "show", str(job.pk))[1].splitlines()
        told_words = [line for line in lines if not line.startswith("file ") and "gen_" not in line]
        assert not re.findall(r"[a-z]+_[a-z]+", "\n".join(told_words))


# --- verbs ------------------------------------------------------------------------------------------------------------


def test_retry_by_filter_does_each_and_names_the_one_that_refuses(now: datetime) -> None:
    free = factories.job(now, JobState.FAILED, reference="X-1")
    paid = factories.job(now, JobState.FAILED, reference="X-2")
    factories.lost(paid, now)
    code, answer = told("jobs", "retry", "--reference", "X-")
    assert code == 3
    assert [(row["id"], row["done"]) for row in answer["jobs"]] == [
        (free.pk, True),
        (paid.pk, False),
    ]
    assert "may have cost 8 RUB" in answer["jobs"][1]["refused"]
    assert (state(free), state(paid)) == (JobState.PENDING, JobState.FAILED)


def test_a_dry_run_says_the_same_and_changes_nothing(now: datetime) -> None:
    free = factories.job(now, JobState.FAILED)
    paid = factories.job(now, JobState.FAILED)
    factories.lost(paid, now)
    before = JobEvent.objects.count()
    code, answer = told("jobs", "retry", "--state", "failed", "--dry-run")
    assert code == 3
    assert [row["done"] for row in answer["jobs"]] == [True, False]
    assert (state(free), JobEvent.objects.count()) == (JobState.FAILED, before)


def test_a_verb_needs_jobs_to_be_named() -> None:
    code, text = run("jobs", "cancel")
    assert code == 2
    assert text.startswith("Say which jobs")


def test_one_unknown_number_stops_all_before_anything_changes(now: datetime) -> None:
    job = factories.job(now)
    assert run("jobs", "cancel", str(job.pk), "999999") == (2, "No such jobs: 999999.")
    assert state(job) == JobState.PENDING


def test_manual_resolve_and_cancel_leave_their_words_and_their_author(now: datetime) -> None:
    factories.staff(Role.OPERATOR, name="anna")
    by_hand, given_up, cancelled = (factories.job(now) for _ in range(3))
    assert run("jobs", "manual", str(by_hand.pk), "--note", "calls back", "--as", "anna")[0] == 0
    code, _ = run(
        "jobs", "resolve", str(given_up.pk), "--outcome", "gave_up", "--note", "no money", "--as", "anna",
    )  # fmt: skip
    assert code == 0
    assert run("jobs", "cancel", str(cancelled.pk), "--reason", "twice", "--as", "anna")[0] == 0
    assert [state(job) for job in (by_hand, given_up, cancelled)] == [
        "manual",
        "failed",
        "cancelled",
    ]
    assert Case.objects.get(job=by_hand).kind == CaseKind.BY_HAND
    actors = JobEvent.objects.exclude(actor=None).values_list("actor__username", flat=True)
    assert list(actors) == ["anna"] * 3


def test_a_decision_in_the_name_of_nobody_known_is_bad_input(now: datetime) -> None:
    job = factories.job(now)
    assert run("jobs", "cancel", str(job.pk), "--as", "ghost")[0] == 2
    assert state(job) == JobState.PENDING


# --- hold -------------------------------------------------------------------------------------------------------------


def test_the_red_button_is_pressed_with_a_reason_and_lifted_with_or_without_one() -> None:
    assert run("hold", "press", "--reason", "prices doubled")[0] == 0
    assert Hold.objects.get().reason == "prices doubled"
    assert run("hold", "lift")[0] == 0
    assert Hold.objects.get().lifted_at is not None
    assert run("hold", "lift", "--reason", "again") == (3, "The red button is not pressed.")


def test_the_red_button_wants_a_reason() -> None:
    assert run("hold", "press") == (2, "Say why, with --reason.")
    assert run("hold", "press", "--reason", "  ")[0] == 2
    assert not Hold.objects.exists()


# --- stuck ------------------------------------------------------------------------------------------------------------


def test_stuck_ends_with_three_where_it_finds_something(now: datetime) -> None:
    assert run("stuck") == (0, "Nothing is stuck.\n")
    job = factories.job(now, JobState.ACTIVE)
    code, answer = told("stuck")
    assert code == 3
    assert answer["stuck"] == [
        {
            "kind": "job",
            "id": str(job.pk),
            "code": "nothing_under_way",
            "why": "is active with nothing under way",
        }
    ]


# --- providers --------------------------------------------------------------------------------------------------------


def test_providers_tells_states_in_words_with_their_end(now: datetime) -> None:
    factories.provider_state(
        now, "throttled", reason="HTTP 429", blocked_until=now + timedelta(minutes=5)
    )
    factories.provider_state(now, "quota_exhausted", model="over", blocked_until=now)
    factories.target("over", max_in_flight=3)
    factories.target("wrong", stopped_at=now, stopped_reason="no such model")
    factories.accepted(factories.job(now, JobState.ACTIVE), now)
    code, answer = told("providers")
    assert code == 0
    (account,) = answer["accounts"]
    assert account["words"].startswith("throttled until")
    assert account["reason"] == "HTTP 429"
    assert account["until"] == (now + timedelta(minutes=5)).isoformat()
    models = {row["name"]: row for row in account["models"]}
    assert models["polza:over"]["words"] == account["words"]
    assert models["polza:over"]["limit"] == 3
    assert models["polza:wrong"]["words"] == "stopped"
    assert models[f"polza:{factories.MODEL}"]["in_flight"] == 1
    code, text = run("providers")
    assert code == 0
    assert "In flight: 1 of 5" in text
    assert "throttled until" in text


def test_providers_says_so_where_nothing_was_ever_asked() -> None:
    code, text = run("providers")
    assert code == 0
    assert "No account has been used yet." in text


@pytest.mark.flow
def test_the_balance_is_read_and_kept(now: datetime) -> None:
    with running_sandbox(balance=41.5) as sandbox:
        base = {"polza": sandbox.api_url}
        with override_settings(PROVIDER_BASE_URLS=base, PROVIDER_KEYS={"polza": "pza_test"}):
            factories.account(now, fingerprint=registry.fingerprint("pza_test"))
            code, answer = told("providers", "--balance")
            assert code == 0
            assert answer["accounts"][0]["balance"] == "41.5"
            assert Account.objects.get().balance == Decimal("41.5")
            sandbox.control("outage/start", kind="503")
            code, answer = told("providers", "--balance")
            assert code == 3
            assert answer["accounts"][0]["balance_trouble"] == "not told (HTTP 503)"


# --- the example ------------------------------------------------------------------------------------------------------


def test_the_example_file_holds_sixty_good_prompts_in_three_languages() -> None:
    with (EXAMPLES / "prompts.csv").open("rb") as file:
        rows, refused = prompt_files.read_csv(file)
    assert (len(rows), refused) == (60, [])
    assert len({row.prompt for row in rows}) == len({row.reference for row in rows}) == 60
    languages = [row.reference.split("-")[0] for row in rows]
    assert [languages.count(name) for name in ("RU", "FA", "EN")] == [20, 20, 20]

"""Who may do what: each role, each verb, by the button, by a direct POST, by the command in their name.

The verbs are read from the pages themselves: a new one without a row here fails.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.contrib.auth.models import AbstractBaseUser
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from jobs import attach, balance
from jobs.admin import holds, provider_verbs
from jobs.admin.confirm import VerbsMixin
from jobs.clock import clock
from jobs.lifecycle import tokens
from jobs.models import (
    ApiToken,
    Batch,
    BulkRun,
    Callback,
    Case,
    Hold,
    Job,
    Lane,
    Orphan,
    PolzaTask,
    ProviderTask,
    SpoolHost,
    Tenant,
)
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from providers import registry
from providers.models import Account, QuotaWindow, Target
from tests import factories

pytestmark = pytest.mark.django_db

KEY = "pza_test"
OPERATOR = frozenset({Role.OPERATOR, Role.OWNER})
OWNER = frozenset({Role.OWNER})
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Row:
    """`thing`: makes what the verb is offered for, anew. `data`: what its form needs. `command`: the words behind
    `manage.py`, for the thing; None where there is no such command."""

    roles: frozenset[Role]
    thing: Callable[[datetime], Any]
    data: Callable[[Any], dict[str, Any]]
    command: Callable[[Any], list[str]] | None


# --- things that a verb is offered for --------------------------------------------------------------------------------


def refused(now: datetime) -> Job:
    job = factories.job(now, JobState.FAILED)
    factories.task(job, now, blocks_send=False, refusal_class="rejected", refused_at=now)
    return job


def waiting(now: datetime) -> Job:
    factories.target("other")
    return factories.job(now)


def two_results(now: datetime) -> Job:
    job = factories.done(now)
    factories.result(job, now, deliver=False)
    return job


def of_lost(now: datetime) -> Job:
    job: Job = lost(now).job
    return job


def lost(now: datetime) -> ProviderTask:
    SpoolHost.objects.update_or_create(host="desk-1", defaults={"clear_at": now})
    return factories.lost(
        factories.job(now, JobState.MANUAL), now, armed_at=now - 90 * MINUTE, candidates=[{"id": "gen_1"}]
    )  # fmt: skip


def at_provider(now: datetime) -> ProviderTask:
    return factories.accepted(factories.job(now, JobState.ACTIVE), now)


def charged(now: datetime) -> ProviderTask:
    return factories.accepted(
        factories.job(now, JobState.MANUAL), now, failed_at=now, cost_receipt=Decimal(8), receipt_final_at=now
    )  # fmt: skip


def token(now: datetime) -> ApiToken:
    return tokens.issue(
        tenant=factories.tenant(), name="site", scopes=["read"], actor=None, now=now
    ).token


def case(now: datetime) -> Any:
    return factories.case(CaseKind.PAID_TWICE, now, of=factories.done(now))


def dead_callback(now: datetime) -> Callback:
    job = factories.job(now, JobState.FAILED)
    return Callback.objects.create(
        tenant=job.tenant, job=job, kind="job.failed", url="https://shop.example/", at=now, given_up_at=now, tries=9,
        case=factories.case(CaseKind.DEAD_CALLBACK, now, of=job),
    )  # fmt: skip


def of_dead_callback(now: datetime) -> Any:
    return dead_callback(now).case


def tenant(_now: datetime) -> Tenant:
    return factories.tenant()


def batch(state: JobState = JobState.PENDING, **values: Any) -> Callable[[datetime], Batch]:
    def make(now: datetime) -> Batch:
        factories.target("other")
        made = Batch.objects.create(tenant=factories.tenant(), created_at=now, **values)
        factories.job(now, state, batch=made)
        return made

    return make


def paused(now: datetime) -> Batch:
    return batch(paused_at=now)(now)


def orphan(now: datetime) -> Orphan:
    return Orphan.objects.create(
        provider="polza", provider_id=f"gen_{Orphan.objects.count()}", account=factories.account(now), currency="RUB",
        cost=Decimal(8), found_at=now,
    )  # fmt: skip


def run(now: datetime) -> BulkRun:
    return BulkRun.objects.create(verb="retry", created_at=now, total=3)


def account(now: datetime) -> Account:
    return factories.account(now, fingerprint=registry.fingerprint(KEY))


def account_that(**values: Any) -> Callable[[datetime], Account]:
    def make(now: datetime) -> Account:
        made = account(now)
        Account.objects.filter(pk=made.pk).update(alerts_silenced=False)
        state: dict[str, Any] = {
            name: now + by if isinstance(by, timedelta) else by for name, by in values.items()
        }
        factories.provider_state(now, account=made, **state)
        return made

    return make


def silenced(now: datetime) -> Account:
    made = account(now)
    Account.objects.filter(pk=made.pk).update(alerts_silenced=True)
    return made


def stopped_target(now: datetime) -> Account:
    over = factories.target("over")
    Target.objects.filter(pk=over.pk).update(stopped_at=now, stopped_reason="no such model")
    return account(now)


def open_target(now: datetime) -> Account:
    over = factories.target("over")
    Target.objects.filter(pk=over.pk).update(max_in_flight=None)
    return account(now)


def windowed(now: datetime) -> Account:
    made = account(now)
    QuotaWindow.objects.get_or_create(account=made, seconds=60, defaults={"most": 5})
    return made


def lane(*, run_id: bool = False, closed: bool = False) -> Callable[[datetime], Lane]:
    """Beside another one at work."""

    def make(now: datetime) -> Lane:
        Lane.objects.all().delete()
        values = {"run_id": uuid.uuid4(), "heartbeat_at": now} if run_id else {}
        made = Lane.objects.create(slot=1, closed_at=now if closed else None, **values)
        Lane.objects.create(slot=2)
        return made

    return make


def nothing(now: datetime) -> None:
    Hold.objects.all().delete()


def held(now: datetime) -> None:
    Hold.objects.get_or_create(kind=Hold.Kind.RED_BUTTON, lifted_at=None, defaults={"set_at": now})


# --- the matrix -------------------------------------------------------------------------------------------------------


def _none(_thing: Any) -> dict[str, Any]:
    return {}


def _with(**data: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda _thing: data


def _jobs(*words: str, more: tuple[str, ...] = ()) -> Callable[[Any], list[str]]:
    return lambda thing: ["jobs", words[0], str(thing.pk), *words[1:], *more]


def _batches(verb: str) -> Callable[[Any], list[str]]:
    return lambda thing: ["batches", verb, str(thing.pk)]


def _cases(verb: str, *more: str) -> Callable[[Any], list[str]]:
    return lambda thing: ["cases", verb, str(thing.pk), *more]


def _of_orphan(verb: str, *more: str) -> Callable[[Any], list[str]]:
    def words(thing: Orphan) -> list[str]:
        now = thing.found_at
        made = Case.objects.create(
            kind=CaseKind.ORPHAN, orphan=thing, opened_at=now, due_at=now, currency="RUB"
        )
        return ["cases", verb, str(made.pk), *more]

    return words


def _providers(verb: str, *more: str) -> Callable[[Any], list[str]]:
    return lambda thing: ["providers", verb, thing.fingerprint, *more]


def _tenant(_thing: Any) -> dict[str, Any]:
    return {"tenant": factories.tenant().pk}


def _other(_thing: Any) -> dict[str, Any]:
    return {"target": factories.target("other").pk}


def _beside(job: Job) -> dict[str, Any]:
    return {"result": next(one.pk for one in job.results.all() if one.pk != job.delivered_id)}


ID = {"provider_id": "gen_1", "reason": "seen there"}
WINDOW = {"length": "60", "seconds": "60", "most": "5", "resets": "rolling", "zone": "UTC"}
MATRIX: dict[tuple[str, str], Row] = {
    ("job", "retry"): Row(OPERATOR, refused, _none, _jobs("retry")),
    ("job", "edit"): Row(OPERATOR, refused, _with(prompt="a statue"), _jobs("edit", "--prompt", "a statue")),
    ("job", "retarget"): Row(
        OPERATOR, refused, _other, lambda job: ["jobs", "retarget", str(job.pk), "--target", factories.target("other").name]
    ),
    ("job", "deliver"): Row(
        OPERATOR, two_results, _beside, lambda job: ["jobs", "deliver", str(job.pk), "--result", str(_beside(job)["result"])]
    ),
    ("job", "rate"): Row(OPERATOR, factories.done, _with(rating="good"), None),
    ("job", "resolve"): Row(
        OPERATOR, refused, _with(outcome="gave_up", note="x"), _jobs("resolve", "--outcome", "gave_up", "--note", "x")
    ),
    ("job", "manual"): Row(OPERATOR, waiting, _with(note="x"), _jobs("manual", "--note", "x")),
    ("job", "resend"): Row(OWNER, of_lost, _with(reason="x", sure="on"), None),
    ("job", "cancel"): Row(OPERATOR, waiting, _none, _jobs("cancel")),
    ("providertask", "poll"): Row(OPERATOR, at_provider, _none, _jobs("poll")),
    ("providertask", "accept"): Row(OPERATOR, lost, _with(**ID), _jobs("accept", "--provider-id", "gen_1")),
    ("providertask", "attach"): Row(
        OPERATOR, lost, _with(**ID), _jobs("attach", "--provider-id", "gen_1", "--reason", "seen there")
    ),
    ("providertask", "absent"): Row(OPERATOR, lost, _with(reason="Olga"), _jobs("absent", "--reason", "Olga")),
    ("providertask", "refund"): Row(OPERATOR, charged, _with(reference="R-1"), _jobs("refund", "--reference", "R-1")),
    ("providertask", "write-off"): Row(OPERATOR, charged, _with(note="x"), _jobs("write-off", "--note", "x")),
    ("case", "take"): Row(OPERATOR, case, _none, _cases("take")),
    ("case", "note"): Row(OPERATOR, case, _with(note="x"), _cases("note", "--note", "x")),
    ("case", "close"): Row(OPERATOR, case, _with(resolution="checked", note="x"), _cases("close", "--resolution", "checked", "--note", "x")),
    ("case", "replay"): Row(OPERATOR, of_dead_callback, _none, lambda made: ["callbacks", "replay", "--case", str(made.pk)]),
    ("callback", "replay"): Row(OPERATOR, dead_callback, _none, lambda made: ["callbacks", "replay", str(made.pk)]),
    ("tenant", "callback-url"): Row(
        OWNER, tenant, _with(url="https://shop.example/"), lambda _made: ["callbacks", "url", "studio", "https://shop.example/2"]
    ),
    ("tenant", "callback-secret"): Row(OWNER, tenant, _none, lambda _made: ["callbacks", "rotate", "studio"]),
    ("apitoken", "rotate"): Row(
        OWNER, token, _with(hours="1"), lambda made: ["tokens", "rotate", made.prefix]
    ),
    ("apitoken", "revoke"): Row(OPERATOR, token, _none, lambda made: ["tokens", "revoke", made.prefix]),
    ("batch", "retry-failed"): Row(OPERATOR, batch(JobState.FAILED), _none, _batches("retry-failed")),
    ("batch", "pause"): Row(OPERATOR, batch(), _none, _batches("pause")),
    ("batch", "resume"): Row(OPERATOR, paused, _none, _batches("resume")),
    ("batch", "retarget-rest"): Row(OPERATOR, batch(), _other, None),
    ("batch", "cancel-rest"): Row(OPERATOR, batch(), _none, _batches("cancel")),
    ("orphan", "adopt"): Row(OPERATOR, orphan, _tenant, _of_orphan("adopt", "--tenant", "studio")),
    ("orphan", "dispute"): Row(OPERATOR, orphan, _with(reference="R-1", note="x"), _of_orphan("dispute", "--reference", "R-1")),
    ("bulkrun", "abort"): Row(OPERATOR, run, _none, lambda made: ["bulk", "abort", str(made.pk)]),
    ("provider", "probe"): Row(OPERATOR, account_that(state="down", gate="open", next_try_at=60 * MINUTE), _none, _providers("probe")),
    ("provider", "topped-up"): Row(OPERATOR, account, _none, _providers("topped-up")),
    ("provider", "unblock"): Row(OPERATOR, account_that(state="throttled", blocked_until=9 * MINUTE), _none, _providers("unblock")),
    ("provider", "resume"): Row(OPERATOR, account_that(state="paused"), _none, _providers("resume")),
    ("provider", "pause"): Row(OPERATOR, account_that(state="available"), _with(reason="x"), _providers("pause")),
    ("provider", "block"): Row(OPERATOR, account, _none, _providers("block", "--until", "+2h")),
    ("provider", "open"): Row(OWNER, stopped_target, _none, _providers("open", "--model", "over")),
    ("provider", "limit"): Row(OWNER, open_target, _with(most="3"), _providers("limit", "--model", "over", "--most", "3")),
    ("provider", "add-window"): Row(OWNER, account, _with(**WINDOW), _providers("limit", "--window", "minute", "--most", "3")),
    ("provider", "change-window"): Row(OWNER, windowed, _with(**WINDOW), _providers("limit", "--window", "minute", "--most", "3")),
    ("provider", "drop-window"): Row(OWNER, windowed, _none, _providers("limit", "--window", "minute", "--most", "none")),
    ("provider", "silence"): Row(OWNER, account_that(state="available"), _none, _providers("silence")),
    ("provider", "unsilence"): Row(OWNER, silenced, _none, _providers("silence", "--off")),
    ("lane", "restart"): Row(OWNER, lane(run_id=True), _none, None),
    ("lane", "drain"): Row(OWNER, lane(), _none, None),
    ("lane", "reopen"): Row(OWNER, lane(closed=True), _none, None),
    ("hold", "press"): Row(OPERATOR, nothing, _with(reason="x"), lambda _none: ["hold", "press", "--reason", "x"]),
    ("hold", "lift"): Row(OWNER, held, _none, lambda _none: ["hold", "lift"]),
}  # fmt: skip
_AT_A_MODEL = {"open": "over", "limit": "over"}


def offered() -> Iterator[tuple[str, str]]:
    """Every verb that any page of the admin knows."""
    for model, model_admin in admin.site._registry.items():
        if isinstance(model_admin, VerbsMixin) and model is not PolzaTask:
            yield from ((str(model._meta.model_name), verb.name) for verb in model_admin.verbs)
    for verb in (*provider_verbs.OF_PLACE, *provider_verbs.OF_WINDOW):
        yield "provider", verb.name
    for verb in (holds.PRESS, holds.LIFT):
        yield "hold", verb.name


def test_every_verb_has_its_row_and_every_row_its_verb() -> None:
    assert sorted(offered()) == sorted(MATRIX)


# --- the three ways ---------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _surroundings(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.MEDIA_ROOT = tmp_path
    settings.PROVIDER_KEYS = {"polza": KEY}
    settings.WORKER_LANES = 2

    def asked(*_args: Any, **_values: Any) -> None:
        """What would ask the provider; whether one may is decided before."""

    monkeypatch.setattr(attach, "_attach", asked)
    monkeypatch.setattr(balance, "topped_up", asked)


def address(table: str, name: str, thing: Any) -> str:
    match table:
        case "hold":
            return reverse("admin:desk_red_button" if name == "press" else "admin:desk_lift")
        case "provider":
            query = {"model": _AT_A_MODEL[name]} if name in _AT_A_MODEL else {}
            query |= {"window": "60"} if name in {"change-window", "drop-window"} else {}
            url = reverse("admin:providers_providerstate_do", args=[thing.pk, name])
            return f"{url}?{urlencode(query)}" if query else url
        case _:
            return reverse(f"admin:jobs_{table}_do", args=[thing.pk, name])


def page_of(table: str, thing: Any) -> str:
    """Where the verb's button stands."""
    match table:
        case "hold":
            return reverse("admin:index")
        case "provider":
            return reverse("admin:providers_providerstate_changelist")
        case _:
            return reverse(f"admin:jobs_{table}_change", args=[thing.pk])


def everything() -> list[Any]:
    """All rows that a verb could change. Logging in writes others."""
    found = []
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^(jobs|providers)_' ORDER BY relname"
        )
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT t::text FROM "{table}" t ORDER BY 1')
            found.append((table, cursor.fetchall()))
    return found


def by_command(words: list[str], who: AbstractBaseUser) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command(*words, "--as", who.get_username(), stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    except CommandError as error:
        return error.returncode, str(error)
    return 0, out.getvalue()


@pytest.mark.parametrize(("table", "name"), list(MATRIX))
def test_each_verb_is_open_to_its_roles_by_each_way(table: str, name: str) -> None:
    row = MATRIX[table, name]
    for role in Role:
        now = clock.now()
        may = role in row.roles
        who = factories.staff(role)
        client = Client()
        client.force_login(who)
        at = f"{table} {name} by {role}"

        thing = row.thing(now)
        if isinstance(thing, Model):
            thing.refresh_from_db()
        url = address(table, name, thing)
        page = client.get(page_of(table, thing)).content.decode()
        assert (url.replace("&", "&amp;") in page) is may, f"the button: {at}"

        data, before = row.data(thing), everything()
        answer = client.post(url, data)
        if may:
            assert answer.status_code in {200, 302}, f"the POST: {at}"
        else:
            assert answer.status_code == 403, f"the POST: {at}"
            assert everything() == before, f"the POST: {at}"

        if row.command is None:
            continue
        thing = row.thing(now)
        words, before = row.command(thing), everything()
        code, told = by_command(words, who)
        if may:
            assert code == 0, f"the command: {at}: {told}"
        else:
            assert (code, "may not do this" in told) == (3, True), f"the command: {at}: {told}"
            assert everything() == before, f"the command: {at}"

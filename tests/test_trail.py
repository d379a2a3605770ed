"""The trail: everything a person did is there, with who, what, why, before and after; in order, by page, by filter; and
nobody sees a button they may not use."""

from __future__ import annotations

import csv
import io
import json
import uuid
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs import attach, trail
from jobs.admin import trail_words
from jobs.clock import clock
from jobs.lifecycle import (
    batches,
    bulk,
    bulk_acts,
    decisions,
    limits,
    providers,
    prune,
    ratings,
    staff,
    tenants,
)
from jobs.lifecycle import statement as statements
from jobs.lifecycle.create import NewJob, create_jobs
from jobs.models import (
    Batch,
    BatchEvent,
    BulkRun,
    CaseEvent,
    Hold,
    JobEvent,
    Orphan,
    SpoolHost,
    StandingDecision,
)
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from jobs.trail import Place, Wanted
from jobs.trail_sources import SOURCES, Change, Deed, On
from providers.models import ProviderEvent, QuotaWindow
from tests import factories
from tests.test_commands import run

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def now() -> datetime:
    return clock.now()


@pytest.fixture
def anna() -> User:
    return factories.staff(Role.OWNER, name="anna")


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def deeds(**wanted: Any) -> list[Deed]:
    return trail.page(Wanted(**wanted))[0]


def only() -> Deed:
    [deed] = deeds()
    return deed


# --- each verb leaves who, what, why, before and after ----------------------------------------------------------------


def _refused(now: datetime) -> Any:
    job = factories.job(now, JobState.FAILED)
    factories.task(job, now, blocks_send=False, refusal_class="rejected", refused_at=now)
    return job


def _lost(now: datetime) -> Any:
    SpoolHost.objects.create(host="desk-1", clear_at=now)
    return factories.lost(factories.job(now, JobState.MANUAL), now, armed_at=now - 90 * MINUTE)


def _charged(now: datetime) -> Any:
    return factories.accepted(
        factories.job(now, JobState.MANUAL), now, failed_at=now, cost_receipt=Decimal(8), receipt_final_at=now
    )  # fmt: skip


def _batch(now: datetime, state: JobState = JobState.PENDING, **values: Any) -> Batch:
    made = Batch.objects.create(tenant=factories.tenant(), created_at=now, **values)
    factories.job(now, state, batch=made)
    factories.job(now, state, batch=made)
    return made


def _orphan(now: datetime) -> Orphan:
    made = Orphan.objects.create(
        provider="polza", provider_id="gen_77", account=factories.account(now), currency="RUB", cost=Decimal(8), found_at=now
    )  # fmt: skip
    factories.case(CaseKind.ORPHAN, now, orphan=made)
    return made


def _case_id(now: datetime) -> int:
    return int(factories.case(CaseKind.PAID_TWICE, now, of=factories.done(now)).pk)


def _deliver(now: datetime, actor: User) -> None:
    job = factories.done(now)
    other = factories.result(job, now, deliver=False)
    decisions.deliver_instead(
        job_id=job.pk, result_id=other.pk, actor=actor, now=now, reason="because"
    )


STATE = ("state",)
# What it does -> (the verb's constant, its object, its reason, the names of what changed).
ACTS: dict[str, tuple[Any, str, On, str, tuple[str, ...]]] = {
    "retry": (lambda n, a: staff.retry(job_id=_refused(n).pk, actor=a, now=n, reason="because"), "retried", On.JOB, "because", STATE),
    "retarget": (
        lambda n, a: staff.retry_on_target(
            job_id=_refused(n).pk, target_id=factories.target("other").pk, actor=a, now=n, reason="because"
        ), "retargeted", On.JOB, "because", ("target",),
    ),
    "edit": (
        lambda n, a: decisions.retry_edited(
            job_id=_refused(n).pk, prompt="a statue", target_id=factories.target("other").pk, actor=a, now=n, reason="because"
        ), "edited", On.JOB, "because", ("prompt", "target"),
    ),
    "resend": (lambda n, a: staff.resend(job_id=_lost(n).job_id, actor=a, now=n, reason="because"), "sent_again", On.JOB, "because", STATE),
    "manual": (lambda n, a: staff.mark_manual(job_id=_refused(n).pk, actor=a, now=n, note="because"), "marked_manual", On.JOB, "because", STATE),
    "resolve": (
        lambda n, a: staff.resolve(job_id=_refused(n).pk, outcome="done", actor=a, now=n, note="because"), "resolved", On.JOB,
        "because", STATE,
    ),
    "cancel": (lambda n, a: staff.cancel(job_id=factories.job(n).pk, actor=a, now=n, reason="because"), "cancelled", On.JOB, "because", STATE),
    "deliver": (_deliver, "delivered_instead", On.JOB, "because", ("result",)),
    "poll": (lambda n, a: staff.poll_now(task_id=factories.accepted(factories.job(n, JobState.ACTIVE), n).pk, actor=a, now=n), "poll_asked", On.JOB, "", ()),
    "attach": (
        lambda n, a: staff.attach_provider_id(task_id=_lost(n).pk, provider_id="gen_1", actor=a, now=n, reason="because", poll_at=n),
        "id_attached", On.JOB, "because", (),
    ),
    "absent": (lambda n, a: decisions.confirm_absent(task_id=_lost(n).pk, actor=a, now=n, reason="because"), "absent_confirmed", On.JOB, "because", STATE),
    "write-off": (lambda n, a: decisions.write_off(task_id=_charged(n).pk, actor=a, now=n, note="because"), "written_off", On.JOB, "because", ("charge",)),
    "refund": (
        lambda n, a: decisions.mark_refunded(task_id=_charged(n).pk, actor=a, now=n, reference="R-1", note="because"), "refunded", On.JOB,
        "because", ("charge",),
    ),
    "rate": (lambda n, a: ratings.rate(job_id=factories.done(n).pk, rating="good", actor=a, now=n), "rated", On.JOB, "", ("rating",)),
    "take": (lambda n, a: staff.take_case(case_id=_case_id(n), actor=a, now=n), "case_taken", On.CASE, "", ()),
    "note": (lambda n, a: staff.note_case(case_id=_case_id(n), actor=a, now=n, note="because"), "case_noted", On.CASE, "because", ()),
    "close": (
        lambda n, a: staff.close_case(case_id=_case_id(n), actor=a, now=n, resolution="checked", note="because"), "case_closed", On.CASE,
        "because", (),
    ),
    "take an orphan's case": (lambda n, a: staff.take_case(case_id=_orphan(n).case.pk, actor=a, now=n), "case_taken", On.CASE, "", ()),
    "note an orphan's case": (
        lambda n, a: staff.note_case(case_id=_orphan(n).case.pk, actor=a, now=n, note="because"), "case_noted", On.CASE, "because", ()
    ),
    "pause a batch": (lambda n, a: batches.pause(batch_id=_batch(n).pk, actor=a, now=n, reason="because"), "paused", On.BATCH, "because", ()),
    "resume a batch": (
        lambda n, a: batches.resume(batch_id=_batch(n, paused_at=n).pk, actor=a, now=n, reason="because"), "resumed", On.BATCH, "because", ()
    ),
    "cancel the rest": (
        lambda n, a: batches.cancel_rest(batch_id=_batch(n).pk, actor=a, now=n, reason="because"), "rest_cancelled", On.BATCH, "because", ()
    ),
    "retry the failed": (
        lambda n, a: batches.retry_failed(batch_id=_batch(n, JobState.FAILED).pk, actor=a, now=n, reason="because"), "failed_retried",
        On.BATCH, "because", (),
    ),
    "retarget the rest": (
        lambda n, a: batches.retarget_rest(batch_id=_batch(n).pk, target_id=factories.target("other").pk, actor=a, now=n, reason="because"),
        "rest_retargeted", On.BATCH, "because", (),
    ),
    "make a batch": (
        lambda n, a: create_jobs(
            jobs=[NewJob(prompt="a tree", route=[factories.target()])] * 3, tenant=factories.tenant(), actor=a, now=n
        ), "batch_created", On.BATCH, "", (),
    ),
    "pause a provider": (
        lambda n, a: providers.pause(account_id=factories.account(n).pk, actor=a, now=n, reason="because"), "paused", On.ACCOUNT, "because", ()
    ),
    "block a provider": (
        lambda n, a: providers.block_until(account_id=factories.account(n).pk, until=n + MINUTE, actor=a, now=n, reason="because"),
        "blocked", On.ACCOUNT, "because", (),
    ),
    "silence": (
        lambda n, a: providers.silence_alerts(account_id=factories.account(n).pk, silenced=True, actor=a, now=n), "alerts_silenced",
        On.ACCOUNT, "", (),
    ),
    "limit a window": (
        lambda n, a: limits.limit_window(account_id=factories.account(n).pk, seconds=60, most=5, actor=a, now=n, reason="because"), "limits_changed",
        On.ACCOUNT, "because", ("limit",),
    ),
    "make a tenant": (lambda n, a: tenants.create(slug="north", name="North", actor=a, now=n), "tenant_created", On.TENANT, "", ("slug", "name")),
    "change a tenant": (
        lambda n, a: tenants.change(tenant_id=factories.tenant().pk, daily_limit=Decimal(200), actor=a, now=n, reason="because"), "tenant_changed", On.TENANT,
        "because", ("daily_limit",),
    ),
    "press": (lambda n, a: staff.press_red_button(actor=a, now=n, reason="because"), "red_button_pressed", On.HOLD, "because", ()),
    "ask for a statement": (
        lambda n, a: (
            factories.accepted(factories.job(n), n),
            statements.ask(provider="polza", account_id=None, since=n - 9 * MINUTE, until=n + MINUTE, actor=a, now=n),
        ), "statement_asked", On.STATEMENT, "", (),
    ),
    "prune": (lambda n, a: prune.begin(asked={"limit": 5}, actor=a, now=n), "pruned", On.OTHER, "", ()),
    "dispute": (
        lambda n, a: statements.dispute(orphan_id=_orphan(n).pk, reference="R-1", note="because", actor=a, now=n), "orphan_disputed",
        On.ORPHAN, "because", (),
    ),
    "adopt": (
        lambda n, a: statements.adopt(
            orphan_id=_orphan(n).pk, tenant_id=factories.tenant().pk, prompt="", reference="", note="because", actor=a, now=n
        ), "orphan_adopted", On.ORPHAN, "because", (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ACTS))
def test_each_deed_is_one_entry_with_who_what_why_before_and_after(
    name: str, now: datetime, anna: User, settings: Any
) -> None:
    settings.PROVIDER_KEYS = {"polza": "pza_test"}
    act, what, on, why, changed = ACTS[name]
    act(now, anna)
    deed = only()
    assert (deed.by, deed.what, deed.on, deed.reason, deed.at) == ("anna", what, on, why, now)
    assert sorted(change.name for change in deed.changes) == sorted(changed)
    for change in deed.changes:
        assert change.before != change.after
    assert trail_words.look(deed).word != what  # it has words
    assert what in trail_words.whats()
    assert deeds(what=what, on=on, who=anna.pk, pk=deed.pk) == [deed]
    assert deeds(on=on, pk="999999") == []
    if why:
        assert deeds(words="BECAUS") == [deed]
    assert deeds(words="no such words") == []


def test_before_and_after_are_the_values(now: datetime, anna: User) -> None:
    job = _refused(now)
    decisions.retry_edited(job_id=job.pk, prompt="a statue", target_id=factories.target("other").pk, actor=anna, now=now)  # fmt: skip
    assert only().changes == (
        Change("prompt", "A red bicycle against a white wall", "a statue"),
        Change("target", f"polza:{factories.MODEL}", "polza:other"),
    )
    staff.cancel(job_id=job.pk, actor=anna, now=now + MINUTE)
    assert deeds()[0].changes == (Change("state", "pending", "cancelled"),)


def test_the_button_s_lifting_keeps_its_reason(now: datetime, anna: User) -> None:
    staff.press_red_button(actor=None, now=now, reason="prices doubled")
    staff.lift_red_button(actor=anna, now=now + MINUTE, reason="agreed")
    told = [(deed.what, deed.by, deed.reason) for deed in deeds()]
    assert told == [("red_button_lifted", "anna", "agreed"), ("red_button_pressed", "", "prices doubled")]  # fmt: skip


def test_what_the_shell_did_is_there_without_a_name(now: datetime) -> None:
    job = _refused(now)
    staff.retry(job_id=job.pk, actor=None, now=now, reason="at night")
    providers.pause(account_id=factories.account(now).pk, actor=None, now=now, reason="as well")
    assert {(deed.by, deed.what) for deed in deeds()} == {("", "retried"), ("", "paused")}
    assert "command line" in run("trail")[1]


def test_what_the_machine_did_is_not_there(now: datetime) -> None:
    factories.everything(now)
    BatchEvent.objects.create(batch=_batch(now), kind="completed", number=1, at=now)
    ProviderEvent.objects.create(account=factories.account(now), kind="opened", at=now)
    Hold.objects.create(kind=Hold.Kind.RESTORE, set_at=now)
    assert JobEvent.objects.count() > 20
    assert deeds() == []


@pytest.mark.parametrize("name", list(bulk_acts.ACTS))
def test_a_bulk_action_is_one_entry_and_each_job_names_it(
    name: str, now: datetime, anna: User
) -> None:
    state = JobState.PENDING if name in {"cancel", "manual"} else JobState.FAILED
    jobs = [factories.job(now, state) for _n in range(3)]
    data = {"reason": "because", "note": "because", "outcome": "gave_up", "target": factories.target("other").pk}  # fmt: skip
    made = bulk.start(
        act=bulk_acts.ACTS[name], jobs=type(jobs[0]).objects.filter(pk__in=[job.pk for job in jobs]), data=data, actor=anna,
        now=now, token=uuid.uuid4(),
    )  # fmt: skip
    assert made.done == 3
    deed = only()
    assert (deed.what, deed.on, deed.pk, deed.by) == ("bulk_begun", On.BULK, str(made.pk), "anna")
    assert deed.data["jobs"] == 3
    of_jobs = JobEvent.objects.filter(data__bulk=made.pk, actor=anna, at=now)
    assert sorted(of_jobs.values_list("job_id", flat=True)) == [job.pk for job in jobs]
    assert all(event.data["before"] for event in of_jobs)


def test_jobs_that_a_batch_s_verb_moved_keep_their_state_before(now: datetime, anna: User) -> None:
    made = _batch(now, JobState.FAILED)
    batches.retry_failed(batch_id=made.pk, actor=anna, now=now)
    assert {
        (event.data["before"], event.data["after"], event.data["batch"])
        for event in JobEvent.objects.filter(kind="retried")
    } == {("failed", "pending", made.pk)}
    batches.retarget_rest(batch_id=made.pk, target_id=factories.target("other").pk, actor=anna, now=now)  # fmt: skip
    assert {event.data["before"] for event in JobEvent.objects.filter(kind="retargeted")} == {f"polza:{factories.MODEL}"}  # fmt: skip


# --- Django's own pages -----------------------------------------------------------------------------------------------


def test_a_target_s_price_is_told_before_and_after(now: datetime, anna: User) -> None:
    target = factories.target()
    data = {
        "price": "9.5",
        "max_in_flight": "",
        "enabled": "on",
        "capabilities": "{}",
        "why": "dearer",
    }
    url = reverse("admin:providers_target_change", args=[target.pk])
    assert client_of(anna).post(url, data).status_code == 302
    deed = only()
    assert (deed.by, deed.what, deed.on, deed.pk) == ("anna", "changed", On.TARGET, str(target.pk))
    assert deed.reason == "dearer"
    assert [(one.name, one.before, one.after) for one in deed.changes] == [("price", "8.0000", "9.5")]  # fmt: skip
    assert client_of(anna).post(url, data).status_code == 302
    assert deeds() == [deed]  # saved without a change
    assert "Changed Price" in LogEntry.objects.order_by("pk")[0].get_change_message()


def test_a_user_s_groups_are_told_and_no_password(anna: User) -> None:
    root = client_of(factories.staff(superuser=True, name="root"))
    data = {"username": "boris", "password1": "Tr0ub4dor&3", "password2": "Tr0ub4dor&3", "usable_password": "true"}  # fmt: skip
    assert root.post(reverse("admin:auth_user_add"), data).status_code == 302
    boris = User.objects.get(username="boris")
    group = boris.groups.model.objects.get(name="Operator")
    changed_to: dict[str, Any] = {
        "username": "boris",
        "is_active": "on",
        "is_staff": "on",
        "groups": [group.pk],
    }
    assert client_of(anna).post(reverse("admin:auth_user_change", args=[boris.pk]), changed_to).status_code == 302  # fmt: skip
    changed, added = deeds()
    assert (changed.by, changed.what, changed.on, changed.name) == ("anna", "changed", On.USER, "boris")  # fmt: skip
    assert Change("groups", "", "Operator") in changed.changes
    assert (added.by, added.what) == ("root", "added")
    assert "Tr0ub4dor" not in json.dumps([entry.change_message for entry in LogEntry.objects.all()])


def test_a_standing_decision_s_end_has_a_name(now: datetime, anna: User) -> None:
    client = client_of(anna)
    data = {"target": factories.target().pk, "what": "resend_unknown", "reason": "cheap enough"}
    assert client.post(reverse("admin:jobs_standingdecision_add"), data).status_code == 302
    row = StandingDecision.objects.get()
    act = {"action": "end", "_selected_action": [row.pk]}
    client.post(reverse("admin:jobs_standingdecision_changelist"), act)
    told = [(deed.what, deed.by, deed.reason) for deed in deeds()]
    assert told == [("standing_ended", "anna", ""), ("standing_made", "anna", "cheap enough")]


def test_a_window_s_other_values_are_told(now: datetime, anna: User) -> None:
    account = factories.account(now)
    QuotaWindow.objects.create(account=account, seconds=86_400, most=5)
    limits.limit_window(
        account_id=account.pk, seconds=86_400, most=5, resets="fixed", anchor_at=now, zone="Europe/Moscow", actor=anna, now=now
    )  # fmt: skip
    changes = {one.name: (one.before, one.after) for one in only().changes}
    assert changes["resets"] == ("rolling", "fixed")
    assert changes["zone"] == ("UTC", "Europe/Moscow")


# --- order, pages, filters --------------------------------------------------------------------------------------------


def _many(now: datetime, anna: User) -> None:
    """Deeds of several places, many at the same moment."""
    other = factories.staff(Role.OPERATOR, name="boris")
    job, account, tenant = factories.job(now), factories.account(now), factories.tenant()
    batch = _batch(now)
    for n in range(9):
        at = now - (n // 3) * MINUTE
        who = anna if n % 2 else other
        factories.event(job, "retried", at, actor=who, reason=f"deed {n}")
        BatchEvent.objects.create(
            batch=batch, kind="paused", at=at, actor=who, data={"reason": f"deed {n}"}
        )
        ProviderEvent.objects.create(
            account=account, kind="paused", at=at, actor=who, data={"why": f"deed {n}"}
        )
        tenant.events.create(kind="changed", at=at, actor=who, data={"weight": [n, n + 1]})


@pytest.mark.parametrize("most", [1, 2, 5, 7, 50])
def test_pages_join_without_a_gap_and_without_a_double(
    most: int, now: datetime, anna: User
) -> None:
    _many(now, anna)
    whole, rest = trail.page(Wanted(), most=1000)
    assert (len(whole), rest) == (36, None)
    assert [deed.at for deed in whole] == sorted((deed.at for deed in whole), reverse=True)
    assert len({(deed.source, deed.id) for deed in whole}) == 36
    read: list[Deed] = []
    older: Place | None = None
    while True:
        part, older = trail.page(Wanted(), older=older, most=most)
        read += part
        if older is None:
            break
        assert len(part) == most
        older = Place.parse(str(older))
    assert read == whole


def test_filters_narrow_and_go_together(now: datetime, anna: User) -> None:
    _many(now, anna)
    assert {deed.by for deed in deeds(who=anna.pk)} == {"anna"}
    assert {deed.on for deed in deeds(what="paused")} == {On.BATCH, On.ACCOUNT}
    assert {deed.on for deed in deeds(on=On.TENANT)} == {On.TENANT}
    assert {deed.at for deed in deeds(since=now)} == {now}
    assert {deed.at for deed in deeds(until=now - MINUTE)} == {now - 2 * MINUTE}
    assert {deed.reason for deed in deeds(words="deed 4")} == {"deed 4"}
    assert len(deeds(words="deed 4", on=On.BATCH, who=anna.pk)) == 0  # boris's
    assert trail.counts(since=now - MINUTE) == {"boris": 12, "anna": 12}


@pytest.mark.parametrize("text", ["", "x", "2026-01-01T00:00:00~1~2", "~~", "2026-01-01T00:00:00+00:00~1e3~2", "2026-01-01T00:00:00+00:00~1~" + "9" * 40])  # fmt: skip
def test_what_is_no_place_is_the_first_page(text: str) -> None:
    assert Place.parse(text) is None


def test_each_place_answers_from_an_index_of_what_people_did(now: datetime, anna: User) -> None:
    """However many events the machine wrote: the plan of the two big tables names the partial index."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for name, index in (
            ("job", "job_event_by_people"),
            ("provider", "provider_event_by_people"),
            ("batch", "batch_event_by_people"),
            ("batch_made", "batch_by_people"),
        ):
            source = next(one for one in SOURCES if one.name == name)
            rows = source.rows().order_by(f"-{source.at}", "-pk")[:50]
            assert index in rows.explain(), name


# --- the page and the sheet -------------------------------------------------------------------------------------------


def test_the_page_lists_filters_and_pages(now: datetime, anna: User) -> None:
    _many(now, anna)
    client = client_of(anna)
    url = reverse("admin:desk_trail")
    page = client.get(url).content.decode()
    assert page.count("trail-who") == 36
    assert "deed 4" in page
    narrowed = client.get(url, {"who": str(anna.pk), "on": "job", "words": "deed"}).content.decode()
    assert narrowed.count("trail-who") == 4
    assert "Nothing matches" in client.get(url, {"words": "xyzzy"}).content.decode()
    nonsense = {"who": "x", "what": "\0", "on": "job:x' OR 1=1", "since": "never", "older": "~", "words": "a\0b"}  # fmt: skip
    assert client.get(url, nonsense).status_code == 200


def test_the_page_says_so_when_nobody_has_done_anything(anna: User) -> None:
    assert "Nobody has done anything yet" in client_of(anna).get(reverse("admin:desk_trail")).content.decode()  # fmt: skip


def test_older_is_a_link_that_keeps_the_filters(now: datetime, anna: User) -> None:
    job = factories.job(now)
    for n in range(trail.PAGE + 3):
        factories.event(job, "retried", now - n * MINUTE, actor=anna, reason=f"n{n}.")
    client = client_of(anna)
    first = client.get(reverse("admin:desk_trail"), {"who": anna.pk})
    older = first.context["older_query"]
    assert f"who={anna.pk}" in older
    page = client.get(f"{reverse('admin:desk_trail')}?{older}").content.decode()
    assert (page.count("trail-who"), "n49." in page, "n50." in page) == (3, False, True)


def test_the_page_asks_no_query_per_row(now: datetime, anna: User) -> None:
    job = factories.job(now)
    client = client_of(anna)

    def asked(n: int) -> int:
        for _n in range(n):
            factories.event(job, "retried", now, actor=anna, reason="x", before="failed", after="pending")  # fmt: skip
            LogEntry.objects.create(user=anna, action_flag=2, object_id="1", object_repr="x", change_message='[{"changed": {"fields": ["Price"]}}]')  # fmt: skip
        with CaptureQueriesContext(connection) as queries:
            assert client.get(reverse("admin:desk_trail")).status_code == 200
        return len(queries)

    asked(1)
    assert asked(1) == asked(20) < 30


HOSTILE = '=HYPERLINK("http://x")<script>alert(1)</script>'


def test_hostile_words_are_escaped_on_the_page_and_disarmed_in_the_sheet(
    now: datetime, anna: User
) -> None:
    factories.event(factories.job(now, reference=HOSTILE), "retried", now, actor=anna, reason=HOSTILE, before="failed", after="pending")  # fmt: skip
    client = client_of(anna)
    page = client.get(reverse("admin:desk_trail")).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    answer = client.get(reverse("admin:desk_trail_sheet"))
    assert answer["Content-Type"].startswith("text/csv")
    text = b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined]
    head, row = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"))))
    cells = dict(zip(head, row, strict=True))
    assert (cells["by"], cells["what"], cells["why"], cells["name"]) == ("anna", "retried", f"'{HOSTILE}", f"'{HOSTILE}")  # fmt: skip
    assert (cells["before"], cells["after"]) == ("state: failed", "state: waiting")


def test_the_sheet_holds_every_page(now: datetime, anna: User, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    _many(now, anna)
    monkeypatch.setattr("jobs.admin.trail._AT_ONCE", 5)
    answer = client_of(anna).get(reverse("admin:desk_trail_sheet"), {"on": "job"})
    assert len(b"".join(answer.streaming_content).splitlines()) == 1 + 9  # type: ignore[attr-defined]


def test_only_whoever_may_reads_it(now: datetime, anna: User) -> None:
    viewer, operator = factories.staff(Role.VIEWER), factories.staff(Role.OPERATOR)
    for name in ("desk_trail", "desk_trail_sheet", "desk_handover"):
        assert client_of(viewer).get(reverse(f"admin:{name}")).status_code == 403
        assert client_of(operator).get(reverse(f"admin:{name}")).status_code == 200
    assert run("trail", "--as", viewer.username)[0] == 3
    assert run("trail", "--as", operator.username)[0] == 0
    index = reverse("admin:index")
    assert reverse("admin:desk_trail") not in client_of(viewer).get(index).content.decode()
    assert reverse("admin:desk_trail") in client_of(operator).get(index).content.decode()


def test_an_object_s_history_is_its_part_of_the_trail(now: datetime, anna: User) -> None:
    account = factories.account(now)
    providers.pause(account_id=account.pk, actor=anna, now=now, reason="because")
    url = reverse("admin:providers_account_history", args=[account.pk])
    answer = client_of(anna).get(url, follow=True)
    assert answer.redirect_chain[0][0] == f"{reverse('admin:desk_trail')}?on=account%3A{account.pk}"
    assert answer.content.decode().count("trail-who") == 1
    assert client_of(factories.staff(Role.VIEWER)).get(url).status_code == 200  # Django's own


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_lists_filters_and_refuses(now: datetime, anna: User) -> None:
    _many(now, anna)
    job = _refused(now)
    staff.retry(job_id=job.pk, actor=anna, now=now - 90 * MINUTE, reason="long ago")
    assert len(run("trail", "--most", "5")[1].splitlines()) == 5
    code, text = run("trail", "--since", "1h", "--who", "anna", "--verb", "retried", "--json")
    told = json.loads(text)
    assert (code, len(told), {one["who"] for one in told}) == (0, 4, {"anna"})
    code, text = run("trail", "--on", f"job:{job.pk}", "--json")
    [one] = json.loads(text)
    assert (one["why"], one["changes"]) == ("long ago", [{"name": "state", "before": "failed", "after": "pending"}])  # fmt: skip
    assert len(run("trail", "--most", "0", "--csv")[1].splitlines()) == 38
    for words in (["--who", "nobody"], ["--verb", "x"], ["--on", "x"], ["--since", "x"], ["--most", "-1"]):  # fmt: skip
        assert run("trail", *words)[0] == 2, words


def test_the_rows_of_a_case_without_a_job_are_kept(now: datetime, anna: User) -> None:
    orphan = _orphan(now)
    staff.take_case(case_id=orphan.case.pk, actor=anna, now=now)
    staff.close_case(case_id=orphan.case.pk, actor=anna, now=now + MINUTE, resolution="checked", note="ours after all")  # fmt: skip
    assert list(CaseEvent.objects.order_by("pk").values_list("kind", flat=True)) == ["case_taken", "case_closed"]  # fmt: skip
    assert [deed.what for deed in deeds(on=On.CASE, pk=f"case-{orphan.case.pk}")] == ["case_closed", "case_taken"]  # fmt: skip


def test_a_stopped_bulk_action_is_told_with_who_stopped_it(now: datetime, anna: User) -> None:
    made = BulkRun.objects.create(verb="retry", created_at=now, total=3)
    bulk.abort(run_id=made.pk, actor=anna, now=now + MINUTE)
    assert [(deed.what, deed.by) for deed in deeds(on=On.BULK)] == [("bulk_stopped", "anna"), ("bulk_begun", "")]  # fmt: skip


def test_an_accepted_candidate_is_told_as_one(now: datetime, anna: User, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    send = _lost(now)
    type(send).objects.filter(pk=send.pk).update(candidates=[{"id": "gen_1"}])

    def asked(task_id: Any, provider_id: str, actor: Any, reason: str, *, kind: str) -> None:
        staff.attach_provider_id(task_id=task_id, provider_id=provider_id, actor=actor, now=now, reason=reason, poll_at=now, kind=kind)  # fmt: skip

    monkeypatch.setattr(attach, "_attach", asked)
    attach.accept(send.pk, "gen_1", anna, "the same picture")
    assert (only().what, only().reason, only().data["provider_id"]) == ("candidate_accepted", "the same picture", "gen_1")  # fmt: skip

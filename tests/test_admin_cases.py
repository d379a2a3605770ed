"""The desk as a place to work: what is suggested and what it risks, several at once, candidates beside the request."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from django.utils import translation
from PIL import Image

from jobs import results
from jobs.admin import candidate_picture, candidates, case_steps
from jobs.clock import clock
from jobs.models import Case, JobEvent, Orphan, ProviderTask
from jobs.roles import Role
from jobs.states import BLOCKING_CASES, CaseKind, JobState
from providers.contract import Account, FileRef
from providers.http import Transport
from tests import desk_cases, factories

pytestmark = pytest.mark.django_db

DESK = "/admin/jobs/case/"


@pytest.fixture(autouse=True)
def _surroundings(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path
    settings.PROVIDER_KEYS = {"polza": desk_cases.KEY}
    cache.clear()


def logged_in(role: Role) -> tuple[Client, User]:
    user = factories.staff(role)
    client = Client()
    client.force_login(user)
    return client, user


def text(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, url
    return unescape(answer.content.decode())


def page_of(case: Case) -> str:
    return reverse("admin:jobs_case_change", args=[case.pk])


def told(client: Client) -> list[str]:
    """What the next page says about what was done."""
    page = client.get(DESK).content.decode()
    found = re.search(r'<ul class="messagelist".*?</ul>', page, re.DOTALL)
    return re.findall(r"<span>(.*?)</span>", unescape(found[0]), re.DOTALL) if found else []


# --- landing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "is_open", "wanted", "to"),
    [
        (Role.OPERATOR, True, "/admin/", DESK),
        (Role.OWNER, True, "/admin/", DESK),
        (Role.OPERATOR, False, "/admin/", "/admin/"),
        (Role.VIEWER, True, "/admin/", "/admin/"),
        (Role.OPERATOR, True, "/admin/jobs/job/", "/admin/jobs/job/"),
    ],
)
def test_who_logs_in_lands_at_the_desk_while_something_is_open(
    settings: Any, role: Role, is_open: bool, wanted: str, to: str
) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    now = clock.now()
    closed: dict[str, Any] = {} if is_open else {"resolved_at": now, "resolution": "checked"}
    factories.case(CaseKind.PAID_TWICE, now, **closed)
    user = factories.staff(role, password="a long password")
    data = {"username": user.username, "password": "a long password"}
    answer = Client().post("/admin/login/", {**data, "next": wanted})
    assert (answer.status_code, answer["Location"]) == (302, to)


# --- what is suggested, and what it risks -----------------------------------------------------------------------------

SUGGESTED = {
    CaseKind.UNKNOWN_SEND: ("attach", "green"),
    CaseKind.PAID_WITHOUT_RESULT: ("resolve", "green"),
    CaseKind.FAILED_BUT_CHARGED: ("refund", "green"),
    CaseKind.LOST_AT_PROVIDER: ("poll", "green"),
    CaseKind.NEVER_ANSWERED: ("poll", "green"),
    CaseKind.FETCH_FAILED: ("resolve", "green"),
    CaseKind.CONFLICT: ("close", "green"),
    CaseKind.POISON: ("close", "green"),
    CaseKind.RESTORE: ("attach", "green"),
    CaseKind.BY_HAND: ("resolve", "green"),
    CaseKind.LATE_RESULT: ("deliver", "green"),
}


def test_each_kind_that_holds_a_job_up_is_thought_of() -> None:
    assert set(SUGGESTED) == set(desk_cases.OF_KIND) == BLOCKING_CASES


@pytest.mark.parametrize("kind", list(SUGGESTED), ids=str)
def test_each_kind_has_its_likely_step_with_its_risk_and_the_page_offers_it(kind: CaseKind) -> None:
    client, _user = logged_in(Role.OPERATOR)
    case = desk_cases.OF_KIND[kind](clock.now(), "B-1")
    name, tone = SUGGESTED[kind]
    verb = case_steps.likely(case)
    assert verb is not None
    assert verb.name == name
    told = case_steps.in_a_row(case)
    assert told is not None
    assert told[1].tone == tone
    rows = text(client, DESK)
    assert str(verb.label) in rows
    assert told[1].words in rows
    page = text(client, page_of(case))
    assert page.count(f"/do/{name}/") >= 2  # in the title row and among the steps
    assert told[1].words in page


def test_a_send_with_candidates_suggests_to_accept_one() -> None:
    verb = case_steps.likely(desk_cases.with_candidates(clock.now(), "B-1"))
    assert verb is not None
    assert verb.name == "accept"


@pytest.mark.parametrize(
    ("name", "tone", "words"),
    [
        ("absent", "red", "One more send, ≈ ₽8.00. The ≈ ₽8.00 of this one stay possible."),
        ("write-off", "amber", "≈ ₽8.00 are taken as lost."),
        ("refund", "green", "≈ ₽8.00 count as paid back."),
        ("attach", "green", "Nothing is sent. ≈ ₽8.00 are spent if it is the one."),
        ("resend", "red", "One more send, ≈ ₽8.00, beside the ≈ ₽8.00 of the earlier one."),
        ("resolve", "amber", "Nothing is sent. ₽8.00 stay possible."),
        ("cancel", "amber", "Nothing is sent. ₽8.00 stay possible."),
        ("take", "green", "Costs nothing."),
    ],
)
def test_each_step_says_what_it_risks(name: str, tone: str, words: str) -> None:
    owner = factories.staff(Role.OWNER)
    case = desk_cases.lost(clock.now(), "B-1")
    steps = {
        step.verb.name: step
        for _group, steps in case_steps.groups(case, owner, back="/")
        for step in steps
    }
    assert (steps[name].risk.tone, steps[name].risk.words.replace("\xa0", " ")) == (tone, words)


def test_a_step_that_is_not_permitted_is_not_shown_and_not_suggested_on_the_page() -> None:
    viewer = factories.staff(Role.VIEWER)
    case = desk_cases.lost(clock.now(), "B-1")
    assert case_steps.groups(case, viewer, back="/") == []
    operator = factories.staff(Role.OPERATOR)
    names = [
        s.verb.name for _g, steps in case_steps.groups(case, operator, back="/") for s in steps
    ]
    assert "resend" not in names
    assert names[0] == "attach"


def test_the_steps_are_found_in_any_language() -> None:
    """The words of a verb change with the language; which verb it is does not."""
    case = desk_cases.lost(clock.now(), "B-1")
    with translation.override("fa"):
        owner = factories.staff(Role.OWNER)
        steps = [step for _g, group in case_steps.groups(case, owner, back="/") for step in group]
        assert {step.key for step in steps} == {"", "t", "n"}
        assert sum(step.primary for step in steps) == 1


def test_a_row_tells_owner_last_note_and_how_late_it_is() -> None:
    client, user = logged_in(Role.OPERATOR)
    case = desk_cases.lost(clock.now(), "B-1")
    Case.objects.filter(pk=case.pk).update(
        owner=user, note="first\n2026-11-30 10:00 anna: asked <b>them</b>", due_at=clock.now() - timedelta(hours=2)
    )  # fmt: skip
    page = client.get(DESK).content.decode()
    assert "asked &lt;b&gt;them&lt;/b&gt;</span>" in page
    assert "overdue 2 h" in page
    assert "open for 1 h" in page


def test_the_list_costs_the_same_number_of_queries_whatever_its_length(
    django_assert_max_num_queries: Any,
) -> None:
    client, _user = logged_in(Role.OPERATOR)
    now = clock.now()
    for make in desk_cases.OF_KIND.values():
        make(now, "B-1")
    counts = []
    for _round in range(2):
        with django_assert_max_num_queries(40) as seen:
            client.get(DESK)
        counts.append(len(seen))
        for make in desk_cases.OF_KIND.values():
            make(now, "B-2")
    assert counts[0] == counts[1]


# --- several at once --------------------------------------------------------------------------------------------------


def _post(client: Client, action: str, cases: list[Case], query: str = "", **data: Any) -> Any:
    return client.post(
        DESK + query, {"action": action, "index": 0, "_selected_action": [case.pk for case in cases], **data}
    )  # fmt: skip


def test_several_are_taken_by_one_press_and_each_that_is_not_says_why() -> None:
    client, user = logged_in(Role.OPERATOR)
    now = clock.now()
    other = factories.staff(Role.OPERATOR, name="anna")
    free = [desk_cases.lost(now, f"B-{number}") for number in range(3)]
    held = factories.case(
        CaseKind.PAID_TWICE, now, of=factories.done(now, reference="H-1"), owner=other
    )
    mine = factories.case(
        CaseKind.PAID_TWICE, now, of=factories.done(now, reference="M-1"), owner=user
    )
    assert _post(client, "take_selected", [*free, held, mine]).status_code == 302
    for case in free:
        case.refresh_from_db()
        assert case.owner == user
    held.refresh_from_db()
    assert held.owner == other
    done, left = told(client)
    assert done == "3 cases are yours."
    assert left.startswith("2 are left as they are:")
    assert re.sub("<[^>]+>", "", left).count("anna has it") == 1
    assert "Paid twice?, M-1</bdi></a>: yours already" in left
    assert JobEvent.objects.filter(kind="case_taken", actor=user).count() == 3


def test_a_note_is_asked_for_once_and_put_on_each() -> None:
    client, user = logged_in(Role.OPERATOR)
    cases = [desk_cases.lost(clock.now(), f"B-{number}") for number in range(2)]
    page = _post(client, "note_selected", cases).content.decode()
    assert "B-0" in page
    assert "B-1" in page
    assert not Case.objects.exclude(note="").exists()
    assert (
        "This field is required."
        in _post(client, "note_selected", cases, confirmed=1, note=" ").content.decode()
    )
    assert not Case.objects.exclude(note="").exists()
    _post(client, "note_selected", cases, confirmed=1, note="asked them")
    assert [user.username in case.note for case in Case.objects.all()] == [True, True]
    assert told(client) == ["The note is on 2 cases."]


def test_closing_several_leaves_those_that_hold_a_job_up() -> None:
    client, _user = logged_in(Role.OPERATOR)
    now = clock.now()
    holds = desk_cases.lost(now, "B-1")
    free = factories.case(CaseKind.PAID_TWICE, now, of=factories.done(now))
    asked = _post(client, "close_selected", [holds, free]).content.decode()
    assert "its job must be decided first" in asked
    _post(client, "close_selected", [holds, free], confirmed=1, resolution="checked", note="seen")
    assert list(Case.objects.filter(resolved_at__isnull=True)) == [holds]
    assert "B-1</bdi></a>: its job must be decided first" in told(client)[1]


def test_what_is_refused_while_it_is_done_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else was faster, between the list and the press."""
    client, user = logged_in(Role.OPERATOR)
    now = clock.now()
    first, second = desk_cases.lost(now, "B-1"), desk_cases.lost(now, "B-2")
    other = factories.staff(Role.OPERATOR)
    monkeypatch.setattr("jobs.admin.case_bulk.why_not", lambda *_args: "")
    Case.objects.filter(pk=first.pk).update(owner=other)
    _post(client, "take_selected", [first, second])
    second.refresh_from_db()
    assert second.owner == user
    assert "somebody else has it" in told(client)[1]


def test_who_may_not_work_cases_sees_no_boxes_and_changes_nothing() -> None:
    client, _user = logged_in(Role.VIEWER)
    case = desk_cases.lost(clock.now(), "B-1")
    page = text(client, DESK)
    assert "action-select" not in page
    assert "take_selected" not in page
    for action in ("take_selected", "note_selected", "close_selected"):
        _post(client, action, [case], confirmed=1, note="x", resolution="checked")
    case.refresh_from_db()
    assert (case.owner, case.note, case.resolved_at) == (None, "", None)


def test_no_more_than_a_hundred_at_once() -> None:
    client, _user = logged_in(Role.OPERATOR)
    now = clock.now()
    cases = Case.objects.bulk_create(
        Case(kind=CaseKind.PAID_TWICE, opened_at=now, due_at=now, job=factories.job(now)) for _number in range(101)
    )  # fmt: skip
    _post(client, "take_selected", cases)
    assert not Case.objects.filter(owner__isnull=False).exists()
    assert told(client) == ["No more than 100 cases at once."]


# --- the page of one --------------------------------------------------------------------------------------------------


def test_candidates_stand_beside_the_request_the_likely_one_first() -> None:
    client, _user = logged_in(Role.OPERATOR)
    now = clock.now()
    other = factories.accepted(factories.job(now, JobState.ACTIVE), now, provider_id="gen_taken")
    found = [
        desk_cases.candidate(now, 3),
        desk_cases.candidate(now, 0) | {"id": "gen_taken"},
        desk_cases.candidate(now, 1, model="another/model"),
        desk_cases.candidate(now, 2),
    ]
    case = desk_cases.lost(now, "B-1", candidates=found)
    assert case.task is not None
    cards = candidates.cards(case, ProviderTask.objects.get(pk=case.task.pk))
    assert [card.id[-1] for card in cards] == ["2", "3", "1", "n"]
    assert [card.taken_by for card in cards] == [None, None, None, other.job_id]
    assert [card.same_model for card in cards] == [True, True, False, True]
    assert cards[0].distance == "19 s after our send"
    page = client.get(page_of(case)).content.decode()
    assert page.count('name="provider_id"') == 3
    assert 'value="gen_taken"' not in page


@pytest.mark.parametrize(
    "odd",
    [
        {"id": '"><script>alert(1)</script>', "model": "<i>", "cost": "NaN", "created_at": "yesterday"},
        {"id": "gen_1"},
        {"id": "gen_1", "created_at": "2026-01-01T00:00:00", "cost": "1e999999999", "status": None},
        {"id": "../../x?y=1&z=2#", "cost": "Infinity", "created_at": 5},
    ],
)  # fmt: skip
def test_whatever_a_candidate_holds_its_page_opens_and_runs_nothing(odd: dict[str, Any]) -> None:
    client, _user = logged_in(Role.OPERATOR)
    case = desk_cases.lost(clock.now(), "B-1", candidates=[odd])
    page = client.get(page_of(case)).content.decode()
    assert "<script>alert" not in page
    assert "Is one of these the lost send?" in page


def test_a_candidates_button_leads_to_the_confirmation_with_it_chosen() -> None:
    client, _user = logged_in(Role.OPERATOR)
    case = desk_cases.with_candidates(clock.now(), "B-1")
    url = reverse("admin:jobs_providertask_do", args=[case.task_id, "accept"])
    page = client.get(
        url, {"provider_id": desk_cases.ID, "reason": "not by an address"}
    ).content.decode()
    chosen = re.findall(r"<input[^>]*checked[^>]*>", page)
    assert [f'value="{desk_cases.ID}"' in one for one in chosen] == [True]
    assert "not by an address" not in page
    case.refresh_from_db()
    assert case.resolved_at is None


def test_a_closed_case_offers_no_step_and_leads_to_the_next_one() -> None:
    client, _user = logged_in(Role.OPERATOR)
    now = clock.now()
    case = desk_cases.with_candidates(now, "B-1")
    Case.objects.filter(pk=case.pk).update(resolved_at=now, resolution="checked")
    page = client.get(page_of(case)).content.decode()
    assert "/do/" not in page
    assert "Back to the desk" in page
    following = desk_cases.lost(now, "B-2")
    assert f'href="{page_of(following)}"' in client.get(page_of(case)).content.decode()


def test_the_case_of_an_orphan_leads_to_it() -> None:
    now = clock.now()
    orphan = Orphan.objects.create(
        provider="polza", provider_id="gen_9", account=factories.account(now), currency="RUB", cost=8, found_at=now
    )  # fmt: skip
    case = factories.case(CaseKind.ORPHAN, now, orphan=orphan)
    client, _user = logged_in(Role.OPERATOR)
    url = reverse("admin:jobs_orphan_change", args=[orphan.pk])
    assert f'href="{url}"' in client.get(page_of(case)).content.decode()
    assert "Adopt or dispute it" in text(client, DESK)


# --- pictures of candidates -------------------------------------------------------------------------------------------


@pytest.fixture
def pictures() -> Iterator[None]:
    results.picture_process.cache_clear()
    yield
    results.picture_process().close()
    results.picture_process.cache_clear()


class Provider:
    """What the provider tells about an id, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.file = FileRef(data=desk_cases.png())
        self.trouble = ""
        monkeypatch.setattr(candidate_picture, "_ask", self.ask)

    async def ask(self, _account: Account, provider_id: str, _model: str) -> FileRef:
        self.asked.append(provider_id)
        if self.trouble:
            raise candidate_picture.NoPictureError(self.trouble)
        return self.file


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    return Provider(monkeypatch)


def _picture(client: Client, case: Case, wanted: str = desk_cases.ID) -> Any:
    return client.get(reverse("admin:jobs_case_candidate", args=[case.pk]), {"id": wanted})


@pytest.mark.usefixtures("pictures")
def test_a_candidates_picture_is_brought_here_once_and_made_anew(
    provider: Provider, tmp_path: Path
) -> None:
    client, _user = logged_in(Role.VIEWER)
    case = desk_cases.with_candidates(clock.now(), "B-1")
    before = list(ProviderTask.objects.values())
    for _time in range(2):
        answer = _picture(client, case)
        assert answer.status_code == 200
        assert answer["Content-Type"] == "image/webp"
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in answer["Content-Security-Policy"]
        with Image.open(io.BytesIO(answer.content)) as image:
            assert (image.format, image.size) == ("WEBP", (320, 320))
    assert provider.asked == [desk_cases.ID]
    assert list(ProviderTask.objects.values()) == before
    # One small file, among those that are swept after a day.
    (kept,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert results.sweep(now_s=kept.stat().st_mtime + results.LEFTOVER_AGE_S + 1) == 1


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(
    "data", [b"<svg onload='alert(1)'/>", b"", desk_cases.png()[:200]], ids=["svg", "empty", "cut"]
)
def test_what_is_no_picture_is_not_shown_and_nothing_of_it_stays(
    provider: Provider, tmp_path: Path, data: bytes
) -> None:
    client, _user = logged_in(Role.OPERATOR)
    provider.file = FileRef(data=data)
    answer = _picture(client, desk_cases.with_candidates(clock.now(), "B-1"))
    assert answer.status_code == 404
    assert answer["Content-Type"].startswith("text/plain")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_the_provider_does_not_give_is_not_asked_for_with_each_reload(
    provider: Provider,
) -> None:
    client, _user = logged_in(Role.OPERATOR)
    provider.trouble = "The provider names no file of it."
    case = desk_cases.with_candidates(clock.now(), "B-1")
    assert [_picture(client, case).status_code for _time in range(3)] == [404] * 3
    assert provider.asked == [desk_cases.ID]


def test_an_address_inside_the_house_is_not_fetched(
    provider: Provider, settings: Any, tmp_path: Path
) -> None:
    client, _user = logged_in(Role.OPERATOR)
    settings.PROVIDER_BASE_URLS = {"polza": "https://polza.test/api/v1"}
    provider.file = FileRef(url="http://127.0.0.1:1/latest/meta-data/")
    answer = _picture(client, desk_cases.with_candidates(clock.now(), "B-1"))
    assert (answer.status_code, answer.content.decode()) == (404, "Its file could not be fetched.")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("why", ["no candidate", "no permission", "no send", "no key"])
def test_only_candidates_of_the_case_are_asked_for_and_only_by_who_may_see_them(
    provider: Provider, settings: Any, why: str
) -> None:
    client, user = logged_in(Role.VIEWER)
    now = clock.now()
    case = desk_cases.with_candidates(now, "B-1")
    if why == "no permission":
        user.groups.clear()
    if why == "no send":
        case = factories.case(CaseKind.PAID_TWICE, now)
    if why == "no key":
        settings.PROVIDER_KEYS = {"polza": "another"}
    answer = _picture(client, case, "gen_other" if why == "no candidate" else desk_cases.ID)
    assert answer.status_code == (403 if why == "no permission" else 404)
    assert provider.asked == []


class Network:
    """What the provider's own server says, over the real transport of reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[httpx.Request] = []
        self.poll: dict[str, Any] = {
            "id": desk_cases.ID, "status": "completed", "data": {"url": "https://files.example/a.png"},
        }  # fmt: skip
        monkeypatch.setattr(candidate_picture, "Transport", self._transport)

    def _transport(self, **_given: Any) -> Transport:
        return Transport(reads=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.host == "files.example":
            return httpx.Response(200, content=desk_cases.png())
        return httpx.Response(200, json=self.poll)


@pytest.mark.usefixtures("pictures")
def test_the_provider_is_asked_with_the_key_and_its_storage_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, _user = logged_in(Role.OPERATOR)
    network = Network(monkeypatch)
    assert _picture(client, desk_cases.with_candidates(clock.now(), "B-1")).status_code == 200
    asked, fetched = network.requests
    assert asked.method == fetched.method == "GET"
    assert asked.url.path.endswith(f"/media/{desk_cases.ID}")
    assert asked.headers["authorization"] == f"Bearer {desk_cases.KEY}"
    assert "authorization" not in fetched.headers


@pytest.mark.parametrize(
    "said",
    [
        {"id": "gen_of_somebody_else"},
        {"status": "processing", "data": None},
        {"data": {}},
        {"data": {"url": "ftp://files.example/a.png"}},
    ],
    ids=["another id", "not done", "no file", "no http"],
)
def test_a_picture_of_anything_else_is_not_shown_under_this_id(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
) -> None:
    client, _user = logged_in(Role.OPERATOR)
    network = Network(monkeypatch)
    network.poll |= said
    assert _picture(client, desk_cases.with_candidates(clock.now(), "B-1")).status_code == 404
    assert len(network.requests) == 1

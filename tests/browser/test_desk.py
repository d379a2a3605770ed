"""An operator clears the desk, once with the mouse alone and once with the keyboard alone: a lost send by each way of settling one,
and a case of each kind that holds a job up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import pytest
from django.core.cache import cache
from playwright.sync_api import expect

from jobs import attach, results
from jobs.admin import candidate_picture
from jobs.clock import clock
from jobs.models import Case
from jobs.roles import Role
from jobs.states import BLOCKING_CASES, CaseKind, JobState
from providers.contract import Account, FileRef, Named, Running
from tests import desk_cases, factories
from tests.browser.visitor import LANGUAGES, SIZES, Visitor

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

DESK = "/admin/jobs/case/"
PASTED = "gen_seen_in_their_dashboard"


# --- what is cleared, and how -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """One case and how it is settled. `step`: the words of the step; "" for a candidate's own button. `chips`: ready words
    that are pressed, by what is in them; `id`: the provider's id is brought along, by pasting or typing; `file`: one is
    uploaded; `other`: the second answer of the choice is the one. Afterwards: the case's resolution and the job's state."""

    name: str
    seed: Callable[[datetime, str], Case]
    step: str
    resolution: str
    job: JobState
    chips: Sequence[str] = ()
    id: str = ""
    file: bool = False
    other: bool = False


GAVE_UP: dict[str, Any] = {
    "step": "Resolve", "chips": ["no longer wants it"], "other": True, "resolution": "gave_up", "job": JobState.FAILED,
}  # fmt: skip
UPLOADED: dict[str, Any] = {
    "step": "Resolve", "chips": ["Made by hand"], "file": True, "resolution": "done", "job": JobState.SUCCEEDED,
}  # fmt: skip
REFUNDED: dict[str, Any] = {
    "step": "Mark as refunded", "chips": ["seen in the balance"], "resolution": "refunded", "job": JobState.FAILED,
}  # fmt: skip
OF = desk_cases.OF_KIND
WAYS = [
    Way("attach", desk_cases.lost, "Attach a provider id", "evidence", JobState.ACTIVE, ["dashboard"], id=PASTED),
    Way("accept", desk_cases.with_candidates, "", "evidence", JobState.ACTIVE, ["what was asked for"]),
    Way("absent", desk_cases.lost, "It never arrived: send again", "absent", JobState.PENDING, ["support says"]),
    Way("write-off", desk_cases.lost, "Write off", "written_off", JobState.FAILED, ["Too small"]),
    Way("refund", desk_cases.lost, **REFUNDED),
    Way("upload", desk_cases.lost, **UPLOADED),
    Way("give-up", desk_cases.lost, **GAVE_UP),
    Way("paid_without_result", OF[CaseKind.PAID_WITHOUT_RESULT], **UPLOADED),
    Way("failed_but_charged", OF[CaseKind.FAILED_BUT_CHARGED], **REFUNDED),
    Way("lost_at_provider", OF[CaseKind.LOST_AT_PROVIDER], "Write off", "written_off", JobState.FAILED, ["won't pay"]),
    Way("never_answered", OF[CaseKind.NEVER_ANSWERED], **GAVE_UP),
    Way("fetch_failed", OF[CaseKind.FETCH_FAILED], **UPLOADED),
    Way("conflict", OF[CaseKind.CONFLICT], "Close the case", "checked", JobState.MANUAL, ["nothing to do"]),
    Way("poison", OF[CaseKind.POISON], "Close the case", "checked", JobState.MANUAL, ["nothing to do"]),
    Way("restore", OF[CaseKind.RESTORE], "It never arrived: send again", "absent", JobState.PENDING, ["isn't in"]),
    Way("by_hand", OF[CaseKind.BY_HAND], "Resolve", "done", JobState.SUCCEEDED, ["handed over"]),
    Way("late_result", OF[CaseKind.LATE_RESULT], "Deliver another result", "delivered", JobState.SUCCEEDED),
]  # fmt: skip


# --- two hands --------------------------------------------------------------------------------------------------------


class Hand(Protocol):
    def open(self, case: Case) -> None: ...
    def step(self, words: str) -> None: ...
    def chip(self, words: str) -> None: ...
    def other(self) -> None: ...
    def id(self, provider_id: str) -> None: ...
    def file(self, path: Path) -> None: ...
    def submit(self) -> None: ...
    def to_the_desk(self) -> None: ...


@dataclass(slots=True)
class Mouse:
    """Presses what it sees."""

    who: Visitor

    def open(self, case: Case) -> None:
        self.who.page.locator(f"#result_list a[href*='/case/{case.pk}/change/']").click()

    def step(self, words: str) -> None:
        page = self.who.page
        if words:
            page.locator(".case-do", has_text=words).click()
        else:
            page.get_by_role("button", name=f"Accept this one: {desk_cases.ID}", exact=True).click()

    def chip(self, words: str) -> None:
        self.who.page.locator(".ready .chip", has_text=words).click()

    def other(self) -> None:
        self.who.page.locator("form.confirm input[type=radio]").nth(1).click()

    def id(self, provider_id: str) -> None:
        """Copied in the provider's dashboard, pasted by a press."""
        page = self.who.page
        page.evaluate("text => navigator.clipboard.writeText(text)", provider_id)
        page.get_by_role("button", name="Paste").click()
        expect(page.locator("#id_provider_id")).to_have_value(provider_id)

    def file(self, path: Path) -> None:
        with self.who.page.expect_file_chooser() as chooser:
            self.who.page.locator("input[type=file]").click()
        chooser.value.set_files(path)

    def submit(self) -> None:
        self.who.page.locator(".confirm-buttons button").click()

    def to_the_desk(self) -> None:
        self.who.page.locator(".nav-link", has_text="Desk").first.click()


@dataclass(slots=True)
class Keyboard:
    """Presses keys, and looks where the focus is."""

    who: Visitor

    def _is_at(self, there: str, arg: str = "") -> bool:
        """Whether the focused element is the one: `there` is a function of it and `arg`."""
        said = f"arg => ({there})(document.activeElement, arg)"
        return bool(self.who.page.evaluate(said, arg))

    def _until(self, key: str, there: str, *, arg: str = "", most: int = 60) -> None:
        """Press `key` until the focus is where it should be."""
        for _time in range(most):
            if self._is_at(there, arg):
                return
            self.who.page.keyboard.press(key)
        raise AssertionError(f"{key!r} never leads to {arg or there}")

    def open(self, case: Case) -> None:
        """From the top, whatever place the list has kept."""
        for _time in WAYS:
            self.who.page.keyboard.press("k")
        self._until("j", "(at, arg) => at.pathname === arg", arg=f"{DESK}{case.pk}/change/")
        self._enter()

    def step(self, words: str) -> None:
        self.who.page.keyboard.press("m")
        there = "(at, arg) => at.matches('[data-step]') && (at.ariaLabel || at.textContent).includes(arg)"
        self._until("j", there, arg=words or desk_cases.ID)
        self._enter()

    def chip(self, words: str) -> None:
        self._until(
            "Tab",
            "(at, arg) => at.matches('.ready .chip') && at.textContent.includes(arg)",
            arg=words,
        )
        self.who.page.keyboard.press("Space")

    def other(self) -> None:
        self._until("Tab", "at => at.matches('form.confirm input[type=radio]')")
        self.who.page.keyboard.press("ArrowDown")

    def id(self, provider_id: str) -> None:
        self._until("Tab", "at => at.matches('#id_provider_id')")
        self.who.page.keyboard.type(provider_id)

    def file(self, path: Path) -> None:
        self._until("Tab", "at => at.matches('input[type=file]')")
        with self.who.page.expect_file_chooser() as chooser:
            self.who.page.keyboard.press("Enter")
        chooser.value.set_files(path)

    def submit(self) -> None:
        self._until("Tab", "at => at.matches('.confirm-buttons button')")
        self._enter()

    def to_the_desk(self) -> None:
        with self.who.page.expect_navigation():
            self.who.page.keyboard.press("u")

    def _enter(self) -> None:
        with self.who.page.expect_navigation():
            self.who.page.keyboard.press("Enter")


@dataclass
class Heard:
    """What the pages heard of keyboard and mouse; a page's own counters would end with it. No slots: Playwright marks it."""

    keys: int = 0
    presses: int = 0
    _names: dict[str, str] = field(
        default_factory=lambda: {"keydown": "keys", "pointerdown": "presses"}
    )

    def listen(self, who: Visitor) -> None:
        who.page.expose_function("heard", self.hear)
        for event in self._names:
            who.page.add_init_script(
                f"addEventListener('{event}', (event) => event.isTrusted && window.heard('{event}'), true)"
            )

    def hear(self, event: str) -> None:
        name = self._names[event]
        setattr(self, name, getattr(self, name) + 1)


# --- the desk ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def upload(tmp_path: Path) -> Path:
    path = tmp_path / "made by hand.png"
    path.write_bytes(desk_cases.png(40))
    return path


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[None]:
    """Knows every id it is asked for, and has a picture of each."""
    settings.PROVIDER_KEYS = {"polza": desk_cases.KEY}
    cache.clear()

    async def known(_adapter: Any, _account: Account, _named: Named) -> Running:
        return Running("processing")

    async def picture(_account: Account, _provider_id: str, _model: str) -> FileRef:
        return FileRef(data=desk_cases.png())

    monkeypatch.setattr(attach, "_ask", known)
    monkeypatch.setattr(candidate_picture, "_ask", picture)
    results.picture_process.cache_clear()
    yield
    results.picture_process().close()
    results.picture_process.cache_clear()


def test_each_kind_that_holds_a_job_up_is_among_them() -> None:
    assert {kind for kind, seed in OF.items() for way in WAYS if way.seed is seed} == BLOCKING_CASES


@pytest.mark.parametrize("hand_type", [Mouse, Keyboard])
def test_an_operator_clears_the_desk_with_one_hand(
    visit: Callable[..., Visitor], upload: Path, hand_type: Callable[[Visitor], Hand]
) -> None:
    now = clock.now()
    cases = {way.name: way.seed(now, f"C-{way.name}") for way in WAYS}
    who = visit(
        Role.OPERATOR, viewport=SIZES["desk"], permissions=["clipboard-read", "clipboard-write"]
    )
    assert who.page.url == who.server + DESK  # the first thing an operator sees
    heard = Heard()
    heard.listen(who)
    who.go(DESK)
    hand = hand_type(who)
    for way in WAYS:
        hand.open(cases[way.name])
        hand.step(way.step)
        if way.other:
            hand.other()
        if way.id:
            hand.id(way.id)
        for words in way.chips:
            hand.chip(words)
        if way.file:
            hand.file(upload)
        hand.submit()
        who.page.locator(".notice-title", has_text="Closed").wait_for()
        _check(way, cases[way.name])
        hand.to_the_desk()
    # What a decision may bring about is told as well (a job that failed, a second charge); nothing holds a job up any more.
    left = Case.objects.filter(resolved_at__isnull=True)
    assert not left.filter(kind__in=BLOCKING_CASES).exists()
    assert not left.filter(pk__in=[case.pk for case in cases.values()]).exists()
    if hand_type is Mouse:
        assert (heard.keys, heard.presses > len(WAYS)) == (0, True)
    else:
        assert (heard.presses, heard.keys > len(WAYS)) == (0, True)
    assert who.complaints == []


def _check(way: Way, case: Case) -> None:
    case = Case.objects.select_related("job__delivered", "task").get(pk=case.pk)
    assert case.job is not None
    assert (case.resolution, case.job.state) == (way.resolution, way.job), way.name
    if way.id:
        assert case.task is not None
        assert case.task.provider_id == way.id
    if way.file:
        assert case.job.delivered is not None
        assert case.job.delivered.task_id is None


# --- the keys ---------------------------------------------------------------------------------------------------------


def _focused(who: Visitor) -> str:
    return str(who.page.evaluate("document.activeElement.pathname || ''"))


def test_several_are_chosen_and_taken_by_keys_and_the_place_is_kept(
    visit: Callable[..., Visitor],
) -> None:
    now = clock.now()
    cases = [desk_cases.lost(now, f"B-{number}") for number in range(4)]
    who = visit(Role.OPERATOR, viewport=SIZES["desk"])
    rows = [f"{DESK}{case.pk}/change/" for case in cases]
    keys = who.page.keyboard
    for key in ("j", "x", "j", "j", "x"):
        keys.press(key)
    assert _focused(who) == rows[2]
    assert who.page.locator("[data-chosen]").inner_text() == "2"
    with who.page.expect_navigation():
        keys.press("t")
    who.page.get_by_text("2 cases are yours.").wait_for()
    assert sorted(Case.objects.filter(owner__isnull=False).values_list("pk", flat=True)) == [
        cases[0].pk,
        cases[2].pk,
    ]
    assert _focused(who) == rows[2]
    keys.press("ArrowDown")
    assert _focused(who) == rows[3]
    with who.page.expect_navigation():
        keys.press("n")  # nothing is chosen: the one somebody is at
    keys.press("Tab")
    keys.type("asked them")
    keys.press("Tab")
    who.page.get_by_role("button", name="Add a note").press("Enter")
    who.page.get_by_text("The note is on 1 case.").wait_for()
    assert "asked them" in Case.objects.get(pk=cases[3].pk).note
    assert who.complaints == []


def test_keys_do_nothing_in_fields_with_modifiers_or_once_turned_off(
    visit: Callable[..., Visitor],
) -> None:
    desk_cases.lost(clock.now(), "B-1")
    who = visit(Role.OPERATOR, viewport=SIZES["desk"])
    keys, page = who.page.keyboard, who.page
    page.locator("#searchbar").focus()
    keys.type("jt?")
    assert page.locator("#searchbar").input_value() == "jt?"
    page.evaluate("document.activeElement.blur()")
    keys.press("Alt+j")
    assert _focused(who) == ""
    keys.press("?")
    page.get_by_role("dialog").wait_for()
    page.get_by_role("checkbox", name="Single keys do something").press("Space")
    keys.press("Escape")
    keys.press("j")
    assert _focused(who) == ""
    who.go(DESK)  # the browser remembers it
    keys.press("j")
    assert _focused(who) == ""
    page.get_by_role("button", name="All keys").press("Enter")
    page.get_by_role("checkbox", name="Single keys do something").press("Space")
    keys.press("Escape")
    keys.press("j")
    assert _focused(who) != ""
    assert not Case.objects.filter(owner__isnull=False).exists()
    assert who.complaints == []


def test_the_same_keys_work_on_a_keyboard_of_other_letters(visit: Callable[..., Visitor]) -> None:
    """On a Russian keyboard the key of "j" says "о"."""
    case = desk_cases.lost(clock.now(), "B-1")
    who = visit(Role.OPERATOR, viewport=SIZES["desk"])
    who.page.evaluate(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'о', code: 'KeyJ', bubbles: true, cancelable: true}))"
    )
    assert _focused(who) == f"{DESK}{case.pk}/change/"


def test_a_viewer_sees_the_desk_and_the_keys_that_move(visit: Callable[..., Visitor]) -> None:
    case = desk_cases.with_candidates(clock.now(), "B-1")
    who = visit(Role.VIEWER, viewport=SIZES["desk"])
    who.go(DESK)
    assert who.page.locator(".action-select").count() == 0
    for key in ("j", "x", "t"):
        who.page.keyboard.press(key)
    with who.page.expect_navigation():
        who.page.keyboard.press("Enter")
    assert (
        who.page.locator("main form[method=post], .case-do, main .button[href*='/do/']").count()
        == 0
    )
    picture = who.page.locator(".candidate img")
    expect(picture.first).to_have_js_property("naturalWidth", 320)
    case.refresh_from_db()
    assert case.owner is None
    assert who.complaints == []


@pytest.mark.parametrize(("language", "size"), [("en", "phone"), ("fa", "desk"), ("fa", "phone")])
def test_the_desk_and_its_pages_fit_their_window(
    visit: Callable[..., Visitor], settings: Any, language: str, size: str
) -> None:
    settings.LANGUAGES = LANGUAGES
    now = clock.now()
    cases = [make(now, f"R-{'x' * 60}") for make in desk_cases.OF_KIND.values()]
    cases.append(desk_cases.with_candidates(now, "C-1"))
    who = visit(Role.OWNER, viewport=SIZES[size])
    who.page.context.add_cookies(
        [{"name": "django_language", "value": language, "url": who.server}]
    )
    tasks = f"/admin/jobs/providertask/{cases[-1].task_id}/do"
    for address in [DESK, *(f"{DESK}{case.pk}/change/" for case in cases), f"{tasks}/accept/?provider_id={desk_cases.ID}",
                    f"{tasks}/attach/", f"{tasks}/write-off/"]:  # fmt: skip
        who.go(address)
        assert who.overflow() <= 0, address
    assert who.complaints == []


def test_without_scripts_a_case_is_chosen_taken_and_closed(visit: Callable[..., Visitor]) -> None:
    case = factories.case(CaseKind.PAID_TWICE, clock.now(), of=factories.done(clock.now()))
    who = visit(Role.OPERATOR, viewport=SIZES["desk"], java_script_enabled=False)
    who.page.locator(".action-select").check()
    who.page.locator(".actions").get_by_role("button", name="Take").click()
    who.page.get_by_text("1 case is yours.").wait_for()
    who.page.locator(".action-select").check()
    who.page.locator(".actions").get_by_role("button", name="Close the case").click()
    who.page.get_by_label("Note", exact=True).fill("looked at both")
    who.page.locator(".confirm-buttons button").click()
    who.page.get_by_text("1 case is closed.").wait_for()
    case.refresh_from_db()
    assert case.resolution == "checked"

"""`manage.py cases`: the desk without a browser."""

from __future__ import annotations

from decimal import Decimal

import pytest

from jobs.clock import clock
from jobs.lifecycle.staff import take_case
from jobs.models import Case, Orphan
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from tests import factories
from tests.test_commands import run, told

pytestmark = pytest.mark.django_db


def _case(money: int = 5, kind: CaseKind = CaseKind.PAID_TWICE) -> Case:
    now = clock.now()
    return factories.case(kind, now, of=factories.job(now, JobState.FAILED), money_at_risk=Decimal(money))  # fmt: skip


def test_the_open_ones_most_money_first_narrowed_by_kind_owner_and_number() -> None:
    small, big, closed = _case(1), _case(9), _case(7)
    manual = _case(3, CaseKind.CONFLICT)
    Case.objects.filter(pk=closed.pk).update(resolved_at=clock.now(), resolution="checked")
    anna = factories.staff(Role.OPERATOR, name="anna")
    take_case(case_id=small.pk, actor=anna, now=clock.now())

    def ids(*words: str) -> list[int]:
        code, answer = told("cases", "list", *words)
        assert code == 0
        return [one["id"] for one in answer["cases"]]

    assert ids() == [big.pk, manual.pk, small.pk]
    assert ids("--kind", "conflict") == [manual.pk]
    assert ids("--owner", "anna") == [small.pk]
    assert ids("--limit", "1") == [big.pk]
    code, text = run("cases", "list")
    assert (code, text.count("\n")) == (0, 3)
    assert run("cases", "list", "--owner", "nobody") == (0, "The desk is empty.\n")
    assert run("cases", "list", "--limit", "0")[0] == 2


def test_one_is_shown_with_what_happened_and_what_can_be_done() -> None:
    case = _case()
    code, answer = told("cases", "show", str(case.pk))
    assert (code, answer["id"], answer["money_at_risk"]) == (0, case.pk, "5")
    assert answer["happened"]
    assert answer["next"]
    assert "next" in run("cases", "show", str(case.pk))[1]
    assert run("cases", "show", "99999")[0] == 2


def test_it_is_taken_noted_and_closed_in_a_name() -> None:
    case = _case()
    factories.staff(Role.OPERATOR, name="anna")
    assert run("cases", "take", str(case.pk), "--as", "anna")[0] == 0
    assert run("cases", "note", str(case.pk), "--note", "asked them", "--as", "anna")[0] == 0
    words = ("cases", "close", str(case.pk), "--resolution", "checked", "--note", "fine", "--as")
    assert run(*words, "nobody")[0] == 2
    assert run(*words, "anna")[0] == 0
    case.refresh_from_db()
    assert case.owner is not None
    assert case.resolved_by == case.owner
    assert "asked them" in case.note
    assert "fine" in case.note
    assert run(*words, "anna")[0] == 3, "it is closed already"
    code, answer = told("cases", "show", str(case.pk))
    assert (code, answer["next"], bool(answer["closed"])) == (0, "", True)


def test_only_an_orphan_is_adopted_or_disputed() -> None:
    case = _case()
    factories.tenant()
    for words in (("adopt", "--tenant", "studio"), ("dispute", "--reference", "R-1")):
        assert run("cases", words[0], str(case.pk), *words[1:])[0] == 3
    now = clock.now()
    orphan = Orphan.objects.create(
        provider="polza", provider_id="gen_1", account=factories.account(now), currency="RUB", found_at=now
    )  # fmt: skip
    found = Case.objects.create(kind=CaseKind.ORPHAN, orphan=orphan, opened_at=now, due_at=now)
    assert run("cases", "adopt", str(found.pk), "--tenant", "nobody")[0] == 2
    assert run("cases", "dispute", str(found.pk), "--reference", "R-1")[0] == 0
    orphan.refresh_from_db()
    found.refresh_from_db()
    assert (orphan.outcome, found.resolution) == ("disputed", "disputed")

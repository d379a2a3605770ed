"""The "Must hold" lines of issue 6 that name no command of their own, with their figures printed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench.desk import until
from tests import statement_planting as planting
from tests.holds.suite import measured, passes
from tests.real import real_desk


@pytest.mark.flow
@pytest.mark.django_db(transaction=True)
def test_line_2_the_statement_finds_what_was_planted_and_nothing_else(tmp_path: Path) -> None:
    sandbox = {"latency_fixed_s": 0.3, "concurrency_limit": 200}
    with real_desk(tmp_path, sandbox=sandbox, WORKER_CONCURRENCY=40) as desk:
        planted = planting.plant(desk)
        assert Counter({kind: len(ids) for kind, ids in planted.items()}) == planting.EXPECTED
        planting.age(desk)
        # A flaky history: one page in three fails in one way or another.
        desk.sandbox.control("settings", faults={"history_500": 0.15, "history_reset": 0.1, "history_cut": 0.1, "receipt_503": 0.2})  # fmt: skip
        code, told = planting.statement(desk)
        print(f"{told['accounts'][0]['listed']} listed, {told['matched']} matched, open: "
              f"{ {one['kind']: one['count'] for one in told['counts'] if one['count']} }")  # fmt: skip
        assert planting.found(told) == planted
        assert (code, told["open"]) == (3, sum(planting.EXPECTED.values()))
        assert told["matched"] >= planting.GOOD + planting.FREE
        cases = "SELECT count(*) FROM jobs_case WHERE kind = 'orphan' AND resolved_at IS NULL"
        assert desk.ask(cases)[0][0] == len(planted["orphan"])

        # Once more: the same, and no second case. One orphan adopted is fetched, one disputed is settled.
        adopted, disputed = sorted(planted["orphan"])[:2]
        desk.python(_DECIDE.format(adopted=adopted, disputed=disputed))
        stored = "SELECT 1 FROM jobs_providertask WHERE provider_id = %s AND state = 'stored'"
        until(lambda: desk.ask(stored, adopted), "the adopted picture is stored", 60.0)
        planting.age(desk)
        code, again = planting.statement(desk)
        planted["orphan"] -= {adopted, disputed}
        assert (code, planting.found(again)) == (3, planted)
        assert desk.ask(cases)[0][0] == len(planted["orphan"])
        ledger = desk.sandbox.summary()
        assert ledger["posted_twice"] == [], "adopting sends nothing"


_DECIDE = """
from django.utils.timezone import now
from jobs.lifecycle import statement
from jobs.lifecycle.create import default_tenant
from jobs.models import Orphan
one = dict(actor=None, now=now())
statement.adopt(orphan_id=Orphan.objects.get(provider_id={adopted!r}).pk, tenant_id=default_tenant().pk,
                prompt="", reference="", **one)
statement.dispute(orphan_id=Orphan.objects.get(provider_id={disputed!r}).pk, reference="T-17", **one)
"""


def test_line_3_a_bulk_retry_of_a_hundred_thousand() -> None:
    assert measured("bench.bulk")["ok"]


def test_line_1_lost_sends_settle_to_the_truth() -> None:
    assert measured("bench.evidence")["ok"]


def test_line_4_each_role_each_verb_each_way() -> None:
    assert passes(
        "tests/test_permission_matrix.py", "tests/test_roles.py", "tests/test_read_only.py"
    )


def test_line_5_an_operator_by_mouse_and_by_keyboard() -> None:
    assert passes("tests/browser/test_desk.py")

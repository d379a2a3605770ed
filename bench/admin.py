"""Do the pages of the admin cost the same at a million jobs as at a thousand?

`python -m bench.admin [--json] [--quick]`. Two databases on one server, alike but for the length of their past
(bench/admin_history.py): dashboard, the list of jobs (first page, one in the middle of the past, each filter, searches),
gallery, reports, the search over everything and the desk are asked in turns, so that noise falls on both. In process, by
Django's test client through the whole middleware, as an operator and an owner by turns.

Of each page: the p95 on both and their ratio, its queries, and its weight: the page with the style sheets, fonts, scripts
and icons that it names, uncompressed as whitenoise and uvicorn send them, all fonts counted although a browser takes only
those that it needs. Other pages are measured and shown, not judged.

--quick: 50,000 jobs in place of a million, fewer samples.
"""

from __future__ import annotations

import html
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from bench import admin_history, report
from bench.postgres import OwnServer, own_server

MANY, QUICK, FEW = 1_000_000, 50_000, 1_000
RATIO, QUERIES, WEIGHT_KB = 2.0, 30, 600
SAMPLES, QUICK_SAMPLES = 24, 8
AGAIN = 3  # a page that seems to fail is asked this many times as often once more
A_FILTER = 3  # of a filter with many choices, so many are asked
LIST = "/admin/jobs/job/"
_NO_KEYS = ("AI_API_KEY", "POLZA_API_KEY", "AI_BASE_URL", "POLZA_BASE_URL", "AI_MODEL", "AI_MODEL_FALLBACK")  # fmt: skip


@dataclass(slots=True)
class Page:
    """An address in each database, and what was measured of it there."""

    name: str
    few: str
    many: str
    judged: bool = True
    took: dict[str, list[float]] = field(default_factory=lambda: {"few": [], "many": []})
    queries: int = 0
    weight: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return p95(self.took["many"]) / p95(self.took["few"])

    @property
    def weight_kb(self) -> float:
        return sum(self.weight.values()) / 1000

    @property
    def holds(self) -> bool:
        return self.ratio <= RATIO and self.queries <= QUERIES and self.weight_kb <= WEIGHT_KB

    def figures(self) -> dict[str, Any]:
        return {
            "few_p95_ms": round(1000 * p95(self.took["few"]), 1),
            "many_p95_ms": round(1000 * p95(self.took["many"]), 1),
            "few_median_ms": round(1000 * statistics.median(self.took["few"]), 1),
            "many_median_ms": round(1000 * statistics.median(self.took["many"]), 1),
            "ratio": round(self.ratio, 2),
            "queries": self.queries,
            "weight_kb": round(self.weight_kb),
            **({} if self.holds else {"holds": False}),
        }


def p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    jobs = QUICK if quick else MANY
    with (
        tempfile.TemporaryDirectory(prefix="admin-") as folder,
        own_server(Path(folder, "postgres")) as server,
    ):
        begin = time.monotonic()
        desk = Desk(server, jobs, Path(folder))
        loaded_s = time.monotonic() - begin
        pages, missing = desk.pages()
        for page in pages:
            desk.weigh(page)
        rounds = QUICK_SAMPLES if quick else SAMPLES
        desk.ask(pages, rounds)
        if again := [page for page in pages if page.ratio > RATIO]:
            for page in again:
                page.took = {"few": [], "many": []}
            desk.ask(again, AGAIN * rounds)
        desk.close()
    judged = [page for page in pages if page.judged]
    figures = {
        "jobs": [FEW, jobs],
        "loaded_s": round(loaded_s, 1),
        "samples_a_page": rounds,
        "pages": len(judged),
        "worst_ratio": round(max(page.ratio for page in judged), 2),
        "most_queries": max(page.queries for page in judged),
        "heaviest_kb": round(max(page.weight_kb for page in judged)),
        "heaviest": max(judged, key=lambda page: page.weight_kb).weight,
        "each": {page.name: page.figures() for page in judged},
        "others": {page.name: page.figures() for page in pages if not page.judged},
        "missing": missing,
    }
    limits = {"ratio_max": RATIO, "queries_max": QUERIES, "weight_kb_max": WEIGHT_KB}
    return figures, limits, not missing and all(page.holds for page in judged)


class Desk:
    """Both databases, a person in each, and Django asking the one or the other."""

    def __init__(self, server: OwnServer, jobs: int, folder: Path) -> None:
        import django

        for name in _NO_KEYS:
            os.environ[name] = ""
        os.environ |= {
            "DEMO": "1", "DATABASE_URL": server.create("few"), "DJANGO_SETTINGS_MODULE": "studio.settings",
            "MEDIA_ROOT": str(folder / "media"), "SPOOL_DIR": str(folder / "spool"),
        }  # fmt: skip
        django.setup()
        from django.conf import settings
        from django.core.management import call_command
        from django.db import connection

        settings.ALLOWED_HOSTS = ["testserver"]
        settings.ON_SANDBOX = False  # none runs here
        call_command("migrate", verbosity=0)
        _staff()
        connection.close()
        with psycopg.connect(server.url("postgres"), autocommit=True) as one:
            one.execute("CREATE DATABASE many TEMPLATE few")
        now = _end_of_a_month()
        admin_history.load(server, "few", jobs=FEW, open_cases=40, now=now)
        admin_history.load(server, "many", jobs=jobs, open_cases=1000, now=now)
        self._jobs = {"few": FEW, "many": jobs}
        self._prepare()

    def _prepare(self) -> None:
        from django.contrib.auth import get_user_model
        from django.db import connection, connections
        from django.test import Client

        mine = connection.settings_dict
        self._connections = {
            name: connections["default"].__class__(mine | {"NAME": name}, alias="default")
            for name in ("few", "many")
        }
        self._people: dict[str, list[Any]] = {}
        self._files: dict[str, bytes] = {}
        for name in self._connections:
            self._use(name)
            self._people[name] = [Client(), Client()]
            for person, user in zip(self._people[name], ("operator", "owner"), strict=True):
                person.force_login(get_user_model().objects.get(username=user))

    def _use(self, name: str) -> None:
        from django.db import connections

        connections["default"] = self._connections[name]

    def close(self) -> None:
        for one in self._connections.values():
            one.close()

    def get(self, name: str, address: str, person: int = 0) -> str:
        self._use(name)
        answer = self._people[name][person].get(address)
        assert answer.status_code == 200, (name, address, answer.status_code)
        return str(answer.content, "utf-8")

    # --- which pages ---

    def pages(self) -> tuple[list[Page], list[str]]:
        """What is measured, and the names of what does not exist."""
        from django.urls import NoReverseMatch, reverse

        same = [("dashboard", reverse("admin:index")), ("jobs", LIST)]
        missing = []
        for name in ("gallery", "reports", "search"):
            try:
                same.append((name, reverse(f"admin:desk_{name}")))
            except NoReverseMatch:
                missing.append(name)
        known = dict(same)
        same += [
            (f"jobs, {query}", f"{LIST}?{query}") for query in self._filters(LIST, {"failure"})
        ]
        links = html.unescape(self.get("few", "/admin/failures/"))
        groups = re.findall(r"[?&]failure=(\w+(?:%3A|:)[^\"&]+)", links)
        same += [(f"jobs, failure={group}", f"{LIST}?failure={group}") for group in groups[:1]]
        same += [(f"jobs, q={words}", f"{LIST}?q={words}") for words in ("lighthouse", "лес", "nowhere to be found", "7")]  # fmt: skip
        for name in ("gallery", "reports"):
            if name in known:
                same += [(f"{name}, {query}", f"{known[name]}?{query}") for query in self._filters(known[name])]  # fmt: skip
        if "search" in known:
            same += [(f"search, q={words}", f"{known['search']}?q={words}") for words in ("lighthouse", "tenant", "nowhere to be found")]  # fmt: skip
        same += [("desk", "/admin/jobs/case/")]
        same += [(f"desk, {query}", f"/admin/jobs/case/?{query}") for query in self._filters("/admin/jobs/case/")]  # fmt: skip
        others = [
            ("batches", "/admin/jobs/batch/"), ("results", "/admin/jobs/result/"), ("all sends", "/admin/jobs/providertask/"),
            ("Polza tasks", "/admin/jobs/polzatask/"), ("providers", "/admin/providers/providerstate/"),
            ("failures", "/admin/failures/"), ("comparison", "/admin/comparison/"), ("trail", "/admin/trail/"),
            ("handover", "/admin/handover/"), ("callbacks", "/admin/jobs/callback/"), ("tenants", "/admin/jobs/tenant/"),
        ]  # fmt: skip
        pages = [Page(name, self._alike(address), address) for name, address in same]
        pages += [self._each(name, address) for name, address in _NUMBERED]
        pages += [Page(name, address, address, judged=False) for name, address in others]
        pages += [self._each("job", "/admin/jobs/job/{done}/change/", judged=False)]
        pages += [self._each("case", "/admin/jobs/case/1/change/", judged=False)]
        pages += [self._each("batch", "/admin/jobs/batch/{batch}/change/", judged=False)]
        return pages, missing

    def _each(self, name: str, address: str, *, judged: bool = True) -> Page:
        """With the number of a job in the middle of each past."""
        few, many = (
            address.format(
                middle=jobs // 2, done=jobs // 200 * 100 + 50, batch=jobs // 80 // 3 * 3 + 1,
                reference=f"{jobs // 2 + 1:07}",
            )
            for jobs in self._jobs.values()
        )  # fmt: skip
        return Page(name, few, many, judged)

    def _alike(self, address: str) -> str:
        """What a page of the many is to be held against: the same page of the few, or, where that has fewer rows (a tenth
        of their past is less than a page), the whole list, which fills its page."""
        here, there = (self.get(name, address).count("<tr") for name in ("few", "many"))
        return address if here * 1.2 >= there else address.partition("?")[0]

    def _filters(self, address: str, leave: Iterable[str] = ()) -> list[str]:
        """The queries that a page offers, each a filter by itself: of each filter the first and the last choices."""
        found: dict[str, list[str]] = {}
        for query in re.findall(r'href="[^"?]*\?([^"]+)"', html.unescape(self.get("few", address))):
            name, _is, value = query.partition("=")
            if value and "&" not in query and name not in {"older", "newer", "q", "o", "p", "next", *leave}:  # fmt: skip
                of = found.setdefault(name, [])
                if query not in of:
                    of.append(query)
        single = {"state", "phase", "created", "show"}
        return [
            query
            for name, of in found.items()
            for query in (of if name in single else dict.fromkeys([*of[: A_FILTER - 1], *of[-1:]]))
        ]

    # --- what they cost ---

    def weigh(self, page: Page) -> None:
        from django.db import reset_queries
        from django.test.utils import CaptureQueriesContext

        for name, address in (("few", page.few), ("many", page.many)):
            for person in (0, 1):
                self._use(name)
                self.get(name, address, person)
                reset_queries()
                with CaptureQueriesContext(self._connections[name]) as asked:
                    text = self.get(name, address, person)
                page.queries = max(page.queries, len(asked))
                weight = self._weight(text)
                if sum(weight.values()) > sum(page.weight.values()):
                    page.weight = weight

    def _weight(self, text: str) -> dict[str, int]:
        """Bytes, by kind."""
        weight = {"html": len(text.encode()), "css": 0, "js": 0, "fonts": 0, "icons": 0}
        named = set(re.findall(r'(?:src|href)="(/static/[^"#?]+|/admin/jsi18n/)[^"]*"', text))
        for address in sorted(named):
            body = self._file(address)
            if address.endswith(".css"):
                weight["css"] += len(body)
                for font in set(re.findall(r'url\("?([^")]+\.woff2)', body.decode())):
                    weight["fonts"] += len(self._file(os.path.normpath(os.path.join(os.path.dirname(address), font))))  # fmt: skip  # noqa: PTH118, PTH120  addresses, not paths
            elif address.endswith((".svg", ".png", ".ico")):
                weight["icons"] += len(body)
            else:
                weight["js"] += len(body)
        return weight

    def _file(self, address: str) -> bytes:
        if address not in self._files:
            self._use("few")
            answer = self._people["few"][0].get(address)
            assert answer.status_code == 200, address
            self._files[address] = answer.getvalue()
        return self._files[address]

    def ask(self, pages: list[Page], rounds: int) -> None:
        """In turns; who comes first changes from round to round."""
        for turn in range(rounds):
            for page in pages:
                for name in ("few", "many") if turn % 2 else ("many", "few"):
                    begin = time.perf_counter()
                    self.get(name, getattr(page, name), turn // 2 % 2)
                    page.took[name].append(time.perf_counter() - begin)
            print(f"round {turn + 1} of {rounds}", file=sys.stderr)


_NUMBERED = (
    ("jobs, deep page", LIST + "?older={middle}"),
    ("jobs, newer than", LIST + "?newer={middle}"),
    ("jobs, deep page of a state", LIST + "?state=succeeded&older={middle}"),
    ("jobs, q=reference", LIST + "?q=VIN-{reference}"),
)


def _staff() -> None:
    from django.contrib.auth.models import Group, User

    for name, group in (("operator", "Operator"), ("owner", "Owner")):
        user = User.objects.create_user(name, is_staff=True)
        user.groups.add(Group.objects.get(name=group))


def _end_of_a_month() -> datetime:
    """What pages take for now: late in a month, when what is summed over it is most. Sums of a month are no smaller then
    because this was started on the first."""
    from jobs.clock import clock

    here = datetime.now(UTC)
    then = here.replace(day=28, hour=15, minute=0, second=0, microsecond=0)
    asked, ahead = clock.now, then - here
    clock.now = lambda: asked() + ahead  # type: ignore[method-assign]
    return then


def main() -> int:
    return report.run("admin", "Do the pages of the admin cost the same at a million jobs as at a thousand?", measure)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

"""What people did, over all: who, what, to which object, why, before and after, newest first.

There is no table of deeds: the places where they are kept (jobs/trail_sources.py) are read together. A page takes at most
its own length from each, by an index of what people did where the machine writes to the same table, so its price does not
grow with the machine's events.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, F, Q

from jobs.trail_sources import SOURCES, Deed, On, Source, of_kind, of_verb

PAGE = 50
# Words of a reason are looked for among so many of the newest deeds of each place; no index could hold them all.
WORDS_AMONG = 20_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page ended: the next one begins after it."""

    at: datetime
    rank: int
    id: int

    def __str__(self) -> str:
        return f"{self.at.isoformat()}~{self.rank}~{self.id}"

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """None for "", and for whatever is no place: the page is then the first."""
        at, _tilde, rest = text.partition("~")
        rank, _tilde, pk = rest.partition("~")
        try:
            moment, place = datetime.fromisoformat(at), cls(datetime.min, int(rank), int(pk))  # noqa: DTZ901  replaced below
        except ValueError:
            return None
        if moment.tzinfo is None or not (abs(place.rank) < 100 and abs(place.id) < 2**62):
            return None
        return cls(moment, place.rank, place.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which deeds; what is not named does not narrow. `who`: a user's id. `pk`: of the object, with `on`. `words`: of the
    reason. `since` is part of the range, `until` is not."""

    who: int | None = None
    what: str = ""
    on: On | None = None
    pk: str = ""
    since: datetime | None = None
    until: datetime | None = None
    words: str = ""


# --- reading ----------------------------------------------------------------------------------------------------------


def page(
    wanted: Wanted, *, older: Place | None = None, most: int = PAGE
) -> tuple[list[Deed], Place | None]:
    """The newest deeds after `older`, and the place after which the next page begins; None: that was all."""
    found = [
        _read(source, rank, wanted, older, most + 1)
        for rank, source in enumerate(SOURCES)
        if _may_hold(source, wanted)
    ]
    merged = list(heapq.merge(*found, key=_order, reverse=True))
    deeds = merged[:most]
    if len(merged) <= most:
        return deeds, None
    last = deeds[-1]
    return deeds, Place(last.at, _RANKS[last.source], last.id)


def everything(wanted: Wanted, *, at_once: int = 500) -> Iterator[list[Deed]]:
    """All of them in slices, for whoever writes them to a file."""
    older: Place | None = None
    while True:
        deeds, older = page(wanted, older=older, most=at_once)
        if deeds:
            yield deeds
        if older is None:
            return


def counts(*, since: datetime) -> dict[str, int]:
    """How many deeds by each person since then; "" for the shell. Those who did most come first."""
    told: dict[str, int] = {}
    for source in SOURCES:
        rows = source.rows().filter(**{f"{source.at}__gte": since}).order_by()
        for name, n in rows.values_list(f"{source.who}__username").annotate(n=Count("pk")):
            told[name or ""] = told.get(name or "", 0) + n
    return dict(sorted(told.items(), key=lambda one: (-one[1], one[0])))


_RANKS: Mapping[str, int] = {source.name: rank for rank, source in enumerate(SOURCES)}


def _order(deed: Deed) -> tuple[datetime, int, int]:
    return deed.at, -_RANKS[deed.source], deed.id


def _may_hold(source: Source, wanted: Wanted) -> bool:
    if source.always and wanted.what and wanted.what != source.always:
        return False
    if wanted.words and not source.texts:
        return False
    return wanted.on is None or wanted.on in source.kinds


def _read(source: Source, rank: int, wanted: Wanted, older: Place | None, most: int) -> list[Deed]:
    about = _about(source, wanted)
    if about is None:
        return []
    rows = source.rows().filter(about).order_by(F(source.at).desc(), "-pk")
    if wanted.words:
        newest = rows.values("pk")[:WORDS_AMONG]
        rows = source.rows().filter(pk__in=newest).order_by(F(source.at).desc(), "-pk")
        rows = rows.filter(_says(source, wanted.words))
    if older is not None:
        rows = rows.filter(_after(source, rank, older))
    told = rows.values("pk", source.at, f"{source.who}__username", *source.values)
    return [_deed(source, row) for row in told[:most]]


def _about(source: Source, wanted: Wanted) -> Q | None:
    """What narrows the source's rows, but for the words; None: none of them is wanted."""
    about = Q()
    if wanted.on is not None and wanted.pk:
        of = source.of(wanted.on, wanted.pk)
        if of is None:
            return None
        about &= of
    elif wanted.on is not None and len(source.kinds) > 1:
        about &= of_kind(source, wanted.on)
    if wanted.who is not None:
        about &= Q(**{source.who: wanted.who})
    if wanted.what and source.what:
        about &= Q(**of_verb(source, wanted.what))
    if wanted.since is not None:
        about &= Q(**{f"{source.at}__gte": wanted.since})
    if wanted.until is not None:
        about &= Q(**{f"{source.at}__lt": wanted.until})
    return about


def _says(source: Source, words: str) -> Q:
    said = Q()
    for name in source.texts:
        said |= Q(**{f"{name}__icontains": words})
    return said


def _after(source: Source, rank: int, older: Place) -> Q:
    """Rows that come later in the order (time, rank, id); the first condition is the one that an index can use."""
    if rank < older.rank:
        return Q(**{f"{source.at}__lt": older.at})
    reached = Q(**{f"{source.at}__lte": older.at})
    if rank > older.rank:
        return reached
    return reached & (Q(**{f"{source.at}__lt": older.at}) | Q(pk__lt=older.id))


def _deed(source: Source, row: Mapping[str, Any]) -> Deed:
    common = {
        "at": row[source.at], "source": source.name, "id": row["pk"], "by": row[f"{source.who}__username"] or "",
    }  # fmt: skip
    if source.always:
        common["what"] = source.always
    return Deed(**{**common, **source.told(row)})

"""Which failures are alike: the message without what differs from send to send, and the short key that a send carries. Pure.

Keys are stored, so a change here parts old failures from new ones of the same kind until they are keyed anew.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

from jobs.states import CaseKind
from providers.contract import FailureClass

MESSAGE_MAX = 200
KEY_MAX = 40
_READ_MAX = 600  # longer than what rows hold
_PASSES = 8
# The class of a send that was made and whose file can't be brought home; its words are `fetch_trouble`.
FETCH = CaseKind.FETCH_FAILED.value
CLASSES: tuple[str, ...] = (*(one.value for one in FailureClass), FETCH)
PERIODS = {"24h": timedelta(hours=24), "7d": timedelta(days=7), "30d": timedelta(days=30)}

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_CLOCK = r"\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?"
_ZONE = r"(?:\s?(?:z|utc|gmt|[+-]\d\d:?\d\d)\b)?"
# The first that fits at a place wins. Nothing put in their stead holds a digit, so that what is left fits nothing again.
_VARYING = re.compile(
    rf"""
    (?P<kept>\b(?:http(?:/[\d.]+)?|status|code)(?:\s(?:status|code))*\s?[:=]?\s?[1-5]\d\d\b
      |(?:(?<=[{{,])|(?<=[{{,]\s))"\w{{1,40}}"\s?:)
    |(?P<url>\b(?:[a-z][a-z+]{{1,9}}://|www\.|data:\w+/)[^\s"'<>“”«»]*[^\s"'<>“”«».,;:)\]}}!?])
    |(?P<quoted>(?P<open>"|“|«|`|(?<!\w)')(?:(?<=")[^"]*"|(?<=“)[^”]*”|(?<=«)[^»]*»|(?<=`)[^`]*`|(?<=')[^']*'(?!\w)))
    |(?P<named>(?<![^\W_])id["']?\s?[:=]\s?["']?)[^\W_][\w.-]*
    |(?P<time>\d{{4}}-\d\d-\d\d(?:[t\s]{_CLOCK})?{_ZONE}
      |(?:\b{_MONTH}\s\d\d?|\b\d\d?[\s-]{_MONTH})(?:,?[\s-]\d{{4}})?(?:,?\s{_CLOCK})?{_ZONE}
      |\b{_CLOCK}{_ZONE})
    |(?P<uuid>\b[\da-f]{{8}}(?:-[\da-f]{{4}}){{3}}-[\da-f]{{12}}\b)
    |(?P<span>\b(?:\d+(?:[.,]\d+)?(?:ms|[smhd]))+\b)
    |(?P<number>(?<![^\W_])\d+(?:[.,:/\s]\d+)*(?![^\W_]))
    |(?P<word>[^\W_]*\d[^\W_]*)
    """,
    re.VERBOSE | re.IGNORECASE,
)  # fmt: skip
_SIZE = re.compile(r"\d+([x×х*])\d+", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
_PARTS = re.compile(r"\d+|\D+")
_JOINERS = "\u200c\u200d"  # Persian words hold them
_HEX = re.compile(r"[\da-f]{8,}", re.IGNORECASE)


def pattern(text: str) -> str:
    """The message as its group shows it: N for numbers, … for ids and quoted values, TIME and URL. At most MESSAGE_MAX
    characters in one line; the same again for what it gives."""
    said = _one_line(text[:_READ_MAX])
    for _n in range(_PASSES):  # one rule may clear the way for another: an id beside a quoted value
        before, said = said, _cut(_VARYING.sub(_put, said))
        if said == before:
            break
    return said


@lru_cache(maxsize=1024)
def key(failure: str, text: str) -> str:
    """`failure` (its class) and twelve hex digits of the pattern, whatever its case."""
    name = re.sub(r"[^a-z_]", "", failure.lower())[:20] or FailureClass.UNKNOWN.value
    return f"{name}-{hashlib.sha256(pattern(text).casefold().encode()).hexdigest()[:12]}"


def class_of(of: str) -> str:
    """The class that a key names."""
    return of.rpartition("-")[0]


def told(
    *, failure_class: str | None, failure_text: str | None, fetch_trouble: str | None, unsent: bool
) -> str | None:
    """The key of what a send has met last; None where it has met nothing that was told in words or by class."""
    if fetch_trouble:
        return key(FETCH, fetch_trouble)
    if not (failure_class or failure_text):
        return None
    otherwise = FailureClass.UNSENT if unsent else FailureClass.UNKNOWN
    return key(failure_class or otherwise.value, failure_text or "")


# --- a group by its name ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A group within a period, as an address names it: `polza:rejected-0123456789ab:24h`. `open`: only jobs that still stand
    failed or wait for a person."""

    provider: str
    key: str
    period: str
    open: bool = False

    def __str__(self) -> str:
        return ":".join([self.provider, self.key, self.period, *(["open"] if self.open else [])])

    @property
    def span(self) -> timedelta:
        return PERIODS[self.period]


_CHOSEN = re.compile(
    rf"([\w-]{{1,40}}):([a-z_]{{1,20}}-[\da-f]{{12}}):({'|'.join(PERIODS)})(:open)?", re.ASCII
)


def chosen(name: str) -> Chosen | None:
    """None for what names no group."""
    found = _CHOSEN.fullmatch(name)
    if found is None:
        return None
    provider, of, period, still = found.groups()
    return Chosen(provider=provider, key=of, period=period, open=bool(still))


# --- the rules --------------------------------------------------------------------------------------------------------


def _put(found: re.Match[str]) -> str:
    name = found.lastgroup or ""
    match name:
        case "kept":
            return found[0]
        case "url" | "time":
            return name.upper()
        case "quoted":
            return f"{found[0][0]}…{found[0][-1]}"
        case "named":
            return f"{found['named']}…"
        case "uuid":
            return "…"
        case "span" | "number":
            return "N"
        case _:
            return _word(found[0])


def _word(word: str) -> str:
    """A word with digits: an id is left out as a whole, of any other its numbers are."""
    if size := _SIZE.fullmatch(word):
        return f"N{size[1]}N"
    digits = sum(one.isdecimal() for one in word)
    parts = len(_PARTS.findall(word))
    if (len(word) >= 6 and parts > 2) or (len(word) >= 12 and digits > 2) or _HEX.fullmatch(word):
        return "…"
    return _DIGITS.sub("N", word)


def _one_line(text: str) -> str:
    """One space between words, nothing that is not seen (controls, direction marks, halves of surrogate pairs)."""
    words = " ".join(text.split())
    if words.isprintable():
        return words
    seen = "".join(one for one in words if one.isprintable() or one in _JOINERS)
    return " ".join(seen.split())


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE_MAX else f"{text[: MESSAGE_MAX - 1].rstrip()}…"

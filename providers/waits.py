"""How long an answer asks us to wait. Pure; never raises.

What is junk, negative, past, endless or absurd is the same as not told: None. Headers come before the body, the finer of
two headers before the coarser, a machine field of the body before a sentence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from providers.evidence import Evidence

MAX_WAIT_S = 32 * 86_400.0  # the longest window there is: a month

_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,12})?", re.ASCII)
_EPOCH_S = 1_000_000_000  # 2001: a smaller number is a delay, not a moment
_EPOCH_MS = 1_000_000_000_000
_ISO = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})(?:[T ]|\s+at\s+)(\d{2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?\s*(Z|UTC|GMT|[+-]\d{2}:?\d{2})?",
    re.IGNORECASE,
)
_CJK = re.compile(r"[\u4e00-\u9fff]")
_CHINA = timezone(timedelta(hours=8))
_DIGITS = str.maketrans("۰۱۲۳۴۵۶۷۸۹٠١٢٣٤٥٦٧٨٩", "01234567890123456789")

_UNITS: tuple[tuple[str, float], ...] = (
    (r"milliseconds?|millis|msecs?|ms|мс|миллисекунд\w*|میلی ?ثانیه|毫秒|ミリ秒", 0.001),
    (
        r"seconds?|secs?|s|секунд\w*|сек|с|ثانیه|秒钟?|ثوانی|ثانیة|초|segundos?|sekunden?|secondes?|saniye",
        1,
    ),
    (r"minutes?|mins?|m|минут\w*|мин|دقیقه|分钟?|دقائق|دقیقة|분|minutos?|minuten?|dakika", 60),
    (r"hours?|hrs?|h|час\w*|ч|ساعات|ساعت|ساعة|小时|時間|시간|horas?|stunden?|heures?|saat", 3600),
    (
        r"days?|d|дн\w*|день|суток|сутки|روز|天|日|یوم|ایام|일|días?|dias?|tage?n?|jours?|gün",
        86_400,
    ),
    (r"weeks?|w|недел\w*|هفته|周|週間", 7 * 86_400),
)
# A unit ends where no letter of an alphabet follows; Chinese and Japanese run on.
_LETTER = r"[A-Za-zÀ-ÿЀ-ӿ؀-ۿ]"
_UNIT = "|".join(f"(?P<u{index}>{words})" for index, (words, _) in enumerate(_UNITS))
_ONE = re.compile(
    rf"(?P<number>\d{{1,12}}(?:[.,]\d{{1,12}})?)\s*(?:{_UNIT})(?!{_LETTER})", re.IGNORECASE
)
_ANY_UNIT = "|".join(words for words, _ in _UNITS)
_PART = rf"\d{{1,12}}(?:[.,]\d{{1,12}})?\s*(?:{_ANY_UNIT})(?!{_LETTER})"
_DURATION = rf"(?P<duration>{_PART}(?:\s*(?:,|and|и|و)?\s*{_PART}){{0,4}})"
_BEFORE = (  # cue, then the duration
    r"(?:try|retry|retrying|available|again|back|ready|expected)(?: [^\W\d]+){0,2}? (?:in|after|within)|retry[- ]after|"
    r"(?:re[- ]?sets?|refresh\w*|renew\w*|recover\w*|replenish\w*|refill\w*|unlock\w*|resume\w*)(?: [^\W\d]+){0,2}? (?:in|after)|"
    r"wait(?:ing)?(?: (?:for|at least|about|another|approximately|up to|until))*|wait time(?: is)?|cool ?down(?: of| for| is)?|"
    r"(?:timed out|blocked|banned|locked|limited|paused|suspended) for|"
    r"estimated(?: [^\W\d]+){0,2}(?: is| of)?|"
    r"(?:через|подожд\w*|ожид\w*|спустя)(?: [^\W\d]+)?|"
    r"(?:请|请您)?(?:在|于|等待|稍等)|还需(?:等待)?|剩余|"
    r"(?:پس از|بعد از|تا|حدود|لطفا)|بعد|خلال|انتظر|"
    r"(?:inténtelo|intente|reintente|espere|vuelva)[^|.]{0,25}?(?:en|dentro de)?|"
    r"(?:versuchen|warten) sie(?: [^\W\d]+)?(?: in)?|réessayez dans|attendez"
)
_TEXT_BEFORE = re.compile(
    rf"(?i)(?<!\w)(?:{_BEFORE})\s*[:=~≈(]?\s*(?:about |approximately |around |примерно |~)?{_DURATION}"
)
_TEXT_AFTER = re.compile(rf"(?i){_DURATION}\s*(?:之?后|以后|内重置|後|دیگر|بعد|صبر|후)")
_TEXT_BARE = re.compile(  # "retry after 30", "wait: 30": seconds by custom
    r"(?i)(?:retry[-_ ]?after|try again (?:in|after))\s*[:=]?\s*(?P<bare>\d{1,9}(?:\.\d{1,9})?)(?![\w:/-]|[.]\d)"
)
_TEXT_SPAN = re.compile(  # .NET's [days.]hours:minutes:seconds
    r"(?i)(?:in|after|for|wait)\s+(?:(?P<days>\d{1,3})\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{2}):(?P<seconds>\d{2})\b"
)
_TEXT_MOMENT = re.compile(
    r"(?i)(?:re[- ]?sets?|again|until|access|retry|available|after|refresh\w*|renew\w*|до|после|将在|将于|直到|重置|تا)"
    rf"[^|\d]{{0,30}}(?P<iso>{_ISO.pattern})"
)
_TEXT_EPOCH = re.compile(
    r"(?i)(?:reached\||(?:reset|retry|again|until)\w*(?: (?:at|after|on))?\s*[:=|]?\s*)(?P<epoch>\d{10}(?:\d{3})?)\b"
)


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# Fields of a body by what they hold, folded: lower case, without "_" and "-".
_DELAYS_S = _names(
    """retryafter retryafterseconds retryafters retryin retryinseconds resetsinseconds resetinseconds resetafter
    resetsin resetin resetafterseconds estimatedtime estimatedwaittime waitseconds waittime waittimeseconds wait cooldown
    cooldownseconds secondsuntilreset retrydelay retrydelayseconds quotaresetdelay timetoreset xratelimitresetafter
    xretryafter retryafterinseconds remainingseconds afterseconds waitforseconds secondstowait retryafterinsec"""
)
_DELAYS_MS = _names(
    "retryafterms retryinms resetinms resetsinms waitms retrydelayms xmsretryafterms"
)
_MOMENTS = _names(
    """resetsat resetat reset resettime resettimestamp quotaresettimestamp xratelimitreset ratelimitreset retryat
    nextavailableat nextallowedat nextrequestat resetson availableat retryaftertimestamp blockeduntil nextreset nextresettime"""
)


def told(evidence: Evidence, *, now: datetime | None = None) -> float | None:
    """The wait in seconds, 0 to MAX_WAIT_S, or None.

    Moments are counted from the answer's own Date header, which shares the sender's clock; `now` serves where it is
    missing. Without either a moment tells nothing.
    """
    base = http_date(evidence.headers.get("date", "")) or now
    for wait in _candidates(evidence, base):
        if wait is not None:
            return wait
    return None


def header_wait(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """What Retry-After and its relatives tell, without rate-limit reset headers."""
    base = http_date(headers.get("date", "")) or now
    for name, unit in (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001)):
        wait = _seconds(headers.get(name, ""), unit)
        if wait is not None:
            return wait
    for name in ("retry-after", "x-retry-after"):
        value = headers.get(name, "").strip()
        wait = _seconds(value) if _NUMBER.fullmatch(value) else None
        if wait is not None and wait < _EPOCH_S:
            return wait
        for wait in (_until(http_date(value), base), _moment(value, base), duration(value)):
            if wait is not None:
                return wait
    return None


def http_date(value: str) -> datetime | None:
    """An HTTP date as an aware time; None for anything else, years beyond 9999 and dates without a zone."""
    if not 8 < len(value) < 64:
        return None
    try:
        parsed = parsedate_to_datetime(value)
        return None if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def duration(text: str) -> float | None:
    """`7m12s`, `1.5h`, `539.47ms`, `2 minutes and 5 seconds`, `30 секунд`; None if the text is no duration."""
    text = text.translate(_DIGITS).strip()
    total, end = 0.0, 0
    for match in _ONE.finditer(text):
        if text[end : match.start()].strip(" ,andиو"):
            return None
        factor = next(_UNITS[i][1] for i in range(len(_UNITS)) if match[f"u{i}"] is not None)
        total += float(match["number"].replace(",", ".")) * factor
        end = match.end()
    return _bounded(total) if end and end == len(text) else None


def _candidates(evidence: Evidence, base: datetime | None) -> Iterator[float | None]:
    yield header_wait(evidence.headers, now=base)
    yield _exhausted_bucket(evidence.headers, base)
    fields = dict(_fields(evidence.document))
    yield from (_seconds_or_duration(fields[name], 0.001) for name in fields if name in _DELAYS_MS)
    yield from (_seconds_or_duration(fields[name], 1) for name in fields if name in _DELAYS_S)
    yield _in_words(evidence.raw, base)
    yield from (
        _any_moment(fields[name], base, evidence.raw) for name in fields if name in _MOMENTS
    )
    yield _reset_header(evidence.headers, base)


def _bounded(wait: float) -> float | None:
    return wait if math.isfinite(wait) and 0 <= wait <= MAX_WAIT_S else None


def _seconds(value: str, unit: float = 1.0) -> float | None:
    value = value.strip()
    return _bounded(float(value) * unit) if _NUMBER.fullmatch(value) else None


def _seconds_or_duration(value: Any, unit: float) -> float | None:
    if isinstance(value, dict):  # protobuf's Duration
        seconds, nanos = value.get("seconds", 0), value.get("nanos", 0)
        parts = [_seconds_or_duration(seconds, 1), _seconds_or_duration(nanos, 1e-9)]
        return None if None in parts else _bounded(sum(part for part in parts if part is not None))
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return _bounded(float(value) * unit)
        except OverflowError:
            return None
    if isinstance(value, str):
        told_s = _seconds(value, unit)
        return told_s if told_s is not None else duration(value)
    return None


def _until(moment: datetime | None, base: datetime | None) -> float | None:
    if moment is None or base is None:
        return None
    return _bounded((moment - base).total_seconds())


def _moment(text: str, base: datetime | None, context: str = "") -> float | None:
    """Seconds from `base` to an ISO time. One without a zone is China's where the text is Chinese, else UTC."""
    match = _ISO.search(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, zone = match.groups()
    try:
        naive = datetime(  # noqa: DTZ001 - the zone follows on the next line
            int(year), int(month), int(day), int(hour), int(minute), int(second or 0)
        )
        return _until(naive.replace(tzinfo=_zone(zone, context or text)), base)
    except (ValueError, OverflowError):
        return None


def _zone(zone: str | None, context: str) -> timezone:
    if zone is None:
        return _CHINA if _CJK.search(context) else UTC
    if zone[0] not in "+-":
        return UTC
    digits = zone[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if zone[0] == "-" else offset)


def _any_moment(value: Any, base: datetime | None, context: str = "") -> float | None:
    """A reset told as delay, seconds or milliseconds since 1970 (by magnitude), ISO time, HTTP date or duration."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        value = f"{value:.3f}" if abs(value) < 1e15 else ""
    if not isinstance(value, str):
        return None
    value = value.strip()
    if _NUMBER.fullmatch(value):
        number = float(value)
        if number < _EPOCH_S:
            return _bounded(number)
        seconds = number / 1000 if number >= _EPOCH_MS else number
        try:
            return _until(datetime.fromtimestamp(seconds, UTC), base)
        except (ValueError, OverflowError, OSError):
            return None
    for wait in (_moment(value, base, context), _until(http_date(value), base), duration(value)):
        if wait is not None:
            return wait
    return None


def _exhausted_bucket(headers: Mapping[str, str], base: datetime | None) -> float | None:
    """The longest reset among the buckets whose `remaining` is 0."""
    waits = [
        wait
        for name, value in headers.items()
        if "remaining" in name and value.strip() in ("0", "0.0")
        if (wait := _any_moment(headers.get(name.replace("remaining", "reset")), base)) is not None
    ]
    return max(waits, default=None)


def _reset_header(headers: Mapping[str, str], base: datetime | None) -> float | None:
    """A reset header that stands alone, without a `remaining` that contradicts it."""
    for name, value in headers.items():
        if "reset" in name and "ratelimit" in name.replace("-", ""):
            remaining = headers.get(name.replace("reset", "remaining"), "").strip()
            if remaining in ("", "0"):
                wait = _any_moment(value, base)
                if wait is not None:
                    return wait
    return None


def _in_words(raw: str, base: datetime | None) -> float | None:
    text = raw[:4000].translate(_DIGITS).replace("\u200c", " ").replace("ي", "ی").replace("ك", "ک")
    for pattern in (_TEXT_BEFORE, _TEXT_AFTER):
        for match in pattern.finditer(text):
            wait = duration(match["duration"])
            if wait is not None:
                return wait
    if span := _TEXT_SPAN.search(text):
        parts = (("days", 86_400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
        return _bounded(float(sum(int(span[name] or 0) * size for name, size in parts)))
    if moment := _TEXT_MOMENT.search(text):
        wait = _moment(moment["iso"], base, text)
        if wait is not None:
            return wait
    if epoch := _TEXT_EPOCH.search(text):
        return _any_moment(epoch["epoch"], base)
    bare = _TEXT_BARE.search(text)
    return _seconds(bare["bare"]) if bare else None


def _fields(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every field of a document under its folded name, inner ones last."""
    if depth > 8:
        return
    if isinstance(value, list):
        for inside in value[:50]:
            yield from _fields(inside, depth + 1)
    elif isinstance(value, dict):
        for name, inside in list(value.items())[:100]:
            folded = re.sub(r"[-_ ]", "", str(name)).lower()
            if folded in ("prompt", "input", "messages", "parameters", "params"):
                continue
            yield folded, inside
            if isinstance(inside, dict | list):
                yield from _fields(inside, depth + 1)

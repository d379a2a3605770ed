"""Waits told in words: durations, spans and moments in the sentences of an answer, in the languages they come in. Pure.

A duration is a wait where its clause asks to come back, unless what stands beside it makes it the window of a limit
("10 requests per 60 seconds"), a timeout or the past. A clock time needs a zone and the moment it is counted from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

MAX_WAIT_S = 32 * 86_400.0  # the longest window there is: a month
_LOOK_CHARS = 4000
_BESIDE_CHARS = 40

_UNITS: tuple[tuple[float, str], ...] = (
    (0.001, r"milliseconds?|millis|msecs?|ms|мс|миллисекунд\w*|میلی ?ثانیه|毫秒|ミリ秒|밀리초"),
    (
        1,
        (
            r"seconds?|secs?|s|секунд\w*|сек|с|ثانیه|ثوانی|ثوان|ثانیة|秒钟?|초"
            r"|segundos?|secondi|sekunden?|secondes?|saniye|giây|detik"
        ),
    ),
    (
        60,
        (
            r"minutes?|mins?|(?-i:m)|минут\w*|мин|хвилин\w*|دقیقه|دقائق|دقیقة|分钟?|分間?|분"
            r"|minutos?|minuti|minuten?|dakika|phút|menit"
        ),
    ),
    (
        3600,
        (
            r"hours?|hrs?|h|час\w*|ч|годин\w*|ساعات|ساعت|ساعة|[个個]?小[时時]|時間|시간"
            r"|horas?|stunden?|heures?|saat|giờ|jam"
        ),
    ),
    (
        86_400,
        (
            r"days?|(?-i:d)|дн\w*|день|суток|сутки|روز|أیام|ایام|یوم|天|日|일"
            r"|d[ií]as?|tage?n?|jours?|giorni|gün|ngày|hari"
        ),
    ),
    (7 * 86_400, r"weeks?|(?-i:w)|недел\w*|هفته|周|週間?"),
)
# A unit ends where no letter of an alphabet follows; Chinese and Japanese run on.
_END = r"(?![A-Za-zÀ-ÿЀ-ӿ؀-ۿ])"
_NUMBER = r"\d{1,12}(?:[.,]\d{1,12})?"
_ANY_UNIT = "|".join(words for _, words in _UNITS)
_ONE = re.compile(
    rf"(?i)(?P<number>{_NUMBER})\s*(?:"
    + "|".join(f"(?P<u{index}>{words})" for index, (_, words) in enumerate(_UNITS))
    + f"){_END}"
)
_PART = rf"{_NUMBER}\s*(?:{_ANY_UNIT}){_END}"
_DURATION = re.compile(
    rf"(?i)(?<![A-Za-z0-9.,:-]){_PART}(?:\s*(?:,|and|и|و|et|und|y|e|ve)?\s*{_PART}){{0,4}}"
)
# "in a minute", "через час": the one before the unit is not written as a number.
_UNWRITTEN_ONE = re.compile(
    r"(?i)(?<!\w)(?:(?:in|after|wait)(?: about| for)? (?:an?|one)|через(?: одну| один)?|подождите(?: одну)?"
    rf"|(?:dans|après) une?|en una?|in einer|bir|یک|بعد|一(?!\s))(?:\s+|(?<=一))(?=(?:{_ANY_UNIT}){_END})"
)
# The few durations that are written without a number.
_SPELLED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(words), plain)
    for words, plain in (
        (r"(?i)полминуты|half a minute|半分[钟間]?", "30s "),
        (r"(?i)полчаса|half an hour|半[个個]?小[时時]|半時間|نیم ساعت|نصف ساعة", "30min "),
        (r"ثانیتین", "2s "),
        (r"دقیقتین", "2min "),
        (r"ساعتین", "2h "),
        (r"یومین", "2 days "),
    )
)
_COME_BACK = re.compile(
    r"(?i)(?<!\w)(?:re-?try|again\b|wait|re-?sets?\b|available|back (?:in|after)|resum|renew|refill|replenish|refresh"
    r"|recover|unlock|restor|cool(?:ing)?[ -]?down|estimated|ready|lifted|next (?:request|attempt|try|generation)"
    r"|(?:timed out|blocked|banned|locked|limited|paused|suspended|throttled) for"
    r"|(?:can|may) (?:submit|send|make|call|use|continue|start)|regain"
    r"|повтор|подожд|ожид|попроб|спроб|через|снова|обнов|сброс|доступ|остал|разблок|восстанов|зачекай"
    r"|تلاش|صبر|دیگر|مجدد|دوباره|منتظر|باقی|حاول|المحاولة|انتظر|الانتظار|بعد|پس از"
    r"|intent|int[eé]nt|esper|reintent|vuelv|tente|aguarde|novamente|riprov|attend|r[eé]essay|patient|nouveau"
    r"|versuch|wart|erneut|wieder|tekrar|sonra|bekle|thử lại|coba lagi|tunggu)"
    r"|重试|再试|稍[后後]|等待|[后後](?:再|可|请|重|自)?|恢复|重置|刷新|解除|可用|还需|剩余|再試行|お待ち|다시|후|대기"
)
_BEFORE_A_WINDOW = re.compile(
    r"(?i)(?:(?<!\w)(?:per|every|each|last|past|within|within an?|(?:in|over|during) (?:an?|the|the last)|took|for the"
    r"|time ?out(?: of)?|timed out after|(?:longer|more|less) than|exceed\w*|limit (?:of|is)|(?:limit|reached) for"
    r"|(?:requests?|calls?|images?|tokens|times|generations|queries|messages|solicitudes|peticiones|requ[eê]tes"
    r"|solicitações|anfragen|requisições)(?: allowed)? (?:in|within|over|during|en|em|par|pro)"
    r"|за|в|каждые|раз в|در|هر|par|toutes les|pro|alle|cada|por|كل|کل|في|فی)|/|月|每|过去|最近|[内内]に)\s*$"
)
_AFTER_A_WINDOW = re.compile(
    r"(?i)\s*(?:(?:window|period|limit|quota|interval|timeout|usage|session|ago|old|long|or less|max\b|назад|پیش|قبل(?! ا)"
    r"|گذشته|окно|limite)|之?[内內前]|以[内內]|的?(?:使用)?(?:上限|限额|窗口)|間に)"
)
_CLAUSE_END = re.compile(r"(?<!approx)[.!?؟]+(?=\s|$|\|)|[;؛。！？；|\n]+")
_DIGITS = str.maketrans("۰۱۲۳۴۵۶۷۸۹٠١٢٣٤٥٦٧٨٩يك\u200c", "01234567890123456789یک ")
_MARKS = re.compile("[\u064b-\u0652]")  # Arabic vowel signs

_SPAN = re.compile(  # .NET's [days.]hours:minutes:seconds
    r"(?i)(?:in|after|for|wait|через|后)\s+(?:(?P<days>\d{1,3})\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{2}):(?P<seconds>\d{2})\b"
)
_ISO = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})(?:[T ]|\s+at\s+)(\d{2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?\s*(Z|UTC|GMT|[+-]\d{2}:?\d{2})?",
    re.IGNORECASE,
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_CLOCK = re.compile(
    r"(?i)(?:(?<!\w)(?P<month>" + "|".join(_MONTHS) + r")[a-z]{0,6}\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?"
    r"(?:,? (?P<year>\d{4}))?,?(?: at)? )?"
    r"(?:(?<![\d:.+-])(?P<hour>\d{1,2})(?:(?::(?P<minute>\d{2}))(?::\d{2})?\s*(?P<half>[ap])?(?:\.?m\b)?"
    r"|\s*(?P<half_only>[ap])\.?m\b)|(?P<midnight>midnight|полночь|полуночи|零点|نیمه ?شب))"
)  # fmt: skip
_TOMORROW = re.compile(r"(?i)tomorrow|завтра|فردا|غدا|明[天日]")
_OFFSET = re.compile(r"(?:UTC|GMT)\s?([+-])(\d{1,2})(?::?(\d{2}))?")
_NAMED_ZONE = re.compile(
    r"\b(?:Africa|America|Asia|Atlantic|Australia|Europe|Pacific)/[A-Z][A-Za-z_]+"
)
_ZONES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(words), name)
    for words, name in (
        (r"\b(?:UTC|GMT|Z)\b|(?<=\d)Z\b", "UTC"),
        (r"\b(?:PT|PST|PDT)\b|Pacific", "America/Los_Angeles"),
        (r"\b(?:ET|EST|EDT)\b|Eastern", "America/New_York"),
        (r"\b(?:CET|CEST)\b", "Europe/Berlin"),
        (r"МСК|\bMSK\b|[Мм]оск", "Europe/Moscow"),
        (r"تهران|\bIRST\b|Tehran", "Asia/Tehran"),
        (r"\bIST\b", "Asia/Kolkata"),
        (r"\b(?:JST|KST)\b|[\u3040-\u30ff]", "Asia/Tokyo"),
        (r"[\u4e00-\u9fff]", "Asia/Shanghai"),
    )
)
_EPOCH_IN_TEXT = re.compile(
    r"(?i)(?:reached\||(?:reset|retry|again|until)\w*(?: (?:at|after|on))?\s*[:=|]?\s*)(?P<epoch>\d{10}(?:\d{3})?)\b"
)
_BARE = re.compile(  # "retry after 30", "retry-after: 30": seconds by custom
    r"(?i)(?:retry[-_ ]?after|try again (?:in|after))[\"']?\s*[:=]?\s*(?P<bare>\d{1,9}(?:\.\d{1,9})?)(?![\w:/-]|[.]\d)"
)


def bounded(wait: float) -> float | None:
    """`wait` where it is one: finite, 0 to MAX_WAIT_S."""
    return wait if math.isfinite(wait) and 0 <= wait <= MAX_WAIT_S else None


def until(moment: datetime | None, base: datetime | None) -> float | None:
    """Seconds from `base` to `moment`."""
    if moment is None or base is None:
        return None
    return bounded((moment - base).total_seconds())


def in_words(raw: str, base: datetime | None) -> float | None:
    """The wait that the sentences of an answer tell, moments counted from `base`; None if they tell none."""
    text = _MARKS.sub("", raw[:_LOOK_CHARS].translate(_DIGITS))
    text = _UNWRITTEN_ONE.sub(r"\g<0> 1 ", text)
    for spelled, plain in _SPELLED:
        text = spelled.sub(plain, text)
    asking = [clause for clause in _CLAUSE_END.split(text) if _COME_BACK.search(clause)]
    for read in (_told_duration, _told_span, _told_moment):
        for clause in asking:
            wait = read(clause, base)
            if wait is not None:
                return wait
    if epoch := _EPOCH_IN_TEXT.search(text):
        return since_1970(float(epoch["epoch"]), base)
    bare = _BARE.search(text)
    return bounded(float(bare["bare"])) if bare else None


def duration(text: str) -> float | None:
    """`7m12s`, `1.5h`, `539.47ms`, `2 minutes and 5 seconds`, `30 секунд`; None if the text is no duration."""
    text = text.translate(_DIGITS).strip()
    total, end = 0.0, 0
    for match in _ONE.finditer(text):
        if text[end : match.start()].strip(" ,andиوetuyv"):
            return None
        factor = next(_UNITS[i][0] for i in range(len(_UNITS)) if match[f"u{i}"] is not None)
        total += _number(match["number"]) * factor
        end = match.end()
    return bounded(total) if end and end == len(text) else None


def iso_moment(text: str, base: datetime | None, context: str = "") -> float | None:
    """Seconds from `base` to an ISO time. One without a zone is in that of the text's language, else UTC."""
    match = _ISO.search(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    zone = match[7]
    if zone is None:
        zone_info = _zone(context or text) or UTC
    elif zone[0] in "+-":
        zone_info = _offset(zone[0], zone[1:3], zone[-2:])
    else:
        zone_info = UTC
    try:
        return until(datetime(year, month, day, hour, minute, second, tzinfo=zone_info), base)
    except (ValueError, OverflowError):
        return None


def since_1970(number: float, base: datetime | None) -> float | None:
    """Seconds from `base` to a moment told in seconds or, by its magnitude, milliseconds since 1970."""
    try:
        return until(datetime.fromtimestamp(number / 1000 if number >= 1e12 else number, UTC), base)
    except (ValueError, OverflowError, OSError):
        return None


def _number(text: str) -> float:
    thousands = re.fullmatch(r"(\d{1,3}),(\d{3})", text)
    return float(thousands[1] + thousands[2] if thousands else text.replace(",", "."))


def _told_duration(clause: str, _: datetime | None) -> float | None:
    for match in _DURATION.finditer(clause):
        before = clause[max(0, match.start() - _BESIDE_CHARS) : match.start()]
        if _BEFORE_A_WINDOW.search(before) or _AFTER_A_WINDOW.match(clause, match.end()):
            continue
        wait = duration(match[0])
        if wait is not None:
            return wait
    return None


def _told_span(clause: str, _: datetime | None) -> float | None:
    span = _SPAN.search(clause)
    if span is None:
        return None
    parts = (("days", 86_400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
    return bounded(float(sum(int(span[name] or 0) * size for name, size in parts)))


def _told_moment(clause: str, base: datetime | None) -> float | None:
    wait = iso_moment(clause, base)
    if wait is not None or base is None or _ISO.search(clause):
        return wait
    zone = _zone(clause)
    return next(_clock_times(clause, base, zone), None) if zone is not None else None


def _clock_times(clause: str, base: datetime, zone: tzinfo) -> Iterator[float]:
    """Waits to the clock times of a clause: their next occurrence, or the day that stands beside them."""
    local = base.astimezone(zone)
    for match in _CLOCK.finditer(clause):
        half = (match["half"] or match["half_only"] or "").lower()
        hour, minute = int(match["hour"] or 0), int(match["minute"] or 0)
        try:
            moment = local.replace(
                hour=hour % 12 + (12 if half == "p" else 0) if half else hour,
                minute=minute,
                second=0,
                microsecond=0,
            )
            if match["month"]:
                month = _MONTHS.index(match["month"].lower()) + 1
                year = int(match["year"] or local.year)
                moment = moment.replace(year=year, month=month, day=int(match["day"]))
            elif moment <= local or _TOMORROW.search(clause):
                moment += timedelta(days=1)
        except (ValueError, OverflowError):
            continue
        wait = until(moment, base)
        if wait is not None:
            yield wait


def _zone(text: str) -> tzinfo | None:
    offset = _OFFSET.search(text)
    if offset:
        return _offset(*offset.groups())
    named = _NAMED_ZONE.search(text)
    name = named[0] if named else next((name for words, name in _ZONES if words.search(text)), None)
    try:
        return ZoneInfo(name) if name else None
    except (KeyError, OSError, ValueError):  # unknown here, or no database of zones
        return None


def _offset(sign: str, hours: str, minutes: str | None) -> timezone:
    offset = min(timedelta(hours=int(hours), minutes=int(minutes or 0)), timedelta(hours=14))
    return timezone(-offset if sign == "-" else offset)

"""What an answer says, taken apart: machine words, sentences for people, and what is only an echo of our own request.

Pure. The rest of the reading (classify.py, waits.py) looks at nothing but this, so that a prompt that a provider sends back
("draw a poster: quota exceeded") can't be taken for the provider's own words.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from providers.contract import Answer

_LOOK_BYTES = 256 * 1024  # error bodies are small; a larger body is judged by its beginning
_LITERAL_BYTES = 20_000
_DEPTH = 12
_LEAVES = 400
_LONGEST_SAID = 20_000


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# Our own words sent back, or data of the request: never evidence. Keys are compared folded: lower case, no "_" or "-".
_ECHO = _names(
    """prompt negativeprompt revisedprompt input inputs messages contents instances parameters params param request
    requestbody payload body query ctx loc example user images image content text caption arguments args url"""
)
_CODES = _names(
    """code type reason status state errortype errorcode errcode name limitsource failcode quotaid quotametric kind
    subject statuscode ratelimittype limittype limitname retcode subcode category failurecode blockreason"""
)
_SENTENCES = _names(
    """message msg detail details description error errors errormessage errormsg errordescription errmsg raw title
    failmsg failreason failurereason statusmessage statusmsg remedyhint hint info cause exception explanation
    localizedmessage note fault reasonphrase quotaid quotametric errordetail basresp failure failuremessage messege"""
)
_ERROR_KEYS = _names(
    """error errors errormessage errormsg errcode errorcode failcode failmsg failreason detail fault exception
    errordescription errortype failure failurecode failurereason"""
)
_TASK_IDS = ("id", "task_id", "taskId", "generation_id", "generationId")
_STATES = ("status", "state", "task_status", "taskStatus")
_ENDED = re.compile(
    r"(?:\w+ )?(?:fail|failed|failure|cancell?ed|aborted|expired|nsfw|moderated|timed?[ _-]?out)",
    re.IGNORECASE,
)
_BAD_STATE = re.compile(
    r"error|fail|nsfw|moderat|reject|denied|block|abort|expire|cancel|time[d-]?[ _-]?out",
    re.IGNORECASE,
)
_WRAPPERS = ("data", "output", "result", "response", "task")

_URL = re.compile(r"\b(?:https?://|www\.)[^\s\"'<>)\]}]+", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_JOINED = re.compile(r"(?<=\w)[-_](?=\w)")
_SPACE = re.compile(r"\s+")
_SAME_LETTERS = str.maketrans(
    {"ي": "ی", "ك": "ک", "\u200c": " ", "\u200d": "", "\u00a0": " ", "ё": "е"}
)
# Words of an error text that introduce what the caller had sent; the quoted part after them is his, not the provider's.
_CUE = r"\b(?:prompt|input|text|value|content|message|caption|received|got|query|запрос\w*|промпт\w*|текст\w*|متن|پرامپت)\b|提示词|输入"
_QUOTED = r"\"[^\"]*\"|'(?:[^']|(?<=\w)'(?=\w))*'|`[^`]*`|«[^»]*»|“[^”]*”|‘[^’]*’|「[^」]*」"
_ECHOED_QUOTE = re.compile(rf"(?i)((?:{_CUE})[^\"'`«“‘「.;|]{{0,30}})(?:{_QUOTED})")
_ECHOED_TAIL = re.compile(
    r"(?i)((?:\b(?:prompt|промпт\w*|پرامپت)\b|提示词)(?: (?:was|is|text|value))?\s*[:=：]).*",
    re.DOTALL,
)
_LONG_QUOTE = re.compile(r"(?s)\"[^\"]{160,}\"|«[^»]{160,}»|“[^”]{160,}”")
_PAGE = re.compile(
    r"\s*(?:<!doctype|<html|<head|<title|<body|<center|<\?xml[^>]*>\s*<!doctype html)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One answer, taken apart.

    `status`: as sent. `inner`: another HTTP status told inside the body, None if none. `codes`: machine words, lower
    case. `said`: codes and sentences folded for matching: lower case, "_" and camelCase opened, parts parted by " | ".
    `raw`: the sentences as sent, for people and for waits. `page`: an HTML page, not the provider's words. `json`: the
    body is JSON. `error`: JSON with something in it that speaks of an error. `started`: a task id or a stream, so work may
    have begun. `document`: the parsed body without echoes.
    """

    status: int
    headers: Mapping[str, str]
    inner: int | None
    codes: tuple[str, ...]
    said: str
    raw: str
    page: bool
    json: bool
    error: bool
    started: bool
    document: Any


def parse_json(body: bytes | str) -> Any:
    """The parsed body, or None where it is no JSON. NaN and infinities become None; nesting too deep counts as no JSON."""
    try:
        return json.loads(body, parse_constant=lambda _: None)
    except (
        ValueError,
        RecursionError,
    ):  # ValueError also for undecodable bytes and digit runs past the int limit
        return None


def fold(text: str) -> str:
    """Text as the word lists expect it: NFKC, lower case, one space between words, camelCase and snake_case opened,
    Arabic letters in their Persian form, no zero-width joiners, addresses removed."""
    text = _URL.sub(" ", unicodedata.normalize("NFKC", text))
    text = _JOINED.sub(" ", _CAMEL.sub(" ", text)).translate(_SAME_LETTERS)
    return _SPACE.sub(" ", text.lower().translate(_SAME_LETTERS)).strip()


def without_echo(text: str) -> str:
    """A sentence of a provider without the parts that quote the caller's own words."""
    text = _ECHOED_QUOTE.sub(r"\1 ", text)
    text = _ECHOED_TAIL.sub(r"\1 ", text)
    return _LONG_QUOTE.sub(" ", text)


def read(answer: Answer) -> Evidence:
    """Take an answer apart. Never raises."""
    text = answer.body[:_LOOK_BYTES].decode("utf-8", "replace").lstrip("\ufeff")
    documents, stream = _documents(answer.body, text)
    gathered = _Gathered()
    for document in documents:
        gathered.walk(document, key="", depth=0)
    is_json = bool(documents) and not stream
    page = not documents and (
        "text/html" in answer.headers.get("content-type", "").lower()
        or _PAGE.match(text) is not None
    )
    if not documents and not page:
        gathered.sentences.append(without_echo(text[:4000]))
    elif page:
        gathered.sentences.append(_page_words(text))
    elif not gathered.sentences and not gathered.codes:
        gathered.sentences.extend(_strings(documents))
    sentences = list(dict.fromkeys(part.strip() for part in gathered.sentences if part.strip()))
    said = " | ".join(fold(part) for part in (*gathered.codes, *sentences))[:_LONGEST_SAID]
    first = documents[0] if documents else None
    return Evidence(
        status=answer.status,
        headers={name.lower(): value for name, value in answer.headers.items()},
        inner=gathered.inner,
        codes=tuple(dict.fromkeys(code.lower() for code in gathered.codes)),
        said=said,
        raw=" | ".join(sentences)[:_LONGEST_SAID],
        page=page,
        json=is_json,
        error=any(_speaks_of_error(document) for document in documents),
        started=stream or _has_begun(first, answer.status),
        document=documents[0] if len(documents) == 1 else documents or None,
    )


def _documents(body: bytes, text: str) -> tuple[list[Any], bool]:
    """The JSON documents in a body, and whether they came as a stream of events."""
    document = parse_json(body) if len(body) <= _LOOK_BYTES else None
    if isinstance(document, dict | list):
        return [document], False
    events = [
        parsed
        for line in text.splitlines()
        if line.startswith("data:") and isinstance(parsed := parse_json(line[5:].strip()), dict)
    ]
    if events:
        return events, True
    return [], False


def _embedded(text: str) -> Any:
    """A JSON object or Python dict inside a sentence ("upstream said: {…}"), None if there is none."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end <= start or end - start > _LITERAL_BYTES:
        return None
    inside = text[start : end + 1]
    parsed = parse_json(inside)
    if parsed is None and ":" in inside:
        try:
            parsed = ast.literal_eval(inside)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return None
    return parsed if isinstance(parsed, dict) else None


class _Gathered:
    """Codes and sentences collected from documents."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.sentences: list[str] = []
        self.inner: int | None = None
        self._leaves = 0

    def walk(self, value: Any, *, key: str, depth: int) -> None:
        """Collect from `value`, which stands under `key` ("" at the top)."""
        if depth > _DEPTH or self._leaves > _LEAVES:
            return
        if isinstance(value, dict):
            for name, inside in value.items():
                folded = re.sub(r"[-_ .]", "", str(name)).lower()
                if folded not in _ECHO or (folded == "body" and isinstance(inside, dict)):
                    self.walk(inside, key=folded, depth=depth + 1)
        elif isinstance(value, list):
            for inside in value[:100]:
                self.walk(inside, key=key, depth=depth + 1)
        else:
            self._leaves += 1
            self._leaf(value, key, depth)

    def _leaf(self, value: Any, key: str, depth: int) -> None:
        if isinstance(value, bool) or value is None:
            return
        if key in _CODES and isinstance(value, int | str):
            word = str(value)[:200] if isinstance(value, str) else f"{value:.0f}"[:20]
            self._code(word)
        if isinstance(value, str) and (key in _SENTENCES or key.endswith(("msg", "message"))):
            inside = _embedded(value)
            if inside is not None:
                self.walk(inside, key=key, depth=depth + 1)
                value = value[: value.find("{")]
            self.sentences.append(without_echo(value[:4000]))

    def _code(self, word: str) -> None:
        if word.isascii() and word.isdigit() and len(word) == 3 and 400 <= int(word) <= 599:
            self.inner = self.inner or int(word)
        if " " in word.strip():
            self.sentences.append(without_echo(word))
        elif word.strip():
            self.codes.append(word.strip())


def _speaks_of_error(document: Any) -> bool:
    """Whether a JSON document has the look of an error answer, whatever the HTTP status says."""
    if isinstance(document, list):
        return any(_speaks_of_error(inside) for inside in document[:3])
    if not isinstance(document, dict):
        return False
    for name, value in document.items():
        folded = re.sub(r"[-_ ]", "", str(name)).lower()
        if folded in _ERROR_KEYS and value:
            return True
        if folded in ("success", "ok") and value is False:
            return True
        if folded in ("status", "state", "taskstatus") and (
            value is False or (isinstance(value, str) and _BAD_STATE.search(value))
        ):
            return True
        if folded in ("code", "status", "statuscode", "retcode") and _is_error_number(value):
            return True
        if (
            folded in ("code", "type")
            and isinstance(value, str)
            and not value.isdigit()
            and "message" in document
        ):
            return True
        if (
            folded in ("response", "data", "output", "baseresp", "meta")
            and isinstance(value, dict)
            and _speaks_of_error(value)
        ):
            return True
    return False


def _is_error_number(value: Any) -> bool:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return (
        isinstance(value, int) and not isinstance(value, bool) and value not in (0, 200, 201, 202)
    )


def _has_begun(document: Any, status: int) -> bool:
    """Whether an answer is about a task that exists: a 2xx that names one, or one told as ended, or some of its result."""
    if not isinstance(document, dict):
        return False
    inside = [document.get(name) for name in _WRAPPERS]
    places = [document, *(place for place in inside if isinstance(place, dict))]
    if document.get("done") is True:  # a long-running operation of Google's that is over
        return True
    named = any(place.get(name) for place in places for name in _TASK_IDS)
    ended = any(_ENDED.fullmatch(str(place.get(name))) for place in places for name in _STATES)
    if status >= 300:
        return named and ended
    return named or ended or any(name in document for name in ("choices", "candidates"))


def _strings(value: Any, depth: int = 0) -> Iterator[str]:
    if depth > _DEPTH:
        return
    if isinstance(value, str):
        yield without_echo(value[:2000])
    elif isinstance(value, list):
        for inside in value[:50]:
            yield from _strings(inside, depth + 1)
    elif isinstance(value, dict):
        for name, inside in list(value.items())[:50]:
            if re.sub(r"[-_ ]", "", str(name)).lower() not in _ECHO:
                yield from _strings(inside, depth + 1)


def _page_words(text: str) -> str:
    """The title of a page or, without one, its first words: enough for a reason, never evidence of a class."""
    title = re.search(r"(?is)<title[^>]*>(.*?)</title>", text)
    words = title.group(1) if title else re.sub(r"(?s)<[^>]*>", " ", text)
    return _SPACE.sub(" ", words).strip()[:200]

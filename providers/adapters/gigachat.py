"""GigaChat (Sber): synchronous, texts and pictures through chat, opened by a token of half an hour.

https://developers.sber.ru/docs/ru/gigachat/api/reference/rest/gigachat-api. Quirks: no id of a generation and no receipt; a
picture is named in the answer's text (`<img src="…">`) and read by that name; usage is told in tokens, never in money; 402
means the tokens of one model; a 429 was seen under HTTP 200; their certificates come from an authority of their own
(GIGACHAT_CA_BUNDLE). Our correlation id travels as X-Request-ID, which is echoed and no idempotency key.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from providers.adapters.reading import good, parse, within, words
from providers.classify import classify
from providers.contract import (
    Account,
    Adapter,
    Answer,
    Balance,
    Call,
    Charge,
    FailureClass,
    FileRef,
    Kind,
    NoAnswer,
    NotToldError,
    Refusal,
    Request,
    Scope,
    Token,
    Verdict,
)

_OAUTH_URL = "https://ngw.devices.sberbank.ru:9443/api/v2/oauth"
_SCOPE = "GIGACHAT_API_PERS"
_LONGEST_LIFE = timedelta(days=1)
_MILLISECONDS = 10**11  # a later moment than the year 5000, were it seconds
# In a text, or in JSON that was cut before its end, where the quotes are escaped.
_PICTURE = re.compile(r"""<img\s[^<>]{0,200}?src=\\?["']([\w.-]{1,190})\\?["'][^<>]{0,200}>?""")
_TAG = re.compile(r"<img\s[^<>]*>")
_ORDER = re.compile(r"\s*(?:на|за)?рису|\s*изобраз|\s*(?:сгенерир|созда|сдела)\w* (?:\w+ )?(?:изображ|картин|рисун|иллюстр)|\s*(?:draw|paint)\b", re.IGNORECASE)  # fmt: skip
_EXPIRED = re.compile(r"token (?:has |is )?expired", re.IGNORECASE)
_OWN = frozenset({"model", "messages", "stream", "function_call", "prompt"})
# An answer that is none: cut off by their filter, or broken.
_NO_RESULT = frozenset({"blacklist", "error"})


class GigaChat(Adapter):
    """Adapter for GigaChat; see `contract.Adapter` for what each method promises."""

    name = "gigachat"
    currency = "RUB"
    asynchronous = False
    default_base_url = "https://gigachat.devices.sberbank.ru/api/v1"
    default_model = "GigaChat"
    default_price = Decimal(2)
    key_setting = "GIGACHAT_CREDENTIALS"
    options = ("scope", "oauth_url", "ca_bundle")
    sandbox_path = "/gigachat/api/v1"
    sandbox_key = "c2FuZGJveDpkZW1v"
    retention_s = 86_400.0
    missing_grace_s = 3600.0
    tells_cost = False

    def authorisation(self, account: Account, token: str = "") -> Mapping[str, str]:
        """The key itself opens the token call only."""
        return {"authorization": f"Bearer {token}" if token else f"Basic {account.key}"}

    # --- token --------------------------------------------------------------------------------------------------------

    def token(self, account: Account) -> Call:
        """At another address than the API's own it is asked for beside it, as the sandbox has it."""
        url = account.options.get("oauth_url", "")
        if not url:
            own = account.base_url == self.default_base_url
            url = _OAUTH_URL if own else f"{account.base_url.rpartition('/')[0]}/v2/oauth"
        return Call(
            "POST", url, headers={"rquid": str(uuid.uuid4())}, form={"scope": account.options.get("scope", _SCOPE)}
        )  # fmt: skip

    def read_token(self, answer: Answer, *, now: datetime) -> Token:
        """{"access_token", "expires_at": unix ms}, or {"tok", "exp"} in an older flavour."""
        document = good(answer)
        value = document.get("access_token") or document.get("tok")
        ends = document.get("expires_at") or document.get("exp")
        if not isinstance(value, str) or not isinstance(ends, int) or isinstance(ends, bool):
            raise ValueError("the answer holds no token")  # noqa: TRY004 - the contract's error
        try:
            told = datetime.fromtimestamp(ends / 1000 if ends > _MILLISECONDS else ends, UTC)
        except (OverflowError, OSError) as error:
            raise ValueError("the token ends at no time") from error
        if told <= now:
            raise ValueError("the token is over already: is this machine's clock right?")
        return Token(value, min(told, now + _LONGEST_LIFE))

    # --- submit -------------------------------------------------------------------------------------------------------

    def submit(self, account: Account, request: Request) -> Call:
        """ValueError for photos: the call takes none."""
        if request.photos:
            raise ValueError("GigaChat draws from words only, not from photos")
        given = {name: value for name, value in request.params.items() if name not in _OWN}
        prompt = request.prompt
        if request.kind is Kind.IMAGE:
            ratio = given.pop("aspect_ratio", None)
            prompt = prompt if _ORDER.match(prompt) else f"Нарисуй: {prompt}"
            if ratio:  # the drawing function has no field for it
                prompt = f"{prompt}\nСоотношение сторон {ratio}"
            given["function_call"] = "auto"
        body: dict[str, Any] = given | {
            "model": request.model,
            "messages": [{"role": "user", "content": prompt}],
        }
        return Call(
            "POST",
            f"{account.base_url}/chat/completions",
            headers={"x-request-id": str(request.correlation_id)},
            json=body,
        )

    def read_submit(self, answer: Answer | NoAnswer) -> Verdict | Refusal:
        arrived = answer.status is not None and 200 <= answer.status < 300
        if isinstance(answer, NoAnswer):
            return (_cut(answer) if answer.sent and arrived else None) or classify(answer)
        verdict = _verdict(parse(answer.body)) if arrived else None
        return verdict or _refusal(answer)

    # --- files, balance -----------------------------------------------------------------------------------------------

    def file(self, account: Account, file_id: str) -> Call:
        path = f"files/{quote(file_id, safe='')}/content"
        return Call("GET", f"{account.base_url}/{path}", headers={"accept": "application/jpg"})

    def balance(self, account: Account) -> Call:
        """Tokens, no money; asked for what it tells of the key and the provider."""
        return Call("GET", f"{account.base_url}/balance")

    def read_balance(self, answer: Answer) -> Balance:
        if answer.status == 403 and isinstance(parse(answer.body), dict):
            raise NotToldError("paid by use: there is no balance")
        good(answer)
        raise NotToldError("the balance is in tokens, not in money")


def _verdict(document: Any) -> Verdict | None:
    """What was made; None where nothing shows that anything was."""
    choices = document.get("choices") if isinstance(document, dict) else None
    choice = within(choices[0]) if isinstance(choices, list) and choices else {}
    if not choice:
        return None
    content = words(within(choice, "message").get("content"))
    status = words(choice.get("finish_reason"), limit=40)
    files = _pictures(content)
    # What their filter says in the model's place is no text that anybody ordered.
    text = "" if status in _NO_RESULT and not files else _TAG.sub("", content).strip()
    return Verdict("completed", files=files, text=text, currency=GigaChat.currency, status=status)


def _pictures(text: str) -> tuple[FileRef, ...]:
    return tuple(FileRef(file_id=name) for name in dict.fromkeys(_PICTURE.findall(text)[:100]))


def _cut(answer: NoAnswer) -> Verdict | None:
    """All of an answer may have arrived, or at least the picture's name, which is all that is needed."""
    whole = _verdict(parse(answer.body))
    if whole is not None:
        return whole
    files = _pictures(answer.body[:65_536].decode("utf-8", "replace"))
    if not files:
        return None
    return Verdict("completed", files=files, currency=GigaChat.currency, status="cut")


def _refusal(answer: Answer) -> Refusal:
    refusal = classify(answer)
    if answer.status == 401 and _EXPIRED.search(refusal.reason):
        # Neither the job's fault nor the provider's: with a new token it is sent again at once.
        return replace(
            refusal,
            failure=FailureClass.UNSENT,
            charge=Charge.NONE,
            code="token_expired",
            ours=True,
        )
    if 200 <= answer.status < 300 and refusal.failure is not FailureClass.RATE_LIMITED:
        return replace(refusal, charge=Charge.POSSIBLE, target_stops=False)
    if refusal.failure is FailureClass.QUOTA_EXHAUSTED and answer.status == 402:
        return replace(refusal, scope=Scope.MODEL)
    return refusal

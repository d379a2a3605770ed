"""What every adapter must do, whoever wrote it: against the sandbox over real HTTP, and against shapes that were recorded.

A provider that is registered is tested here by that alone; where its contract differs from the common one, `SHAPES` and
`TABLE` say so.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import pytest
from PIL import Image
from pytest_django import Settings

from providers import asking, registry
from providers.contract import (
    Accepted,
    Account,
    Adapter,
    Answer,
    Balance,
    Call,
    Charge,
    FailureClass,
    FileRef,
    Further,
    HistoryPage,
    Kind,
    Named,
    NoAnswer,
    NotToldError,
    PollTrouble,
    Receipt,
    Refusal,
    Request,
    Running,
    Token,
    Verdict,
)
from providers.http import Transport
from providers.sandbox.server import Sandbox, running_sandbox
from tests.contract_shapes import SHAPES
from tests.flow import _TLS

pytestmark = pytest.mark.flow
each = pytest.mark.parametrize("adapter", registry.REGISTERED, ids=lambda one: one.name)

Read = Accepted | Verdict | Refusal
T = TypeVar("T")
PATIENCE_S = 8.0


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with running_sandbox(latency_fixed_s=0.05, prepared_bytes=4000) as started:
        yield started


@pytest.fixture(autouse=True)
def _tokens(settings: Settings, tmp_path: Path) -> None:
    settings.TOKEN_DIR = tmp_path / "tokens"


class Customer:
    """One account at the sandbox, as a lane reaches it: the adapter's calls over our own transport."""

    def __init__(self, adapter: Adapter, url: str, *, key: str = "") -> None:
        key = key or adapter.sandbox_key
        base_url = f"{url}{adapter.sandbox_path}"
        self.adapter = adapter
        self.account = Account(adapter.name, base_url, registry.fingerprint(key), key=key)

    def run(self, what: Callable[[Transport], Awaitable[T]]) -> T:
        async def go() -> T:
            async with Transport(verify=_TLS) as transport:
                return await what(transport)

        return asyncio.run(go())

    async def send(self, transport: Transport, prompt: str, **wanted: Any) -> Read:
        adapter = self.adapter
        kind = wanted.pop("kind", Kind.IMAGE)
        request = Request(
            wanted.pop("correlation_id", None) or uuid.uuid4(), wanted.pop("model", adapter.default_model), kind, prompt, **wanted
        )  # fmt: skip
        headers = await asking.entry(transport, adapter, self.account)
        if isinstance(headers, Refusal):
            return headers
        answer = await transport.send_paid(
            adapter.submit(self.account, request), headers, send_not_after=time.monotonic() + 5, deadline_s=PATIENCE_S,
            boot=time.monotonic,
        )  # fmt: skip
        return adapter.read_submit(answer)

    async def verdict(self, transport: Transport, read: Read, model: str = "") -> Verdict:
        """The end of what was sent, polled for where the provider is asynchronous."""
        end = time.monotonic() + PATIENCE_S
        while isinstance(read, Accepted):
            named = Named(read.provider_id, model or self.adapter.default_model, read.links)
            _answer, told = await asking.status(
                transport, self.adapter, self.account, named, deadline_s=PATIENCE_S
            )
            if isinstance(told, Verdict):
                return told
            assert isinstance(told, Running | PollTrouble), told
            assert time.monotonic() < end, told
            await asyncio.sleep(0.02)
        assert isinstance(read, Verdict), read
        return read

    async def file(self, transport: Transport, file: FileRef, folder: Path) -> bytes:
        if file.data is not None:
            return file.data
        url, headers = file.url, {}
        if file.file_id is not None:
            call = self.adapter.file(self.account, file.file_id)
            opened = await asking.entry(transport, self.adapter, self.account)
            assert call is not None
            assert not isinstance(opened, Refusal)
            url, headers = call.url, dict(opened)
        assert url is not None
        target = folder / "file"
        got = await transport.download(url, target, max_bytes=10**7, deadline_s=PATIENCE_S, headers=headers)  # fmt: skip
        assert not isinstance(got, Answer | NoAnswer), got
        return target.read_bytes()

    def read(self, call: Call | None) -> Answer:
        assert call is not None

        async def go(transport: Transport) -> Answer | NoAnswer:
            return await asking.read(
                transport, self.adapter, self.account, call, deadline_s=PATIENCE_S
            )

        answer = self.run(go)
        assert isinstance(answer, Answer), answer
        return answer


# --- the whole way ----------------------------------------------------------------------------------------------------


@each
def test_a_picture_is_made_paid_and_fetched(
    adapter: Adapter, sandbox: Sandbox, tmp_path: Path
) -> None:
    customer, task_id = Customer(adapter, sandbox.url), uuid.uuid4()
    before = len(sandbox.ledger()["tasks"])

    async def go(transport: Transport) -> tuple[Read, Verdict, bytes]:
        read = await customer.send(transport, "a cat", correlation_id=task_id)
        verdict = await customer.verdict(transport, read)
        return read, verdict, await customer.file(transport, verdict.files[0], tmp_path)

    read, verdict, data = customer.run(go)
    assert isinstance(read, Accepted) is adapter.asynchronous
    assert verdict.outcome == "completed"
    with Image.open(BytesIO(data)) as picture:
        picture.load()
    tasks = sandbox.ledger()["tasks"][before:]
    assert [task["provider"] for task in tasks] == [adapter.name]
    (task,) = tasks
    named = read if isinstance(read, Accepted) else verdict
    assert named.provider_id in {task["id"], None}
    assert (named.provider_id is None) is (adapter.name == "gigachat")
    assert task["correlation"] in {str(task_id), ""}
    assert verdict.currency == adapter.currency
    assert verdict.cost == (Decimal(str(task["price"])) if adapter.tells_cost else None)


@each
def test_words_come_as_words(adapter: Adapter, sandbox: Sandbox) -> None:
    customer, model = Customer(adapter, sandbox.url), f"text/{adapter.name}"

    async def go(transport: Transport) -> Verdict:
        read = await customer.send(transport, "Who are you?", kind=Kind.TEXT, model=model)
        return await customer.verdict(transport, read, model)

    verdict = customer.run(go)
    assert (verdict.outcome, verdict.files) == ("completed", ())
    assert "Who are you?" in verdict.text


@each
def test_the_balance_is_told_in_money_or_not_at_all(adapter: Adapter, sandbox: Sandbox) -> None:
    customer = Customer(adapter, sandbox.url)
    call = adapter.balance(customer.account)
    if call is None:
        return
    answer = customer.read(call)
    try:
        told = adapter.read_balance(answer)
    except NotToldError:
        return
    assert told.currency == adapter.currency
    assert told.amount > 0


# --- the answer table (design, section 5) -----------------------------------------------------------------------------

NONE, POSSIBLE = Charge.NONE, Charge.POSSIBLE
F = FailureClass
# What the sandbox is told to do, and what that means: class and charge.
TABLE: Mapping[str, tuple[FailureClass, Charge]] = {
    # 2. No complete answer.
    "reset_before_read": (F.UNKNOWN, POSSIBLE),
    "reset_before_accept": (F.UNKNOWN, POSSIBLE),
    "reset_after_accept": (F.UNKNOWN, POSSIBLE),
    "cut_headers": (F.UNKNOWN, POSSIBLE),
    # 3. A good answer without a task.
    "ok_empty": (F.UNKNOWN, POSSIBLE),
    "ok_garbage": (F.UNKNOWN, POSSIBLE),
    "ok_no_id": (F.UNKNOWN, POSSIBLE),
    "ok_empty_after": (F.UNKNOWN, POSSIBLE),
    # 4. Not the provider speaking.
    "edge_403": (F.REJECTED, NONE),
    "edge_408": (F.UNKNOWN, POSSIBLE),
    "edge_429": (F.RATE_LIMITED, NONE),
    "edge_499": (F.UNKNOWN, POSSIBLE),
    "edge_500": (F.UNKNOWN, POSSIBLE),
    "edge_502": (F.UNKNOWN, POSSIBLE),
    "edge_502_after": (F.UNKNOWN, POSSIBLE),
    "edge_503": (F.UNKNOWN, POSSIBLE),
    "edge_504": (F.UNKNOWN, POSSIBLE),
    "edge_524": (F.UNKNOWN, POSSIBLE),
    # 5. The provider's own words.
    "rate_limited_seconds": (F.RATE_LIMITED, NONE),
    "rate_limited_date": (F.RATE_LIMITED, NONE),
    "no_balance": (F.QUOTA_EXHAUSTED, NONE),
    "key_limit": (F.QUOTA_EXHAUSTED, NONE),
    "unauthorized": (F.UNAUTHORIZED, NONE),
    "key_revoked": (F.UNAUTHORIZED, NONE),
    "bad_request": (F.REJECTED, NONE),
    "bad_model": (F.REJECTED, NONE),
    "moderation": (F.REJECTED, NONE),
    "too_large": (F.REJECTED, NONE),
    "unprocessable": (F.REJECTED, NONE),
    "overloaded": (F.DOWN, NONE),
    "internal": (F.DOWN, POSSIBLE),
    "own_502": (F.DOWN, POSSIBLE),
    "own_504": (F.DOWN, POSSIBLE),
    "own_408": (F.DOWN, POSSIBLE),
    "conflict": (F.REJECTED, POSSIBLE),
}
# Where a provider's own words make it another row of the table.
OWN: Mapping[str, Mapping[str, tuple[FailureClass, Charge]]] = {
    "fal": {
        "moderation": (F.REJECTED, POSSIBLE),  # their checker also looks at what was drawn
        "own_408": (F.UNKNOWN, POSSIBLE),
    },
    "gigachat": {
        "key_revoked": (F.UNSENT, NONE),  # "Token has expired": sent again at once with a new one
        "own_408": (F.UNKNOWN, POSSIBLE),
    },
}
WAITS = {"rate_limited_seconds": 20.0, "rate_limited_date": 20.0}


@each
def test_the_answer_table(adapter: Adapter, sandbox: Sandbox) -> None:
    customer = Customer(adapter, sandbox.url)

    async def ask(transport: Transport, fault: str) -> Read:
        return await customer.send(transport, f"[[fault:{fault}]]")

    async def go(transport: Transport) -> list[Read]:
        return list(await asyncio.gather(*(ask(transport, fault) for fault in TABLE)))

    expected, got = dict(TABLE) | dict(OWN.get(adapter.name, {})), {}
    for fault, read in zip(TABLE, customer.run(go), strict=True):
        assert isinstance(read, Refusal), (fault, read)
        got[fault] = (read.failure, read.charge)
        assert read.target_stops == (fault == "bad_model"), fault
        if fault in WAITS:
            assert read.wait_s is not None, fault
            assert read.wait_s == pytest.approx(WAITS[fault], abs=2), fault
        assert customer.account.key not in read.reason
    assert got == expected


@each
def test_what_never_left_is_unsent(adapter: Adapter, sandbox: Sandbox) -> None:
    opened = Customer(adapter, sandbox.url)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = Customer(adapter, f"http://127.0.0.1:{taken.getsockname()[1]}")

        async def go(transport: Transport) -> Read:
            headers = await asking.entry(transport, adapter, opened.account)
            assert not isinstance(headers, Refusal)
            request = Request(uuid.uuid4(), adapter.default_model, Kind.IMAGE, "a cat")
            answer = await transport.send_paid(
                adapter.submit(nobody.account, request), headers, send_not_after=time.monotonic() + 5, deadline_s=2.0,
                boot=time.monotonic,
            )  # fmt: skip
            return adapter.read_submit(answer)

        read = nobody.run(go)
    assert isinstance(read, Refusal)
    assert (read.failure, read.charge) == (F.UNSENT, NONE)


@each
@pytest.mark.parametrize("fault", ["cut_after_id", "cut_before_id"])
def test_an_answer_that_was_cut_is_never_free_and_what_it_named_is_kept(
    adapter: Adapter, sandbox: Sandbox, fault: str
) -> None:
    customer = Customer(adapter, sandbox.url)
    read = customer.run(lambda transport: customer.send(transport, f"[[fault:{fault}]]"))
    if isinstance(read, Refusal):
        assert (read.failure, read.charge) == (F.UNKNOWN, POSSIBLE)
        assert fault == "cut_before_id" or adapter.name == "gigachat"  # it names no task
        return
    if isinstance(read, Verdict) and read.files:
        return  # all that was wanted had arrived
    assert isinstance(read, Accepted) or (read.outcome, read.free) == ("failed", False)
    assert read.provider_id in {task["id"] for task in sandbox.ledger()["tasks"]}


@each
def test_the_account_s_own_limits_are_refusals_for_nothing(
    adapter: Adapter, sandbox: Sandbox
) -> None:
    customer = Customer(adapter, sandbox.url)

    def refused(**limits: Any) -> Refusal:
        sandbox.control("settings", **limits)
        try:
            read = customer.run(lambda transport: customer.send(transport, "a cat"))
        finally:
            usual: dict[str, Any] = {
                "balance": None,
                "quotas": [],
                "strict_models": False,
                "revoked_keys": [],
            }
            sandbox.control("settings", **{name: usual[name] for name in limits})
        assert isinstance(read, Refusal), read
        assert read.charge is NONE
        return read

    tasks = len(sandbox.ledger()["tasks"])
    assert refused(balance=0).failure is F.QUOTA_EXHAUSTED
    limited = refused(quotas=[[0, 60]])
    assert limited.failure is F.RATE_LIMITED
    assert limited.wait_s is not None
    unknown = refused(strict_models=True)
    assert (unknown.failure, unknown.target_stops) == (F.REJECTED, True)
    wrong = Customer(adapter, sandbox.url, key="nobody's")
    read = wrong.run(lambda transport: wrong.send(transport, "a cat"))
    assert isinstance(read, Refusal)
    assert (read.failure, read.charge) == (F.UNAUTHORIZED, NONE)
    assert len(sandbox.ledger()["tasks"]) == tasks


# --- after the acceptance ---------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("fate", ["failed_free", "failed_charged"])
def test_a_failure_is_a_verdict_without_a_result_and_its_receipt_is_the_ledger_s(
    adapter: Adapter, sandbox: Sandbox, fate: str
) -> None:
    customer = Customer(adapter, sandbox.url)

    async def go(transport: Transport) -> tuple[Read, Verdict]:
        read = await customer.send(transport, f"[[fault:{fate}]]")
        return read, await customer.verdict(transport, read)

    read, verdict = customer.run(go)
    assert (verdict.files, verdict.text) == ((), "")
    assert not (verdict.free and fate == "failed_charged" and adapter.tells_cost)
    named = read.provider_id if isinstance(read, Accepted) else verdict.provider_id
    if named is None or (call := adapter.receipt(customer.account, Named(named))) is None:
        return
    assert verdict.outcome == "failed"
    receipt = adapter.read_receipt(customer.read(call))
    (task,) = (task for task in sandbox.ledger()["tasks"] if task["id"] == named)
    assert receipt.final
    assert receipt.cost == (0 if fate == "failed_free" else Decimal(str(task["price"])))


@each
def test_trouble_with_a_poll_is_never_a_verdict(adapter: Adapter, sandbox: Sandbox) -> None:
    if not adapter.asynchronous:
        with pytest.raises(ValueError, match=adapter.name):
            adapter.read_poll(Answer(200, {}, b"{}"))
        return
    customer = Customer(adapter, sandbox.url)
    troubles = ("400", "401", "403", "404", "429", "500", "502_html", "503", "524_html", "reset", "cut", "garbage", "empty")  # fmt: skip

    async def ask(transport: Transport, trouble: str) -> Any:
        read = await customer.send(transport, f"[[fault:poll_{trouble}]]")
        assert isinstance(read, Accepted), read
        named = Named(read.provider_id, adapter.default_model, read.links)
        told = await asking.status(transport, adapter, customer.account, named, deadline_s=5)
        return told[1]

    async def go(transport: Transport) -> list[Any]:
        return list(await asyncio.gather(*(ask(transport, one) for one in troubles)))

    for trouble, told in zip(troubles, customer.run(go), strict=True):
        assert isinstance(told, PollTrouble), (trouble, told)
        assert told.missing == (trouble == "404"), trouble
        assert (told.wait_s is not None) == (trouble == "429"), trouble


@each
def test_the_history_lists_what_was_sent(adapter: Adapter, sandbox: Sandbox) -> None:
    customer, task_id = Customer(adapter, sandbox.url), uuid.uuid4()
    now = datetime.now(UTC)
    window = {"since": now - timedelta(minutes=2), "until": now + timedelta(minutes=2)}
    call = adapter.history(customer.account, **window, page=1)
    if call is None:
        with pytest.raises(ValueError, match=adapter.name):
            adapter.read_history(Answer(200, {}, b"{}"))
        return
    read = customer.run(lambda transport: customer.send(transport, "a cat", correlation_id=task_id))
    assert isinstance(read, Accepted)
    items = adapter.read_history(customer.read(call)).items
    (item,) = (item for item in items if item.provider_id == read.provider_id)
    assert item.correlation_id == str(task_id)
    assert item.model == adapter.default_model


# --- what must hold of any provider -----------------------------------------------------------------------------------


@each
def test_the_key_is_in_no_call_but_its_headers_of_authorisation(adapter: Adapter) -> None:
    account = Account(adapter.name, "https://provider.test/v1", "f", key="s3cret-key-of-ours")
    named, now = Named("task-1", adapter.default_model), datetime.now(UTC)
    request = Request(
        uuid.uuid4(), adapter.default_model, Kind.IMAGE, "a cat", {"aspect_ratio": "1:1"}, max_price=Decimal(9),
        webhook_url="https://desk.test/hooks/x/",
    )  # fmt: skip
    calls = [
        adapter.submit(account, request),
        adapter.poll(account, named),
        adapter.result(account, named),
        adapter.cancel(account, named),
        adapter.file(account, "file-1"),
        adapter.history(account, since=now, until=now, page=1),
        adapter.receipt(account, named),
        adapter.balance(account),
        adapter.token(account),
        adapter.webhook_keys(account),
    ]
    for call in filter(None, calls):
        assert account.key not in f"{call!r} {json.dumps(call.json, default=str)}"
        if call.url != getattr(adapter.webhook_keys(account), "url", None):
            assert call.url.startswith("https://provider.test/"), call.url
    opened = adapter.authorisation(account, "t0ken")
    assert set(opened) == {"authorization"}
    assert account.key not in repr(account)
    # Whatever a provider calls its task can lead to no other server and to no other path of it.
    odd = Named("../../admin?x=1#@evil.test", adapter.default_model)
    elsewhere = ("https://evil.test/requests/t-1", "//evil.test/t-1", "https://provider.test.evil.test/t-1", "https://provider.test/v1@evil.test/t-1", "http://provider.test/v1/t-1")  # fmt: skip
    linked = [Named("t-1", adapter.default_model, dict.fromkeys(("status", "result", "cancel"), link)) for link in elsewhere]  # fmt: skip
    for named in (odd, *linked):
        for led in (adapter.poll(account, named), adapter.result(account, named), adapter.cancel(account, named)):  # fmt: skip
            if led is not None:
                assert led.url.startswith("https://provider.test/v1/"), led.url
                assert "/../" not in led.url
                assert "?" not in led.url


@each
def test_recorded_answers_mean_what_they_say(adapter: Adapter) -> None:
    shapes = SHAPES[adapter.name]
    assert {shape.read for shape in shapes} >= {"read_submit"}
    for shape in shapes:
        more = {"now": datetime(2026, 12, 1, tzinfo=UTC)} if shape.read == "read_token" else {}
        read = getattr(adapter, shape.read)(shape.answer, **more)
        assert type(read) is shape.means, (shape, read)
        told = {name: getattr(read, name) for name in shape.told}
        assert told == dict(shape.told), (shape.body, read)


_READS = ("read_submit", "read_poll", "read_result", "read_history", "read_receipt", "read_balance", "read_token")  # fmt: skip
_MEANS = (Accepted, Verdict, Refusal, Running, PollTrouble, Further, HistoryPage, Receipt, Balance, Token)  # fmt: skip
_WRONG: tuple[bytes, ...] = (
    b"1e999999", b"-1e999999", b"9" * 5000, b"NaN", b"null", b"true", b"[]", b"{}", b"-7", b'"\\u0000\\ud800"', b"[[[[[[[[1]]]]]]]]",
    b'{"id":{"id":[]},"url":[{}]}', b'"data:image/png;base64,@@@"', b'"javascript:alert(1)"',
)  # fmt: skip
_HUGE: tuple[bytes, ...] = (b'"' + b"x" * 70_000 + b'"', b"[" * 3000 + b"]" * 3000, b'{"a":' * 3000 + b"1" + b"}" * 3000)  # fmt: skip


def spoilt(body: Any) -> Iterator[bytes]:
    """The document with one of its parts at a time put wrong, as raw JSON: some of these no library would write."""
    mark = "f3b1a0"

    def places(value: Any) -> Iterator[tuple[Any, ...]]:
        yield ()
        if isinstance(value, dict | list):
            for key in value if isinstance(value, dict) else range(len(value)):
                for deeper in places(value[key]):
                    yield (key, *deeper)

    for place in places(body):
        marked: Any = json.loads(json.dumps(body))
        if place:
            inner = marked
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = mark
        else:
            marked = mark
        text = json.dumps(marked).encode()
        for wrong in (*_WRONG, *(_HUGE if len(place) == 1 else ())):
            yield text.replace(json.dumps(mark).encode(), wrong)


@each
def test_hostile_answers_are_read_or_refused_and_a_good_status_is_never_free(
    adapter: Adapter,
) -> None:
    shapes = [shape for shape in SHAPES.get(adapter.name, ()) if shape.status < 300 and shape.means is not Refusal]  # fmt: skip
    bodies = [*_WRONG, *_HUGE, b"", b"\xff\xfe\x00", b"<html>", b'{"id"', *(body for shape in shapes for body in spoilt(shape.body))]  # fmt: skip
    # All of them to the paid call's reader, a share to the others: those differ little.
    dice = random.Random(adapter.name)
    for body in bodies:
        for name in _READS if dice.random() < 0.2 else ("read_submit",):
            more = {"now": datetime(2026, 12, 1, tzinfo=UTC)} if name == "read_token" else {}
            try:
                read = getattr(adapter, name)(Answer(200, {}, body), **more)
            except ValueError:
                assert name != "read_submit", body[:300]
                continue
            assert isinstance(read, _MEANS), (name, read)
            if isinstance(read, Refusal):
                assert read.charge is POSSIBLE, (name, body[:300], read)
            if isinstance(read, Verdict):
                assert not read.free or read.outcome != "completed"
                assert read.cost is None or 0 <= read.cost < 10**13
                assert "\0" not in read.text + read.reason + read.status + read.error_code
            if isinstance(read, Accepted):
                assert 0 < len(read.provider_id) <= 200
                assert read.provider_id.isprintable()


def test_no_two_providers_share_what_must_tell_them_apart() -> None:
    for attribute in ("name", "key_setting", "sandbox_path", "sandbox_key", "default_base_url"):
        values = [getattr(adapter, attribute) for adapter in registry.REGISTERED]
        assert len(set(values)) == len(values), attribute
    for adapter in registry.REGISTERED:
        assert adapter.default_price > 0
        assert len(adapter.currency) == 3
        assert adapter.default_base_url.startswith("https://")

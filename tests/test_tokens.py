"""One token for all processes of a host: asked for once, renewed in time, dropped where it is refused."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pytest_django import Settings

from providers import asking, tokens
from providers.adapters.gigachat import GigaChat
from providers.adapters.polza import Polza
from providers.contract import Account, Answer, Call, Charge, FailureClass, NoAnswer, Refusal
from providers.http import Transport

GIGACHAT = GigaChat()
ACCOUNT = Account("gigachat", "http://giga/api/v1", "f00d", "bmFtZTpzZWNyZXQ=")
READ = Call("GET", "http://giga/api/v1/balance")
Answering = Callable[[httpx.Request], httpx.Response]


class Server(httpx.AsyncBaseTransport):
    """Gives tokens t1, t2, … that live `life_s`, and opens to those that were not refused."""

    def __init__(self, life_s: float = 1800.0) -> None:
        self.life_s = life_s
        self.asked: list[httpx.Request] = []
        self.reads: list[str] = []
        self.shut: set[str] = set()
        self.instead: Callable[[], httpx.Response] | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/oauth"):
            self.reads.append(request.headers["authorization"])
            word = self.reads[-1].removeprefix("Bearer ")
            return httpx.Response(401 if word in self.shut else 200, json={"seen": word})
        self.asked.append(request)
        await asyncio.sleep(0)
        if self.instead is not None:
            return self.instead()
        ends = (time.time() + self.life_s) * 1000
        return httpx.Response(
            200, json={"access_token": f"t{len(self.asked)}", "expires_at": int(ends)}
        )


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def transport(server: Server) -> Any:
    async with Transport(reads=server) as made:
        yield made


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, settings: Settings) -> Path:
    settings.TOKEN_DIR = tmp_path / "tokens"
    return tmp_path / "tokens"


async def opened(transport: Transport) -> str:
    got = await asking.entry(transport, GIGACHAT, ACCOUNT)
    assert not isinstance(got, Refusal)
    return got["authorization"]


async def shut(transport: Transport) -> Refusal:
    got = await asking.entry(transport, GIGACHAT, ACCOUNT)
    assert isinstance(got, Refusal)
    return got


def kept(folder: Path) -> Path:
    (file,) = folder.glob("*.json")
    return file


def change(file: Path, **values: float) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


async def test_many_who_need_a_token_at_once_share_one_request(
    server: Server, transport: Transport
) -> None:
    assert set(await asyncio.gather(*(opened(transport) for _ in range(40)))) == {"Bearer t1"}
    assert await opened(transport) == "Bearer t1"
    (asked,) = server.asked
    assert asked.headers["authorization"] == "Basic bmFtZTpzZWNyZXQ="
    assert asked.content == b"scope=GIGACHAT_API_PERS"


def test_the_file_is_its_owners_alone_and_does_not_hold_the_key(
    server: Server, folder: Path
) -> None:
    async def get() -> None:
        async with Transport(reads=server) as transport:
            await opened(transport)

    asyncio.run(get())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert ACCOUNT.key not in path.read_text() + path.name


async def test_a_token_near_its_end_is_renewed_and_a_short_one_at_half_of_its_life(
    server: Server, transport: Transport, folder: Path
) -> None:
    await opened(transport)
    file = kept(folder)
    change(file, expires_at=time.time() + 50, got_at=time.time() - 1750)
    assert await opened(transport) == "Bearer t2"
    server.life_s = 20.0
    kept(folder).unlink()
    assert await opened(transport) == await opened(transport) == "Bearer t3"


async def test_a_read_that_is_refused_renews_the_token_once_and_is_repeated(
    server: Server, transport: Transport
) -> None:
    await opened(transport)
    server.shut = {"t1"}
    answer = await asking.read(transport, GIGACHAT, ACCOUNT, READ, deadline_s=5.0)
    assert (answer.status, server.reads) == (200, ["Bearer t1", "Bearer t2"])
    server.shut = {"t2", "t3", "t4"}
    answer = await asking.read(transport, GIGACHAT, ACCOUNT, READ, deadline_s=5.0)
    assert (answer.status, server.reads[2:]) == (401, ["Bearer t2", "Bearer t3"])


async def test_only_the_token_that_was_refused_is_dropped(
    server: Server, transport: Transport
) -> None:
    old = {"authorization": await opened(transport)}
    for _ in range(2):  # many may be told of the same one, late as well
        assert asking.refused(GIGACHAT, ACCOUNT, old)
        assert await opened(transport) == "Bearer t2"
    assert len(server.asked) == 2


async def test_a_failed_request_answers_for_all_for_a_moment(
    server: Server, transport: Transport, folder: Path
) -> None:
    server.instead = lambda: httpx.Response(429, json={"message": "Too many"}, headers={"retry-after": "9"})  # fmt: skip
    got = await asyncio.gather(*(shut(transport) for _ in range(20)))
    assert {(one.failure, one.charge, one.wait_s) for one in got} == {
        (FailureClass.RATE_LIMITED, Charge.NONE, 9.0)
    }
    assert len(server.asked) == 1
    file = kept(folder)
    assert 8 < json.loads(file.read_text())["until"] - time.time() <= 9
    server.instead = None
    change(file, until=time.time() - 1)
    assert await opened(transport) == "Bearer t2"


@pytest.mark.parametrize(
    ("response", "failure"),
    [
        (httpx.Response(401, json={"code": 6, "message": "credentials"}), "unauthorized"),
        (httpx.Response(400, json={"code": 5, "message": "scope is empty"}), "unauthorized"),
        (httpx.Response(500, json={"message": "Internal"}), "down"),
        (httpx.Response(502, html="<html>"), "down"),
        (httpx.Response(200, json={"expires_at": 1}), "down"),
        (httpx.Response(200, json={"access_token": "a b\r\nx: y", "expires_at": 9_999_999_999_999}), "down"),
        (httpx.Response(200, json={"access_token": "x" * 20_000, "expires_at": 9_999_999_999_999}), "down"),
    ],
)  # fmt: skip
async def test_without_a_token_nothing_is_sent_and_nobody_is_charged(
    server: Server, transport: Transport, response: httpx.Response, failure: str
) -> None:
    server.instead = lambda: response
    got = await shut(transport)
    assert (got.failure, got.charge, got.target_stops) == (failure, Charge.NONE, False)
    assert ACCOUNT.key not in got.reason
    answer = await asking.read(transport, GIGACHAT, ACCOUNT, READ, deadline_s=5.0)
    assert server.reads == []
    assert isinstance(answer, NoAnswer) or answer.status >= 400


async def test_a_token_server_that_is_away_is_unsent_and_its_answer_is_the_reads(
    server: Server, transport: Transport
) -> None:
    def away() -> httpx.Response:
        raise httpx.ConnectError("refused")

    server.instead = away
    answer = await asking.read(transport, GIGACHAT, ACCOUNT, READ, deadline_s=5.0)
    assert isinstance(answer, NoAnswer)
    got = await shut(transport)
    assert (got.failure, got.charge, got.ours) == (FailureClass.UNSENT, Charge.NONE, False)


async def test_an_old_token_serves_while_no_new_one_is_to_be_had(
    server: Server, transport: Transport, folder: Path
) -> None:
    await opened(transport)
    file = kept(folder)
    change(file, expires_at=time.time() + 40, got_at=time.time() - 1760)
    server.instead = lambda: httpx.Response(503, json={"message": "later"})
    assert await opened(transport) == "Bearer t1"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"value": 1}', '{"until": "x"}', "\0"])
async def test_a_file_that_makes_no_sense_is_no_token(
    server: Server, transport: Transport, folder: Path, text: str
) -> None:
    await opened(transport)
    file = kept(folder)
    file.write_text(text)
    assert await opened(transport) == "Bearer t2"


async def test_whoever_waits_in_vain_for_another_sends_nothing(
    server: Server, transport: Transport, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(transport)
    file = kept(folder)
    file.unlink()
    monkeypatch.setattr(tokens, "DEADLINE_S", 0.05)
    with tokens._locked(file) as mine:
        assert mine
        got = await shut(transport)
    assert (got.failure, got.ours) == (FailureClass.UNSENT, True)
    assert await opened(transport) == "Bearer t2"  # the lock went with its holder


async def test_a_folder_that_can_not_be_written_is_our_own_fault(
    server: Server, transport: Transport, tmp_path: Path, settings: Settings
) -> None:
    (tmp_path / "file").write_text("")
    settings.TOKEN_DIR = tmp_path / "file"
    got = await shut(transport)
    assert (got.failure, got.ours) == (FailureClass.UNSENT, True)
    assert "TOKEN_DIR" in got.reason


async def test_a_provider_without_tokens_is_asked_with_its_key(
    server: Server, transport: Transport, folder: Path
) -> None:
    polza = Account("polza", "http://polza/api/v1", "f00d", "pza_key")
    answer = await asking.read(transport, Polza(), polza, READ, deadline_s=5.0)
    assert isinstance(answer, Answer)
    assert server.reads == ["Bearer pza_key"]
    assert not asking.refused(Polza(), polza, {"authorization": "Bearer pza_key"})
    assert not list(folder.parent.glob("tokens/*"))


def test_another_address_scope_or_key_is_another_file() -> None:
    def path(account: Account) -> Path:
        call = GIGACHAT.token(account)
        assert call is not None
        return tokens._path(GIGACHAT, account, call)

    same = Account("gigachat_b", ACCOUNT.base_url, "f00d", ACCOUNT.key)
    assert path(same) == path(ACCOUNT) == path(ACCOUNT)
    others = [
        Account("gigachat", "http://other/api/v1", "f00d", ACCOUNT.key),
        Account("gigachat", ACCOUNT.base_url, "beef", "b3RoZXI6a2V5"),
        Account("gigachat", ACCOUNT.base_url, "f00d", ACCOUNT.key, {"scope": "GIGACHAT_API_B2B"}),
    ]
    assert len({path(one) for one in (*others, ACCOUNT)}) == 4
    assert os.sep not in path(ACCOUNT).name

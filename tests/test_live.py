"""Live progress: one reading for all who watch, streams that end, and connections that are given back."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.db import OperationalError, connection, connections
from django.http import HttpResponseBase
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils.translation import get_language

from jobs import live
from jobs.admin import index, streams
from jobs.clock import clock
from jobs.live import END, PING, Subject
from jobs.manner import Manner
from jobs.models import Batch, Hold
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def _quick(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(live, "EVERY_S", 0.02)
    yield
    # What this test's loop has started ends with it.
    await _until(lambda: not [one for one in threading.enumerate() if one.name.startswith("live")])
    await sync_to_async(connections.close_all)()


async def _until(condition: Callable[[], Any], within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


class Thing:
    """A subject whose state is set by hand; it notes how often it is read and told."""

    def __init__(self, key: str = "thing") -> None:
        self.state: Any = 1
        self.broken: Exception | None = None
        self.reads: list[str] = []
        self.told: list[str | None] = []
        self.over = False
        self.subject = Subject(key=key, read=self._read, tell=self._tell, over=lambda _s: self.over)

    def _read(self) -> Any:
        self.reads.append(threading.current_thread().name)
        if self.broken is not None:
            raise self.broken
        return self.state

    def _tell(self, state: Any) -> dict[str, Any]:
        self.told.append(get_language())
        return {"state": state, "language": get_language()}

    def watch(self, language: str = "en") -> Watcher:
        return Watcher(live.hub().stream(self.subject, Manner(language)))


class Watcher:
    """One client; `next` leaves out what is not asked for."""

    def __init__(self, messages: Any) -> None:
        self.messages = messages

    async def next(self, start: bytes = b'data: {"state"') -> bytes:
        async with asyncio.timeout(10):
            async for message in self.messages:
                if message.startswith(start):
                    return bytes(message)
        raise AssertionError("the stream ended")

    async def state(self) -> Any:
        return _data(await self.next())["state"]

    async def rest(self) -> list[bytes]:
        async with asyncio.timeout(10):
            return [message async for message in self.messages]

    async def close(self) -> None:
        await self.messages.aclose()


def _data(message: bytes) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(message.removeprefix(b"data: "))
    return told


# --- the hub ----------------------------------------------------------------------------------------------------------


async def test_one_reading_serves_all_who_watch() -> None:
    thing = Thing()
    watchers = [thing.watch() for _n in range(60)]
    assert await asyncio.gather(*(one.state() for one in watchers)) == [1] * 60
    # The first came alone, the second reading was for the others.
    assert len(thing.reads) <= 2
    thing.state = 2
    assert await asyncio.gather(*(one.state() for one in watchers)) == [2] * 60
    assert set(thing.reads) == {"live_0"}
    before, begin = len(thing.reads), time.monotonic()
    await asyncio.sleep(0.2)
    assert len(thing.reads) - before <= (time.monotonic() - begin) / live.EVERY_S + 1
    for one in watchers:
        await one.close()


async def test_who_comes_later_gets_the_state_at_once_without_a_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "EVERY_S", 60.0)
    thing = Thing()
    first = thing.watch()
    await first.state()
    reads = len(thing.reads)
    second = thing.watch()
    retry = await anext(second.messages)
    assert retry.startswith(b"retry: ")
    assert _data(await anext(second.messages))["state"] == 1
    assert len(thing.reads) == reads
    await first.close()
    await second.close()


async def test_each_language_is_put_into_words_once_a_round() -> None:
    thing = Thing()
    watchers = [thing.watch(language) for language in ("en", "ru", "fa") * 5]
    told = [_data(await one.next())["language"] for one in watchers]
    assert told == ["en", "ru", "fa"] * 5
    for one in watchers[1:]:
        await one.close()
    await asyncio.sleep(3 * live.EVERY_S)
    thing.told.clear()
    thing.reads.clear()
    await asyncio.sleep(0.2)
    assert set(thing.told) == {"en"}
    assert abs(len(thing.told) - len(thing.reads)) <= 1
    await watchers[0].close()


async def test_a_slow_client_skips_to_the_newest_state() -> None:
    thing = Thing()
    slow, quick = thing.watch(), thing.watch()
    assert await slow.state() == await quick.state() == 1
    for state in range(2, 8):
        thing.state = state
        assert await quick.state() == state
    assert await slow.state() == 7
    await slow.close()
    await quick.close()


async def test_nothing_new_is_said_with_pings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PING_S", 0.1)
    thing = Thing()
    one = thing.watch()
    await one.state()
    assert [await anext(one.messages) for _n in range(3)] == [PING] * 3
    thing.state = 2
    assert await one.state() == 2
    await one.close()


async def test_pings_stop_while_the_database_is_away_and_the_next_state_comes_after(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "PING_S", 0.1)
    thing = Thing()
    one = thing.watch()
    await one.state()
    thing.broken, thing.state = OperationalError("the server is away"), 2
    await _until(lambda: "live.read_failed" in caplog.text)
    await asyncio.sleep(0.15)  # the last reading may be as young as that
    heard = asyncio.ensure_future(anext(one.messages))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(heard), 0.5)
    thing.broken = None
    assert _data(await heard)["state"] == 2
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1
    await one.close()


async def test_what_fails_holds_up_nothing_else() -> None:
    broken, fine = Thing("broken"), Thing("fine")
    broken.broken = OperationalError("canceling statement due to statement timeout")
    first = asyncio.ensure_future(broken.watch().next())
    await _until(lambda: broken.reads)
    second = fine.watch()
    assert await second.state() == 1
    fine.state = 2
    assert await second.state() == 2
    broken.broken = None
    assert _data(await first)["state"] == 1
    await second.close()


async def test_a_slow_statement_ends() -> None:
    def limit() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            return cursor.fetchone()

    one = Watcher(live.hub().stream(Subject(key="limit", read=limit, tell=lambda row: {"state": row[0]}), Manner("en")))  # fmt: skip
    assert await one.state() == f"{live.STATEMENT_TIMEOUT_S}s"
    await one.close()


async def test_thread_and_connection_are_given_back_when_the_last_one_leaves() -> None:
    def backend() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return cursor.fetchone()

    subject = Subject(key="backend", read=backend, tell=lambda row: {"state": row[0]})
    for _round in range(2):
        one, other = (Watcher(live.hub().stream(subject, Manner("en"))) for _n in range(2))
        pid = await one.state()
        assert await other.state() == pid
        await one.close()
        await asyncio.sleep(3 * live.EVERY_S)
        assert await _alive(pid)
        await other.close()
        await _until(lambda: not [t for t in threading.enumerate() if t.name.startswith("live")])
        assert not await _alive(pid)


@sync_to_async
def _alive(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
        return bool(cursor.fetchone()[0])


async def test_a_stream_ends_with_its_subject() -> None:
    thing = Thing()
    one = thing.watch()
    await one.state()
    thing.state, thing.over = 2, True
    rest = await one.rest()
    assert [_data(rest[0])["state"], *rest[1:]] == [2, END]
    gone = Thing()
    gone.state = None
    assert (await gone.watch().rest())[1:] == [END]


async def test_a_stream_ends_after_a_time_so_that_permission_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "LONGEST_S", (0.1, 0.2))
    rest = await Thing().watch().rest()
    assert rest[0].startswith(b"retry: ")
    assert END not in rest


async def test_open_streams_are_counted_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_STREAMS", 2)
    thing = Thing()
    watchers = [thing.watch(), thing.watch()]
    assert not live.full()
    for one in watchers:
        await one.state()
    assert live.full()
    await watchers[0].close()
    assert not live.full()
    await watchers[1].close()


# --- the addresses ----------------------------------------------------------------------------------------------------


def _batch(**counts: int) -> Batch:
    now = clock.now()
    batch = Batch.objects.create(tenant=factories.tenant(), label="Spring", created_at=now)
    for state, many in counts.items():
        for _n in range(many):
            factories.job(now, JobState(state), batch=batch)
    return batch


def _stream(batch: Batch) -> str:
    return reverse("admin:jobs_batch_stream", args=[batch.pk])


async def _client(role: Role | None = Role.VIEWER) -> AsyncClient:
    client = AsyncClient()
    await client.aforce_login(await sync_to_async(factories.staff)(role))
    return client


def _messages(answer: object) -> AsyncGenerator[bytes, None]:
    """As the server's handler takes them."""
    assert isinstance(answer, streams.EventStream)
    return aiter(answer)


async def test_a_batch_tells_its_whole_state_first_then_each_change_and_ends_when_done() -> None:
    batch = await sync_to_async(_batch)(succeeded=1, pending=2)
    answer = await (await _client()).get(_stream(batch))
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert {"no-store", "no-transform"} <= set(answer.headers["Cache-Control"].split(", "))
    assert answer.headers["X-Accel-Buffering"] == "no"
    async with aclosing(_messages(answer)) as messages:
        one = Watcher(messages)
        first = _data(await one.next(b"data: {"))
        assert first["counts"]["pending"] == 2
        assert first["texts"]["percent"] == "33 %"
        assert not first["done"]
        await _end(batch)
        rest = await one.rest()
    last = _data([message for message in rest if message.startswith(b'data: {"')][-1])
    assert last["done"]
    assert last["counts"]["succeeded"] == 3
    assert rest[-1] == END


@sync_to_async
def _end(batch: Batch, most: int = 100) -> None:
    now = clock.now()
    pending = list(batch.jobs.filter(state=JobState.PENDING).values_list("pk", flat=True)[:most])
    batch.jobs.filter(pk__in=pending).update(
        state=JobState.SUCCEEDED, finished_at=now, decided_at=now
    )


async def test_a_stream_that_is_dropped_between_two_messages_leaves_at_once() -> None:
    batch = await sync_to_async(_batch)(pending=1)
    answer = await (await _client()).get(_stream(batch))
    messages = _messages(answer)
    await Watcher(messages).next(b"data: {")
    assert len(live._open) == 1
    await messages.aclose()
    assert not live._open


async def test_nothing_is_sent_while_only_time_goes_by() -> None:
    batch = await sync_to_async(_batch)(succeeded=1, pending=1)
    seen = streams.of_batch(batch.pk)
    first, second = [await sync_to_async(lambda: seen.tell(seen.read()))() for _n in range(2)]
    assert first == second


async def test_who_may_not_see_batches_hears_nothing_of_them() -> None:
    batch = await sync_to_async(_batch)(pending=1)
    assert (await (await _client(None)).get(_stream(batch))).status_code == 403
    answer = await AsyncClient().get(_stream(batch))
    assert answer.status_code == 302
    assert "/login/" in answer.headers["Location"]
    unknown = reverse("admin:jobs_batch_stream", args=[batch.pk + 1])
    assert (await (await _client()).get(unknown)).status_code == 404


async def test_a_full_process_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_STREAMS", 0)
    batch = await sync_to_async(_batch)(pending=1)
    assert (await (await _client()).get(_stream(batch))).status_code == 503


def test_where_the_server_is_not_asynchronous_the_page_names_no_stream() -> None:
    batch = _batch(pending=1)
    client = Client()
    client.force_login(factories.staff(Role.VIEWER))
    assert client.get(_stream(batch)).status_code == 501
    page = client.get(reverse("admin:jobs_batch_change", args=[batch.pk])).content.decode()
    assert 'data-stream=""' in page
    assert 'data-stream=""' in client.get(reverse("admin:index")).content.decode()


async def test_pages_name_their_stream_while_there_is_something_to_hear() -> None:
    client = await _client()
    for batch, there in ((await sync_to_async(_batch)(pending=1), True), (await sync_to_async(_batch)(succeeded=1), False)):  # fmt: skip
        page = await client.get(reverse("admin:jobs_batch_change", args=[batch.pk]))
        assert (f'data-stream="{_stream(batch)}"' in page.content.decode()) is there
        assert ("data-tell=" in page.content.decode()) is there


# --- the dashboard ----------------------------------------------------------------------------------------------------


async def test_the_dashboard_hears_that_something_has_changed_and_no_more() -> None:
    client = await _client()
    page = await client.get(reverse("admin:index"))
    assert f'data-stream="{reverse("admin:desk_stream")}"' in page.content.decode()
    answer = await client.get(reverse("admin:desk_stream"))
    async with aclosing(_messages(answer)) as messages:
        one = Watcher(messages)
        first = _data(await one.next(b'data: {"version"'))
        assert list(first) == ["version"]
        await sync_to_async(_batch)(pending=1)
        second = _data(await one.next(b'data: {"version"'))
        assert second["version"] != first["version"]
    assert (await AsyncClient().get(reverse("admin:desk_stream"))).status_code == 302


def _same_minute(wanted: Callable[[], bool]) -> bool:
    """The digest moves with the minute: what holds may be looked at once more."""
    return wanted() or wanted()


def test_the_digest_moves_with_what_the_dashboard_shows() -> None:
    now = clock.now()
    assert _same_minute(lambda: index.digest() == index.digest())
    seen = {index.digest()}

    def is_new() -> bool:
        digest = index.digest()
        new = digest not in seen
        seen.add(digest)
        return new

    job = factories.job(now, JobState.MANUAL, reason="unknown_send")
    assert is_new()
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=job)
    assert is_new()
    case.owner = factories.staff(Role.OPERATOR)
    case.save()
    assert is_new()
    hold = Hold.objects.create(kind=Hold.Kind.RED_BUTTON, set_at=now)
    assert is_new()
    Hold.objects.filter(pk=hold.pk).update(lifted_at=now)
    factories.result(job, now)
    assert is_new()


def test_an_event_that_commits_late_is_not_missed() -> None:
    now = clock.now()
    job = factories.job(now)
    late = factories.event(job, "paused", now - timedelta(seconds=1))
    number = late.pk
    late.delete()
    factories.event(job, "resumed", now)
    before = index.digest()
    late.pk = number
    late.save(force_insert=True)
    assert index.digest() != before


def test_live_parts_of_the_dashboard_are_there_with_and_without_its_frame() -> None:
    client = Client()
    client.force_login(factories.staff(Role.OWNER))
    whole = client.get(reverse("admin:index")).content.decode()
    parts = client.get(reverse("admin:index"), headers={"X-Live": "1"}).content.decode()
    names = {"holds", "as-of", "desk", "states", "providers", "lanes", "newest"}
    for name in names:
        assert f'data-live="{name}"' in whole, name
        assert f'data-live="{name}"' in parts, name
    assert "<html" not in parts


# --- connections ------------------------------------------------------------------------------------------------------


def _scope(path: str, client: AsyncClient) -> dict[str, Any]:
    cookie = f"sessionid={client.cookies['sessionid'].value}"
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), (b"cookie", cookie.encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip


@sync_to_async
def _connections() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


async def _open(application: Any, path: str, client: AsyncClient) -> Any:
    one: Any = ApplicationCommunicator(  # type: ignore[no-untyped-call]
        application, _scope(path, client)
    )
    await one.send_input({"type": "http.request", "body": b"", "more_body": False})
    assert (await one.receive_output(20))["status"] == 200
    await one.receive_output(20)  # retry
    assert (await one.receive_output(20))["body"].startswith(b"data: {")
    return one


async def _leave(one: Any) -> None:
    await one.send_input({"type": "http.disconnect"})
    await one.wait(20)


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in one thread"])
async def test_an_open_stream_holds_no_connection_of_its_own(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[str]()
    true = streams.answer

    def noted(*arguments: Any) -> HttpResponseBase:
        threads.add(threading.current_thread().name)
        return true(*arguments)

    monkeypatch.setattr(streams, "answer", noted)
    batch = await sync_to_async(_batch)(pending=2)
    client = await _client()
    application: Any = get_asgi_application()
    if together:
        application = live.in_one_thread(application)
    before = await _connections()
    opened = await asyncio.gather(*(_open(application, _stream(batch), client) for _n in range(8)))
    # Only the hub's is added, for all of them.
    assert await _settled(before + 1) <= before + 1
    assert (len(threads) == 1) is together
    await _end(batch, 1)
    for one in opened[:4]:
        assert b'"succeeded":1' in (await one.receive_output(20))["body"]
    for one in opened:
        await _leave(one)
    assert await _settled(before) <= before


async def _settled(most: int) -> int:
    """A backend takes a moment to go after its connection was closed."""
    for _n in range(200):
        if (found := await _connections()) <= most:
            break
        await asyncio.sleep(0.05)
    return found

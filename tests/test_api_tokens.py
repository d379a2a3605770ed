"""Tokens: what is wrong with one tells nothing, what it may not do is refused before anything is looked up, its text is kept nowhere."""

from __future__ import annotations

import logging
import secrets
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs.clock import clock
from jobs.lifecycle import tokens
from jobs.lifecycle.errors import Refused
from jobs.models import ApiToken, Job, TenantEvent
from jobs.roles import Role
from jobs.states import JobState
from tests import api_calls, factories

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _told(answer: Any) -> tuple[int, bytes, str]:
    return answer.status_code, answer.content, answer.headers.get("WWW-Authenticate", "")


def test_whatever_is_wrong_with_a_token_the_answer_is_the_same() -> None:
    now = clock.now()
    good, revoked, over = (api_calls.token() for _n in range(3))
    tokens.revoke(token_id=revoked.token.pk, actor=None, now=now)
    ApiToken.objects.filter(pk=over.token.pk).update(expires_at=now)
    wrong = [
        revoked.text,
        over.text,
        good.text[:-1] + ("A" if good.text[-1] != "A" else "B"),
        good.text + "A",
        good.text.replace(good.token.prefix, revoked.token.prefix),
        f"desk_aaaaaaaaaa_{'x' * 43}",
        "",
        "\xff",
    ]
    answers = {_told(api_calls.with_text(text).get("/api/v1/jobs")) for text in wrong}
    answers.add(_told(Client().get("/api/v1/jobs")))
    answers.add(_told(Client(headers={"Authorization": f"Basic {good.text}"}).get("/api/v1/jobs")))
    assert len(answers) == 1
    [(status, _body, challenge)] = answers
    assert (status, challenge) == (401, 'Bearer realm="desk"')
    assert api_calls.with_text(good.text).get("/api/v1/jobs").status_code == 200


def test_texts_are_compared_in_constant_time_whether_there_is_such_a_token_or_not(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    good = api_calls.token()
    compared: list[tuple[int, int]] = []
    true = secrets.compare_digest

    def noted(a: str, b: str) -> bool:
        compared.append((len(a), len(b)))
        return true(a, b)

    monkeypatch.setattr(secrets, "compare_digest", noted)
    for text in (good.text, good.text[:-1] + "-", f"desk_aaaaaaaaaa_{'x' * 43}", "nonsense"):
        tokens.find(text, now=clock.now())
    assert compared == [(64, 64)] * 4


MINE, THEIRS, NOBODYS = "mine", "theirs", "nobody's"
ADDRESSES = [
    ("get", "/api/v1/jobs/{job}", "read"),
    ("get", "/api/v1/jobs/{job}/result", "read"),
    ("get", "/api/v1/jobs/{job}/events", "read"),
    ("post", "/api/v1/jobs/{job}/cancel", "cancel"),
    ("get", "/api/v1/batches/{batch}", "read"),
    ("get", "/api/v1/batches/{batch}/events", "read"),
    ("post", "/api/v1/batches/{batch}/cancel", "cancel"),
]


@pytest.mark.parametrize(("method", "address", "scope"), ADDRESSES)
def test_another_tenants_thing_is_no_thing_and_a_missing_scope_tells_nothing(method: str, address: str, scope: str) -> None:  # fmt: skip
    client = api_calls.caller()
    mine = api_calls.create(client).json()
    theirs = api_calls.create(api_calls.caller(factories.tenant("other"))).json()

    def answer(of: dict[str, int], by: Client) -> tuple[int, bytes, str]:
        return _told(getattr(by, method)(address.format(job=of["id"], batch=of["batch"])))

    nobodys = {"id": 10**12, "batch": 10**12}
    assert answer(mine, client)[0] not in {401, 403, 404}
    assert answer(theirs, client)[0] == 404
    assert answer(theirs, client) == answer(nobodys, client)
    lacking = api_calls.caller(scopes=[one for one in api_calls.ALL if one != scope])
    refused = {answer(one, lacking) for one in (mine, theirs, nobodys)}
    assert [status for status, _body, _challenge in refused] == [403]
    states = dict(Job.objects.values_list("pk", "state"))
    assert states[theirs["id"]] == JobState.PENDING


def test_lists_hold_only_the_tenants_own() -> None:
    client, other = api_calls.caller(), api_calls.caller(factories.tenant("other"))
    mine, theirs = api_calls.create(client).json(), api_calls.create(other).json()
    assert [one["id"] for one in client.get("/api/v1/jobs").json()["jobs"]] == [mine["id"]]
    there = client.get("/api/v1/jobs", {"batch": theirs["batch"]}).json()
    assert there == {"jobs": [], "older": None}
    assert client.post("/api/v1/jobs", {"prompt": "x"}).status_code == 202
    assert api_calls.caller(scopes=["read"]).post("/api/v1/jobs", {"prompt": "x"}).status_code == 403  # fmt: skip


def test_a_replaced_token_goes_on_for_the_overlap_and_no_longer() -> None:
    old = api_calls.token(scopes=["read"], per_minute=77)
    now = clock.now()
    new = tokens.rotate(token_id=old.token.pk, overlap=timedelta(hours=2), actor=None, now=now)
    assert (new.token.scopes, new.token.per_minute, new.token.replaces) == (["read"], 77, old.token)
    for text, at, works in (
        (old.text, now, True),
        (new.text, now, True),
        (old.text, now + timedelta(hours=2), False),
        (new.text, now + timedelta(hours=2), True),
    ):
        assert (tokens.find(text, now=at) is not None) is works
    tokens.revoke(token_id=old.token.pk, actor=None, now=now)
    with pytest.raises(Refused):
        tokens.rotate(token_id=old.token.pk, overlap=timedelta(0), actor=None, now=now)
    with pytest.raises(Refused):
        tokens.revoke(token_id=old.token.pk, actor=None, now=now)
    kinds = list(TenantEvent.objects.order_by("pk").values_list("kind", flat=True))
    assert kinds == ["token_issued", "token_rotated", "token_revoked"]


def test_a_token_that_ends_sooner_is_not_prolonged_by_its_overlap() -> None:
    now = clock.now()
    ends = now + timedelta(hours=1)
    old = api_calls.token(expires_at=ends)
    tokens.rotate(token_id=old.token.pk, overlap=timedelta(hours=24), actor=None, now=now)
    old.token.refresh_from_db()
    assert old.token.expires_at == ends


def test_a_full_minute_may_come_at_once_and_then_one_at_a_time() -> None:
    token = api_calls.token(per_minute=60).token
    assert [tokens.spend(token=token, now=NOW) for _n in range(60)] == [0.0] * 60
    assert tokens.spend(token=token, now=NOW) == pytest.approx(1.0)
    later = NOW + timedelta(seconds=1)
    assert tokens.spend(token=token, now=later) == 0.0
    assert tokens.spend(token=token, now=later) == pytest.approx(1.0)
    after_a_rest = NOW + timedelta(minutes=5)
    assert [tokens.spend(token=token, now=after_a_rest) for _n in range(60)] == [0.0] * 60


def test_the_last_use_is_written_once_a_minute_and_a_refused_request_writes_nothing() -> None:
    token = api_calls.token(per_minute=3).token

    def used_at(seconds: float) -> datetime | None:
        tokens.spend(token=token, now=NOW + timedelta(seconds=seconds))
        token.refresh_from_db()
        return token.last_used_at

    assert used_at(0) == NOW
    assert used_at(30) == NOW
    assert used_at(61) == NOW + timedelta(seconds=61)
    paced_at = token.paced_at
    while not tokens.spend(token=token, now=NOW + timedelta(seconds=62)):
        token.refresh_from_db()
        paced_at = token.paced_at
    token.refresh_from_db()
    assert token.paced_at == paced_at


def test_the_text_is_in_no_row_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with CaptureQueriesContext(connection) as queries:
        made = api_calls.token()
        rotated = tokens.rotate(
            token_id=made.token.pk, overlap=timedelta(hours=1), actor=None, now=clock.now()
        )
        client = api_calls.with_text(made.text)
        api_calls.create(client)
        client.get("/api/v1/nowhere")
        api_calls.with_text(rotated.text + "x").get("/api/v1/jobs")
    for secret in (made.text.rpartition("_")[2], rotated.text.split("_", 2)[2]):
        assert secret not in repr(made) + repr(rotated)
        assert secret not in caplog.text
        assert secret not in "".join(query["sql"] for query in queries.captured_queries)
        with connection.cursor() as cursor:
            cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^(jobs|django)_'")  # fmt: skip
            for (table,) in cursor.fetchall():
                cursor.execute(f'SELECT count(*) FROM "{table}" t WHERE t::text LIKE %s', [f"%{secret}%"])  # fmt: skip
                assert cursor.fetchone() == (0,), table


# --- the desk ---------------------------------------------------------------------------------------------------------


def _owner() -> Client:
    client = Client()
    client.force_login(factories.staff(Role.OWNER))
    return client


def test_the_desk_shows_a_new_token_once_and_a_form_sent_twice_makes_one() -> None:
    client = _owner()
    form = {"id": str(uuid.uuid4()), "tenant": factories.tenant().pk, "name": "site", "scopes": ["read"], "per_minute": 5}  # fmt: skip
    answer = client.post(reverse("admin:jobs_apitoken_add"), form)
    text = answer.context["text"]
    assert answer.status_code == 200
    assert "no-store" in answer.headers["Cache-Control"]
    assert text in answer.content.decode()
    assert api_calls.with_text(text).get("/api/v1/budget").status_code == 200
    again = client.post(reverse("admin:jobs_apitoken_add"), form)
    assert "its text was shown then" in again.content.decode()
    made = ApiToken.objects.get()
    for page in ("changelist", "change"):
        url = reverse(f"admin:jobs_apitoken_{page}", args=[made.pk] if page == "change" else [])
        shown = client.get(url).content.decode()
        assert made.prefix in shown
        assert text not in shown
        assert made.digest not in shown


def test_the_desk_replaces_and_revokes() -> None:
    client, old = _owner(), api_calls.token()
    url = reverse("admin:jobs_apitoken_do", args=[old.token.pk, "rotate"])
    answer = client.post(url, {"hours": "0", "id": str(uuid.uuid4())})
    assert tokens.find(answer.context["text"], now=clock.now()) is not None
    assert tokens.find(old.text, now=clock.now()) is None
    new = ApiToken.objects.get(replaces=old.token)
    client.post(reverse("admin:jobs_apitoken_do", args=[new.pk, "revoke"]), {"reason": "leaked"})
    assert tokens.find(answer.context["text"], now=clock.now()) is None
    page = client.get(reverse("admin:jobs_tenant_change", args=[new.tenant_id])).content.decode()
    assert "API token revoked" in page
    assert "leaked" in page

"""Each fault of a POST over real HTTP: what the client sees, and what the ledger knows."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from providers.sandbox.faults import CATALOGUE, EDGE_STATUSES, OWN_ERRORS, Stage
from providers.sandbox.ledger import fingerprint
from providers.sandbox.server import Sandbox, running_sandbox
from tests.sandboxes import KEY, MODEL, Customer, Seen

pytestmark = pytest.mark.flow

OWN_STATUSES = {
    "bad_request": 400,
    "bad_model": 400,
    "unauthorized": 401,
    "key_revoked": 401,
    "no_balance": 402,
    "key_limit": 402,
    "key_limit_400": 400,
    "tariff": 402,
    "moderation": 403,
    "not_found": 404,
    "own_408": 408,
    "conflict": 409,
    "too_large": 413,
    "unprocessable": 422,
    "internal": 500,
    "own_502": 502,
    "unavailable": 503,
    "no_providers": 503,
    "overloaded": 503,
    "own_504": 504,
    "ok_error": 200,
} | {name: 429 for name in OWN_ERRORS if name.startswith("rate_limited")}
SUBMIT = [fault.name for fault in CATALOGUE.values() if fault.stage is Stage.SUBMIT]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with running_sandbox(latency_fixed_s=60) as running:
        yield running


@pytest.fixture
def customer(sandbox: Sandbox) -> Customer:
    return Customer(sandbox)


def booked(sandbox: Sandbox, user: str) -> tuple[Any, Any, Any]:
    """The POST, and the tasks and charges of a correlation id."""
    ledger = sandbox.ledger(correlation=user)
    (post,) = ledger["posts"]
    return post, ledger["tasks"], ledger["charges"]


@pytest.mark.parametrize("name", SUBMIT)
def test_the_ledger_knows_whether_a_fault_created_and_billed_a_task(
    name: str, sandbox: Sandbox, customer: Customer
) -> None:
    user = uuid.uuid4().hex
    quick = {"slow_answer": "=0.2", "slow_drip": "=0.002", "accept_late": "=600"}
    customer.post(f"[[fault:{name}{quick.get(name, '')}]]", user=user, timeout_s=0.5)
    post, tasks, charges = booked(sandbox, user)
    accepts = CATALOGUE[name].accepts
    assert post["accepted"] is accepts
    assert len(tasks) == len(charges) == int(accepts is True)
    if tasks:
        assert post["task"] == tasks[0]["id"] == charges[0]["task"]
        assert charges[0]["amount"] == "5.00"
        assert charges[0]["key"] == fingerprint(KEY)


@pytest.mark.parametrize(
    "name", ["reset_before_accept", "reset_after_accept", "accept_late", "cut_headers"]
)
def test_a_reset_shows_the_client_nothing(name: str, customer: Customer) -> None:
    assert customer.post(f"[[fault:{name}]]") == Seen(broken=True)


def test_a_reset_before_reading_is_logged_as_unread_and_creates_nothing(
    sandbox: Sandbox, customer: Customer
) -> None:
    before = sandbox.ledger()
    assert customer.post("a cat" * 100_000, fault="reset_before_read").broken
    after = sandbox.ledger()
    assert len(after["tasks"]) == len(before["tasks"])
    post = after["posts"][-1]
    assert len(after["posts"]) == len(before["posts"]) + 1
    assert (post["fault"], post["correlation"], post["status"]) == ("reset_before_read", "", None)


def test_a_reset_asked_for_by_the_prompt_comes_although_the_body_was_read(
    sandbox: Sandbox, customer: Customer
) -> None:
    user = uuid.uuid4().hex
    assert customer.post("[[fault:reset_before_read:1]]", user=user).broken
    _, tasks, _ = booked(sandbox, user)
    assert not tasks
    assert customer.post("[[fault:reset_before_read:1]]").status == 200


@pytest.mark.parametrize("name", ["hang_before_accept", "hang_after_accept"])
def test_a_hang_lasts_until_the_client_gives_up(name: str, customer: Customer) -> None:
    assert customer.post(f"[[fault:{name}]]", timeout_s=0.3) == Seen(timed_out=True)


def test_an_answer_cut_after_the_id_still_tells_it(sandbox: Sandbox, customer: Customer) -> None:
    user = uuid.uuid4().hex
    seen = customer.post("[[fault:cut_after_id]]", user=user)
    _, (task,), _ = booked(sandbox, user)
    assert seen.broken
    assert seen.status == 200
    assert seen.body == f'{{"id": "{task["id"]}",'.encode()


def test_an_answer_cut_before_the_id_does_not(customer: Customer) -> None:
    seen = customer.post("[[fault:cut_before_id]]")
    assert seen.broken
    assert seen.status == 200
    assert seen.body == b'{"id'


def test_a_slow_answer_and_a_drip_take_their_time_and_are_right(customer: Customer) -> None:
    for name, value in (("slow_answer", 0.3), ("slow_drip", 0.003)):
        start = time.monotonic()
        seen = customer.post(f"[[fault:{name}={value}]]")
        assert time.monotonic() - start >= 0.3
        assert seen.json["status"] == "pending"


def test_a_drip_outlives_a_timeout_for_each_read(customer: Customer) -> None:
    seen = customer.post("[[fault:slow_drip=0.02]]", timeout_s=0.4)
    assert seen.status == 200
    assert not seen.timed_out


@pytest.mark.parametrize("after", ["", "_after"])
@pytest.mark.parametrize("status", EDGE_STATUSES)
def test_an_edge_page_is_html(status: int, after: str, customer: Customer) -> None:
    seen = customer.post(f"[[fault:edge_{status}{after}]]")
    assert seen.status == status
    assert seen.headers["content-type"].startswith("text/html")
    assert b"<html" in seen.body


@pytest.mark.parametrize("after", ["", "_after"])
@pytest.mark.parametrize("name", sorted(OWN_STATUSES))
def test_an_own_error_is_polzas_envelope(name: str, after: str, customer: Customer) -> None:
    seen = customer.post(f"[[fault:{name}{after}]]")
    assert seen.status == OWN_STATUSES[name]
    error = seen.json["error"]
    assert error["code"]
    assert error["message"]
    assert seen.json["trace_id"] == error["trace_id"]


def test_the_names_of_the_model_and_key_errors_are_in_their_bodies(customer: Customer) -> None:
    def error(name: str) -> Any:
        return customer.post(f"[[fault:{name}]]").json["error"]

    assert error("bad_model")["metadata"]["reason"] == "noProvidersForModel"
    assert error("no_providers")["metadata"]["reason"] == "noProvidersForModel"
    assert "metadata" not in error("unavailable")
    assert error("key_limit_400")["message"] == "Исчерпан лимит расходов ключа на неделю"
    assert error("key_revoked")["code"] == "api_key_revoked"


def test_a_rate_limit_tells_its_wait_in_every_way(customer: Customer) -> None:
    def told(style: str, header: str = "retry-after") -> Any:
        return customer.post(f"[[fault:rate_limited_{style}=7.5]]").headers.get(header)

    assert customer.post("[[fault:rate_limited]]").headers.get("retry-after") is None
    assert told("seconds") == "8"
    assert told("float") == "7.500"
    assert told("ms", "retry-after-ms") == "7500"
    assert told("ms") is None
    assert 6 < parsedate_to_datetime(told("date")).timestamp() - time.time() < 9
    assert parsedate_to_datetime(told("past")).timestamp() < time.time()
    assert told("junk") == "soon, perhaps"
    assert told("negative") == "-5"
    assert told("zero") == "0"
    assert told("nan") == "NaN"
    assert "7.5" in customer.post("[[fault:rate_limited_body=7.5]]").json["error"]["message"]


def test_odd_successes(customer: Customer) -> None:
    def post(name: str) -> Seen:
        seen = customer.post(f"[[fault:{name}]]")
        assert seen.status in {200, 201}
        return seen

    assert post("ok_empty").body == b""
    with pytest.raises(ValueError, match=r"delimiter|value"):
        _ = post("ok_garbage_after").json
    assert "id" not in post("ok_no_id").json
    both = post("accepted_with_error").json
    assert both["id"]
    assert both["error"]["code"]
    assert post("status_201").status == 201
    assert post("instant_completed").json["data"]["url"]
    assert post("instant_failed").json["error"]["code"]


def test_a_fault_strikes_only_the_first_n_times(customer: Customer) -> None:
    prompt = f"{uuid.uuid4()} [[fault:internal:2]]"
    assert [customer.post(prompt).status for _ in range(4)] == [500, 500, 200, 200]


@pytest.mark.parametrize("model", ["fault/unavailable", f"{MODEL}@unavailable"])
def test_a_fault_is_chosen_by_the_model(model: str, customer: Customer) -> None:
    assert customer.post(model=model).status == 503


def test_a_fault_is_chosen_by_the_header(customer: Customer) -> None:
    assert customer.post(fault="unavailable").status == 503


def test_a_fault_is_chosen_by_share(sandbox: Sandbox, customer: Customer) -> None:
    sandbox.faults(unavailable=0.5, internal_after=0.5)
    seen = [customer.post().status for _ in range(40)]
    sandbox.faults()
    assert set(seen) == {503, 500}
    assert customer.post().status == 200


def test_an_unknown_fault_is_refused_instead_of_ignored(
    sandbox: Sandbox, customer: Customer
) -> None:
    seen = customer.post("[[fault:reset_after_acept]]")
    assert seen.status == 400
    assert "reset_after_acept" in seen.json["error"]["message"]
    with pytest.raises(ValueError, match="reset_after_acept"):
        sandbox.faults(reset_after_acept=0.1)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"model": MODEL},
        {"model": MODEL, "input": {"prompt": " "}},
        {"model": "", "input": {"prompt": "a"}},
        {"model": MODEL, "user": 5, "input": {"prompt": "a"}},
        {"model": MODEL, "input": {"prompt": "a", "images": ["x"]}},
        {"model": MODEL, "input": {"prompt": "a"}, "provider": {"max_price": {"image": "x"}}},
        ["no object"],
    ],
)
def test_a_body_that_is_not_polzas_gets_a_400(body: Any, customer: Customer) -> None:
    seen = customer.call("POST", "/media", body=body)
    assert seen.status == 400
    assert seen.json["error"]["code"] == "BAD_REQUEST"


def test_a_key_is_any_bearer_of_polzas_form(sandbox: Sandbox) -> None:
    assert Customer(sandbox, "pza_other").post().status == 200
    for path in ("/balance", "/key", "/history/generations", "/media/x"):
        assert Customer(sandbox, "sk-other").get(path).status == 401
    assert Customer(sandbox, "sk-other").post().status == 401
    assert Customer(sandbox, "sk-other").post().json["error"]["code"] == "UNAUTHORIZED"


def test_max_price_is_a_ceiling(customer: Customer) -> None:
    assert customer.post(provider={"max_price": {"image": 5}}).status == 200
    dear = customer.post(provider={"max_price": {"image": "4.99"}})
    assert dear.status == 400
    assert "max_price" in dear.json["error"]["message"]


def test_without_async_the_post_waits_for_the_result(sandbox: Sandbox, customer: Customer) -> None:
    body = {"model": MODEL, "input": {"prompt": "[[fault:latency=0.3]]"}}
    start = time.monotonic()
    seen = customer.call("POST", "/media", body=body)
    assert time.monotonic() - start >= 0.3
    assert seen.json["status"] == "completed"
    assert customer.get(seen.json["data"]["url"]).body.startswith(b"\x89PNG")


def test_without_async_the_post_gives_up_after_its_hold(
    sandbox: Sandbox, customer: Customer
) -> None:
    sandbox.control("settings", sync_hold_s=0.2)
    seen = customer.call("POST", "/media", body={"model": MODEL, "input": {"prompt": "a cat"}})
    sandbox.control("settings", sync_hold_s=120)
    assert seen.json["status"] == "pending"
    assert customer.poll(seen.json["id"])["id"] == seen.json["id"]


@pytest.mark.parametrize(("kind", "status"), [("503", 503), ("502_html", 502), ("401", 401)])
def test_in_an_outage_everything_fails(
    kind: str, status: int, sandbox: Sandbox, customer: Customer
) -> None:
    task_id = customer.made()
    tasks = sandbox.summary()["tasks"]
    sandbox.control("outage/start", kind=kind)
    try:
        assert customer.post().status == status
        assert customer.get("/balance").status == status
        assert customer.get(f"/media/{task_id}").status == status
    finally:
        sandbox.control("outage/stop")
    assert sandbox.summary()["tasks"] == tasks
    assert customer.poll(task_id)["status"] == "completed"


def test_an_outage_ends_by_itself_and_may_be_for_posts_only(
    sandbox: Sandbox, customer: Customer
) -> None:
    sandbox.control("outage/start", kind="reset", scope="posts", seconds=0.3)
    assert customer.post().broken
    assert customer.get("/balance").status == 200
    deadline = time.monotonic() + 5
    while sandbox.stats()["outage"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert customer.post().status == 200


def test_an_outage_of_the_way_back_still_creates_tasks(
    sandbox: Sandbox, customer: Customer
) -> None:
    user = uuid.uuid4().hex
    sandbox.control("outage/start", kind="cut")
    try:
        assert customer.post(user=user).broken
    finally:
        sandbox.control("outage/stop")
    _, tasks, _ = booked(sandbox, user)
    assert len(tasks) == 1

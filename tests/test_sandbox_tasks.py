"""What becomes of accepted tasks, over real HTTP: verdicts, receipts, shapes, files, troubled reads."""

from __future__ import annotations

import io
import time
import uuid
from base64 import b64decode
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from PIL import Image

from providers.sandbox.server import Sandbox, running_sandbox
from tests.sandboxes import Customer, Seen

pytestmark = pytest.mark.flow


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with running_sandbox(latency_fixed_s=60) as running:
        yield running


@pytest.fixture
def customer(sandbox: Sandbox) -> Customer:
    return Customer(sandbox)


def cost(sandbox: Sandbox, task_id: str) -> Decimal:
    """What the ledger says the task cost in the end."""
    charges = [one for one in sandbox.ledger()["charges"] if one["task"] == task_id]
    return sum(
        (Decimal(one["amount"]) for one in charges if one["refunded_at"] is None), Decimal(0)
    )


def opens(seen: Seen) -> Image.Image:
    assert seen.status == 200
    image = Image.open(io.BytesIO(seen.body))
    image.load()
    return image


@pytest.mark.parametrize(
    ("fate", "status", "receipt_status", "receipt_cost"),
    [
        ("latency=3", "completed", "completed", "5"),
        ("failed_free", "failed", "failed", "0"),
        ("failed_moderation", "failed", "failed", "0"),
        ("failed_timeout", "failed", "failed", "0"),
        ("failed_charged", "failed", "failed", "5"),
        ("failed_pending", "failed", "pending", "0"),
        ("failed_unlisted", "failed", None, None),
        ("failed_then_completed", "failed", "failed", "0"),
        ("cancelled", "cancelled", "failed", "0"),
        ("cancelled_charged", "cancelled", "failed", "5"),
        ("unknown_final", "archived", "completed", "5"),
        ("overcharged", "completed", "completed", "10"),
        ("receipt_pending", "completed", "pending", "0"),
    ],
)
def test_a_task_ends_as_its_fault_says_and_the_receipt_tells_the_cost(
    *,
    fate: str,
    status: str,
    receipt_status: str | None,
    receipt_cost: str | None,
    sandbox: Sandbox,
    customer: Customer,
) -> None:
    task_id = customer.made(f"[[fault:{fate}]]")
    assert customer.poll(task_id)["status"] == status
    receipt = customer.receipt(task_id)
    if receipt_status is None:
        assert receipt.status == 404
        assert cost(sandbox, task_id) == 5
        return
    assert receipt.json["status"] == receipt_status
    assert Decimal(receipt.json["clientCost"]) == Decimal(receipt_cost or "")
    if receipt_status != "pending":
        assert cost(sandbox, task_id) == Decimal(receipt_cost or "")
    else:
        assert cost(sandbox, task_id) == 5


def test_a_failed_verdict_names_its_reason(customer: Customer) -> None:
    codes = {
        "failed_free": "BAD_GATEWAY",
        "failed_moderation": "FORBIDDEN",
        "failed_timeout": "REQUEST_TIMEOUT",
    }
    for fate, code in codes.items():
        assert customer.poll(customer.made(f"[[fault:{fate}]]"))["error"]["code"] == code


def test_a_failed_task_can_come_back_and_is_charged_then(
    sandbox: Sandbox, customer: Customer
) -> None:
    task_id = customer.made("[[fault:failed_then_completed]]")
    assert cost(sandbox, task_id) == 0
    sandbox.control("finish", id=task_id)
    assert customer.poll(task_id)["status"] == "completed"
    assert cost(sandbox, task_id) == 5
    assert Decimal(customer.receipt(task_id).json["clientCost"]) == 5


@pytest.mark.parametrize(
    ("fate", "in_history"), [("lost", "pending"), ("lost_later", "completed"), ("vanished", None)]
)
def test_a_lost_task_is_unknown_to_polls_and_was_billed(
    fate: str, in_history: str | None, sandbox: Sandbox, customer: Customer
) -> None:
    task_id = customer.made(f"[[fault:{fate}]]")
    assert customer.get(f"/media/{task_id}").status == 404
    assert cost(sandbox, task_id) == 5
    listed = customer.get("/history/generations?limit=100").json["items"]
    assert next((one["status"] for one in listed if one["id"] == task_id), None) == in_history


def test_a_new_task_may_be_missing_at_first(customer: Customer) -> None:
    task_id = customer.post("[[fault:missing_first=0.3]]").json["id"]
    assert customer.get(f"/media/{task_id}").status == 404
    deadline = time.monotonic() + 5
    while (seen := customer.get(f"/media/{task_id}")).status == 404:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert seen.json["status"] in {"pending", "processing"}


def test_an_unknown_word_stands_while_the_task_runs(sandbox: Sandbox, customer: Customer) -> None:
    task_id = customer.post("[[fault:unknown_status]]").json["id"]
    assert customer.poll(task_id)["status"] == "warming_up"
    sandbox.control("finish", id=task_id)
    assert customer.poll(task_id)["status"] == "completed"


def test_late_and_never_run_on(sandbox: Sandbox, customer: Customer) -> None:
    user = uuid.uuid4().hex
    customer.post("[[fault:late]]", user=user)
    customer.post("[[fault:never]]", user=user)
    late, never = sandbox.ledger(correlation=user)["tasks"]
    assert late["finish_at"] - late["created"] == 960
    assert never["finish_at"] is None


def test_a_task_accepted_late_appears_in_the_history_afterwards(
    sandbox: Sandbox, customer: Customer
) -> None:
    user = uuid.uuid4().hex
    assert customer.post("[[fault:accept_late=0.3]]", user=user).broken
    assert not sandbox.ledger(correlation=user)["tasks"]
    deadline = time.monotonic() + 5
    while not (tasks := sandbox.ledger(correlation=user)["tasks"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    listed = customer.get("/history/generations").json["items"][0]
    assert (listed["id"], listed["user"]) == (tasks[0]["id"], user)


def shape(customer: Customer, name: str) -> Any:
    return customer.poll(customer.made(f"[[fault:{name}]]"))


def test_the_shapes_of_data(customer: Customer) -> None:
    def url(found: Any) -> bool:
        return opens(customer.get(found)).format == "PNG"

    assert url(customer.poll(customer.made())["data"]["url"])
    assert url(shape(customer, "data_list")["data"][0]["url"])
    assert url(shape(customer, "data_strings")["data"][0])
    assert url(shape(customer, "data_string")["data"])
    assert url(shape(customer, "data_images")["data"]["images"][0]["url"])
    inline = shape(customer, "data_b64")["data"][0]["b64_json"]
    assert b64decode(inline).startswith(b"\x89PNG")
    assert b64decode(shape(customer, "data_b64_object")["data"]["b64_json"])[:4] == b"\x89PNG"
    assert shape(customer, "data_data_url")["data"]["url"].startswith("data:image/png;base64,iVBOR")
    first, second = shape(customer, "data_two")["data"]
    assert customer.get(first["url"]).body != customer.get(second["url"]).body
    assert "data" not in shape(customer, "content_only")
    assert shape(customer, "content_only")["content"]
    assert not {"data", "content"} & set(shape(customer, "no_result"))
    assert {"data", "content", "warnings"} <= set(shape(customer, "with_content"))


def test_the_shapes_of_cost(customer: Customer) -> None:
    plain = customer.poll(customer.made())["usage"]
    assert (plain["cost_rub"], plain["cost"]) == (5.0, 5.0)
    assert shape(customer, "cost_string")["usage"]["cost_rub"] == "5.00"
    assert "cost" not in shape(customer, "cost_missing")["usage"]
    assert shape(customer, "cost_null")["usage"]["cost"] is None
    alias = shape(customer, "cost_alias")["usage"]
    assert alias["cost"] == 5.0
    assert "cost_rub" not in alias
    assert "usage" not in shape(customer, "usage_missing")
    wrong = customer.made("[[fault:cost_wrong]]")
    assert customer.poll(wrong)["usage"]["cost"] == 2.5
    assert Decimal(customer.receipt(wrong).json["clientCost"]) == 5


def result(customer: Customer, fault: str) -> Seen:
    return customer.get(customer.poll(customer.made(f"[[fault:{fault}]]"))["data"]["url"])


def test_an_expired_url_is_replaced_by_the_next_poll(customer: Customer) -> None:
    task_id = customer.made("[[fault:result_expired:1]]")
    first = customer.poll(task_id)["data"]["url"]
    assert customer.get(first).status == 403
    fresh = customer.poll(task_id)["data"]["url"]
    assert fresh != first
    opens(customer.get(fresh))
    assert customer.get(first).status == 403


def test_a_file_that_is_gone_stays_gone(customer: Customer) -> None:
    task_id = customer.made("[[fault:result_gone:1]]")
    for _ in range(2):
        assert customer.get(customer.poll(task_id)["data"]["url"]).status == 404


def test_results_that_are_no_pictures(customer: Customer) -> None:
    assert result(customer, "result_html").headers["content-type"].startswith("text/html")
    assert result(customer, "result_text").headers["content-type"] == "image/png"
    assert result(customer, "result_empty").body == b""
    assert opens(result(customer, "result_jpeg")).format == "JPEG"
    cut = result(customer, "result_truncated")
    with pytest.raises(OSError, match="truncated"):
        opens(cut)
    bomb = result(customer, "result_bomb").body
    assert len(bomb) < 20_000
    with (
        pytest.raises(Image.DecompressionBombError),
        Image.open(io.BytesIO(bomb)),
    ):
        pass
    assert len(result(customer, "result_oversize=3").body) > 3 * 1024 * 1024


@pytest.mark.parametrize("prefix", ["poll", "file", "history", "receipt", "balance"])
def test_every_read_fails_in_every_way(prefix: str, customer: Customer) -> None:
    task_id = customer.made()
    path = {
        "poll": f"/media/{task_id}",
        "file": str(customer.poll(task_id)["data"]["url"]),
        "history": "/history/generations",
        "receipt": f"/history/generations/{task_id}",
        "balance": "/balance",
    }[prefix]

    def read(trouble: str, timeout_s: float = 5) -> Seen:
        return customer.get(path, fault=f"{prefix}_{trouble}", timeout_s=timeout_s)

    good = customer.get(path)
    assert good.status == 200
    for status in (400, 401, 403, 404, 429, 500, 503):
        assert read(str(status)).status == status
    assert read("429").headers["retry-after"] == "2"
    assert read("502_html").headers["content-type"].startswith("text/html")
    assert read("524_html").status == 524
    assert read("reset") == Seen(broken=True)
    assert read("hang", timeout_s=0.3) == Seen(timed_out=True)
    cut = read("cut")
    assert cut.broken
    assert cut.body == good.body[: len(good.body) // 2]
    assert read("garbage").status == 200
    assert read("garbage").body != good.body
    assert read("empty").body == b""
    for slow in ("slow=0.2", "drip=0.01"):
        assert read(slow).body == good.body


def test_a_troubled_poll_by_the_prompt_troubles_the_first_polls_of_its_task(
    customer: Customer,
) -> None:
    task_id = customer.post("[[fault:poll_500:2]]").json["id"]
    seen = [customer.get(f"/media/{task_id}").status for _ in range(3)]
    assert seen == [500, 500, 200]


def test_a_task_and_its_receipt_belong_to_one_key(sandbox: Sandbox, customer: Customer) -> None:
    task_id, other = customer.made(), Customer(sandbox, "pza_other")
    assert other.get(f"/media/{task_id}").status == 404
    assert other.receipt(task_id).status == 404
    listed = other.get("/history/generations").json["items"]
    assert task_id not in {one["id"] for one in listed}


def test_the_same_file_has_the_same_bytes_and_another_task_has_others(customer: Customer) -> None:
    first, second = (customer.poll(customer.made("кот"))["data"]["url"] for _ in range(2))
    assert customer.get(first).body == customer.get(first).body
    assert customer.get(first).body != customer.get(second).body


def test_stats_count_what_is_in_flight_and_the_most_that_was(sandbox: Sandbox) -> None:
    crowd, model = Customer(sandbox, "pza_crowd"), "crowd/model"
    users = [uuid.uuid4().hex for _ in range(7)]
    for user in users:
        crowd.post(user=user, model=model)
    assert sandbox.stats()["in_flight_by"][f"model:{model}"] == 7
    for user in users[:4]:
        sandbox.control("finish", correlation=user)
    stats = sandbox.stats()
    assert stats["in_flight_by"][f"model:{model}"] == 3
    assert stats["max_in_flight_by"][f"model:{model}"] == 7
    assert stats["max_in_flight"] >= 7


def test_a_planted_generation_is_in_the_history_and_on_the_bill(
    sandbox: Sandbox, customer: Customer
) -> None:
    planted = sandbox.control("plant", key="pza_test", price="7.25", prompt="not ours")
    listed = customer.get("/history/generations?limit=100").json["items"]
    found = next(one for one in listed if one["id"] == planted["id"])
    assert found["cost"] == "7.25"
    assert cost(sandbox, planted["id"]) == Decimal("7.25")
    assert not [post for post in sandbox.ledger()["posts"] if post["task"] == planted["id"]]

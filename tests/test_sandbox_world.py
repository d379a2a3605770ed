"""The deterministic core under a clock and a seed of the test's own: no socket, no waiting."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from providers.sandbox.faults import CATALOGUE, Shares, Stage, parse_spec
from providers.sandbox.journal import Journal
from providers.sandbox.ledger import Ledger, fingerprint, task_record
from providers.sandbox.reactions import Reaction, Request, Transport
from providers.sandbox.settings import Settings
from providers.sandbox.world import World

MODEL = "google/gemini-2.5-flash-image"
START = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()


class Scene:
    """A world with a clock that moves by hand."""

    def __init__(self, *, seed: int = 1, journal: Journal | None = None, **settings: Any) -> None:
        self.now = START
        self.world = World(
            clock=lambda: self.now,
            rng=random.Random(seed),
            settings=Settings().changed({"latency_fixed_s": 10} | settings),
            ledger=journal.ledger if journal else None,
            fresh_ledger=journal.clear if journal else Ledger,
        )

    def call(self, method: str, path: str, *, key: str = "pza_a", body: Any = None) -> Reaction:
        path, _, query = path.partition("?")
        return self.world.handle(
            Request(
                method=method,
                path="/api/v1" + path,
                query=dict(part.split("=", 1) for part in query.split("&") if part),
                headers={"authorization": f"Bearer {key}", "host": "polza"},
                body=json.dumps(body).encode() if body is not None else b"",
            )
        )

    def post(
        self, prompt: str = "a cat", *, user: str = "", model: str = MODEL, key: str = "pza_a"
    ) -> Reaction:
        body = {"model": model, "async": True, "user": user, "input": {"prompt": prompt}}
        return self.call("POST", "/media", key=key, body=body)

    def made(self, prompt: str = "a cat", **more: Any) -> str:
        return str(read(self.post(prompt, **more))["id"])

    def get(self, path: str, *, key: str = "pza_a") -> Any:
        return read(self.call("GET", path, key=key))

    def status(self, task_id: str) -> Any:
        return self.get(f"/media/{task_id}")["status"]

    def listed(self, query: str = "", **more: Any) -> list[Any]:
        items: list[Any] = self.get(f"/history/generations?{query}", **more)["items"]
        return items


def read(reaction: Reaction) -> Any:
    return json.loads(reaction.body)


def story(seed: int) -> list[Any]:
    """Everything 200 requests in a faulty world give, and its ledger."""
    faults = {
        "reset_after_accept": 0.2,
        "edge_504": 0.1,
        "rate_limited_float": 0.1,
        "failed_charged": 0.2,
        "late": 0.1,
        "data_list": 0.3,
        "poll_500": 0.2,
    }
    stage = Scene(seed=seed, faults=faults, latency_fixed_s=None, quotas=[[30, 60]])
    told: list[Any] = []
    for number in range(100):
        told.append(stage.post(f"prompt {number}", user=str(number)))
        stage.now += 1.5
        for task in list(stage.world.ledger.tasks):
            if not stage.world.ledger.tasks[task].settled:
                told.append(stage.call("GET", f"/media/{task}"))
                break
    ledger = stage.world.ledger
    return [
        *told,
        *map(task_record, ledger.tasks.values()),
        *map(repr, ledger.charges),
        *map(repr, ledger.posts),
    ]


def test_the_same_seed_clock_and_requests_give_the_same_answers_and_ledger() -> None:
    assert story(7) == story(7)


def test_another_seed_gives_another_story() -> None:
    assert story(7) != story(8)


def test_a_task_runs_by_the_clock_alone() -> None:
    stage = Scene()
    task_id = stage.made()
    assert stage.status(task_id) == "pending"
    stage.now += 9.9
    assert stage.status(task_id) == "processing"
    assert stage.world.ledger.in_flight[""] == 1
    assert stage.world.next_due() == START + 10
    stage.now += 0.1
    assert stage.status(task_id) == "completed"
    assert stage.world.ledger.in_flight[""] == 0
    assert stage.world.next_due() is None


def test_latency_is_log_normal_about_its_median_and_scaled() -> None:
    settings = Settings().changed({"latency_median_s": 8, "latency_sigma": 0.5, "scale": 0.1})
    rng = random.Random(3)
    drawn = sorted(settings.latency(rng) for _ in range(2001))
    assert 0.75 < drawn[1000] < 0.85
    assert drawn[0] < 0.3
    assert drawn[-1] > 1.2


def test_the_scale_shortens_default_times_but_not_those_asked_for() -> None:
    stage = Scene(scale=0.01)
    stage.made("[[fault:late]]")
    stage.made("[[fault:late=50]]")
    late, asked = stage.world.ledger.tasks.values()
    assert late.finish_at == START + 9.6
    assert asked.finish_at == START + 50


def test_the_history_is_paged_newest_first() -> None:
    stage = Scene()
    made = []
    for _ in range(45):
        made.append(stage.made())
        stage.now += 1
    pages = [stage.get(f"/history/generations?page={page}&limit=20") for page in (1, 2, 3, 4)]
    assert [page["meta"] for page in pages] == [
        {"page": page, "limit": 20, "total": 45, "totalPages": 3} for page in (1, 2, 3, 4)
    ]
    assert [one["id"] for page in pages for one in page["items"]] == made[::-1]
    rising = stage.listed("limit=100&sortBy=createdAt&sortOrder=asc")
    assert [one["id"] for one in rising] == made


def test_the_history_filters_by_time_status_and_type() -> None:
    stage = Scene()
    early = stage.made()
    stage.now += 100
    failed = stage.made("[[fault:failed_charged]]")
    text = stage.made(model="text/model")
    stage.now += 100
    running = stage.made()

    def ids(query: str) -> set[str]:
        return {one["id"] for one in stage.listed(query)}

    assert ids("status=failed") == {failed}
    assert ids("status=pending") == {running}
    assert ids("status=completed") == {early, text}
    assert ids("requestType=chat") == {text}
    assert ids("dateFrom=2026-11-30T12:01:00Z&dateTo=2026-11-30T12:02:00Z") == {failed, text}
    assert ids("dateFrom=2026-11-30T12:03:20.000Z") == {running}
    assert ids("dateTo=2026-11-30T12:00:00Z") == {early}


@pytest.mark.parametrize(
    "query", ["page=0", "limit=101", "limit=x", "dateFrom=tomorrow", "status=done", "sortBy=cost"]
)
def test_the_history_refuses_parameters_that_make_no_sense(query: str) -> None:
    reaction = Scene().call("GET", f"/history/generations?{query}")
    assert reaction.status == 400
    assert query.partition("=")[0] in read(reaction)["error"]["message"]


def test_the_history_echoes_the_user_only_where_it_does() -> None:
    for echo in (True, False):
        stage = Scene(echo=echo)
        stage.made(user="u-1")
        assert stage.listed()[0].get("user") == ("u-1" if echo else None)
        assert "prompt" not in stage.listed()[0]


def test_the_history_is_as_old_as_its_lag() -> None:
    stage = Scene(history_lag_s=30)
    task_id = stage.made()
    stage.now += 29
    assert stage.status(task_id) == "completed"
    assert stage.listed() == []
    assert stage.call("GET", f"/history/generations/{task_id}").status == 404
    stage.now += 1
    assert stage.listed()[0]["status"] == "pending"
    stage.now += 10
    assert stage.listed()[0]["status"] == "completed"
    assert Decimal(stage.get(f"/history/generations/{task_id}")["clientCost"]) == 5


def test_the_history_lists_one_keys_generations() -> None:
    stage = Scene()
    mine, other = stage.made(), stage.made(key="pza_b")
    assert [one["id"] for one in stage.listed()] == [mine]
    assert [one["id"] for one in stage.listed(key="pza_b")] == [other]


def test_a_pending_receipt_shows_nothing_although_money_was_taken() -> None:
    stage = Scene()
    task_id = stage.made()
    receipt = stage.get(f"/history/generations/{task_id}")
    assert receipt["status"] == "pending"
    assert Decimal(receipt["clientCost"]) == 0
    assert stage.world.ledger.standing(task_id) == 5


def test_a_failed_task_that_completes_an_hour_later_is_charged_again() -> None:
    stage = Scene()
    task_id = stage.made("[[fault:failed_then_completed]]")
    stage.now += 10
    assert stage.status(task_id) == "failed"
    assert Decimal(stage.get(f"/history/generations/{task_id}")["clientCost"]) == 0
    stage.now += 3599
    assert stage.status(task_id) == "failed"
    stage.now += 1
    assert stage.status(task_id) == "completed"
    assert stage.get(f"/media/{task_id}")["data"]
    assert Decimal(stage.get(f"/history/generations/{task_id}")["clientCost"]) == 5
    assert stage.world.ledger.summary()["charges"] == 1
    assert stage.world.ledger.summary()["charges_refunded"] == 1


def test_a_task_accepted_late_is_created_by_the_clock() -> None:
    stage = Scene()
    reaction = stage.post("[[fault:accept_late]]", user="u-1")
    assert reaction.transport is Transport.RESET
    stage.now += 239
    assert stage.listed() == []
    stage.now += 2
    assert [one["user"] for one in stage.listed()] == ["u-1"]
    assert next(iter(stage.world.ledger.tasks.values())).created == START + 240


def test_the_balance_runs_out_and_can_be_topped_up() -> None:
    stage = Scene(balance="12")
    assert [stage.post().status for _ in range(3)] == [200, 200, 402]
    assert read(stage.post())["error"]["code"] == "INSUFFICIENT_BALANCE"
    assert Decimal(stage.get("/balance")["amount"]) == 2
    assert stage.post(key="pza_b").status == 200
    stage.world.ledger.top_up(fingerprint("pza_a"), Decimal(3))
    assert stage.post().status == 200
    assert Decimal(stage.get("/balance")["amount"]) == 0


def test_money_of_a_free_failure_comes_back() -> None:
    stage = Scene(balance="5")
    stage.made("[[fault:failed_free]]")
    assert stage.post().status == 402
    stage.now += 10
    assert stage.post().status == 200


def test_the_limit_of_a_key_is_told_in_its_own_words() -> None:
    stage = Scene(key_limit="5")
    stage.made()
    refused = stage.post()
    assert refused.status == 402
    assert read(refused)["error"]["message"] == "Исчерпан лимит расходов ключа на неделю"
    assert stage.post(key="pza_b").status == 200


def test_a_quota_counts_a_moving_window_and_tells_when_it_ends() -> None:
    stage = Scene(quotas=[[2, 60]])
    stage.made()
    stage.now += 20
    stage.made()
    refused = stage.post()
    assert refused.status == 429
    assert dict(refused.headers)["retry-after"] == "40"
    assert stage.post(key="pza_b").status == 200
    stage.now += 39
    assert stage.post().status == 429
    stage.now += 1.001
    assert stage.post().status == 200


def test_a_concurrency_limit_counts_what_is_in_flight() -> None:
    stage = Scene(concurrency_limit=2)
    assert [stage.post().status for _ in range(3)] == [200, 200, 429]
    stage.now += 10
    assert stage.post().status == 200
    assert stage.world.ledger.max_in_flight[""] == 2


def test_strict_models_know_only_those_with_a_price() -> None:
    stage = Scene(strict_models=True, prices={MODEL: "3.90"})
    assert stage.post().status == 200
    assert stage.world.ledger.charges[0].amount == Decimal("3.90")
    refused = stage.post(model="google/other")
    assert refused.status == 400
    assert read(refused)["error"]["metadata"]["reason"] == "noProvidersForModel"
    assert Scene().post(model="unknown/model").status == 400


def test_a_revoked_key_gets_a_401() -> None:
    stage = Scene(revoked_keys=["pza_a"])
    assert read(stage.post())["error"]["code"] == "api_key_revoked"
    assert stage.post(key="pza_b").status == 200


def test_posts_with_one_correlation_id_are_pointed_out() -> None:
    stage = Scene()
    stage.post(user="once")
    stage.post(user="twice")
    stage.post("[[fault:unavailable]]", user="twice")
    stage.post("[[fault:reset_after_accept]]", user="thrice")
    stage.post(user="thrice")
    summary = stage.world.ledger.summary()
    assert summary["posted_twice"] == ["thrice", "twice"]
    assert summary["accepted_twice"] == ["thrice"]
    assert (summary["posts"], summary["posts_accepted"], summary["charges"]) == (5, 4, 4)


def test_the_ledger_keeps_fingerprints_never_keys() -> None:
    stage = Scene()
    stage.made(key="pza_secret")
    assert "pza_secret" not in repr((stage.world.ledger.tasks, stage.world.ledger.posts))
    assert next(iter(stage.world.ledger.tasks.values())).key == fingerprint("pza_secret")


def test_a_reset_forgets_everything_but_the_settings() -> None:
    stage = Scene(echo=False)
    task_id = stage.made()
    stage.post("[[fault:accept_late]]")
    stage.world.start_outage("503")
    stage.world.reset(seed=1)
    stage.now += 1000
    assert stage.call("GET", f"/media/{task_id}").status == 404
    assert stage.listed() == []
    assert not stage.world.settings.echo


def test_a_journal_keeps_tasks_charges_and_posts_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.jsonl"
    with Journal(path) as journal:
        before = Scene(journal=journal, balance="100")
        done = before.made(user="done")
        before.now += 10
        free = before.made("[[fault:failed_free]]", user="free")
        back = before.made("[[fault:failed_then_completed]]")
        before.now += 10
        before.world.tick()
        running = before.made("[[fault:missing_first=1]] [[fault:poll_500]]", user="running")
        before.world.ledger.top_up(fingerprint("pza_a"), Decimal(1))
        told = before.world.ledger.summary()
        balance = before.get("/balance")
        listed = before.listed("limit=100")
    path.write_bytes(path.read_bytes() + b'{"event": "task", "id": "half a li')

    with Journal(path) as journal:
        after = Scene(journal=journal, balance="100")
        after.now = before.now
        assert after.world.ledger.summary() == told
        assert after.get("/balance") == balance
        assert after.listed("limit=100") == listed
        assert after.world.ledger.in_flight[""] == 1
        assert after.call("GET", f"/media/{running}").status == 500
        assert (after.status(done), after.status(free)) == ("completed", "failed")
        after.now += 3600
        assert after.status(back) == "completed"
        assert after.world.ledger.standing(back) == 5
        assert after.world.ledger.standing(running) == 5
        assert after.world.ledger.in_flight[""] == 0
        after.world.reset()
        assert path.read_bytes() == b""
        after.made()
        assert len(path.read_bytes().splitlines()) == 3


def test_a_file_that_is_no_ledger_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"event": "post", "colour": 1}\n')
    with pytest.raises(ValueError, match="line 1"):
        Journal(path)


def test_a_task_finished_by_hand_is_not_booked_again_at_its_time() -> None:
    stage = Scene()
    task_id = stage.made("[[fault:failed_free]]")
    stage.world.finish(stage.world.ledger.tasks[task_id])
    assert stage.status(task_id) == "failed"
    stage.now += 20
    stage.world.tick()
    stage.world.finish(stage.world.ledger.tasks[task_id])
    assert stage.world.ledger.in_flight[""] == 0
    assert stage.world.ledger.summary()["charges_refunded"] == 1


def test_the_shares_of_one_stage_are_exclusive_and_those_of_others_independent() -> None:
    shares = Shares({"internal": 0.3, "unavailable": 0.3, "failed_free": 0.5})
    rng = random.Random(5)
    drawn = [shares.draw(Stage.SUBMIT, rng) for _ in range(4000)]
    counts = {
        name: sum(spec is not None and spec.name == name for spec in drawn) / 4000
        for name in ("internal", "unavailable")
    }
    assert all(0.27 < share < 0.33 for share in counts.values())
    assert shares.draw(Stage.POLL, rng) is None
    with pytest.raises(ValueError, match="exceed 1"):
        Shares({"internal": 0.6, "unavailable": 0.6})


@pytest.mark.parametrize(
    "text", ["nothing", "late=x", "late:x", "late=-1", "", "late=inf", "late=nan"]
)
def test_a_fault_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no sandbox fault|expected name|out of range"):
        parse_spec(text)


def test_a_fault_before_accepting_may_be_written_with_the_word() -> None:
    assert parse_spec("edge_502_before").name == "edge_502"
    assert parse_spec("internal_before=2:3").value == 2
    assert CATALOGUE["hang_before_accept"].accepts is False


@pytest.mark.parametrize(
    "changes",
    [
        {"colour": 1},
        {"latency_median_s": -1},
        {"latency_median_s": "x"},
        {"balance": "NaN"},
        {"faults": {"internal": 2}},
        {"faults": ["internal"]},
        {"quotas": ["5"]},
        {"quotas": ["5/0"]},
        {"echo": "yes"},
        {"concurrency_limit": 1.5},
        {"submit_status": 500},
        {"retry_after": "later"},
    ],
)
def test_a_wrong_setting_is_named_and_changes_nothing(changes: dict[str, Any]) -> None:
    stage = Scene()
    before = stage.world.settings
    with pytest.raises(ValueError, match=next(iter(changes))):
        stage.world.configure({"echo": False} | changes)
    assert stage.world.settings == before


def test_settings_survive_json() -> None:
    settings = Settings().changed(
        {"quotas": ["5/60"], "prices": {"a": "1.5"}, "faults": {"late": 0.1}, "balance": 3}
    )
    assert Settings().changed(json.loads(json.dumps(settings.as_json()))) == settings


def test_an_outage_ends_by_the_clock() -> None:
    stage = Scene()
    stage.world.start_outage("503", seconds=60)
    assert stage.post().status == 503
    assert stage.world.ledger.posts[-1].fault == "outage 503"
    stage.now += 60
    assert stage.post().status == 200
    with pytest.raises(ValueError, match="no outage"):
        stage.world.start_outage("flood")
    with pytest.raises(ValueError, match="no scope"):
        stage.world.start_outage("503", scope="moon")

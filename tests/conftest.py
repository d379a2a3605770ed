"""What all tests share: no real provider key, sockets to this machine only, and three tiers.

The database: DATABASE_URL where set, else (DEMO=1, as `make test` sets it) a throw-away PostgreSQL in memory that the
settings start through studio/embedded.py.
"""

from __future__ import annotations

import os
import random

import hypothesis
import pytest
from PIL import Image

from providers import registry

# Processes that tests start read .env too; a key, a server or an alert channel in it is not for tests.
for name in (
    *(adapter.key_setting for adapter in registry.REGISTERED),
    *(f"{adapter.name.upper()}_BASE_URL" for adapter in registry.REGISTERED),
    "AI_PROVIDER",
    "AI_API_KEY",
    "AI_BASE_URL",
    "AI_MODEL",
    "AI_MODEL_FALLBACK",
    "AI_ACCOUNTS",
    "ALERT_URLS",
    "SMOKE_DAILY",
    "WEBHOOKS",
    "CALLBACK_ALLOW",
):
    os.environ[name] = ""

# No example is judged by its time: the machine may be busy. HYPOTHESIS_PROFILE=long looks for fifty times as long.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.register_profile("long", deadline=None, max_examples=5000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

_DATABASE_FIXTURES = {
    "db",
    "transactional_db",
    "django_db_setup",
    "live_server",
    "admin_client",
    "client",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole", action="store_true", help="all cases of what is tried exhaustively, not a share"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("whole"):
        _leave_to_other_runs(config, items)
    _mark_tiers(items)


def _leave_to_other_runs(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the tests marked `share(n)`, each run takes about one in n, by the seed that pytest-randomly prints: another share
    the next time, the same again with that seed. Named by its id, a test always runs."""
    seed = getattr(config.option, "randomly_seed", 0)
    named = {argument for argument in config.args if "::" in argument}
    left = []
    for item in items:
        mark = item.get_closest_marker("share")
        asked = any(item.nodeid.startswith(argument) for argument in named)
        if mark is not None and not asked:
            dice = random.Random(f"{seed} {item.nodeid}")
            if dice.randrange(mark.args[0]):
                left.append(item)
    if left:
        gone = {id(item) for item in left}
        items[:] = [item for item in items if id(item) not in gone]
        config.hook.pytest_deselected(items=left)


def _mark_tiers(items: list[pytest.Item]) -> None:
    """Flow is said by the test's module, database is seen, pure is the rest."""
    for item in items:
        if item.get_closest_marker("flow"):
            continue
        uses = set(getattr(item, "fixturenames", ()))
        if item.get_closest_marker("django_db") or uses & _DATABASE_FIXTURES:
            item.add_marker(pytest.mark.database)
        else:
            item.add_marker(pytest.mark.pure)


@pytest.fixture(autouse=True)
def _pillow_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder lowers Pillow's limit in its own process; tests that call it here must not lower everyone's."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)

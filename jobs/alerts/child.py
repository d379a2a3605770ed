"""The process that speaks to the channels, so that a worker need not: apprise takes a third of a second to load, and no
library of a hundred services can promise to come back. The parent (channels.py) kills it when its time is over.

One JSON object comes in on stdin, addresses with it, so that they show in no list of processes. For each alert and
channel a JSON line goes out as soon as it is known. No Django here.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

HIDDEN = "[hidden]"
NO_REASON = "not accepted"
_SHORTEST_SECRET = 4
_ANY_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")


class Said(logging.Handler):
    """What apprise says about failures, kept apart by thread: each channel has one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._mine = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines().append(record.getMessage())

    def lines(self) -> list[str]:
        """The calling thread's own."""
        if not hasattr(self._mine, "lines"):
            self._mine.lines = []
        found: list[str] = self._mine.lines
        return found


def without_address(text: str, url: str) -> str:
    """`text` without any part of the address it may repeat, whole or decoded, and without any other address."""
    rest = url.partition("://")[2]
    parts = {rest, unquote(rest)}
    for piece in re.split(r"[/:?&=@#,;+\s]+", rest):
        parts |= {piece, unquote(piece)}
    text = _ANY_URL.sub(HIDDEN, text)
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= _SHORTEST_SECRET:
            text = re.sub(re.escape(part), HIDDEN, text, flags=re.IGNORECASE)
    return " ".join(text.split())


def deliver(
    url: str, messages: Sequence[Mapping[str, Any]], said: Said
) -> Iterator[tuple[int, str]]:
    """(alert id, error) of each message; "" where the channel took it. After one failure the rest are not tried: a channel
    that is down is not knocked at ten times."""
    import apprise

    error = ""
    for message in messages:
        if not error:
            said.lines().clear()
            try:
                channel = apprise.Apprise()
                taken = channel.add(url) and channel.notify(
                    body=message["body"], title=message["title"], notify_type=apprise.NotifyType(message["tone"]),
                    body_format=apprise.NotifyFormat.TEXT,
                )  # fmt: skip
            except Exception as broken:  # noqa: BLE001  a plugin's own fault must not end the other channels
                taken, error = False, f"{type(broken).__name__}: {broken}"
            if not taken:
                error = without_address(error or "; ".join(said.lines()), url)[:300] or NO_REASON
        yield message["id"], error


def main() -> None:
    order = json.loads(sys.stdin.buffer.read())
    # Also if nobody is left to kill us. The default action ends the process wherever it hangs.
    signal.alarm(int(order["limit_s"]) + 1)
    said = Said()
    logger = logging.getLogger("apprise")
    logger.handlers, logger.propagate = [said], False
    logger.setLevel(logging.WARNING)
    lock = threading.Lock()

    def run(channel: Mapping[str, Any]) -> None:
        for alert_id, error in deliver(channel["url"], channel["messages"], said):
            line = json.dumps({"channel": channel["key"], "id": alert_id, "error": error})
            with lock:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()

    threads = [
        threading.Thread(target=run, args=(channel,), daemon=True) for channel in order["channels"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)  # plugins may have left threads behind


if __name__ == "__main__":
    main()

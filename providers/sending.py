"""A paid POST under way: how far it has come, and the fence that stops it when it is too late to send."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from providers.contract import Answer, NoAnswer

USER_TIMEOUT_MS = (
    10_000  # unacknowledged data of a paid POST: the absence rule counts on these 10 s
)
CHUNK_BYTES = 64 * 1024


class FencedError(Exception):
    """The moment after which nothing may be sent has passed."""


class Sink(Protocol):
    """Where the body of an answer goes instead of into the memory of many calls at once. It raises nothing: what a disk does
    not take, the sink keeps."""

    async def open(self, status: int, headers: Mapping[str, str]) -> None: ...

    async def write(self, chunk: bytes) -> None: ...

    async def complete(self) -> None:
        """The last byte is here. Returns once all of it outlives this machine's fall."""


@dataclass(slots=True)
class Sending:
    """How far a paid POST has come; readable at any moment, also after a cancellation.

    `headers_started` False proves that no byte of the request left. `answer` is set as soon as it is complete. With a `sink`
    the body is there, and empty here, whether or not it is complete.
    """

    headers_started: bool = False
    request_sent: bool = False
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    answer: Answer | None = None
    sink: Sink | None = None

    def so_far(self, reason: str, *, ours: bool = False) -> Answer | NoAnswer:
        """What is known now: the complete answer, or what had arrived when `reason` ended the call."""
        if self.answer is not None:
            return self.answer
        return NoAnswer(
            sent=self.headers_started,
            reason=reason,
            ours=ours,
            status=self.status,
            headers=self.headers,
            body=bytes(self.body),
        )


def fence(
    sending: Sending, *, boot: Callable[[], float], send_not_after: float
) -> Callable[[str, Mapping[str, Any]], Awaitable[None]]:
    """A trace hook for httpcore, which awaits it between deciding to write and writing: raising prevents the write.

    It keeps `sending` up to date and raises FencedError once `boot` has reached `send_not_after`.
    """

    async def trace(event: str, info: Mapping[str, Any]) -> None:
        part = event.partition(".")[2]
        if part in ("send_request_headers.started", "send_request_body.started"):
            if boot() >= send_not_after:
                raise FencedError
            sending.headers_started = True
        elif part == "send_request_headers.failed":
            # A header that h11 refuses (a key with a line break) fails before the first write.
            if type(info.get("exception")).__name__ == "LocalProtocolError":
                sending.headers_started = False
        elif part == "send_request_body.complete":
            sending.request_sent = True

    return trace


async def body_until(
    content: bytes, *, boot: Callable[[], float], until: float
) -> AsyncIterator[bytes]:
    """The request's body in chunks; TimeoutError instead of a chunk once `boot` has reached `until`."""
    for start in range(0, len(content), CHUNK_BYTES):
        if boot() >= until:
            raise TimeoutError
        yield content[start : start + CHUNK_BYTES]


def paid_socket_options() -> list[tuple[int, int, int] | tuple[int, int, bytes]]:
    """Closing drops what the kernel has not sent yet, and unacknowledged data is given up after 10 s."""
    options: list[tuple[int, int, int] | tuple[int, int, bytes]] = []
    if hasattr(socket, "SO_LINGER"):
        options.append((socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)))
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        options.append((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS))
    return options

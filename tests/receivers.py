"""Another program's web server, on a thread of this process: well, or broken in a way that the test chooses."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from typing import Literal

Mode = Literal["well", "slow", "redirect", "reset", "500"]
BROKEN: tuple[Mode, ...] = ("slow", "redirect", "reset", "500")


class Receiver(socketserver.ThreadingTCPServer):
    """`told`: (monotonic time, webhook-id, mode) of each request. `inside`: how often the place of its redirect was reached."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, mode: Mode) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.mode: Mode = mode
        self.told: list[tuple[float, str, Mode]] = []
        self.inside = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"

    def ids(self, mode: Mode) -> list[str]:
        return [message for _at, message, then in self.told if then == mode]


class _Request(socketserver.StreamRequestHandler):
    server: Receiver

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            first, headers = self._head()
            self.rfile.read(int(headers.get("content-length", "0")))
            if b"/inside" in first:
                self.server.inside += 1
            mode = self.server.mode
            self.server.told.append((time.monotonic(), headers.get("webhook-id", ""), mode))
            self._answer(mode)

    def _head(self) -> tuple[bytes, dict[str, str]]:
        first, headers = self.rfile.readline(), {}
        while line := self.rfile.readline().strip():
            name, _colon, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return first, headers

    def _answer(self, mode: Mode) -> None:
        match mode:
            case "well":
                self.wfile.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            case "redirect":
                where = f"http://127.0.0.1:{self.server.server_address[1]}/inside"
                said = f"HTTP/1.1 307 Go\r\nlocation: {where}\r\ncontent-length: 0\r\n\r\n"
                self.wfile.write(said.encode())
            case "reset":
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self.connection.close()
            case "500":
                self.wfile.write(b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops")
            case "slow":
                self.wfile.write(b"HTTP/1.1 ")
                while self.server.mode == "slow":
                    time.sleep(0.1)
                    self.wfile.write(b"2")


@contextlib.contextmanager
def receiver(mode: Mode) -> Iterator[Receiver]:
    with Receiver(mode) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.mode = "well"
            server.shutdown()
            thread.join()

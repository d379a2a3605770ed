"""A channel's other end on this machine: an HTTP server that hears alerts, or misbehaves."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "s3cr3t-t0ken-of-the-channel"


@dataclass
class Ear:
    """`answer` is the status it gives; None: it takes the message and never answers. `heard` holds the bodies;
    `came` is set by the first."""

    port: int
    answer: int | None = 200
    heard: list[dict[str, Any]] = field(default_factory=list)
    came: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"json://desk:{SECRET}@127.0.0.1:{self.port}/{SECRET}"

    @property
    def titles(self) -> list[str]:
        return [body["title"] for body in self.heard]


@contextlib.contextmanager
def ear(answer: int | None = 200) -> Iterator[Ear]:
    """Listening while this lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            mine.heard.append(json.loads(self.rfile.read(length)))
            mine.came.set()
            if mine.answer is None:
                mine.done.wait()  # the caller's patience ends first; the test's end lets this thread go
                return
            # Some servers repeat what they were sent: nothing of it may be kept.
            text = f"no, {self.path} {self.headers.get('Authorization')}".encode()
            self.send_response(mine.answer)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_args: Any) -> None:
            """Not on the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    mine = Ear(port=server.server_address[1], answer=answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield mine
    finally:
        mine.done.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """The address of a port that takes connections and reads nothing, ever."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield f"json://127.0.0.1:{listening.getsockname()[1]}/{SECRET}"


def refused() -> str:
    """The address of a port on which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    return f"json://127.0.0.1:{port}/{SECRET}"

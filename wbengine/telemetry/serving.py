"""A small HTTP server in a thread, for those who scrape and probe; the standard library's."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http import server as http
from typing import Any, Final, NamedTuple

from wbengine.concurrency import timers

__all__ = ["Address", "Answer", "Server", "address"]

LOG: Final = logging.getLogger(__name__)

#: Seconds that a client may take for its request, and to read the answer.
PATIENCE: Final = 5.0
#: So many are served at a time; others are cut off.
MOST: Final = 128


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Answer(NamedTuple):
    """What a path is answered."""

    body: bytes
    kind: str = "application/json"
    status: int = HTTPStatus.OK


Route = Callable[[], Answer]


def address(text: str) -> Address:
    """`HOST:PORT` or `[IPV6]:PORT`; port 0 is any that is free.

    :raises ValueError: it is neither.
    """
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host
    valid = bare and (":" not in bare or bare != host) and port.isascii() and port.isdigit()
    if not valid or int(port) > 65535:
        raise ValueError(f"{text!r} is not of the form HOST:PORT")
    return Address(bare, int(port))


class _Handler(http.BaseHTTPRequestHandler):
    timeout = PATIENCE
    routes: Mapping[str, Route] = {}

    def setup(self) -> None:
        super().setup()
        # `timeout` is for each byte.
        self._late = timers.of_process().after(PATIENCE, self._cut_off)

    def finish(self) -> None:
        timers.of_process().cancel(self._late)
        super().finish()

    def _cut_off(self) -> None:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        timers.of_process().cancel(self._late)
        route = self.routes.get(self.path.partition("?")[0])
        try:
            found = Answer(b"", "text/plain", HTTPStatus.NOT_FOUND) if route is None else route()
        except Exception:
            LOG.exception("%s cannot be answered", self.path[:100])
            found = Answer(b"", "text/plain", HTTPStatus.INTERNAL_SERVER_ERROR)
        self.send_response_only(found.status)
        self.send_header("Content-Type", found.kind)
        self.send_header("Content-Length", str(len(found.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug(format, *args)


class _Server(http.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._places = threading.Semaphore(MOST)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOG.debug("a client went away", exc_info=True)


class Server:
    """Answers GET and HEAD for `routes` (path to what makes the answer, in a thread of its own).

    It listens once it is made, and answers between `start` and `stop`.

    :raises OSError: nobody can listen there.
    """

    def __init__(self, where: Address, routes: Mapping[str, Route]) -> None:
        handler = type("Handler", (_Handler,), {"routes": dict(routes)})
        family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
        kind = type("HTTPServer", (_Server,), {"address_family": family})
        self._server: http.ThreadingHTTPServer = kind(tuple(where), handler)
        self.address = Address(where.host, self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="wbengine-http", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Also before `start`; idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

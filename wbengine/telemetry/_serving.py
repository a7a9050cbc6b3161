"""A small HTTP server in a thread for metrics and probes, based on the standard library."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http import server as http
from typing import Any, Final, NamedTuple

from wbengine._concurrency import timers
from wbengine._logs.repeated_messages import RareWarnings

__all__ = ["Address", "Answer", "Server", "address", "start_servers"]

LOG: Final = logging.getLogger(__name__)

#: Time for a client to send its request and to read the response.
CLIENT_SECONDS: Final = 5.0
#: Maximum number of connections that wait for a request, or for the client to receive a response.
MAX_WAITING: Final = 128
#: Maximum number of responses that are computed at the same time.
MAX_ANSWERED: Final = 64
#: Delay until connections are accepted again after a failure.
_ACCEPT_PAUSE_SECONDS: Final = 0.5

_RARE: Final = RareWarnings(LOG)


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Answer(NamedTuple):
    """The response to a request."""

    body: bytes
    kind: str = "application/json"
    status: int = HTTPStatus.OK


Route = Callable[[], Answer]

_BUSY: Final = Answer(b"", "text/plain", HTTPStatus.SERVICE_UNAVAILABLE)


def address(text: str) -> Address:
    """Parse `HOST:PORT` or `[IPV6]:PORT`; port 0 selects a free one.

    :raises ValueError: if the text has another form.
    """
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host
    valid = bare and (":" not in bare or bare != host) and port.isascii() and port.isdigit()
    if not valid or int(port) > 65535:
        raise ValueError(f"must have the form HOST:PORT, got {text!r}")
    return Address(bare, int(port))


class _Handler(http.BaseHTTPRequestHandler):
    timeout = CLIENT_SECONDS
    routes: Mapping[str, Route] = {}
    server: _Server

    def setup(self) -> None:
        super().setup()
        # `timeout` applies to each byte.
        self._deadline = timers.of_process().after(CLIENT_SECONDS, self._disconnect)

    def finish(self) -> None:
        timers.of_process().cancel(self._deadline)
        super().finish()

    def _disconnect(self) -> None:
        with contextlib.suppress(OSError):  # The connection has already ended.
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        timers.of_process().cancel(self._deadline)
        with self.server.answering(self.connection) as is_served:
            answer = self._answer() if is_served else _BUSY
        self._send(answer)

    do_HEAD = do_GET

    def _answer(self) -> Answer:
        route = self.routes.get(self.path.partition("?")[0])
        try:
            return Answer(b"", "text/plain", HTTPStatus.NOT_FOUND) if route is None else route()
        except Exception:
            LOG.exception("cannot respond to %s", self.path[:100])
            return Answer(b"", "text/plain", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        if answer is _BUSY:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug(format, *args)


class _Server(http.ThreadingHTTPServer):
    """Closes the oldest connection that waits for its client, to make room for a new connection.

    If new connections were refused instead, idle clients could lock out all others.
    """

    daemon_threads = True
    #: Maximum number of connections in the queue of the kernel.
    request_queue_size = 1024

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lock = threading.Lock()
        # Connections that wait for their client, the oldest first.
        self._waiting: dict[socket.socket, None] = {}
        self._capacity = threading.Semaphore(MAX_ANSWERED)

    @contextlib.contextmanager
    def answering(self, connection: socket.socket) -> Iterator[bool]:
        """Count a response while it is computed. Yield False if there are too many.

        While the response is sent, the connection waits for its client again.
        """
        self._remove_waiting(connection)
        is_served = self._capacity.acquire(blocking=False)
        try:
            yield is_served
        finally:
            if is_served:
                self._capacity.release()
            self._add_waiting(connection)

    def _add_waiting(self, connection: socket.socket) -> None:
        with self._lock:
            oldest = next(iter(self._waiting)) if len(self._waiting) >= MAX_WAITING else None
            if oldest is not None:
                del self._waiting[oldest]
            self._waiting[connection] = None
        if oldest is not None:
            with contextlib.suppress(OSError):  # The connection has already ended.
                oldest.shutdown(socket.SHUT_RDWR)

    def _remove_waiting(self, connection: socket.socket) -> None:
        with self._lock:
            self._waiting.pop(connection, None)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            _RARE.warn("accept", "cannot accept connections: %s", error)
            time.sleep(_ACCEPT_PAUSE_SECONDS)  # `serve_forever` calls again at once.
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        self._add_waiting(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._remove_waiting(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOG.debug("the client disconnected", exc_info=True)


class Server:
    """Serves GET and HEAD for `routes` (path to handler), each request in a new thread.

    It listens from its creation, and responds between `start` and `stop`.

    :raises OSError: if the address is not available.
    """

    def __init__(self, address: Address, routes: Mapping[str, Route]) -> None:
        handler = type("Handler", (_Handler,), {"routes": dict(routes)})
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        kind = type("HTTPServer", (_Server,), {"address_family": family})
        self._server: http.ThreadingHTTPServer = kind(tuple(address), handler)
        self.address = Address(address.host, self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="wbengine-http", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop. Idempotent; allowed before `start`."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def start_servers(routes: Mapping[Address, Mapping[str, Route]]) -> list[Server]:
    """Start a server for the routes of each address. If one cannot be started, stop the others.

    :raises OSError: if an address is not available.
    """
    servers: list[Server] = []
    for address, served in routes.items():
        try:
            server = Server(address, served)
        except OSError as error:
            for each in servers:
                each.stop()
            raise OSError(f"cannot listen on {address}: {error.strerror or error}") from error
        servers.append(server)
        LOG.info("serving %s on http://%s", ", ".join(served), server.address)
        server.start()
    return servers

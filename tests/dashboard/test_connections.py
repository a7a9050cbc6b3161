"""Clients that hold connections without sending a request or reading the response."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import selectors
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.dashboard import story
from tests.dashboard.raw import answer, bearer, connected, is_closed, request, status
from tests.dashboard.site import PATIENCE, running, serving, stream
from tests.support import python
from tests.support.waiting import MARGIN, until
from wbengine._logs.repeated_messages import RareWarnings
from wbengine.dashboard import Site, _connection_limits, _quotas

PARTIAL = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: "


def is_answered(connection: socket.socket) -> bool:
    connection.sendall(request("/livez"))
    with answer(connection) as response:
        return response.status == 200 and bool(response.read())


def test_oldest_idle_connection_is_closed_for_a_new_one(
    kept: story.Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection_limits, "MAX_WAITING", 4)
    with running(kept.backend) as site, contextlib.ExitStack() as end:
        idle = []
        for _ in range(4):
            idle.append(end.enter_context(connected(site)))
            assert is_answered(idle[-1])
        assert status(site, "/", bearer()) == 200
        until(lambda: is_closed(idle[0]))
        assert all(map(is_answered, idle[1:]))


def test_request_that_has_arrived_is_answered_beside_new_connections(
    kept: story.Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection_limits, "MAX_WAITING", 4)
    site = Site(kept.backend, port=0, token=story.TOKEN)
    with contextlib.ExitStack() as end:
        # The server accepts all these connections in one iteration of its loop.
        requests = [end.enter_context(connected(site)) for _ in range(8)]
        for connection in requests:
            connection.sendall(request("/livez"))
        idle = [end.enter_context(connected(site)) for _ in range(40)]
        end.enter_context(serving(site))
        for connection in requests:
            with answer(connection) as response:
                assert response.status == 200
        until(lambda: sum(map(is_closed, idle)) >= 36)


@pytest.mark.parametrize("answered_before", [False, True])
@pytest.mark.parametrize("sent", [b"", PARTIAL])
def test_connection_without_a_complete_request_is_closed(
    kept: story.Kept, monkeypatch: pytest.MonkeyPatch, answered_before: bool, sent: bytes
) -> None:
    monkeypatch.setattr(_connection_limits, "REQUEST_SECONDS", 0.5)
    with running(kept.backend) as site, connected(site) as connection:
        if answered_before:
            assert is_answered(connection)
        connection.sendall(sent)

        def send_another_byte() -> bool:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x" if sent else b"")
            return is_closed(connection)

        until(send_another_byte)


def test_stream_is_not_interrupted_by_new_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_connection_limits, "MAX_WAITING", 2)
    monkeypatch.setattr(_connection_limits, "REQUEST_SECONDS", 0.2)
    flows = story.Kept()
    flows.run("one", story.good(name="one"))
    with running(flows.backend) as site, stream(site, "/stream/flows") as events:
        next(events)
        with contextlib.ExitStack() as end:
            idle = [end.enter_context(connected(site)) for _ in range(5)]
            until(lambda: all(map(is_closed, idle)))
        flows.run("two", story.good(name="two"))
        assert flows.uuids["two"] in next(events)["data"]["rows"]


def test_stream_on_a_reused_connection_is_not_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread closes the file of the previous response, possibly after the stream has started."""
    monkeypatch.setattr(_connection_limits, "REQUEST_SECONDS", 0.2)
    flows = story.Kept()
    flows.run("one", story.good(name="one"))
    with running(flows.backend) as site, connected(site) as connection, connected(site) as idle:
        connection.sendall(request("/static/icon.svg") + request("/stream/flows", bearer()))
        received = b""
        while b"event: turn" not in received:
            received += connection.recv(65536)
        until(lambda: is_closed(idle))
        flows.run("two", story.good(name="two"))
        while flows.uuids["two"].encode() not in received:
            part = connection.recv(65536)
            assert part, "the stream was closed"
            received += part


@pytest.mark.slow
def test_visitor_that_does_not_read_the_answer_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then its request counts as in progress."""
    monkeypatch.setattr(_connection_limits, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(_quotas, "MAX_REQUESTS_PER_CLIENT", 1)
    flows = story.Kept()
    page = f"/flows/{flows.run('long', story.good(300))}"
    with running(flows.backend) as site, connected(site, buffer=4096) as connection:
        connection.sendall(request(page, bearer()) * 100)  # more than the kernel stores
        until(lambda: status(site, "/", bearer()) == 429)
        until(lambda: status(site, "/", bearer()) == 200)


def test_limits_are_lower_with_few_file_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        assert _connection_limits.scaled(256) == 128
        assert _connection_limits.scaled(1) == 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
        assert _connection_limits.scaled(256) == 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Process:
    """A dashboard in a process with at most 1,024 file descriptors."""

    _SERVE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from tests.dashboard import story
from wbengine import dashboard
kept = story.told()
{more}
def ready(url):
    print(url, kept.uuids["good"], flush=True)
dashboard.serve(kept.backend, port=0, token=story.TOKEN, ready=ready)
"""

    def __init__(self, log: Path, more: str = "") -> None:
        self._log = log
        with log.open("w") as file:
            self.process = python.start(
                ["-c", self._SERVE.format(more=more)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None and self.process.stdin is not None
        url, uuid = self.process.stdout.readline().split()
        self.port = urllib.parse.urlsplit(url).port
        assert self.port is not None
        self.page = f"/flows/{uuid}"

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def seconds(self, path: str) -> float:
        """Return the seconds that a client needs to connect and read one page."""
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"authorization": f"Bearer {story.TOKEN}"})
            response = connection.getresponse()
            assert response.status == 200
            response.read()
        return time.monotonic() - began


@contextlib.contextmanager
def process(log: Path, more: str = "") -> Iterator[Process]:
    dashboard = Process(log, more)
    try:
        yield dashboard
    finally:
        dashboard.process.terminate()
        dashboard.process.communicate(timeout=PATIENCE)


#: Code that opens all descriptors after one line of input, and closes them after another.
_USE_ALL = """
import os, threading
def use_all():
    used = []
    while True:
        try:
            used.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    for _ in range(5):
        os.close(used.pop())
    print("used", flush=True)
    sys.stdin.readline()
    for each in used:
        os.close(each)
def begin():
    sys.stdin.readline()
    use_all()
threading.Thread(target=begin, daemon=True).start()
"""


def test_lack_of_descriptors_is_logged_once_and_survived(tmp_path: Path) -> None:
    with process(tmp_path / "log", _USE_ALL) as site, contextlib.ExitStack() as end:
        stdin, stdout = site.process.stdin, site.process.stdout
        assert stdin is not None and stdout is not None and site.port is not None
        site.seconds("/livez")
        stdin.write("\n")
        stdin.flush()
        assert stdout.readline() == "used\n"
        for _ in range(200):
            end.enter_context(socket.create_connection(("127.0.0.1", site.port), PATIENCE))
        until(lambda: "Too many open files" in site.log)
        time.sleep(2.5)  # the server tries again each second
        (line,) = site.log.splitlines()
        assert line.startswith("cannot accept connections: ")
        stdin.write("\n")
        stdin.flush()
        site.seconds("/livez")


def test_clients_connect_while_the_server_is_busy(tmp_path: Path) -> None:
    """With a short listen backlog, clients would retry only after one or three seconds."""
    with process(tmp_path / "log") as site, contextlib.ExitStack() as end:
        assert site.port is not None
        site.seconds("/livez")
        site.process.send_signal(signal.SIGSTOP)
        end.callback(site.process.send_signal, signal.SIGCONT)
        began = time.monotonic()
        for _ in range(500):
            end.enter_context(socket.create_connection(("127.0.0.1", site.port), PATIENCE))
        assert time.monotonic() - began < PATIENCE


@pytest.mark.slow
def test_unauthenticated_client_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    limits = "from wbengine.dashboard import _connection_limits as limits"
    few_seconds = f"{limits}; limits.REQUEST_SECONDS = 0.5"
    with process(tmp_path / "log", few_seconds) as site, contextlib.ExitStack() as end:
        assert site.port is not None
        site.seconds("/livez")
        before = site.descriptors
        for _ in range(3):
            stranger = end.enter_context(socket.create_connection(("127.0.0.1", site.port)))
            stranger.sendall(request("/static/dashboard.js") * 1000)
        until(lambda: site.descriptors >= before + 3)
        until(lambda: site.descriptors <= before)


def test_client_with_too_many_pipelined_requests_is_disconnected(kept: story.Kept) -> None:
    """Otherwise the server would store any number of pipelined requests."""
    ahead = request("/static/dashboard.js") * 2000
    with running(kept.backend) as site, connected(site) as connection:  # noqa: SIM117
        with pytest.raises(ConnectionError):
            for _ in range(500):
                connection.sendall(ahead)


def test_invalid_requests_are_logged_once(
    kept: story.Kept, log: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection_limits, "_RARE", RareWarnings(_connection_limits.LOG))
    with running(kept.backend) as site:
        for _ in range(50):
            with connected(site) as connection:
                connection.sendall(b"nothing that is HTTP\r\n\r\n")
                assert answer(connection).status == 400
    assert log().count("Invalid HTTP request received") == 1


class Crowd:
    """Clients that connect, send slowly or nothing, and reconnect when they are closed."""

    def __init__(self, port: int, idle: int, slow: int) -> None:
        self._address = ("127.0.0.1", port)
        self._sends = [b""] * idle + [PARTIAL] * slow
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.connected = self.closed = 0

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _connect(self, sends: bytes) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(self._address)
        self._selector.register(connection, selectors.EVENT_WRITE, sends)

    def _run(self) -> None:
        for sends in self._sends:
            self._connect(sends)
        again: list[tuple[float, bytes]] = []
        slow: dict[socket.socket, float] = {}
        while not self._over.is_set():
            now = time.monotonic()
            for key, ready in self._selector.select(0.05):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    if ready & selectors.EVENT_WRITE:
                        if key.data:
                            connection.sendall(key.data)
                            slow[connection] = now
                        self._selector.modify(connection, selectors.EVENT_READ, key.data)
                        self.connected += 1
                        continue
                    is_open = bool(connection.recv(1024))
                except OSError:
                    is_open = False
                if not is_open:
                    self._selector.unregister(connection)
                    slow.pop(connection, None)
                    connection.close()
                    self.closed += 1
                    again.append((now + 1.0, key.data))
            for connection, since in list(slow.items()):
                if now - since >= 1.0:
                    slow[connection] = now
                    with contextlib.suppress(OSError):
                        connection.sendall(b"x")
            while again and again[0][0] <= now:
                self._connect(again.pop(0)[1])
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.alone
@pytest.mark.usefixtures("many_descriptors")
def test_dashboard_responds_beside_2000_idle_and_900_slow_connections(
    tmp_path: Path,
) -> None:
    with process(tmp_path / "log") as site:
        assert site.port is not None
        with Crowd(site.port, idle=2000, slow=900) as crowd:
            until(lambda: crowd.closed >= 3000, 20.0)
            for path in ("/livez", site.page):
                waited = sorted(site.seconds(path) for _ in range(100))
                assert waited[98] < MARGIN * 1.0, path
                assert site.descriptors < 768
        assert site.log == ""

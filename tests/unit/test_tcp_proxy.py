"""The proxy that breaks connections for other tests."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests import tcp_proxy
from tests.workers import until


class Echo:
    """A server that answers what it hears, and tells how its connections ended."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.ends: list[str] = []
        self._threads = [threading.Thread(target=self._serve)]

    def start(self) -> None:
        self._threads[0].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                thread = threading.Thread(target=self._answer, args=(connection,))
                thread.start()
                self._threads.append(thread)

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while said := connection.recv(1000):
                    connection.sendall(said)
                connection.sendall(b"bye")
                self.ends.append("EOF")
            except ConnectionResetError:
                self.ends.append("RST")
            except OSError as error:
                self.ends.append(type(error).__name__)

    def close(self) -> None:
        """After `start`."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def echo() -> Iterator[Echo]:
    with contextlib.closing(Echo()) as made:
        yield made


@pytest.fixture(params=["threaded", "forked"])
def proxy(request: pytest.FixtureRequest, echo: Echo) -> Iterator[tcp_proxy.Proxy]:
    if request.param == "forked":
        with tcp_proxy.forked(echo.port) as made:
            echo.start()
            yield made
    else:
        with tcp_proxy.threaded(echo.port) as made:
            echo.start()
            yield made


def _connect(proxy: tcp_proxy.Proxy, timeout: float = 60) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout)


def _hear(proxy: tcp_proxy.Proxy) -> bytes:
    with _connect(proxy) as end:
        return end.recv(1)


def _ask(end: socket.socket, said: bytes) -> bytes:
    end.sendall(said)
    return _heard(end, len(said))


def _heard(end: socket.socket, size: int) -> bytes:
    heard = b""
    while len(heard) < size:
        part = end.recv(65_536)
        assert part, "it ended"
        heard += part
    return heard


def test_bytes_pass_in_order(proxy: tcp_proxy.Proxy) -> None:
    """Also more of them than fit anywhere."""
    much = bytes(range(256)) * 8_000
    with _connect(proxy) as one, _connect(proxy) as other:
        assert _ask(other, b"hello") == b"hello"
        sending = threading.Thread(target=one.sendall, args=(much,))
        sending.start()
        heard = b""
        while len(heard) < len(much):
            heard += one.recv(65_536)
        sending.join()
        assert heard == much
        assert proxy.connections() == 2
    until(lambda: proxy.connections() == 0)


def test_a_stall_keeps_everything_back(proxy: tcp_proxy.Proxy) -> None:
    with _connect(proxy) as end:
        assert _ask(end, b"before") == b"before"
        proxy.stall()
        end.sendall(b"during")
        end.settimeout(0.05)
        with _connect(proxy) as new, pytest.raises(TimeoutError):
            new.settimeout(0.05)
            new.sendall(b"x")
            new.recv(1)
        with pytest.raises(TimeoutError):
            end.recv(1)
        proxy.resume()
        end.settimeout(60)
        assert _ask(end, b"") == b""
        assert end.recv(6) == b"during"


def test_a_cut_is_seen_at_both_ends(proxy: tcp_proxy.Proxy, echo: Echo) -> None:
    with _connect(proxy) as end:
        _ask(end, b"hello")
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            end.recv(1)
        until(lambda: echo.ends == ["RST"])
    with _connect(proxy) as again:
        assert _ask(again, b"hello") == b"hello"


def test_who_is_refused_may_come_again(proxy: tcp_proxy.Proxy) -> None:
    """And who was there stays."""
    with _connect(proxy) as end:
        _ask(end, b"hello")
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            _connect(proxy)
        assert _ask(end, b"still") == b"still"
        proxy.accept()
        with _connect(proxy) as new:
            assert _ask(new, b"hello") == b"hello"


def test_an_end_of_one_side_leaves_the_other(proxy: tcp_proxy.Proxy, echo: Echo) -> None:
    with _connect(proxy) as end:
        _ask(end, b"hello")
        end.shutdown(socket.SHUT_WR)
        assert end.recv(10) == b"bye"
        assert end.recv(10) == b""
        assert echo.ends == ["EOF"]
    with _connect(proxy) as end:
        _ask(end, b"hello")
        assert proxy.half_close() == 1
        assert end.recv(10) == b""
        end.sendall(b"nobody answers")


def test_slow(proxy: tcp_proxy.Proxy) -> None:
    with _connect(proxy) as end:
        _ask(end, b"hello")
        began = time.monotonic()
        proxy.slow(10_000)
        assert _ask(end, b"x" * 2_000) == b"x" * 2_000
        assert time.monotonic() - began >= 0.2  # there and back, which is paid at once
        proxy.resume()
        assert _ask(end, b"x" * 20_000) == b"x" * 20_000


def test_a_server_that_is_gone_resets() -> None:
    gone = socket.create_server(("127.0.0.1", 0))
    port = gone.getsockname()[1]
    gone.close()
    with tcp_proxy.threaded(port) as proxy, pytest.raises(ConnectionResetError):
        _hear(proxy)


def test_what_is_said_with_a_word_is_held(proxy: tcp_proxy.Proxy, echo: Echo) -> None:
    with _connect(proxy) as other, _connect(proxy) as end:
        assert _ask(end, b"wait") == b"wait"
        proxy.hold("wait")
        assert _ask(end, b"go") == b"go"
        end.sendall(b"do wait")
        until(lambda: proxy.held("wait") == 1)
        end.sendall(b", and this")
        assert _ask(other, b"me") == b"me"
        end.setblocking(False)
        with pytest.raises(BlockingIOError):
            end.recv(100)
        end.settimeout(60)
        proxy.let_go("wait")
        assert _heard(end, 17) == b"do wait, and this"
        assert _ask(end, b"wait") == b"wait"
    until(lambda: proxy.connections() == 0)
    assert proxy.held("wait") == 0


def test_what_is_held_comes_after_who_said_it_has_gone(proxy: tcp_proxy.Proxy, echo: Echo) -> None:
    proxy.hold("wait")
    with _connect(proxy) as end:
        end.sendall(b"wait")
    until(lambda: proxy.held("wait") == 1)
    assert echo.ends == []
    proxy.let_go("wait")
    until(lambda: echo.ends)
    until(lambda: proxy.held("wait") == 0)

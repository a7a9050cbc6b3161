"""The proxy that breaks connections for other tests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support import tcp_proxy
from tests.support.workers import until


class Echo:
    """Server that echoes its input and records how each connection ended."""

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
        """Stop the server, which must be started."""
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


def test_proxy_forwards_bytes_in_order(proxy: tcp_proxy.Proxy) -> None:
    """The amount exceeds all buffers."""
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


def test_cut_resets_both_ends_of_a_connection(proxy: tcp_proxy.Proxy, echo: Echo) -> None:
    with _connect(proxy) as end:
        _ask(end, b"hello")
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            end.recv(1)
        until(lambda: echo.ends == ["RST"])
    with _connect(proxy) as again:
        assert _ask(again, b"hello") == b"hello"

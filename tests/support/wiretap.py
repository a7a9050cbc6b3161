"""A relay between a client and a server that records what the client sends, and can drop it.

    with wiretap.to(server.port) as tap: connect("127.0.0.1", tap.port) ...

In contrast to `tests/support/tcp_proxy.py`, it can drop data that is in transit in one direction.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator


class Tap:
    """The sent data, by connection, in the order of the connections."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._stop, self._stopped = socket.socketpair()
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._clients: dict[socket.socket, bytearray] = {}
        self.said: list[bytearray] = []
        # Number of times that a client sent data after it had received some: the round trips.
        self.exchanges = 0
        self._heard: set[socket.socket] = set()
        # Whether data of clients is dropped, and whether data of servers is.
        self.swallows = False
        self.mutes = False

    def cut(self) -> None:
        """Close all connections. Dropped data stays lost."""
        with self._lock:
            for each in tuple(self._peers):
                self._close(each)
            self.swallows = self.mutes = False

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._stopped:
                    self.cut()
                    for each in (self._server, self._stop, self._stopped):
                        each.close()
                    return
                with self._lock:
                    if key.fileobj is self._server:
                        self._accept()
                    else:
                        self._pass(key.fileobj)  # type: ignore[arg-type]

    def stop(self) -> None:
        self._stop.send(b"\0")

    def _accept(self) -> None:
        client, _ = self._server.accept()
        server = socket.create_connection(("127.0.0.1", self._target))
        self._peers |= {client: server, server: client}
        self._clients[client] = bytearray()
        self.said.append(self._clients[client])
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(each, selectors.EVENT_READ)

    def _pass(self, source: socket.socket) -> None:
        if source not in self._peers:
            return  # already closed
        try:
            data = source.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._close(source)
            return
        client = self._clients.get(source)
        if client is not None:
            client += data
            self.exchanges += source in self._heard
            self._heard.discard(source)
        else:
            self._heard.add(self._peers[source])
        if not (self.mutes if client is None else self.swallows):
            with contextlib.suppress(OSError):
                self._peers[source].sendall(data)

    def _close(self, one: socket.socket) -> None:
        other = self._peers.pop(one, None)
        if other is not None:
            self._selector.unregister(one)
            one.close()
            self._close(other)


@contextlib.contextmanager
def to(port: int) -> Iterator[Tap]:
    """Run a tap on a local port in a thread of this process."""
    tap = Tap(port)
    thread = threading.Thread(target=tap.run, name="wiretap")
    thread.start()
    try:
        yield tap
    finally:
        tap.stop()
        thread.join()

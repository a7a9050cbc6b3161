"""A TCP proxy between a client and a server that breaks connections on demand.

    with tcp_proxy.threaded(server.port) as proxy: connect("127.0.0.1", proxy.port) ...

Each method returns after its effect has happened. Tests that fork use `forked`, because a process
with threads should not fork.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Literal

from tests.support.server_kinds import free_port

_CHUNK = 65_536
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with timeout 0: closing sends RST
_KEPT = 16 * _CHUNK  # maximum buffer of each direction; the sender has to wait with more

Direction = Literal["to-server", "to-client"]


class Proxy:
    """The control of a proxy. Not thread-safe."""

    def __init__(self, port: int, control: socket.socket) -> None:
        self.port = port
        self._control = control
        self._said = control.makefile("r")

    def stall(self) -> None:
        """Stop all traffic without an error, also on new connections."""
        self._ask("stall")

    def resume(self) -> None:
        """End `stall` and `keep`: waiting bytes continue in order. End `slow`: full speed."""
        self._ask("resume")

    def slow(self, bytes_per_s: int) -> None:
        """Limit the rate of each direction of each connection."""
        self._ask(f"slow {bytes_per_s}")

    def lose(self, direction: Direction) -> None:
        """Discard all bytes in this direction, until the next `cut`."""
        self._ask(f"lose {direction}")

    def keep(self, direction: Direction) -> None:
        """Buffer all bytes in this direction and deliver them after `resume`, even if the client
        has
        timed out and closed its connection.
        """
        self._ask(f"keep {direction}")

    def cut(self) -> int:
        """Reset all connections at both ends (RST) and return their number. This ends `lose`."""
        return self._ask("cut")

    def half_close(self) -> int:
        """Send FIN to all clients, and continue to receive from them."""
        return self._ask("half_close")

    def refuse(self) -> None:
        """Refuse new connections. Existing connections stay."""
        self._ask("refuse")

    def accept(self) -> None:
        """End `refuse`: accept connections again, on the same port."""
        self._ask("accept")

    def hold(self, word: str) -> None:
        """Hold the next data that contains this word, and all later data in its direction. Other
        connections, also new ones, are not held.
        """
        self._ask(f"hold {word}")

    def held(self, word: str) -> int:
        """Return the number of open connections that were held for this word, including released
        ones.
        """
        return self._ask(f"held {word}")

    def let_go(self, word: str) -> None:
        """End `hold`: the waiting data continues."""
        self._ask(f"let_go {word}")

    def connections(self) -> int:
        """Return the number of connections."""
        return self._ask("count")

    def _ask(self, word: str) -> int:
        self._control.sendall(f"{word}\n".encode())
        return int(self._said.readline())

    def close(self) -> None:
        self._said.close()
        self._control.close()


@contextlib.contextmanager
def threaded(target: int) -> Iterator[Proxy]:
    """Run a proxy to a local port in a thread of this process."""
    ours, theirs = socket.socketpair()
    server = _Server(target, theirs)
    thread = threading.Thread(target=server.run, name="tcp-proxy")
    thread.start()
    proxy = Proxy(server.port, ours)
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()


@contextlib.contextmanager
def forked(target: int) -> Iterator[Proxy]:
    """Run a proxy to a local port in a child process, which ends with this one."""
    ours, theirs = socket.socketpair()
    server = _Server(target, theirs)
    pid = os.fork()
    if not pid:
        try:
            ours.close()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            server.run()
        finally:
            os._exit(0)
    server.forget()
    proxy = Proxy(server.port, ours)
    try:
        yield proxy
    finally:
        proxy.close()
        os.waitpid(pid, 0)


class _Flow:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        self.source, self.sink, self.direction = source, sink, direction
        self.waiting = b""
        self.ended = False  # the source has sent FIN
        self.closed = False  # FIN was forwarded to the sink
        self.credit = 0.0
        self.word = b""  # the word for which it was held
        self.held = False


class _Pair:
    """A connection of a client (`near`) and its connection to the server (`far`)."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far
        self.flows = (_Flow(near, far, "to-server"), _Flow(far, near, "to-client"))


class _Server:
    def __init__(self, target: int, control: socket.socket) -> None:
        self._target = target
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._pairs: dict[_Pair, None] = {}  # oldest first
        self._stalled = False
        self._speed = 0
        self._lost: set[str] = set()  # directions whose data is discarded
        self._kept: set[str] = set()  # directions whose data is buffered
        self._words: set[bytes] = set()  # words whose data is held
        self._then = time.monotonic()
        self._asked = b""
        self.port = free_port()
        self._listening: socket.socket | None = self._listen()

    def run(self) -> None:
        """Serve until the owner closes the control socket."""
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._listening, selectors.EVENT_READ)  # type: ignore[arg-type]
        try:
            while True:
                for key, _ in self._selector.select(0.01 if self._speed else None):
                    if key.fileobj is self._listening:
                        self._connect()
                    elif key.fileobj is self._control and not self._controlled():
                        return
                self._move()
        finally:
            self._cut()
            self._refuse()
            self._selector.close()
            self._control.close()

    def forget(self) -> None:
        """Close the descriptors: the child process runs the server."""
        assert self._listening is not None
        self._listening.close()
        self._control.close()
        self._selector.close()

    def _listen(self) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", self.port), backlog=512)
        listener.setblocking(False)
        return listener

    def _controlled(self) -> bool:
        read = self._control.recv(1000)
        *words, self._asked = (self._asked + read).split(b"\n")
        for line in words:
            word, _, what = line.decode().partition(" ")
            do = self._hold if word in ("hold", "held", "let_go") else self._do
            self._control.sendall(b"%d\n" % do(word, what))
        return bool(read)

    def _hold(self, do: str, what: str) -> int:
        word = what.encode()
        flows = [flow for pair in self._pairs for flow in pair.flows if flow.word == word]
        if do == "hold":
            self._words.add(word)
        elif do == "let_go":
            self._words.discard(word)
            for flow in flows:
                flow.held = False
        return len(flows)

    def _do(self, word: str, what: str) -> int:
        count = len(self._pairs)
        if word == "stall":
            self._stalled = True
        elif word == "resume":
            self._stalled, self._speed = False, 0
            self._kept.clear()
        elif word == "lose":
            self._lost.add(what)
        elif word == "keep":
            self._kept.add(what)
        elif word == "slow":
            self._speed, self._then = int(what), time.monotonic()  # credit counts from now on
            for pair in self._pairs:
                for flow in pair.flows:
                    flow.credit = 0.0
        elif word == "cut":
            self._cut()
            self._lost.clear()
        elif word == "half_close":
            for pair in self._pairs:
                self._finish(pair.flows[1])
        elif word == "refuse":
            self._refuse()
        elif word == "accept" and self._listening is None:
            self._listening = self._listen()
            self._selector.register(self._listening, selectors.EVENT_READ)
        return count

    def _refuse(self) -> None:
        if self._listening is not None:
            self._selector.unregister(self._listening)
            self._listening.close()
            self._listening = None

    def _cut(self) -> None:
        for pair in list(self._pairs):
            self._end(pair)

    def _connect(self) -> None:
        assert self._listening is not None
        try:
            near, _ = self._listening.accept()
        except OSError:
            return  # already closed
        try:
            far = socket.create_connection(("127.0.0.1", self._target), 5)
        except OSError:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            near.close()
            return
        for end in (near, far):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs[_Pair(near, far)] = None

    def _move(self) -> None:
        """Receive and send what is possible, and register for the next events."""
        now = time.monotonic()
        earned, self._then = (now - self._then) * self._speed, now
        for pair in list(self._pairs):
            try:
                for flow in pair.flows:
                    if not (self._stalled or flow.held):
                        flow.credit = min(flow.credit + earned, self._speed)
                        self._pass(flow)
            except OSError:
                self._end(pair)
                continue
            if all(flow.closed for flow in pair.flows):
                self._end(pair, reset=False)
                continue
            for flow, back in (pair.flows, pair.flows[::-1]):
                self._watch(flow.source, flow, back)

    def _pass(self, flow: _Flow) -> None:
        if self._takes(flow):
            with contextlib.suppress(BlockingIOError):
                read = flow.source.recv(_CHUNK)
                flow.waiting += read
                flow.ended = not read
                self._look(flow)
        if flow.direction in self._lost:
            flow.waiting = b""
        if flow.held or flow.direction in self._kept:
            return
        if flow.waiting and not flow.closed:
            part = flow.waiting[: int(flow.credit)] if self._speed else flow.waiting
            with contextlib.suppress(BlockingIOError):
                sent = flow.sink.send(part) if part else 0
                flow.waiting = flow.waiting[sent:]
                flow.credit -= sent
        elif flow.closed:
            flow.waiting = b""
        if flow.ended and not flow.waiting:
            self._finish(flow)

    def _takes(self, flow: _Flow) -> bool:
        most = _KEPT if flow.direction in self._kept else 1
        return not flow.ended and len(flow.waiting) < most

    def _look(self, flow: _Flow) -> None:
        for word in self._words:
            if word in flow.waiting:
                flow.word, flow.held = word, True
                self._words.remove(word)
                return

    def _finish(self, flow: _Flow) -> None:
        if not flow.closed:
            flow.closed = True
            with contextlib.suppress(OSError):
                flow.sink.shutdown(socket.SHUT_WR)

    def _watch(self, end: socket.socket, takes: _Flow, gives: _Flow) -> None:
        """Register the events of one end: `takes` reads from it, and `gives` writes to it."""
        events = 0
        if not self._stalled and self._takes(takes):
            events |= selectors.EVENT_READ
        moves = not (self._stalled or self._speed or gives.held or gives.direction in self._kept)
        if moves and gives.waiting and not gives.closed:
            events |= selectors.EVENT_WRITE
        known = self._selector.get_map().get(end)
        if known is not None and known.events == events:
            return
        if known is not None:
            self._selector.unregister(end)
        if events:
            self._selector.register(end, events)

    def _end(self, pair: _Pair, reset: bool = True) -> None:
        self._pairs.pop(pair, None)
        for end in (pair.near, pair.far):
            with contextlib.suppress(KeyError):
                self._selector.unregister(end)
            with contextlib.suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.close()

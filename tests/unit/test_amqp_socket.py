"""AMQP socket: concurrent writes and a slow broker."""

from __future__ import annotations

import errno
import math
import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from amqp import exceptions as amqp_errors

from wbengine.transports._amqp import amqp_frames as frames
from wbengine.transports._amqp import amqp_socket

#: More bytes than the buffers of the system accept.
MUCH = bytes(range(256)) * 400


class Opened:
    """Transport of py-amqp that connects to the given socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock: Any = sock
        self.connected = False

    def connect(self) -> None:
        self.connected = True

    def close(self) -> None:
        self.sock.close()
        self.connected = False


class Ends:
    """Both ends of a py-amqp connection."""

    def __init__(self, wrap: Callable[[Any, Any], tuple[Any, Any]] | None = None) -> None:
        ours, self.theirs = socket.socketpair()
        for each in (ours, self.theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        if wrap is not None:
            ours, self.theirs = wrap(ours, self.theirs)
        self.ours = amqp_socket.AmqpSocket(Opened(ours))
        self.ours.connect()
        self.woken = threading.Event()
        self.ours.wake = self.woken.set

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()

    def took(self) -> bytes:
        """Return the bytes that the broker has received."""
        found = b""
        while select.select([self.theirs], [], [], 0)[0]:
            found += self.theirs.recv(65536)
        return found


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_corked_writes_are_sent_at_exit_or_before_a_read(ends: Ends) -> None:
    with ends.ours.corked():
        ends.ours.write(b"one ")
        assert ends.took() == b""
        ends.theirs.send(a_frame(b"answer") + a_frame(b"more"))
        assert ends.ours.read_frame()[2] == b"answer"
        assert ends.took() == b"one "
        ends.ours.put(b"two")
        ends.ours.flush()
        assert ends.took() == b""
    assert ends.took() == b"two"
    ends.ours.write(memoryview(b"three"))
    assert ends.took() == b"three"


def test_read_frame_sends_pending_data_while_it_waits(ends: Ends) -> None:
    got = bytearray()

    def read() -> None:
        while len(got) < len(MUCH):
            got.extend(ends.theirs.recv(65536))
        ends.theirs.send(a_frame(b"answer"))

    ends.ours.write(MUCH)
    assert ends.ours.is_stuck
    reading = threading.Thread(target=read)
    reading.start()
    assert ends.ours.read_frame() == (1, 7, b"answer")
    reading.join()
    assert bytes(got) == MUCH
    assert not ends.ours.is_stuck


def test_flush_by_another_thread_never_blocks_and_wakes_the_owner(ends: Ends) -> None:
    ends.ours.put(MUCH)
    other = threading.Thread(target=ends.ours.flush)
    other.start()
    other.join(60)
    assert not other.is_alive()
    assert ends.ours.is_stuck and ends.woken.is_set()
    ends.ours.put(b"the last")
    ends.ours.flush()  # must not overtake the pending data
    got = b""
    while not got.endswith(b"the last"):
        got += ends.took()
        ends.ours.proceed()
    assert got == MUCH + b"the last"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp_socket, "STALL_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
def test_connection_is_lost_when_broker_does_not_read(ends: Ends) -> None:
    ends.ours.write(MUCH)
    began = time.monotonic()
    while time.monotonic() < began + 0.2:
        ends.ours.proceed(math.inf)  # the broker announced that it accepts no data
    assert ends.ours.connected
    with pytest.raises(ConnectionError, match="does not read"):
        ends.ours.proceed()
    assert not ends.ours.connected


@pytest.mark.usefixtures("impatient")
def test_read_frame_raises_when_broker_does_not_read(ends: Ends) -> None:
    """Callers interpret a timeout as the absence of data, so the error is a ConnectionError."""
    with pytest.raises(TimeoutError):
        ends.ours.read_frame()
    ends.ours.write(MUCH)
    with pytest.raises(ConnectionError, match="does not read"):
        ends.ours.read_frame()


def test_lost_connection_raises_only_in_the_owner_thread(ends: Ends) -> None:
    ends.theirs.close()
    raised: list[BaseException] = []

    def say() -> None:
        try:
            ends.ours.put(b"something")
            ends.ours.flush()
        except BaseException as error:
            raised.append(error)

    other = threading.Thread(target=say)
    other.start()
    other.join()
    assert raised == []
    assert ends.woken.is_set()
    with pytest.raises(OSError):
        ends.ours.proceed()
    with pytest.raises(OSError):
        ends.ours.write(b"more")
    assert not ends.ours.connected


class Expired:
    """Socket whose peer the operating system considers dead."""

    def send(self, data: bytes) -> int:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    def recv(self, count: int) -> bytes:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")


def test_etimedout_of_socket_raises_connection_error(ends: Ends) -> None:
    ends.ours.sock = Expired()
    with pytest.raises(ConnectionError, match="timed out"):
        ends.ours.fill()
    ends.ours.put(b"something")
    with pytest.raises(ConnectionError, match="timed out"):
        ends.ours.proceed()


@pytest.mark.usefixtures("frequent_thread_switches")
def test_concurrent_writes_stay_whole_and_in_order(ends: Ends) -> None:
    """Several threads, including that of py-amqp, write to a broker that reads small portions."""
    threads, each = 6, 2000
    got = bytearray()
    done = threading.Event()

    def read() -> None:
        while not done.is_set() or select.select([ends.theirs], [], [], 0)[0]:
            if select.select([ends.theirs], [], [], 0.05)[0]:
                got.extend(ends.theirs.recv(777))

    def say(number: int) -> None:
        for count in range(each):
            text = f"<{number}:{count}:{'x' * (count % 997)}>".encode()
            ends.ours.put(text)
            ends.ours.flush()

    reading = threading.Thread(target=read)
    saying = [threading.Thread(target=say, args=(number,)) for number in range(threads)]
    for thread in (reading, *saying):
        thread.start()
    for count in range(each):
        ends.ours.write(memoryview(f"<me:{count}:>".encode()))
        ends.ours.proceed()
    while any(thread.is_alive() for thread in saying) or ends.ours.is_stuck:
        ends.ours.proceed()
    done.set()
    reading.join()
    found: dict[str, list[int]] = {}
    for piece in bytes(got).decode().removeprefix("<").removesuffix(">").split("><"):
        who, number, filling = piece.split(":")
        assert filling in ("", "x" * (int(number) % 997))
        found.setdefault(who, []).append(int(number))
    assert found == {who: list(range(each)) for who in [*map(str, range(threads)), "me"]}


def a_frame(payload: bytes, end: int = frames.END, kind: int = 1) -> bytes:
    return bytes((kind, 0, 7)) + len(payload).to_bytes(4, "big") + payload + bytes((end,))


@pytest.mark.usefixtures("impatient")
def test_heartbeats_do_not_extend_timeout_of_read_frame(ends: Ends) -> None:
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.01):
            ends.theirs.send(a_frame(b"", kind=frames.HEARTBEAT))

    beating = threading.Thread(target=beat)
    beating.start()
    with pytest.raises(TimeoutError):
        ends.ours.read_frame()
    ends.theirs.send(a_frame(b"answer"))
    assert ends.ours.read_frame() == (1, 7, b"answer")
    over.set()
    beating.join()


def test_only_whole_frames_are_pending(ends: Ends) -> None:
    said = a_frame(b"first") + a_frame(b"") + a_frame(b"third")
    for at in range(len(said)):
        ends.theirs.send(said[at : at + 1])
        ends.ours.fill()
    taken = []
    while ends.ours.pending:
        taken.append(ends.ours.frame())
    assert taken == [(1, 7, b"first"), (1, 7, b""), (1, 7, b"third")]
    ends.ours.fill()  # does not block without data
    assert not ends.ours.pending


def test_partial_frame_survives_read_timeout(ends: Ends) -> None:
    said = a_frame(b"first") + a_frame(b"second")
    ends.theirs.send(said[:9])
    with pytest.raises(TimeoutError), ends.ours.having_timeout(0.01):
        ends.ours.read_frame()
    ends.theirs.send(said[9:])
    ends.ours.fill()
    assert ends.ours.pending
    assert ends.ours.frame() == (1, 7, b"first")
    assert ends.ours.read_frame() == (1, 7, b"second")


def test_frame_with_wrong_end_byte_raises(ends: Ends) -> None:
    ends.theirs.send(a_frame(b"first", end=1))
    ends.ours.fill()
    with pytest.raises(amqp_errors.UnexpectedFrame):
        ends.ours.frame()


def test_fill_on_closed_connection_raises(ends: Ends) -> None:
    ends.theirs.close()
    with pytest.raises(ConnectionError):
        ends.ours.fill()


class Reset(Expired):
    """Socket whose connection was reset."""

    def recv(self, count: int) -> bytes:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def test_reset_connection_is_not_its_own_cause(ends: Ends) -> None:
    ends.ours.sock = Reset()
    with pytest.raises(ConnectionResetError) as caught:
        ends.ours.fill()
    assert caught.value.__cause__ is None


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Ends]:
    """Return the ends of a TLS connection."""
    made = Ends(tls_of(tmp_path))
    yield made
    made.close()


def tls_of(folder: Path) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return a function that wraps a client and a server socket in TLS."""
    key, certificate = str(folder / "key"), str(folder / "certificate")
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-subj", "/CN=localhost"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(certificate, key)
    ours = ssl.create_default_context(cafile=certificate)

    def wrap(client: Any, server: Any) -> tuple[Any, Any]:
        found: list[Any] = []
        serving = threading.Thread(
            target=lambda: found.append(theirs.wrap_socket(server, server_side=True))
        )
        serving.start()
        safe = ours.wrap_socket(client, server_hostname="localhost")
        serving.join()
        return safe, found[0]

    return wrap


@pytest.mark.usefixtures("frequent_thread_switches")
def test_tls_connection_supports_concurrent_writes_and_reads(secure: Ends) -> None:
    threads, each = 4, 500
    wanted = {
        number: [f"{number}:{count}:{'x' * (count * 37 % 2000)}".encode() for count in range(each)]
        for number in range(threads)
    }
    left = sum(len(a_frame(text)) for texts in wanted.values() for text in texts)

    def repeat() -> None:
        passed = 0
        while passed < left:
            said = secure.theirs.recv(4096)
            secure.theirs.sendall(said)
            passed += len(said)

    def say(number: int) -> None:
        for text in wanted[number]:
            secure.ours.put(a_frame(text))
            secure.ours.flush()

    working = [threading.Thread(target=repeat)]
    working += [threading.Thread(target=say, args=(number,)) for number in range(threads)]
    for thread in working:
        thread.start()
    found: dict[int, list[bytes]] = {number: [] for number in range(threads)}
    deadline = time.monotonic() + 60
    while found != wanted and time.monotonic() < deadline:
        if secure.ours.is_busy:
            secure.ours.proceed()
        secure.ours.fill()
        while secure.ours.pending:
            text = secure.ours.frame()[2]
            found[int(text.partition(b":")[0])].append(text)
    assert found == wanted
    for thread in working:
        thread.join()


def test_closed_socket_drops_puts_and_rejects_writes(ends: Ends) -> None:
    ends.ours.close()
    ends.ours.put(b"nobody hears this")
    ends.ours.flush()
    with pytest.raises(ConnectionError):
        ends.ours.write(b"close")

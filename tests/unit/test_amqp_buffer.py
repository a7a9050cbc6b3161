"""What is written and read on an AMQP connection: by several threads, to a broker that is slow."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from amqp import exceptions as amqp_errors
from amqp.transport import TCPTransport

from wbengine.transports import _amqp_buffer
from wbengine.transports import _amqp_frames as frames

#: More than the system takes while nobody reads.
MUCH = bytes(range(256)) * 400


class Ends:
    """A transport of py-amqp, its buffer, and the broker's end."""

    def __init__(self, patience: float = 60.0) -> None:
        ours, self.theirs = socket.socketpair()
        for each in (ours, self.theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours.settimeout(patience)
        self.transport: Any = TCPTransport("nobody:1")
        self.transport.sock = ours
        self.transport._setup_transport()
        self.woken = threading.Event()
        self.buffer = _amqp_buffer.Buffer(self.transport, patience, self.woken.set)

    def close(self) -> None:
        self.buffer.close()
        self.transport.sock.close()
        self.theirs.close()

    def took(self) -> bytes:
        """What the broker has by now."""
        found = b""
        while select.select([self.theirs], [], [], 0)[0]:
            found += self.theirs.recv(65536)
        return found


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_held_back_until_the_end_or_until_something_is_to_be_read(ends: Ends) -> None:
    transport = ends.transport
    with ends.buffer.corked():
        transport.write(b"one ")
        assert ends.took() == b""
        ends.theirs.send(b"answer, more")
        assert transport._quick_recv(6) == b"answer"
        assert ends.took() == b"one "
        transport.write(b"two")
        assert transport._quick_recv(100) == b", more"
        assert ends.took() == b""
    assert ends.took() == b"two"
    transport.write(memoryview(b"three"))
    assert ends.took() == b"three"


def test_what_is_read_by_py_amqp_waits_until_all_is_sent(ends: Ends) -> None:
    """Half of it would be worse than nothing: the next frame would begin in the midst of one."""
    got = bytearray()

    def read() -> None:
        while len(got) < len(MUCH):
            got.extend(ends.theirs.recv(65536))
        ends.theirs.send(b"answer")

    ends.transport.write(MUCH)
    assert ends.buffer.is_stuck
    reading = threading.Thread(target=read)
    reading.start()
    assert ends.transport._quick_recv(100) == b"answer"
    reading.join()
    assert bytes(got) == MUCH
    assert not ends.buffer.is_stuck


def test_others_never_wait_and_leave_the_rest_to_the_owner(ends: Ends) -> None:
    ends.buffer.put(MUCH)
    other = threading.Thread(target=ends.buffer.flush)
    other.start()
    other.join(60)
    assert not other.is_alive()
    assert ends.buffer.is_stuck and ends.woken.is_set()
    ends.buffer.put(b"the last")
    ends.buffer.flush()  # which must not pass what is stuck
    got = b""
    while not got.endswith(b"the last"):
        got += ends.took()
        ends.buffer.proceed()
    assert got == MUCH + b"the last"


def test_a_broker_that_does_not_read_is_lost_after_a_while() -> None:
    ends = Ends(patience=0.05)
    ends.transport.write(MUCH)
    with pytest.raises(ConnectionError, match="does not read"):
        while True:
            ends.buffer.proceed()
            time.sleep(0.005)
    ends.close()


def test_and_whoever_waits_for_its_answer_is_told_so() -> None:
    """Who reads takes a timeout for: nothing came, and goes on."""
    ends = Ends(patience=0.05)
    ends.transport.write(MUCH)
    with pytest.raises(ConnectionError, match="does not read"):
        ends.transport._quick_recv(100)
    ends.close()


def test_a_connection_that_is_lost_is_told_to_its_owner_only(ends: Ends) -> None:
    ends.theirs.close()
    raised: list[BaseException] = []

    def say() -> None:
        try:
            ends.buffer.put(b"something")
            ends.buffer.flush()
        except BaseException as error:
            raised.append(error)

    other = threading.Thread(target=say)
    other.start()
    other.join()
    assert raised == []
    assert ends.woken.is_set()
    with pytest.raises(OSError):
        ends.buffer.proceed()
    ends.buffer.put(b"more")
    with pytest.raises(OSError):
        ends.buffer.flush()


@pytest.mark.usefixtures("hasty")
def test_each_in_one_piece_and_in_order_whoever_writes(ends: Ends) -> None:
    """Several threads, and py-amqp's own, to a broker that reads in small portions."""
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
            ends.buffer.put(text)
            ends.buffer.flush()

    reading = threading.Thread(target=read)
    saying = [threading.Thread(target=say, args=(number,)) for number in range(threads)]
    for thread in (reading, *saying):
        thread.start()
    for count in range(each):
        ends.transport.write(memoryview(f"<me:{count}:>".encode()))
        ends.buffer.proceed()
    while any(thread.is_alive() for thread in saying) or ends.buffer.is_stuck:
        ends.buffer.proceed()
    done.set()
    reading.join()
    found: dict[str, list[int]] = {}
    for piece in bytes(got).decode().removeprefix("<").removesuffix(">").split("><"):
        who, number, filling = piece.split(":")
        assert filling in ("", "x" * (int(number) % 997))
        found.setdefault(who, []).append(int(number))
    assert found == {who: list(range(each)) for who in [*map(str, range(threads)), "me"]}


def a_frame(payload: bytes, end: int = frames.END) -> bytes:
    return b"\1\0\7" + len(payload).to_bytes(4, "big") + payload + bytes((end,))


def test_only_whole_frames_are_pending(ends: Ends) -> None:
    said = a_frame(b"first") + a_frame(b"") + a_frame(b"third")
    for at in range(len(said)):
        ends.theirs.send(said[at : at + 1])
        ends.buffer.fill()
    taken = []
    while ends.buffer.pending:
        taken.append(ends.buffer.frame())
    assert taken == [(1, 7, b"first"), (1, 7, b""), (1, 7, b"third")]
    ends.buffer.fill()  # there is nothing, and nobody waits for it
    assert not ends.buffer.pending


def test_what_py_amqp_read_in_vain_is_not_lost(ends: Ends) -> None:
    said = a_frame(b"first") + a_frame(b"second")
    ends.theirs.send(said[:9])
    with pytest.raises(TimeoutError), ends.transport.having_timeout(0.01):
        ends.transport.read_frame()
    ends.theirs.send(said[9:])
    ends.buffer.fill()
    assert ends.buffer.pending
    assert ends.buffer.frame() == (1, 7, b"first")
    assert ends.transport.read_frame() == (1, 7, b"second")


def test_what_is_no_frame_is_refused(ends: Ends) -> None:
    ends.theirs.send(a_frame(b"first", end=1))
    ends.buffer.fill()
    with pytest.raises(amqp_errors.UnexpectedFrame):
        ends.buffer.frame()


def test_the_end_of_the_connection_is_an_error(ends: Ends) -> None:
    ends.theirs.close()
    with pytest.raises(ConnectionError):
        ends.buffer.fill()


def test_after_the_end_py_amqp_goes_on_where_it_stopped(ends: Ends) -> None:
    ends.theirs.send(a_frame(b"first") + a_frame(b"second"))
    ends.buffer.fill()
    assert ends.buffer.frame()[2] == b"first"
    ends.buffer.put(b"one ")
    ends.buffer.close()
    ends.buffer.put(b"nobody hears this")
    ends.buffer.flush()
    ends.transport.write(b"two")
    assert ends.took() == b"one two"
    assert ends.transport.read_frame() == (1, 7, b"second")


def test_after_the_end_nothing_is_written_into_half_a_frame(ends: Ends) -> None:
    ends.transport.write(MUCH)
    ends.buffer.close()
    with pytest.raises(ConnectionError):
        ends.transport.write(b"close")

"""What is held back and written at once on an AMQP connection, to a broker that is slow to read."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from amqp.transport import TCPTransport

from wbengine.transports import _amqp_buffer

#: More than the system takes while nobody reads.
MUCH = bytes(range(256)) * 400


@pytest.fixture
def ends() -> Iterator[tuple[Any, socket.socket]]:
    """(a transport of py-amqp, the broker's end)."""
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ours.settimeout(5.0)
    transport = TCPTransport("nobody:1")
    transport.sock = ours
    transport._setup_transport()
    transport._write = _amqp_buffer.whole(transport._write)
    yield transport, theirs
    ours.close()
    theirs.close()


def test_held_back_until_the_end_or_until_something_is_to_be_read(
    ends: tuple[Any, socket.socket],
) -> None:
    transport, theirs = ends
    buffer = _amqp_buffer.Buffer(transport, 5.0)
    theirs.setblocking(False)
    with buffer.corked():
        transport.write(b"one ")
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
        theirs.send(b"answer, more")
        assert transport._quick_recv(6) == b"answer"
        assert theirs.recv(100) == b"one "
        assert buffer.pending == len(", more")
        transport.write(b"two")
        assert transport._quick_recv(100) == b", more"
        assert buffer.pending == 0
    assert theirs.recv(100) == b"two"
    transport.write(b"three")
    assert theirs.recv(100) == b"three"


def test_what_is_held_back_has_more_time_than_what_is_read(
    ends: tuple[Any, socket.socket],
) -> None:
    """Half of it would be worse than nothing: the next frame would begin in the midst of one."""
    transport, theirs = ends
    buffer = _amqp_buffer.Buffer(transport, 5.0)
    got = bytearray()

    def read() -> None:
        time.sleep(0.1)
        while len(got) < len(MUCH):
            got.extend(theirs.recv(65536))
        theirs.send(b"answer")

    reading = threading.Thread(target=read)
    with buffer.corked():
        transport.write(MUCH)
        reading.start()
        with transport.having_timeout(0.02):
            while True:
                try:
                    assert transport._quick_recv(100) == b"answer"
                    break
                except TimeoutError:
                    pass
    reading.join()
    assert bytes(got) == MUCH
    assert transport.sock.gettimeout() == 5.0


@pytest.mark.parametrize("corked", [True, False])
def test_a_broker_that_does_not_read_is_no_silence(
    ends: tuple[Any, socket.socket], corked: bool
) -> None:
    """Whoever reads takes a timeout for: nothing came, and goes on."""
    transport, _ = ends
    buffer = _amqp_buffer.Buffer(transport, 0.05)
    transport.sock.settimeout(0.05)
    with pytest.raises(ConnectionError, match="does not read"):
        if corked:
            with buffer.corked():
                transport.write(MUCH)
                with transport.having_timeout(0.01):
                    transport._quick_recv(100)
        else:
            transport.write(MUCH)

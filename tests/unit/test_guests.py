"""What a worker and its guests agree on."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

import pytest

from wbengine.engines.worker_based import server
from wbengine.engines.worker_based.worker_side import describing, guests


class Visitor:
    """A guest that does what it is told."""

    def __init__(self, busy: bool = False, running: int = 0, taken: float = -math.inf) -> None:
        self.host: guests.Host | None = None
        self.busy = busy
        self.running = running
        self.taken = taken
        self.closed = False

    description: Sequence[tuple[str, str]] = (("visitor", "from afar"),)

    def attach(self, host: guests.Host) -> None:
        self.host = host

    def start(self) -> None: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def drain(self) -> None: ...
    def give_up(self) -> None: ...

    def wait_ready(self, timeout: float | None = None) -> bool:
        return True

    def wait_idle(self, timeout: float | None = None) -> bool:
        if self.busy and timeout is not None:
            time.sleep(timeout)
        return not self.busy

    def close(self, timeout: float = 5.0) -> None:
        self.closed = True


class Broken(Visitor):
    def close(self, timeout: float = 5.0) -> None:
        raise OSError("no more")


def test_tasks_of_guests_count_as_those_of_the_worker() -> None:
    core = server.Server("w", {}, {}, 2, max_tasks=2)
    assert core.admit() == (True, [])
    assert core.admit() == (True, [server.Drain()])
    assert core.admit() == (False, [])


def test_without_a_limit_all_are_admitted() -> None:
    core = server.Server("w", {}, {}, 2)
    assert {core.admit() == (True, []) for _ in range(5)} == {True}


def test_several_guests_are_as_one() -> None:
    first, second = Visitor(running=1, taken=3.0), Visitor(busy=True, running=2)
    both = guests.Guests([first, second])
    assert (len(both), both.busy, both.running, both.taken) == (2, True, 3, 3.0)
    assert both.description == [("visitor", "from afar")] * 2
    assert not both.wait_idle(time.monotonic() + 0.05)
    second.busy = False
    assert both.wait_idle()
    assert not both.busy


def test_no_guests_are_never_busy() -> None:
    none = guests.Guests(())
    assert (bool(none), none.busy, none.running, none.taken) == (False, False, 0, -math.inf)
    assert none.wait_idle(0.0)


def test_each_is_closed_whatever_becomes_of_another(caplog: pytest.LogCaptureFixture) -> None:
    last = Visitor()
    with caplog.at_level(logging.ERROR):
        guests.Guests([Broken(), last]).close()
    assert last.closed
    assert "cannot be closed" in caplog.text


def test_the_banner_of_a_worker_without_topics() -> None:
    told = describing.banner("w", "memory://w", "x", (), ["a.B"], "2 threads", Visitor.description)
    assert "  visitor   from afar\n  tasks     a.B\n" in told
    assert "memory" not in told and "topics" not in told
    both = describing.banner("w", "u://", "x", ("t",), ["a.B"], "2 threads", Visitor.description)
    assert "  topics    t\n  visitor   from afar\n" in both

"""Task sources of a worker: counted, described and closed as one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

import pytest

from wbengine.engines.worker_based import server
from wbengine.engines.worker_based.worker_side import describing, task_sources


class Source:
    """A task source that does what it is told."""

    def __init__(self, busy: bool = False, running: int = 0, taken: float = -math.inf) -> None:
        self.context: task_sources.WorkerContext | None = None
        self.busy = busy
        self.running = running
        self.taken = taken
        self.closed = False

    description: Sequence[tuple[str, str]] = (("jobs", "from afar"),)

    def attach(self, context: task_sources.WorkerContext) -> None:
        self.context = context

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


class Broken(Source):
    def close(self, timeout: float = 5.0) -> None:
        raise OSError("no more")


def test_max_tasks_counts_tasks_of_sources() -> None:
    core = server.Server("w", {}, {}, 2, max_tasks=2)
    assert core.admit() == (True, [])
    assert core.admit() == (True, [server.Drain()])
    assert core.admit() == (False, [])


def test_without_max_tasks_all_are_admitted() -> None:
    core = server.Server("w", {}, {}, 2)
    assert {core.admit() == (True, []) for _ in range(5)} == {True}


def test_several_sources_are_as_one() -> None:
    first, second = Source(running=1, taken=3.0), Source(busy=True, running=2)
    both = task_sources.TaskSources([first, second])
    assert (len(both), both.busy, both.running, both.taken) == (2, True, 3, 3.0)
    assert both.description == [("jobs", "from afar")] * 2
    assert not both.wait_idle(time.monotonic() + 0.05)
    second.busy = False
    assert both.wait_idle()
    assert not both.busy


def test_no_sources_are_never_busy() -> None:
    none = task_sources.TaskSources(())
    assert (bool(none), none.busy, none.running, none.taken) == (False, False, 0, -math.inf)
    assert none.wait_idle(0.0)


def test_source_is_closed_although_another_cannot_be(caplog: pytest.LogCaptureFixture) -> None:
    last = Source()
    with caplog.at_level(logging.ERROR):
        task_sources.TaskSources([Broken(), last]).close()
    assert last.closed
    assert "cannot be closed" in caplog.text


def test_banner_of_worker_without_topics_describes_its_sources() -> None:
    told = describing.banner("w", "memory://w", "x", (), ["a.B"], "2 threads", Source.description)
    assert "  jobs      from afar\n  tasks     a.B\n" in told
    assert "memory" not in told and "topics" not in told
    both = describing.banner("w", "u://", "x", ("t",), ["a.B"], "2 threads", Source.description)
    assert "  topics    t\n  jobs      from afar\n" in both

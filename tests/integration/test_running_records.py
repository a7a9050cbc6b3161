"""Records of running tasks in the store: worker, start time and progress."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.owned_flows import stored_atoms
from tests.seams.scheduling import load_at
from tests.support import workers
from tests.support.engine_threads import running
from wbengine import engines, task
from wbengine._concurrency import manual_clock
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import models
from wbengine.persistence.backends import _memory
from wbengine.testing import FaultyBackend

GO = threading.Event()


class Long(task.Task):
    """Task that waits for `GO`."""

    def execute(self) -> None:
        assert GO.wait(30)


class Tells(task.Task):
    """Task that reports progress until `seen` returns True."""

    def __init__(self, name: str, seen: Callable[[], bool]) -> None:
        super().__init__(name)
        self.seen = seen

    def execute(self) -> int:
        for count in range(1, 3000):
            self.update_progress(count / 3000)
            if self.seen():
                return count
            time.sleep(0.01)
        raise AssertionError("nobody saw it")


@pytest.fixture(autouse=True)
def _go() -> Iterator[None]:
    GO.clear()
    yield
    GO.set()


def wait_until_started(engine: Any, name: str) -> models.AtomDetail:
    for _ in range(1500):
        found = stored_atoms(engine).get(name)
        if found is not None and found.started is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("nobody tells that it began")


@pytest.mark.parametrize("durability", ["each", "batch"])
def test_store_shows_start_of_thread_task_only_when_it_runs(durability: str) -> None:
    """A task that waits for a thread has not started."""
    flow = unordered_flow.Flow("f").add(Long("a"), Long("b"))
    engine = engines.load(
        flow,
        engine="parallel",
        executor="threaded",
        max_workers=1,
        backend=_memory.MemoryBackend(),
        durability=durability,
    )
    before = time.time()
    with running(engine, GO):
        found = wait_until_started(engine, "a")
        assert (found.state, found.worker) == ("RUNNING", "local")
        assert found.started is not None and before - 1 < found.started <= time.time()
        assert found.ended is None
        other = stored_atoms(engine)["b"]
        assert (other.state, other.worker, other.started) == ("RUNNING", None, None)
        GO.set()
    assert {atom.state for atom in stored_atoms(engine).values()} == {"SUCCESS"}


def test_store_shows_worker_of_running_task() -> None:
    """The record is written when the worker reports RUNNING."""
    url = f"memory://{uuid.uuid4().hex}"
    with workers.worker_in_thread(url, Long):
        engine = engines.load(
            linear_flow.Flow("f").add(Long("a")),
            engine="worker-based", url=url, backend=_memory.MemoryBackend(),
        )  # fmt: skip
        with running(engine, GO):
            found = wait_until_started(engine, "a")
            assert found.state == "RUNNING" and found.worker not in (None, "local")
            GO.set()
        assert stored_atoms(engine)["a"].worker == found.worker


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_progress_of_single_running_task_is_stored(kind: str) -> None:
    engine: Any = None

    def seen() -> bool:
        found = stored_atoms(engine)["a"]
        return found.progress is not None and found.state == "RUNNING"

    engine = engines.load(
        linear_flow.Flow("f").add(Tells("a", seen)), engine=kind, backend=_memory.MemoryBackend()
    )
    engine.run()


def test_progress_is_written_about_once_per_second() -> None:
    """Local engines write progress about once a second, and never with durability 'end'."""
    writes = {}
    for durability in ("each", "end"):
        backend, clock = FaultyBackend(), manual_clock.ManualClock()

        def seen(clock: manual_clock.ManualClock = clock) -> bool:
            clock.advance(0.05)
            return clock.monotonic() > 2.5

        flow = linear_flow.Flow("f").add(Tells("a", seen))
        engine = load_at(clock, flow, backend=backend, durability=durability)
        engine.prepare()
        before = len(backend.writes)
        engine.run()
        writes[durability] = backend.writes[before:].count("save_changes")
    assert writes == {"each": 5, "end": 3}

"""Who looks at the store sees what is under way: where it runs, since when, and how far it is."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import workers
from tests.support.beside import running
from wbengine import _clock, engines, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import models
from wbengine.persistence.backends import memory
from wbengine.testing import FaultyBackend

GO = threading.Event()


class Long(task.Task):
    """Runs until it is let go."""

    def execute(self) -> None:
        assert GO.wait(30)


class Tells(task.Task):
    """Tells how far it is until somebody has seen it."""

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


def kept(engine: Any) -> dict[str, models.AtomDetail]:
    with engine._backend.get_connection() as connection:
        return {atom.name: atom for atom in connection.get_atoms_for_flow(engine.storage.flow_uuid)}


def started(engine: Any, name: str) -> models.AtomDetail:
    for _ in range(1500):
        found = kept(engine).get(name)
        if found is not None and found.started is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("nobody tells that it began")


@pytest.mark.parametrize("durability", ["each", "batch"])
def test_a_task_in_a_thread(durability: str) -> None:
    """One that waits for a thread has not begun."""
    flow = unordered_flow.Flow("f").add(Long("a"), Long("b"))
    engine = engines.load(
        flow,
        engine="parallel",
        executor="threaded",
        max_workers=1,
        backend=memory.MemoryBackend(),
        durability=durability,
    )
    before = time.time()
    with running(engine, GO):
        found = started(engine, "a")
        assert (found.state, found.worker) == ("RUNNING", "local")
        assert found.started is not None and before - 1 < found.started <= time.time()
        assert found.ended is None
        other = kept(engine)["b"]
        assert (other.state, other.worker, other.started) == ("RUNNING", None, None)
        GO.set()
    assert {atom.state for atom in kept(engine).values()} == {"SUCCESS"}


def test_a_task_on_a_worker() -> None:
    """As soon as that says so."""
    url = f"memory://{uuid.uuid4().hex}"
    with workers.worker_in_thread(url, Long):
        engine = engines.load(
            linear_flow.Flow("f").add(Long("a")),
            engine="worker-based", url=url, backend=memory.MemoryBackend(),
        )  # fmt: skip
        with running(engine, GO):
            found = started(engine, "a")
            assert found.state == "RUNNING" and found.worker not in (None, "local")
            GO.set()
        assert kept(engine)["a"].worker == found.worker


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_progress_of_the_only_running_task_is_seen(kind: str) -> None:
    """Of a task that is the only one, while it runs."""
    engine: Any = None

    def seen() -> bool:
        found = kept(engine)["a"]
        return found.progress is not None and found.state == "RUNNING"

    engine = engines.load(
        linear_flow.Flow("f").add(Tells("a", seen)), engine=kind, backend=memory.MemoryBackend()
    )
    engine.run()


def test_progress_does_not_cost_a_write_each_time() -> None:
    """In an engine that runs tasks itself: about one a second, and none with 'end'."""
    writes = {}
    for durability in ("each", "end"):
        backend, clock = FaultyBackend(), _clock.ManualClock()

        def seen(clock: _clock.ManualClock = clock) -> bool:
            clock.advance(0.05)
            return clock.monotonic() > 2.5

        flow = linear_flow.Flow("f").add(Tells("a", seen))
        engine: Any = engines.load(flow, backend=backend, durability=durability)
        engine._clock = clock
        engine.prepare()
        before = len(backend.writes)
        engine.run()
        writes[durability] = backend.writes[before:].count("save_changes")
    assert writes == {"each": 5, "end": 3}

"""Parking of flows whose ready tasks wait for their `eta`."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine_kinds import engine_options
from tests.seams.scheduling import load_at
from tests.support import conducted, delayed_tasks
from tests.support.amounts import amount
from tests.support.parking import conducting
from tests.support.reading import read_flow
from tests.support.waiting import until
from wbengine import engines, exceptions, states, task
from wbengine._concurrency import crash_points, manual_clock
from wbengine.conductors.backends import impl_executor
from wbengine.engines import base as base_engine
from wbengine.patterns import linear_flow
from wbengine.persistence import backends as stores
from wbengine.persistence import base, models

GREETING = "tests.support.conducted:greeting"
#: Seconds that a task waits.
WAIT = 1.0
FACTORIES: dict[str, Any] = {
    "task": (delayed_tasks.graph, [WAIT]),
    "step": (delayed_tasks.workflow, None),
    "retry of step": (delayed_tasks.backoff, None),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        yield backend


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impl_executor.ExecutorConductor, "PARK_SECONDS", 0.1)
    monkeypatch.setattr(impl_executor.ExecutorConductor, "CLAIM_SECONDS", 1.0)


def submit(store: base.Backend, folder: Path, kind: str) -> engines.FlowHandle:
    factory, args = FACTORIES[kind]
    inputs = {"folder": str(folder), "seconds": WAIT}
    return engines.submit(factory, args, backend=store, inputs=inputs)


def record_of(store: base.Backend, handle: engines.FlowHandle, name: str) -> models.AtomDetail:
    records = list(read_flow(store, handle.id))
    (record,) = [each for each in records if each.name == name]
    return record


def noted(folder: Path) -> list[tuple[str, float]]:
    """Return the names and times of the executions."""
    words = [line.split() for line in conducted.notes(folder)]
    return [(name, float(at)) for name, at in words]


@pytest.mark.parametrize("engine", ["serial", "threads", "memory"])
@pytest.mark.parametrize("kind", FACTORIES)
def test_flow_waiting_for_a_start_holds_no_place(
    kind: str, engine: str, store: base.Backend, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        options = stack.enter_context(engine_options(engine, tmp_path, delayed_tasks, conducted))
        handle = submit(store, tmp_path, kind)
        _, parked = stack.enter_context(conducting(store, 1, **options))
        until(lambda: parked == [handle.id])
        assert handle.state == states.WAITING
        assert [name for name, _ in noted(tmp_path)] == ["first"]
        other = engines.submit(GREETING, backend=store, inputs={"name": "Ada"})
        assert other.result(60)["greeting"] == "hello Ada"
        handle.result(60)
    names, times = zip(*noted(tmp_path), strict=True)
    assert names == ("first", "late", "last") and times[1] >= times[0] + WAIT
    assert len(parked) == 1


def test_task_that_only_waited_has_one_attempt(store: base.Backend, tmp_path: Path) -> None:
    with conducting(store) as (_, parked):
        handle = submit(store, tmp_path, "task")
        handle.result(60)
    assert len(parked) == 1
    late = record_of(store, handle, "late")
    assert (late.attempt, late.executions, late.repeats) == (1, 1, 0)


def test_signals_do_not_restart_a_wait_for_eta(store: base.Backend, tmp_path: Path) -> None:
    with conducting(store) as (_, parked):
        handle = engines.submit(
            delayed_tasks.signalled, [3600.0], backend=store, inputs={"folder": str(tmp_path)}
        )
        starts = set()
        for number, name in enumerate(("one", "two", None), start=1):
            until(lambda number=number: len(parked) == number)
            late = record_of(store, handle, "late")
            starts.add(late.meta_value(models.STARTS_AT))
            assert (late.state, late.attempt) == (states.PENDING, 1)
            if name is not None:
                handle.signal(name)
        assert len(starts) == 1
        handle.cancel()
        assert handle.wait(60)
    assert noted(tmp_path) == []


def test_parked_flow_releases_the_permit_of_a_task_that_waits_for_its_eta(
    store: base.Backend, tmp_path: Path
) -> None:
    def submit_limited(name: str, seconds: float | None) -> engines.FlowHandle:
        inputs = {"folder": str(tmp_path)}
        return engines.submit(delayed_tasks.limited, [name, seconds], backend=store, inputs=inputs)

    with conducting(store) as (_, parked):
        late = submit_limited("late", 3600.0)
        until(lambda: parked == [late.id])
        submit_limited("other", None).result(60)
        late.cancel()
        assert late.wait(60)
    assert [name for name, _ in noted(tmp_path)] == ["other"]


@pytest.mark.parametrize("engine", ["serial", "threads", "memory"])
def test_items_that_wait_for_their_eta_hold_no_place(
    engine: str, store: base.Backend, tmp_path: Path
) -> None:
    inputs = {"folder": str(tmp_path), "numbers": [1, 2]}
    with contextlib.ExitStack() as stack:
        options = stack.enter_context(engine_options(engine, tmp_path, delayed_tasks))
        _, parked = stack.enter_context(conducting(store, 1, **options))
        began = time.time()
        handle = engines.submit(delayed_tasks.items, [WAIT], backend=store, inputs=inputs)
        until(lambda: parked == [handle.id])
        assert handle.state == states.WAITING
        assert noted(tmp_path) == []
        handle.result(60)
    assert [at >= began + WAIT for _, at in noted(tmp_path)] == [True, True]
    assert len(parked) == 1
    late = record_of(store, handle, "late")
    assert (late.attempt, late.repeats) == (1, 0)


class Acts(task.Task):
    """Calls a function."""

    eta = 50

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__("late")
        self._act = act

    def execute(self) -> None:
        self._act()


def test_engine_after_a_death_waits_only_for_the_rest_of_the_eta(store: base.Backend) -> None:
    clock = manual_clock.ManualClock(1000.0)
    copies: list[models.FlowDetail] = []

    def copy() -> None:
        copies.append(read_flow(store, engine.storage.flow_uuid))

    flow = linear_flow.Flow("f").add(Acts(copy))
    engine = load_at(clock, flow, backend=store)
    for state in engine.run_iter():
        if state == states.WAITING and not copies:
            copy()
    waiting, running = copies
    # The engine died while the task waited, while it ran, or while it ran, an hour ago.
    for stored, now, end, attempt in (
        (waiting, 1020.0, 1050.0, 1),
        (running, 1050.0, 1050.0, 2),
        (running, 4650.0, 4650.0, 2),
    ):
        clock = manual_clock.ManualClock(now)
        later = load_at(clock, linear_flow.Flow("f").add(Acts(bool)), flow_detail=stored.copy())
        later.run()
        assert (clock.time(), later.storage.record("late").attempt) == (end, attempt)


class Charge(task.Task):
    """Records what it does to its items."""

    eta = 50

    def __init__(self, done: list[str]) -> None:
        super().__init__("charge")
        self._done = done

    def execute(self, item: int) -> None:
        self._done.append(f"charge {item}")

    def revert(self, item: int, **_: object) -> None:
        self._done.append(f"refund {item}")


def charges(done: list[str], engine: str, **options: Any) -> base_engine.Engine:
    flow = linear_flow.Flow("f").add(task.Map(Charge(done), over="items"))
    return engines.load(flow, engine=engine, store={"items": [1, 2]}, **options)


def cancel_waiting(engine: base_engine.Engine) -> None:
    """Run a flow until it waits, and cancel it."""
    with pytest.raises(exceptions.Cancelled):
        for state in engine.run_iter():
            if state == states.WAITING:
                engine.cancel()


@pytest.mark.parametrize("engine", ["serial", "parallel"])
@pytest.mark.parametrize("suspensions", [0, 1, 2])
def test_items_that_only_waited_are_not_reverted(engine: str, suspensions: int) -> None:
    done: list[str] = []
    run = charges(done, engine)
    for _ in range(suspensions):
        for state in run.run_iter():
            if state == states.WAITING:
                run.suspend()
    cancel_waiting(run)
    assert (run.storage.get_flow_state(), done) == (states.REVERTED, [])


def test_items_that_waited_at_the_death_of_their_engine_are_not_reverted(
    store: base.Backend,
) -> None:
    done: list[str] = []
    dying = charges(done, "serial", backend=store)
    for state in dying.run_iter():
        if state == states.WAITING:
            copy = dying.storage.flow_detail.copy()
            dying.suspend()
    flow = linear_flow.Flow("f").add(task.Map(Charge(done), over="items"))
    later = engines.load(flow, flow_detail=copy)
    cancel_waiting(later)
    record = later.storage.record("charge")
    assert (later.storage.get_flow_state(), done) == (states.REVERTED, [])
    assert not record.incidents


@pytest.mark.parametrize("expires", [60.0, 10.0])
def test_items_expire_after_the_start_of_their_map(expires: float) -> None:
    done: list[str] = []
    copies: list[models.FlowDetail] = []
    for now in (1000.0, 1005.0, 1012.0):
        clock = manual_clock.ManualClock(now)
        only = Charge(done)
        only.expires = expires
        flow = linear_flow.Flow("f").add(task.Map(only, over="items"))
        options = {"flow_detail": copies[-1]} if copies else {"store": {"items": [1, 2]}}
        run = load_at(clock, flow, **options)
        with contextlib.suppress(exceptions.Expired, exceptions.WrappedFailure):
            for state in run.run_iter():
                if state == states.WAITING and now < 1012.0:
                    run.suspend()
        copies.append(run.storage.flow_detail.copy())
    charged = [each for each in done if each.startswith("charge")]
    assert charged == (["charge 1", "charge 2"] if expires == 60.0 else [])


def test_items_after_a_death_wait_only_for_the_rest_of_the_eta(
    store: base.Backend, tmp_path: Path
) -> None:
    clock = manual_clock.ManualClock(1000.0)
    inputs = {"folder": str(tmp_path), "numbers": [1, 2]}
    engine = load_at(clock, delayed_tasks.items(50), backend=store, store=inputs)
    copies = [
        engine.storage.flow_detail.copy()
        for state in engine.run_iter()
        if state == states.WAITING and not conducted.notes(tmp_path)
    ]
    assert clock.time() == 1050.0
    clock = manual_clock.ManualClock(1020.0)
    load_at(clock, delayed_tasks.items(50), flow_detail=copies[0]).run()
    assert (clock.time(), len(noted(tmp_path))) == (1050.0, 4)


def conduct(store: base.Backend, handle: engines.FlowHandle, hook: Callable[[str], None]) -> int:
    """Conduct a flow in a forked process with a hook for crash points. Return its exit code."""
    uri = f"sqlite:///{store.options.url.database}"  # type: ignore[attr-defined]
    pid = os.fork()
    if not pid:
        code = 1
        try:
            crash_points.install(hook)
            with stores.backend(uri) as own_store, conducting(own_store) as (board, _):
                until(lambda: engines.handle(handle.id, backend=own_store).state == states.SUCCESS)
                until(lambda: not board.job_count)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def count_points(folder: Path, kind: str) -> int:
    """Return the number of crash points that a conductor reaches during a flow."""
    with stores.backend(f"sqlite:///{folder}/counted.db") as store:
        handle = submit(store, folder, kind)
        assert conduct(store, handle, lambda name: conducted.note(str(folder), name, "points")) == 0
    return len(conducted.notes(folder, "points"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["task", "step"])
def test_flow_survives_the_death_of_its_conductor_at_each_point(kind: str, tmp_path: Path) -> None:
    count = count_points(tmp_path, kind)
    chance = random.Random(1)
    chosen = sorted(chance.sample(range(1, count + 1), min(count, amount(12, count))))
    ends = []
    for number in chosen:
        left = [number]
        folder = tmp_path / str(number)
        folder.mkdir()

        def die(name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                os._exit(9)

        with stores.backend(f"sqlite:///{folder}/flows.db") as store:
            handle = submit(store, folder, kind)
            ends.append(conduct(store, handle, die))
            with conducting(store):
                handle.result(60)
        names = [name for name, _ in noted(folder)]
        ready = max(at for name, at in noted(folder)[: names.index("late")] if name == "first")
        assert noted(folder)[names.index("late")][1] >= ready + WAIT
        # A task whose result was not stored runs again.
        assert list(dict.fromkeys(names)) == ["first", "late", "last"] and len(names) <= 4
    print(f"\n{kind}: {count} points, {len(chosen)} kills, {ends.count(9)} died")
    assert ends.count(9) == len(chosen)

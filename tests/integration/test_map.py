"""Maps: iterables, items in flight, interruptions and costs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.flows import kinds
from tests.support import map_tasks as tasks
from tests.support.held_tasks import HeldTasks
from tests.support.snapshots import Snapshots
from tests.support.waiting import until
from wbengine import engines, exceptions, states, task
from wbengine._calls import invocation
from wbengine._concurrency import clocks, manual_clock
from wbengine._runtime import run as run_module
from wbengine.engines import base
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence.backends import _memory


@pytest.fixture(params=["serial", "threads"])
def near(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[kinds.Kind]:
    with kinds.kind(request.param, tmp_path, "") as made:
        yield made


def fan(inner: Any, **options: Any) -> task.Map:
    given = {"over": "items", "item": "item", "provides": "results", "name": "m", **options}
    return task.Map(inner, **given)


def flow_of(*atoms: Any, **options: Any) -> Any:
    return linear_flow.Flow("f", **options).add(*atoms)


def states_of(engine: base.Engine, name: str = "m") -> list[str]:
    return [item.state for item in engine.storage.record(name).items or ()]


def run_until_waiting(engine: base.Engine) -> Iterator[str]:
    """Return the iterator of a run whose engine waits for its executor."""
    steps = engine.run_iter()
    while next(steps) != states.WAITING:
        pass
    return steps


def finish(engine: base.Engine, error: type[BaseException]) -> None:
    with pytest.raises(error):
        engine.run()


# -- results ---------------------------------------------------------------------------------


class Boom(task.Task):
    def execute(self) -> None:
        raise RuntimeError("boom")


@pytest.mark.parametrize(
    "value",
    [(1, 2), {1, 2}, frozenset([1, 2]), range(1, 3), {1: "a", 2: "b"}.keys()],
    ids=["tuple", "set", "frozenset", "range", "dict keys"],
)
def test_map_accepts_any_iterable(value: Any) -> None:
    found = engines.run(flow_of(fan(tasks.Square())), store={"items": value})
    assert found["results"] == [1, 4]


def test_iterator_is_stored_as_list_before_map_expands() -> None:
    flow = flow_of(
        fan(tasks.Square(), name="a", provides="a"),
        fan(tasks.Square(), name="b", provides="b"),
        fan(tasks.Square(), over="whole", name="c", provides="c"),
        fan(tasks.Square(), over="part", name="d", provides="d"),
        fan(tasks.Square(), over="part", name="e", provides="e"),
    )
    flow = flow_of(
        task.FunctorTask(lambda: (n for n in [5]), "w", provides="whole"),
        task.FunctorTask(lambda: (0, iter([6])), "p", provides=("_", "part")),
        flow,
    )
    found = engines.run(flow, store={"items": (n for n in [1, 2])})
    assert [found[name] for name in "abcde"] == [[1, 4], [1, 4], [25], [36], [36]]
    assert (found["items"], found["whole"], found["part"]) == ([1, 2], [5], [6])


@pytest.mark.parametrize(
    "value",
    ["abc", b"abc", bytearray(b"a"), {"a": 1}, 7, None, object()],
    ids=["str", "bytes", "bytearray", "dict", "int", "None", "object"],
)
def test_map_over_non_list_value_raises_type_error(value: Any) -> None:
    engine = engines.load(flow_of(fan(tasks.Square())), store={"items": value})
    with pytest.raises(TypeError, match=r"'items', the list of Map 'm', must be a list .* got"):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert engine.storage.record("m").items is None


def test_map_fails_with_exception_of_its_iterator() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        engines.run(flow_of(fan(tasks.Square())), store={"items": broken()})


# -- failures --------------------------------------------------------------------------------


def test_failed_item_stops_pending_items_of_unlimited_map(near: kinds.Kind) -> None:
    """A serial engine runs no item after the failure; in threads, waiting items are withdrawn."""
    ran: list[int] = []
    lock = threading.Lock()
    stop = threading.Event()

    def body(item: int) -> None:
        with lock:
            ran.append(item)
        if item == 3:
            stop.set()
            raise ValueError(item)
        if near.name == "threads" and item > 3:
            stop.wait(60)  # later items wait for the failure
            time.sleep(0.001)  # gives the engine's thread time to run

    count = 3000
    functor = task.FunctorTask(body, "b")
    engine = near.load(flow_of(fan(functor)), store={"items": range(count)})
    finish(engine, ValueError)
    if near.name == "serial":
        assert ran == [0, 1, 2, 3]
    else:
        assert len(ran) < count
    assert engine.storage.get_atom_state("m") == states.REVERTED


def test_stopped_map_leaves_other_tasks_running() -> None:
    executor = HeldTasks(held=True)
    flow = unordered_flow.Flow("f").add(
        fan(tasks.Odd(), over="numbers"), *[Plain(f"p{n}") for n in range(3)]
    )
    engine = engines.load(flow, engine="parallel", executor=executor, store={"numbers": [2, 1, 3]})
    steps = run_until_waiting(engine)
    assert len(executor.waiting) == 6
    executor.release("m[0]")
    while "m[1]" in executor.names or next(steps) != states.WAITING:
        next(steps)
    assert [c.task.name for c in executor.seen if c.action == invocation.REVERT] == ["m[0]"]
    assert sorted(executor.names) == ["m[0]", "p0", "p1", "p2"]
    executor.held = False
    while executor.waiting:
        executor.release()
    with pytest.raises(ValueError, match="2 is even"):
        list(steps)
    assert engine.storage.get_atom_state("p0") == states.REVERTED
    assert states_of(engine) == [states.REVERTED, states.PENDING, states.PENDING]


def test_withdrawn_item_is_not_submitted_again_after_another_failure() -> None:
    """`never_resolve` keeps the failure of `b`, which arrives together with that of an item."""
    executor = HeldTasks(held=True)
    flow = unordered_flow.Flow("f").add(fan(tasks.Odd()), Boom("b"), Plain("p"))
    engine = engines.load(
        flow, engine="parallel", executor=executor, never_resolve=True, store={"items": [2, 1]}
    )
    steps = run_until_waiting(engine)
    executor.release("m[0]")
    executor.release("b")
    with pytest.raises(exceptions.WrappedFailure):
        list(steps)
    assert sorted(c.task.name for c in executor.seen) == ["b", "m[0]", "m[1]", "p"]
    assert engine.storage.get_atom_state("p") == states.PENDING


def test_items_are_submitted_by_priority_of_inner_task() -> None:
    executor = HeldTasks()
    urgent, later = task.FunctorTask(lambda item: 0, "u"), task.FunctorTask(lambda item: 0, "l")
    urgent.priority = 5
    flow = unordered_flow.Flow("f").add(Plain("a"), fan(later, name="l"), Plain("b"))
    flow.add(fan(urgent, name="u"))
    engines.run(flow, engine="parallel", executor=executor, store={"items": ["x"]})
    assert [call.task.name for call in executor.seen] == ["u[0]", "a", "l[0]", "b"]


class Plain(task.Task):
    def execute(self) -> None:
        pass


def test_max_in_flight_holds_and_freed_slots_are_refilled_in_one_batch() -> None:
    executor = HeldTasks(held=True)
    inner = fan(tasks.Square(), max_in_flight=3)
    engine = engines.load(inner, engine="parallel", executor=executor, store={"items": range(8)})
    steps = engine.run_iter()

    def wait() -> None:
        while next(steps) != states.WAITING:
            pass

    wait()
    assert executor.names == ["m[0]", "m[1]", "m[2]"]
    executor.release("m[2]")
    executor.release("m[0]")
    wait()
    assert executor.names == ["m[1]", "m[3]", "m[4]"]
    assert executor.batches == [3, 2]
    executor.held = False
    while executor.waiting:
        executor.release()
    list(steps)
    assert engine.storage.fetch("results") == [n * n for n in range(8)]
    assert [call.index for call in executor.seen] == list(range(8))
    assert {(call.uuid, call.attempt, call.action) for call in executor.seen} == {
        (engine.storage.get_atom_uuid("m"), 1, "execute")
    }


def test_cancelled_run_retries_failed_reversion_of_item(near: kinds.Kind, tmp_path: Path) -> None:
    store = {"items": [0, 1, 2], "folder": str(tmp_path), "stuck": 1}
    engine = near.load(flow_of(fan(tasks.Touch(), max_in_flight=1), tasks.Broken()), store=store)
    with pytest.raises(OSError):
        engine.run()
    engine.storage.inject({"stuck": -1})
    engine.notifier.register(states.RUNNING, lambda *_, **__: engine.cancel())
    with pytest.raises(ValueError):
        engine.run()
    assert tasks.notes(tmp_path)[3:] == ["-2:-2", "-1:-1", "-1:-1", "-0:0"]
    assert engine.storage.get_flow_state() == states.REVERTED
    assert states_of(engine) == [states.REVERTED] * 3


def test_requested_reversion_repeats_failed_reversion_of_item(
    near: kinds.Kind, tmp_path: Path
) -> None:
    store = {"items": [0, 1, 2], "folder": str(tmp_path), "stuck": 1}
    engine = near.load(flow_of(fan(tasks.Touch(), max_in_flight=1), tasks.Broken()), store=store)
    with pytest.raises(OSError):
        engine.run()
    engine.storage.inject({"stuck": -1})
    engine.revert()
    with pytest.raises(ValueError):
        engine.run()
    assert tasks.notes(tmp_path)[3:] == ["-2:-2", "-1:-1", "-1:-1", "-0:0"]
    assert engine.storage.get_flow_state() == states.REVERTED
    record = engine.storage.record("m")
    assert (record.attempt, record.reversions) == (3, 2)


def test_repeated_reversion_of_items_continues_after_any_write(tmp_path: Path) -> None:
    backend = Snapshots()
    store = {"items": [0, 1, 2], "folder": str(tmp_path), "stuck": 1}
    flow = flow_of(fan(tasks.Touch(), max_in_flight=1), tasks.Broken())
    engine = engines.load(flow, store=store, backend=backend)
    with pytest.raises(OSError):
        engine.run()
    engine.storage.inject({"stuck": -1})
    engine.revert()
    backend.taken.clear()
    with pytest.raises(ValueError):
        engine.run()
    unfinished = [left for left in backend.taken if left.state != states.REVERTED]
    assert len(unfinished) >= 3
    for number, left in enumerate(unfinished):
        again = engines.load(flow, flow_detail=left)
        with contextlib.suppress(ValueError, exceptions.WrappedFailure):
            again.run()
        assert states_of(again) == [states.REVERTED] * 3, number


@task.workflow(name="fails-at-once")
async def fails_at_once(steps: Any) -> None:
    raise ValueError("this went wrong")


def test_map_begins_in_the_iteration_in_which_another_task_fails(
    near: kinds.Kind, tmp_path: Path
) -> None:
    flow = unordered_flow.Flow("f").add(fan(tasks.Touch()), fails_at_once())
    store = {"items": [1, 2], "folder": str(tmp_path)}
    engine = near.load(flow, store=store, never_resolve=True)
    with pytest.raises(ValueError, match="this went wrong"):
        engine.run()
    assert engine.storage.get_atom_state("m") == states.PENDING
    assert tasks.notes(tmp_path) == []


# -- interruptions -----------------------------------------------------------------------------


def test_map_without_submitted_items_is_pending_after_suspension() -> None:
    executor = HeldTasks(held=True)
    flow = unordered_flow.Flow("f").add(
        fan(tasks.Square(), name="big"),
        fan(tasks.Square(), over="few", name="small", provides="b"),
    )
    store = {"items": range(run_module.MAX_ATOMS_PER_ITERATION + 1), "few": [1, 2]}
    engine = engines.load(flow, engine="parallel", executor=executor, store=store)
    steps = run_until_waiting(engine)
    assert len(executor.waiting) == run_module.MAX_ATOMS_PER_ITERATION
    engine.suspend()
    assert list(steps)[-1] == states.SUSPENDED
    assert engine.storage.get_atom_state("small") == states.PENDING
    executor.held = False
    engine.run()
    assert engine.storage.fetch("b") == [1, 4]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("policy", ["fail", "collect"])
def test_map_resumed_after_any_write_runs_no_finished_item_again(
    fails: bool, policy: Any, tmp_path: Path
) -> None:
    def flow() -> Any:
        inner = fan(tasks.Touch(), max_in_flight=2, on_item_failure=policy)
        return flow_of(inner, *([tasks.Broken()] if fails else []))

    backend = Snapshots()
    store = {"items": list(range(5)), "folder": str(tmp_path), "bad": 3}
    engine = engines.load(flow(), store=store, backend=backend)
    with contextlib.suppress(ValueError):
        engine.run()
    expected = (engine.storage.get_flow_state(), states_of(engine))
    assert len(backend.taken) >= 5
    for number, left in enumerate(backend.taken):
        if left.state in (states.SUCCESS, states.REVERTED):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        kept = [item for atom in left if atom.name == "m" for item in atom.items or ()]
        done = {item.index for item in kept if item.order}
        again = engines.load(flow(), flow_detail=left)
        again.storage.inject({"folder": str(folder)}, transient=True)
        with contextlib.suppress(ValueError, exceptions.WrappedFailure):
            again.run()
        assert (again.storage.get_flow_state(), states_of(again)) == expected, number
        ran = [int(line[1:]) for line in tasks.notes(folder) if line[0] == "+"]
        assert len(set(ran)) == len(ran) and not set(ran) & done, number


@pytest.mark.parametrize("policy", ["fail", "collect"])
def test_interrupted_item_of_given_up_map_is_reverted(
    near: kinds.Kind, policy: Any, tmp_path: Path
) -> None:
    """The items after it never began."""
    mapped = fan(tasks.Interrupted(), max_in_flight=1, on_item_failure=policy)
    store = {"items": [0, 1, 2, 3], "folder": str(tmp_path), "stuck": 1}
    engine = near.load(flow_of(mapped), store=store)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    with pytest.raises(exceptions.DeadlineExceeded):
        engine.run(deadline=0)
    assert engine.storage.get_flow_state() == states.REVERTED
    assert tasks.notes(tmp_path) == ["+0", "+1", "-1:Failure", "-0:0"]


def test_next_run_continues_detached_items_of_interrupted_run() -> None:
    seen: list[tuple[int, bool]] = []

    class Outside(task.Task):
        detached = True

        async def execute(self, item: int) -> int:
            assert self.request is not None
            seen.append((item, self.request.recovered))
            if len(seen) <= 2:
                await asyncio.sleep(60)
            return item

    engine = engines.load(flow_of(fan(Outside())), engine="parallel", store={"items": [1, 2]})
    steps = run_until_waiting(engine)
    until(lambda: len(seen) == 2)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    engine.run()
    assert seen == [(1, False), (2, False), (1, True), (2, True)]


def test_interrupted_map_is_suspended_and_resumed(tmp_path: Path) -> None:
    mapped = fan(tasks.Touch(), max_in_flight=1)
    engine = engines.load(flow_of(mapped), store={"items": range(5), "folder": str(tmp_path)})

    def interrupt(_: str, details: dict[str, Any]) -> None:
        if details["progress"] == 0.4:
            raise KeyboardInterrupt

    mapped.notifier.register("update_progress", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    mapped.notifier.reset()
    engine.run()
    assert engine.storage.fetch("results") == [0, -1, -2, -3, -4]
    assert tasks.notes(tmp_path) == [f"+{n}" for n in range(5)]


def test_deadline_stops_map_and_reverts_finished_items(near: kinds.Kind, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def body(item: int) -> int:
        tasks.note(folder, f"+{item}")
        clock.advance(1)
        return item

    class ByHand(manual_clock.ManualClock):
        queue = staticmethod(clocks.SYSTEM.queue)  # waiting for a thread advances no time

    clock = ByHand()

    def undo(item: int) -> None:
        tasks.note(folder, f"-{item}")

    functor = task.FunctorTask(body, "b", revert=undo)
    flow = flow_of(fan(functor, max_in_flight=1))
    engine = near.load(flow, store={"items": range(100)}, clock=clock)
    with pytest.raises(exceptions.DeadlineExceeded):
        engine.run(deadline=2.5)
    told = tasks.notes(tmp_path)
    ran = [line[1:] for line in told if line[0] == "+"]
    assert ran == ["0", "1", "2"]
    assert [line[1:] for line in told if line[0] == "-"] == ran[::-1]
    assert engine.storage.get_flow_state() == states.REVERTED


# -- where items run ---------------------------------------------------------------------------


def test_items_of_local_inner_task_run_in_engine_process(tmp_path: Path) -> None:
    threads: list[Any] = []
    functor = task.FunctorTask(lambda item: threads.append(threading.get_ident()), "b")
    functor.local, functor.priority, functor.idempotent = True, 7, True
    functor.version = (3, 1)
    mapped = fan(functor)
    assert (mapped.local, mapped.priority, mapped.idempotent, mapped.version) == (
        True, 7, True, (3, 1),
    )  # fmt: skip
    url = f"memory://{tmp_path.name}"
    engines.run(flow_of(mapped), store={"items": [1, 2]}, engine="worker-based", url=url)
    assert len(threads) == 2


# -- cost --------------------------------------------------------------------------------------


class CountsItems(_memory.MemoryBackend):
    """Backend that counts the items that are written."""

    items = 0

    def get_connection(self) -> _memory.MemoryConnection:
        backend = self

        class Connection(_memory.MemoryConnection):
            def save_changes(self, *told: Any, **more: Any) -> None:
                backend.items += sum(map(len, more.get("items", {}).values()))
                super().save_changes(*told, **more)

        return Connection(self)


@pytest.mark.parametrize("limit", [None, 7])
def test_each_item_is_written_twice_whatever_the_number_of_iterations(limit: int | None) -> None:
    for count in (50, 500):
        backend = CountsItems()
        engine = engines.load(
            flow_of(fan(tasks.Square(), max_in_flight=limit)),
            store={"items": range(count)},
            backend=backend,
        )
        engine.run()
        assert backend.items == 2 * count


def test_unlimited_map_submits_items_in_batches() -> None:
    executor = HeldTasks()
    count = 2 * run_module.MAX_ATOMS_PER_ITERATION + 10
    engine = engines.load(
        fan(tasks.Square()), engine="parallel", executor=executor, store={"items": range(count)}
    )
    engine.run()
    assert max(executor.batches) == run_module.MAX_ATOMS_PER_ITERATION
    assert len(engine.storage.fetch("results")) == count


def test_large_maps_share_the_maximum_size_of_a_batch() -> None:
    executor = HeldTasks()
    count = run_module.MAX_ATOMS_PER_ITERATION - 1000
    maps = [fan(tasks.Square(), name=name, provides=name) for name in ("a", "b")]
    flow = unordered_flow.Flow("f").add(*maps)
    store = {"items": range(count)}
    engine = engines.load(flow, engine="parallel", executor=executor, store=store)
    engine.run()
    assert max(executor.batches) == run_module.MAX_ATOMS_PER_ITERATION
    assert engine.storage.fetch("b") == [n * n for n in range(count)]

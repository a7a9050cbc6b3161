"""Maps on all kinds of engines."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.flows import kinds
from tests.seams.scheduling import set_clock
from tests.support import map_tasks as tasks
from tests.support.held_tasks import HeldTasks
from tests.support.snapshots import Snapshots
from wbengine import engines, exceptions, retry, states, task
from wbengine._calls import invocation
from wbengine._concurrency import clocks
from wbengine._runtime import run as run_module
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import models
from wbengine.persistence.backends import _memory


@pytest.fixture(scope="module", params=kinds.NAMES)
def kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[kinds.Kind]:
    folder = tmp_path_factory.mktemp(request.param)
    with kinds.kind(request.param, folder, tasks.__name__) as made:
        yield made


@pytest.fixture(params=["serial", "threads"])
def near(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[kinds.Kind]:
    with kinds.kind(request.param, tmp_path, "") as made:
        yield made


def fan(inner: Any, **options: Any) -> task.Map:
    given = {"over": "items", "item": "item", "provides": "results", "name": "m", **options}
    return task.Map(inner, **given)


def flow_of(*atoms: Any, **options: Any) -> Any:
    return linear_flow.Flow("f", **options).add(*atoms)


def items_of(engine: base.Engine, name: str = "m") -> models.Items:
    found = engine.storage.record(name).items
    assert found is not None
    return found


def states_of(engine: base.Engine, name: str = "m") -> list[str]:
    return [item.state for item in items_of(engine, name)]


def finish(engine: base.Engine, error: type[BaseException]) -> None:
    with pytest.raises(error):
        engine.run()


# -- results ---------------------------------------------------------------------------------


def test_map_binds_other_arguments_of_inner_task_as_for_any_task(kind: kinds.Kind) -> None:
    flow = flow_of(
        task.FunctorTask(three, "three", provides="three"),
        fan(tasks.Scale("s", rebind={"factor": "three"}), name="a", provides="a"),
        fan(tasks.Scale("s", inject={"factor": 10, "offset": 1}), name="b", provides="b"),
    )
    store = {"items": [1, 2], "offset": 5}
    engine = engines.load(flow, store=store)
    assert kind.load(fan(tasks.Scale()), store={"items": [1], "factor": 2}).run() is None
    engine.run()
    found = engine.storage.fetch_all()
    assert (found["a"], found["b"]) == ([8, 11], [11, 21])
    assert flow.requires == {"items"}


def three() -> int:
    return 3


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


def test_map_runs_functions_and_coroutines(kind: kinds.Kind) -> None:
    engine = kind.load(flow_of(fan(tasks.AsyncSquare())), store={"items": range(5)})
    engine.run()
    assert engine.storage.fetch("results") == [0, 1, 4, 9, 16]
    functor = task.FunctorTask(lambda item: item + 1, "plus")
    assert engines.run(flow_of(fan(functor)), store={"items": [1]})["results"] == [2]


# -- failures --------------------------------------------------------------------------------


def test_collected_failures_are_passed_to_next_task(kind: kinds.Kind) -> None:
    flow = flow_of(
        fan(tasks.Odd(), on_item_failure="collect"), tasks.CountFailures(provides="failed")
    )
    engine = kind.load(flow, store={"items": [1, 2, 4]})
    engine.run()
    assert engine.storage.fetch("failed") == 2


def test_failed_item_fails_map_and_reverts_finished_items(kind: kinds.Kind, tmp_path: Path) -> None:
    store = {"items": [10, 11, 12, 13], "folder": str(tmp_path), "bad": 12}
    engine = kind.load(flow_of(fan(tasks.Touch(), max_in_flight=1)), store=store)
    with pytest.raises(ValueError, match="item 12 is bad"):
        engine.run()
    told = ["+10", "+11", "+12", "-12:Failure", "-11:-11", "-10:-10"]
    assert tasks.notes(tmp_path) == told
    assert states_of(engine) == [*[states.REVERTED] * 3, states.PENDING]
    assert engine.storage.get_revert_result("m") == ["undone 10", "undone 11", "undone 12", None]
    assert engine.storage.get_atom_state("m") == states.REVERTED
    assert engine.storage.record("m").attempt == 2
    assert engine.storage.get_execute_failure("m").check(ValueError)  # type: ignore[union-attr]


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
    steps = engine.run_iter()
    while next(steps) != states.WAITING:
        pass
    assert len(executor.waiting) == 6
    executor.release("m[0]")
    while "m[1]" in executor.names or next(steps) != states.WAITING:
        next(steps)
    assert [c.task.name for c in executor.seen if c.action == invocation.REVERT] == ["m[0]"]
    assert sorted(executor.names) == ["m[0]", "p0", "p1", "p2"]
    executor.held = False
    while executor.waiting:
        executor.release(executor.names[0])
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
    steps = engine.run_iter()
    while next(steps) != states.WAITING:
        pass
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
        executor.release(executor.names[0])
    list(steps)
    assert engine.storage.fetch("results") == [n * n for n in range(8)]
    assert [call.index for call in executor.seen] == list(range(8))
    assert {(call.uuid, call.attempt, call.action) for call in executor.seen} == {
        (engine.storage.get_atom_uuid("m"), 1, "execute")
    }


def test_map_runs_at_most_max_in_flight_items_at_a_time(kind: kinds.Kind) -> None:
    engine = kind.load(flow_of(fan(tasks.Count(), max_in_flight=2)), store={"items": range(20)})
    engine.run()
    assert max(engine.storage.fetch("results")) <= 2


def test_cancelled_run_retries_failed_reversion_of_item(kind: kinds.Kind, tmp_path: Path) -> None:
    store = {"items": [0, 1, 2], "folder": str(tmp_path), "stuck": 1}
    engine = kind.load(flow_of(fan(tasks.Touch(), max_in_flight=1), tasks.Broken()), store=store)
    with pytest.raises(OSError):
        engine.run()
    engine.storage.inject({"stuck": -1})
    engine.notifier.register(states.RUNNING, lambda *_, **__: engine.cancel())
    with pytest.raises(ValueError):
        engine.run()
    assert tasks.notes(tmp_path)[3:] == ["-2:-2", "-1:-1", "-1:-1", "-0:0"]
    assert engine.storage.get_flow_state() == states.REVERTED
    assert states_of(engine) == [states.REVERTED] * 3


def test_retry_expands_map_again_with_current_list(kind: kinds.Kind) -> None:
    controller = retry.Times(2, "r", provides="turn")
    flow = flow_of(
        tasks.Grow("g", provides="items"),
        fan(tasks.Flaky(), max_in_flight=2),
        retry=controller,
    )
    engine = kind.load(flow)
    engine.run()
    assert engine.storage.fetch("results") == [(0, 2), (1, 2), (2, 2), (3, 2)]
    assert items_of(engine).attempt == 3
    assert not engine.storage.has_failures()


def test_decider_receives_results_of_map(near: kinds.Kind) -> None:
    heard: list[Any] = []

    def decider(history: dict[str, Any]) -> bool:
        heard.append(history)
        return False

    mapped, after = fan(tasks.Square()), Plain("after")
    flow = graph_flow.Flow("f").add(mapped, after).link(mapped, after, decider=decider)
    engine = near.load(flow, store={"items": [2, 3]})
    engine.run()
    assert heard == [{"m": [4, 9]}]
    assert engine.storage.get_atom_state("after") == states.IGNORE


def test_failing_decider_fails_map_before_it_expands() -> None:
    def decider(history: Any) -> bool:
        raise LookupError("who?")

    first, mapped = Plain("first"), fan(tasks.Square())
    flow = graph_flow.Flow("f").add(first, mapped).link(first, mapped, decider=decider)
    engine = engines.load(flow, store={"items": [2, 3]})
    finish(engine, LookupError)
    assert engine.storage.record("m").items is None


# -- notifications


def test_listeners_are_notified_of_map_as_one_atom_with_progress(kind: kinds.Kind) -> None:
    mapped = fan(tasks.Square(), max_in_flight=1)
    progress: list[float] = []
    mapped.notifier.register(
        "update_progress", lambda _, details: progress.append(details["progress"])
    )
    engine = kind.load(flow_of(mapped), store={"items": [1, 2, 3, 4]})
    heard: list[Any] = []
    engine.atom_notifier.register("*", lambda state, details: heard.append((state, details)))
    engine.run()
    assert [(state, details["task_name"]) for state, details in heard] == [
        ("RUNNING", "m"),
        ("SUCCESS", "m"),
    ]
    assert heard[1][1]["result"] == [1, 4, 9, 16]
    assert set(heard[1][1]) == {
        "task_name", "task_uuid", "old_state", "attempt", "executions", "reversions", "result",
        "worker", "submitted", "started", "ended", "runtime",
    }  # fmt: skip
    assert progress == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert engine.storage.get_task_progress("m") == 1.0


def test_listeners_of_inner_task_receive_progress_of_each_item(kind: kinds.Kind) -> None:
    inner = tasks.Tell("t")
    heard: list[Any] = []
    inner.notifier.register("update_progress", lambda _, details: heard.append(details["progress"]))
    engine = kind.load(flow_of(fan(inner)), store={"items": [1, 2, 3]})
    engine.run()
    assert heard == [0.5, 0.5, 0.5]
    assert engine.storage.get_task_progress("m") == 1.0


# -- interruptions -----------------------------------------------------------------------------


def test_suspended_map_resumes_with_remaining_items(kind: kinds.Kind, tmp_path: Path) -> None:
    backend = _memory.MemoryBackend()
    store = {"items": list(range(9)), "folder": str(tmp_path)}
    mapped = fan(tasks.Touch(), max_in_flight=2)
    engine = kind.load(flow_of(mapped), store=store, backend=backend)

    def suspend(_: str, details: dict[str, Any]) -> None:
        if 0.3 < details["progress"] < 0.9:
            engine.suspend()

    mapped.notifier.register("update_progress", suspend)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    done = states_of(engine).count(states.SUCCESS)
    assert 3 <= done < 9
    mapped.notifier.reset()

    left = backend.get_connection().get_flow_details(engine.storage.flow_uuid)
    again = kind.load(flow_of(fan(tasks.Touch())), flow_detail=left, backend=backend)
    again.storage.inject({"items": ["another", "list"]}, transient=True)
    again.run()
    assert again.storage.fetch_many()["results"] == [[-n for n in range(9)]]
    assert sorted(tasks.notes(tmp_path)) == sorted(f"+{n}" for n in range(9))
    assert again.storage.record("m").attempt == 1
    # If the ledger records for each item whether it was started, items keep their request ids.
    assert items_of(again).resumed == (0 if kind.remote else 1)
    assert sorted(item.order for item in items_of(again)) == list(range(1, 10))
    kept = backend.get_connection().get_atom_details(again.storage.get_atom_uuid("m"))
    assert kept.items is not None
    assert [i.to_dict() for i in kept.items] == [i.to_dict() for i in items_of(again)]


def test_repeatedly_suspended_map_runs_each_item_once(near: kinds.Kind) -> None:
    ran: list[int] = []

    def body(item: int) -> int:
        ran.append(item)
        engine.suspend()
        return item

    functor = task.FunctorTask(body, "b")
    engine = near.load(flow_of(fan(functor, max_in_flight=1)), store={"items": range(5)})
    runs = 0
    while engine.storage.get_flow_state() != states.SUCCESS:
        engine.run()
        runs += 1
        assert runs < 10
    assert sorted(ran) == list(range(5)) and engine.storage.fetch("results") == list(range(5))
    assert engine.storage.record("m").attempt == 1


def test_map_suspended_before_first_item_resumes_with_all_items() -> None:
    engine = engines.load(flow_of(fan(tasks.Square())), store={"items": [1, 2]})
    engine.atom_notifier.register("RUNNING", lambda *_, **__: engine.suspend())
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert states_of(engine) == [states.PENDING] * 2
    engine.atom_notifier.reset()
    engine.run()
    assert engine.storage.fetch("results") == [1, 4]


def test_map_without_submitted_items_is_pending_after_suspension() -> None:
    executor = HeldTasks(held=True)
    flow = unordered_flow.Flow("f").add(
        fan(tasks.Square(), name="big"),
        fan(tasks.Square(), over="few", name="small", provides="b"),
    )
    store = {"items": range(run_module.MAX_ATOMS_PER_ITERATION + 1), "few": [1, 2]}
    engine = engines.load(flow, engine="parallel", executor=executor, store=store)
    steps = engine.run_iter()
    while next(steps) != states.WAITING:
        pass
    assert len(executor.waiting) == run_module.MAX_ATOMS_PER_ITERATION
    engine.suspend()
    assert list(steps)[-1] == states.SUSPENDED
    assert engine.storage.get_atom_state("small") == states.PENDING
    executor.held = False
    engine.run()
    assert engine.storage.fetch("b") == [1, 4]


def test_suspended_map_is_reverted_with_its_flow(tmp_path: Path) -> None:
    flow = unordered_flow.Flow("f")
    mapped = fan(tasks.Touch(), max_in_flight=1)
    engine = engines.load(
        flow.add(mapped, linear_flow.Flow("g").add(Waiting("w", engine_ready := []), Boom())),
        store={"items": [0, 1, 2], "folder": str(tmp_path)},
    )
    mapped.notifier.register("update_progress", lambda _, details: suspend_at(engine, details))
    engine.run()
    assert engine.storage.get_atom_state("m") == states.RUNNING
    mapped.notifier.reset()
    engine_ready.append(True)
    finish(engine, RuntimeError)
    assert tasks.notes(tmp_path)[-3:] == ["-2:-2", "-1:-1", "-0:0"]
    assert engine.storage.get_atom_state("m") == states.REVERTED


def suspend_at(engine: base.Engine, details: dict[str, Any]) -> None:
    if 0.0 < details["progress"] < 0.5:
        engine.suspend()


class Waiting(task.Task):
    def __init__(self, name: str, ready: list[bool]) -> None:
        super().__init__(name)
        self.ready = ready

    def execute(self) -> None:
        pass


def test_map_suspended_while_reverting_resumes_reversion(kind: kinds.Kind, tmp_path: Path) -> None:
    backend = _memory.MemoryBackend()
    store = {"items": list(range(6)), "folder": str(tmp_path)}
    mapped = fan(tasks.Touch(), max_in_flight=1)
    engine = kind.load(flow_of(mapped, tasks.Broken()), store=store, backend=backend)
    seen: list[str] = []

    def suspend(_: str, details: dict[str, Any]) -> None:
        if engine.storage.get_atom_state("m") == states.REVERTING and details["progress"] > 0.3:
            seen.append("asked")
            engine.suspend()

    mapped.notifier.register("update_progress", suspend)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert seen and engine.storage.get_atom_state("m") == states.REVERTING
    left = backend.get_connection().get_flow_details(engine.storage.flow_uuid)
    again = kind.load(
        flow_of(fan(tasks.Touch(), max_in_flight=1), tasks.Broken()), flow_detail=left
    )
    finish(again, ValueError)
    assert tasks.notes(tmp_path) == [
        *(f"+{n}" for n in range(6)),
        *(f"-{n}:{-n}" for n in range(5, -1, -1)),
    ]
    assert again.storage.get_atom_state("m") == states.REVERTED
    assert again.storage.record("m").attempt == 2


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

    class ByHand(clocks.ManualClock):
        queue = staticmethod(clocks.SYSTEM.queue)  # waiting for a thread advances no time

    clock = ByHand()

    def undo(item: int) -> None:
        tasks.note(folder, f"-{item}")

    functor = task.FunctorTask(body, "b", revert=undo)
    engine = near.load(flow_of(fan(functor, max_in_flight=1)), store={"items": range(100)})
    set_clock(engine, clock)
    with pytest.raises(exceptions.DeadlineExceeded):
        engine.run(deadline=2.5)
    told = tasks.notes(tmp_path)
    ran = [line[1:] for line in told if line[0] == "+"]
    assert ran == ["0", "1", "2"]
    assert [line[1:] for line in told if line[0] == "-"] == ran[::-1]
    assert engine.storage.get_flow_state() == states.REVERTED


def test_reset_map_expands_again_with_next_attempt() -> None:
    engine = engines.load(flow_of(fan(tasks.Square())), store={"items": [1, 2]})
    engine.run()
    engine.reset()
    assert engine.storage.record("m").items is None
    engine.storage.inject({"items": [3]})
    engine.run()
    assert engine.storage.fetch("results") == [9]
    assert items_of(engine).attempt == 2


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


def test_several_maps_share_an_executor(kind: kinds.Kind) -> None:
    flow = unordered_flow.Flow("f").add(
        *[fan(tasks.Square(), name=f"m{n}", provides=f"r{n}", max_in_flight=n) for n in range(1, 5)]
    )
    engine = kind.load(flow, store={"items": range(10)})
    engine.run()
    for n in range(1, 5):
        assert engine.storage.fetch(f"r{n}") == [k * k for k in range(10)]


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

"""Durability levels: when a run is written, and failures of the store."""

from __future__ import annotations

import contextlib
import functools
import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.integration.owned_flows import Step, load_recording_engine, reload_engine, stored_flow
from tests.seams.scheduling import load_at
from tests.support import disks, engine_threads, map_tasks
from tests.support.held_tasks import HeldTasks
from tests.support.waiting import until
from tests.support.workers import worker_in_thread
from wbengine import engines, exceptions, retry, states, task
from wbengine._runtime import saving
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, models
from wbengine.persistence.backends import _memory
from wbengine.testing import Fault, FaultyBackend

LEVELS = saving.LEVELS


class LoggingBackend(_memory.MemoryBackend):
    """Backend that logs the changes it saves."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.log = log

    def get_connection(self) -> _memory.MemoryConnection:
        log = self.log

        class Connection(_memory.MemoryConnection):
            def save_changes(self, flow: Any, atoms: Iterable[Any], **more: Any) -> None:
                found = list(atoms)
                super().save_changes(flow, found, **more)
                told = {atom.name: atom.state for atom in found}
                log.append(("write", told | ({"flow": flow.state} if more["flow_row"] else {})))

        return Connection(self)


def run_logged_flow(durability: str, *, immediate: bool) -> list[Any]:
    """Run a flow of two tasks, and return its writes, starts and notifications in order."""
    log: list[Any] = []
    engine = load_recording_engine(
        linear_flow.Flow("f").add(Step("a"), Step("b")),
        log,
        LoggingBackend(log),
        durability=durability,
    )
    engine.executor.immediate = immediate
    engine.notifier.register(
        "*", lambda state, details: log.append(("tell", details["flow_name"], state))
    )
    engine.atom_notifier.register(
        "*", lambda state, details: log.append(("tell", details["task_name"], state))
    )
    log.clear()
    engine.run()
    assert log.pop() == ("write", {"flow": "SUCCESS"}) if durability != "each" else True
    return [entry for entry in log if entry != "stop"]


@pytest.mark.parametrize("immediate", [False, True])
def test_level_each_writes_before_every_start_and_notification(immediate: bool) -> None:
    assert run_logged_flow("each", immediate=immediate) == [
        ("write", {"flow": "RUNNING"}),
        ("tell", "f", "RUNNING"),
        ("write", {"a": "RUNNING"}),
        ("tell", "a", "RUNNING"),
        ("submit", "a"),
        ("write", {"a": "SUCCESS", "b": "RUNNING"}),
        ("retire", ["a"]),
        ("tell", "a", "SUCCESS"),
        ("tell", "b", "RUNNING"),
        ("submit", "b"),
        ("write", {"b": "SUCCESS"}),
        ("retire", ["b"]),
        ("tell", "b", "SUCCESS"),
        ("write", {"flow": "SUCCESS"}),
        ("tell", "f", "SUCCESS"),
    ]


def test_level_batch_writes_once_per_iteration() -> None:
    """Starts and notifications of an iteration can precede its write. Retirement follows it."""
    assert run_logged_flow("batch", immediate=False) == [
        ("tell", "f", "RUNNING"),
        ("write", {"flow": "RUNNING"}),
        ("tell", "a", "RUNNING"),
        ("submit", "a"),
        ("write", {"a": "RUNNING"}),
        ("tell", "a", "SUCCESS"),
        ("tell", "b", "RUNNING"),
        ("submit", "b"),
        ("write", {"a": "SUCCESS", "b": "RUNNING"}),
        ("retire", ["a"]),
        ("write", {"b": "SUCCESS"}),
        ("retire", ["b"]),
        ("tell", "b", "SUCCESS"),
        ("tell", "f", "SUCCESS"),
    ]


def test_level_batch_writes_immediate_tasks_with_their_results() -> None:
    """An iteration is one write, including the results of its tasks."""
    assert run_logged_flow("batch", immediate=True) == [
        ("tell", "f", "RUNNING"),
        ("write", {"flow": "RUNNING"}),
        ("tell", "a", "RUNNING"),
        ("submit", "a"),
        ("write", {"a": "SUCCESS"}),
        ("retire", ["a"]),
        ("tell", "a", "SUCCESS"),
        ("tell", "b", "RUNNING"),
        ("submit", "b"),
        ("write", {"b": "SUCCESS"}),
        ("retire", ["b"]),
        ("tell", "b", "SUCCESS"),
        ("tell", "f", "SUCCESS"),
    ]


@pytest.mark.parametrize("immediate", [False, True])
def test_level_end_writes_all_results_when_the_flow_ends(immediate: bool) -> None:
    """Tasks are retired after this write."""
    assert run_logged_flow("end", immediate=immediate) == [
        ("tell", "f", "RUNNING"),
        ("write", {"flow": "RUNNING"}),
        ("tell", "a", "RUNNING"),
        ("submit", "a"),
        ("tell", "a", "SUCCESS"),
        ("tell", "b", "RUNNING"),
        ("submit", "b"),
        ("write", {"a": "SUCCESS", "b": "SUCCESS"}),
        ("retire", ["a", "b"]),
        ("tell", "b", "SUCCESS"),
        ("tell", "f", "SUCCESS"),
    ]


@pytest.mark.parametrize("durability", LEVELS)
@pytest.mark.parametrize("way", ["suspended", "failed", "interrupted", "a bug"])
def test_state_is_written_however_the_run_ends(durability: str, way: str) -> None:
    """The next engine resumes after the saved tasks."""
    backend = _memory.MemoryBackend()

    def act() -> str:
        if way == "suspended":
            engine.suspend()
        if way == "failed":
            raise ValueError("no")
        return "done"

    def interrupt(state: str, details: Any) -> None:
        raise KeyboardInterrupt

    steps = [Step("a", act, provides="r"), Step("b")]
    engine: Any = engines.load(
        linear_flow.Flow("f").add(*steps), backend=backend, durability=durability,
        never_resolve=True,
    )  # fmt: skip
    if way == "interrupted":
        engine.atom_notifier.register(states.SUCCESS, interrupt)
    steps_of_run = engine.run_iter()
    with contextlib.suppress(ValueError, KeyboardInterrupt, RuntimeError):
        for state in steps_of_run:
            if way == "a bug" and state == states.ANALYZING:
                steps_of_run.throw(RuntimeError("bug"))
    found = stored_flow(engine, backend)
    (first,) = [atom for atom in found if atom.name == "a"]
    expected = {"suspended": states.SUSPENDED, "interrupted": states.SUSPENDED}
    assert found.state == expected.get(way, states.FAILURE)
    assert first.state == (states.FAILURE if way == "failed" else states.SUCCESS)
    if way != "failed":
        other = [Step("a", provides="r"), Step("b")]
        reload_engine(engine, linear_flow.Flow("f").add(*other), backend).run()
        assert [step.runs for step in other] == [0, 1]


@pytest.mark.parametrize("durability", LEVELS)
def test_atom_record_is_stored_before_its_task_starts(durability: str) -> None:
    """The record contains the identifier of the request."""
    backend = _memory.MemoryBackend()
    seen: list[str] = []

    def look() -> None:
        seen.extend(atom.uuid for atom in stored_flow(engine, backend))

    engine = engines.load(Step("a", look), backend=backend, durability=durability)
    engine.run()
    assert seen == [engine.storage.get_atom_uuid("a")]


def test_wide_flow_writes_each_atom_once_unless_level_is_each() -> None:
    """The write contains the result; the start of the task is not written."""
    rows: dict[str, int] = {}
    for durability in LEVELS:
        log: list[Any] = []
        flow = unordered_flow.Flow("f").add(*[Step(f"t{n}") for n in range(50)])
        engine = engines.load(flow, backend=LoggingBackend(log), durability=durability)
        engine.prepare()
        log.clear()
        engine.run()
        rows[durability] = sum(len(told) for _, told in log)
    # The two other rows are the flow's own row: RUNNING and the final state.
    assert rows == {"each": 102, "batch": 52, "end": 52}


# -- failures of the store --------------------------------------------------------------------


def refuse_once(backend: FaultyBackend, times: int | None) -> tuple[list[Fault], Any]:
    """Return a callback that lets writes fail from its first call on, and the fault after it."""
    faults: list[Fault] = []

    def refuse(*_: Any, **__: Any) -> None:
        if not faults:
            faults.append(backend.fail_next(times, method="save_changes"))

    return faults, refuse


def count_writes(store: FaultyBackend) -> int:
    """Return the number of iterations that were written."""
    return store.writes.count("save_changes")


def flow_with_failures(runs: dict[str, int]) -> Any:
    """Return a flow with a failure, a retry and a Map, which counts executions in `runs`."""

    def step(name: str, until: int = 0) -> Any:
        def execute(turn: int = 9) -> str:
            runs[name] = runs.get(name, 0) + 1
            if turn <= until:
                raise ValueError(name)
            return name

        return task.FunctorTask(execute, name, provides=f"r_{name}")

    inner = linear_flow.Flow("inner", retry.Times(3, "times", provides="turn"))
    inner.add(step("b"), step("c", until=2))
    mapped = task.Map(map_tasks.Square(), name="m", over="numbers", item="item", provides="squares")
    return linear_flow.Flow("f").add(step("a"), inner, mapped, step("d"))


def final_state(engine: Any) -> Any:
    storage = engine.storage
    return storage.get_flow_state(), storage.fetch_all(), {
        atom.name: atom.state for atom in storage.flow_detail
    }  # fmt: skip


@pytest.mark.parametrize("durability", LEVELS)
@pytest.mark.parametrize("same", [True, False], ids=["same engine", "another engine"])
def test_write_that_fails_three_times_ends_the_run(durability: str, same: bool) -> None:
    """For each write that fails, the next run has the right result and repeats no saved task."""

    def load(backend: Any, runs: dict[str, int]) -> Any:
        return engines.load(
            flow_with_failures(runs), {"numbers": [1, 2, 3]}, backend=backend, **options
        )

    options: dict[str, Any] = {"durability": durability}
    backend, once = FaultyBackend(), dict[str, int]()
    engine = load(backend, once)
    before_run = count_writes(backend)
    engine.run()
    expected, writes = final_state(engine), count_writes(backend) - before_run
    assert expected[0] == states.SUCCESS and writes > 2
    for number in range(1, writes + 1):
        backend, runs = FaultyBackend(), dict[str, int]()
        engine = load(backend, runs)
        refused = backend.fail_next(3, skip=number - 1, method="save_changes")
        with pytest.raises(exceptions.StorageFailure, match="save_changes failed as injected"):
            engine.run()
        assert refused.count == 3
        assert engine.storage.get_flow_state() in (states.FAILURE, states.SUCCESS, states.SUSPENDED)
        saved = {atom.name for atom in stored_flow(engine, backend) if atom.state == states.SUCCESS}
        before = dict(runs)
        if not same:
            engine = reload_engine(engine, flow_with_failures(runs), backend, **options)
        engine.run()
        assert final_state(engine) == expected, number
        assert {atom.name: atom.state for atom in stored_flow(engine, backend)} == expected[2], (
            number
        )
        for name in saved & {"a", "d"}:
            assert runs[name] == before[name], (number, name)
        if same:
            assert runs == once, f"what is not saved is still known here, {number}"


@pytest.mark.parametrize("durability", LEVELS)
def test_write_that_fails_twice_is_retried(durability: str) -> None:
    backend = FaultyBackend()
    runs: dict[str, int] = {}
    engine = engines.load(
        flow_with_failures(runs), {"numbers": [1]}, backend=backend, durability=durability
    )
    for skip in (0, 1):  # two of three writes fail
        backend.fail_next(None, every=3, skip=skip, method="save_changes")
    engine.run()
    assert engine.storage.get_flow_state() == stored_flow(engine, backend).state == states.SUCCESS


@pytest.mark.parametrize("durability", LEVELS)
def test_storage_failure_disowns_requests_without_retiring_them(durability: str) -> None:
    """The executor keeps its requests for the next run, which reads the store."""
    log: list[Any] = []
    backend = FaultyBackend()
    flow = linear_flow.Flow("f").add(Step("a"), Step("b"))
    engine = load_recording_engine(flow, log, backend, durability=durability)
    faults, refuse = refuse_once(backend, None)
    engine.executor.after = refuse  # called after the first task
    with pytest.raises(exceptions.StorageFailure):
        engine.run()
    assert 3 <= faults[0].count <= 4, "no second round"
    assert log[-2:] == ["disown", "stop"] and "withdraw" not in log and "finish" not in log
    assert not any(entry[0] == "retire" for entry in log)
    assert engine.storage.get_flow_state() == states.FAILURE
    backend.heal()
    log.clear()
    engine.executor.after = None  # type: ignore[attr-defined]
    engine.run()
    assert engine.storage.readings == 1
    assert engine.storage.get_flow_state() == stored_flow(engine, backend).state == states.SUCCESS


@pytest.mark.parametrize("durability", LEVELS)
def test_tasks_done_by_workers_are_not_repeated_after_failed_write(
    durability: str, tmp_path: Path
) -> None:
    """For each write that fails, the next run finds the results in the ledger."""
    url = f"memory://{tmp_path.name}"
    options: dict[str, Any] = {"engine": "worker-based", "url": url, "durability": durability}

    def load(name: str) -> Any:
        folder = tmp_path / name
        folder.mkdir()
        backend = FaultyBackend()
        steps = [
            map_tasks.Touch(name, rebind={"item": name}, provides=f"r{name}") for name in "xyz"
        ]
        flow = linear_flow.Flow("f").add(unordered_flow.Flow("wide").add(*steps[:2]), steps[2])
        store = {"x": 1, "y": 2, "z": 3, "folder": str(folder)}
        engine: Any = engines.load(flow, store, backend=backend, **options)
        return engine, backend, folder

    with worker_in_thread(url, map_tasks, threads_count=2):
        engine, backend, folder = load("whole")
        before = count_writes(backend)
        engine.run()
        expected, failed = final_state(engine), 0
        for number in range(count_writes(backend) - before):
            engine, backend, folder = load(str(number))
            backend.fail_next(3, skip=number, method="save_changes")
            # Results that arrive together are one write, so the number of writes varies.
            try:
                engine.run()
            except exceptions.StorageFailure:
                failed += 1
                engine.run()
            assert final_state(engine)[0::2] == expected[0::2], number
            assert sorted(map_tasks.notes(folder)) == ["+1", "+2", "+3"], number
            assert stored_flow(engine, backend).state == states.SUCCESS
    assert failed > 1


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_unreachable_store_is_tried_at_most_five_times_per_run(kind: str) -> None:
    """Three tries of one write, one try for later results, one for the end of the run."""
    backend = FaultyBackend()
    engine: Any = engines.load(
        linear_flow.Flow("f").add(Step("a"), Step("b")), backend=backend, engine=kind
    )
    faults, refuse = refuse_once(backend, None)
    engine.atom_notifier.register(states.RUNNING, refuse)
    with pytest.raises(exceptions.StorageFailure, match="save_changes failed as injected"):
        engine.run()
    assert 3 <= faults[0].count <= 5
    assert engine.storage.get_atom_state("a") == states.SUCCESS
    engine.atom_notifier.deregister(states.RUNNING, refuse)
    backend.heal()
    engine.run()
    assert stored_flow(engine, backend).state == states.SUCCESS
    assert engine.storage.get_attempt("a").attempt == 1, "what ended was not lost"


def test_running_tasks_are_saved_if_the_store_recovers() -> None:
    """When all tasks have ended, the engine tries the write once more."""
    backend = FaultyBackend()
    steps = [Step(name) for name in "abc"]
    last = Step("last")
    flow = linear_flow.Flow("f").add(unordered_flow.Flow("wide").add(*steps), last)
    engine: Any = engines.load(flow, backend=backend, engine="parallel", max_workers=1)
    engine.atom_notifier.register(states.SUCCESS, refuse_once(backend, 3)[1])
    with pytest.raises(exceptions.StorageFailure):
        engine.run()
    found = {atom.name: atom.state for atom in stored_flow(engine, backend)}
    assert stored_flow(engine, backend).state == states.FAILURE
    ran = {step.name for step in [*steps, last] if step.runs}
    assert ran and {name for name, state in found.items() if state == states.SUCCESS} == ran


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Path of a small file system."""
    with disks.small_disk(tmp_path / "small", "2m") as path:
        yield path


@pytest.mark.parametrize("kind", ["dir", "sqlite"])
@pytest.mark.parametrize("durability", LEVELS)
def test_full_disk_fails_the_run_and_flow_resumes_with_free_space(
    kind: str, durability: str, full_disk: Path
) -> None:
    """The error names the cause."""
    uri = f"dir://{full_disk / 'store'}" if kind == "dir" else f"sqlite:///{full_disk / 'store.db'}"
    ballast = full_disk / "ballast"

    def fill() -> str:
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        return "x" * 50000

    first, second = Step("a", fill, provides="r"), Step("b")
    with backends.backend(uri) as backend:
        flow = linear_flow.Flow("f").add(first, second)
        backend.write_pause = 0.0
        engine: Any = engines.load(flow, backend=backend, durability=durability)
        with pytest.raises(exceptions.StorageFailure, match=r"(?i)space|full"):
            engine.run()
        ballast.unlink()
        flow = linear_flow.Flow("f").add(Step("a", lambda: "y", provides="r"), Step("b"))
        other = reload_engine(engine, flow, backend, on_busy="wait")
        other.run(deadline=100)
        assert stored_flow(engine, backend).state == states.SUCCESS
        assert other.storage.fetch("r") in ("y", "x" * 50000)


@pytest.mark.parametrize("engine_kind", ["serial", "parallel"])
@pytest.mark.parametrize("durability", LEVELS)
def test_results_above_the_maximum_size_of_the_store_fail_the_flow(
    durability: str, engine_kind: str, tmp_path: Path
) -> None:
    """The store contains the reason. After a change of the size, the next run repeats the tasks."""
    limits = [100_000]

    def set_limit(driver: sqlite3.Connection, record: Any) -> None:
        driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits[-1])

    sizes = {"a": 10, "b": 300_000, "c": 200_000, "d": 10}
    names: list[str] = []

    def large(name: str) -> Step:
        def execute() -> str:
            names.append(name)
            return "x" * sizes[name]

        return Step(name, execute, provides=f"r_{name}")

    def made() -> Any:
        wide = unordered_flow.Flow("wide").add(large("b"), large("c"))
        return linear_flow.Flow("f").add(large("a"), wide, large("d"))

    with backends.backend(f"sqlite:///{tmp_path / 'store.db'}") as backend:
        sa.event.listen(backend.engine, "connect", set_limit)
        backend.close()
        backend.write_pause = math.inf  # Fails: a repetition has the same result.
        engine: Any = engines.load(
            made(), backend=backend, durability=durability, engine=engine_kind
        )
        with pytest.raises(exceptions.RecordTooLarge, match="too big"):
            engine.run()
        with backend.get_connection() as connection:
            (flow,) = connection.list_flows().flows
        assert flow.state == states.FAILURE and "too big" in str(flow.error)
        limits.append(10_000_000)
        backend.close()
        other = reload_engine(engine, made(), backend)
        other.run()
        for name, size in sizes.items():
            assert other.storage.fetch(f"r_{name}") == "x" * size
    assert Counter(names) >= Counter("abcd") and names.count("d") == 1


@pytest.mark.parametrize("durability", LEVELS)
@pytest.mark.parametrize("kind", ["dir", "sqlite"])
def test_transient_values_are_never_written_to_the_store(
    kind: str, durability: str, tmp_path: Path
) -> None:
    """No file of the store contains the value, also if another engine injects it."""
    secret, stays = "s3cr3t-v4lue", "pers1stent-v4lue"
    uri = f"dir://{tmp_path / 'store'}" if kind == "dir" else f"sqlite:///{tmp_path / 'store.db'}"
    with backends.backend(uri) as backend:

        def check(password: str, token: str, stays: str) -> int:
            other = reload_engine(engine, line, backend)
            other.storage.inject({"password": secret}, transient=True)
            engine.storage.inject({"more": 1})
            return len(password) + len(token) + len(stays)

        line = task.FunctorTask(check, "t", provides="n", inject={"token": secret})
        engine = engines.load(line, backend=backend, durability=durability)
        engine.storage.inject({"password": secret}, transient=True)
        engine.storage.inject({"stays": stays})
        engine.run()
        assert engine.storage.fetch("n") == 2 * len(secret) + len(stays)
    found = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert stays.encode() in found and secret.encode() not in found


def test_long_serial_iteration_is_written_in_several_batches() -> None:
    """Level 'each' writes often, 'batch' seldom, 'end' only at the end."""
    from wbengine._concurrency import manual_clock

    found = {}
    for durability in LEVELS:
        clock = manual_clock.ManualClock()
        log: list[Any] = []
        wait = functools.partial(clock.advance, 0.1)
        flow = unordered_flow.Flow("f").add(*[Step(f"t{n:02}", wait) for n in range(30)])
        engine = load_at(clock, flow, backend=LoggingBackend(log), durability=durability)
        engine.prepare()
        log.clear()
        engine.run()
        found[durability] = len([told for _, told in log if states.SUCCESS in told.values()])
    assert found["each"] >= 15 > found["batch"] >= 3 and found["end"] <= 2


@pytest.mark.parametrize("durability", saving.LEVELS)
def test_items_of_continued_map_are_stored_before_they_are_sent(
    durability: str,
) -> None:
    """If this run dies, the next one looks up their results, and does not wait for new ones."""
    executor = HeldTasks(held=True)
    executor.survives_engine = executor.has_ledger = True
    flow = linear_flow.Flow("f").add(
        task.Map(map_tasks.Square(), over="numbers", item="item", name="m", max_in_flight=1)
    )
    store: dict[str, Any] = {"numbers": [1, 2, 3]}
    options: dict[str, Any] = {"engine": "parallel", "executor": executor}
    with backends.backend("memory://") as backend:
        first = engine_threads.Running(engines.load(flow, backend=backend, store=store, **options))
        first.start()
        until(lambda: executor.batches)
        first.engine.suspend()
        assert first.end() == states.SUSPENDED
        assert not stored_items(backend, first.engine.storage.flow_uuid).in_flight
        options |= {"flow_detail": first.engine.storage.flow_detail, "durability": durability}
        later = engine_threads.Running(engines.load(flow, backend=backend, **options))
        executor.batches.clear()
        later.start()
        until(lambda: executor.batches)
        assert stored_items(backend, first.engine.storage.flow_uuid).in_flight
        executor.held = False
        executor.release()
        assert later.end() == states.SUCCESS


def stored_items(backend: Any, flow_uuid: str) -> models.Items:
    with contextlib.closing(backend.get_connection()) as connection:
        atoms = {atom.name: atom for atom in connection.get_flow_details(flow_uuid)}
    items: models.Items = atoms["m"].items
    return items

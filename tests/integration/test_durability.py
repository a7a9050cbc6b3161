"""When a run is written, what may be ahead of that, and what it does when the store fails."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.owned_flows import Step, again, kept, made
from tests.support import disks, map_tasks
from tests.support.workers import worker_in_thread
from wbengine import engines, exceptions, retry, states, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends
from wbengine.persistence.backends import memory
from wbengine.runtime import saving
from wbengine.testing import Fault, FaultyBackend

LEVELS = saving.LEVELS


class Writing(memory.MemoryBackend):
    """Writes down what it is given to keep."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.log = log

    def get_connection(self) -> memory.MemoryConnection:
        log = self.log

        class Connection(memory.MemoryConnection):
            def save_changes(self, flow: Any, atoms: Iterable[Any], **more: Any) -> None:
                found = list(atoms)
                super().save_changes(flow, found, **more)
                told = {atom.name: atom.state for atom in found}
                log.append(("write", told | ({"flow": flow.state} if more["flow_row"] else {})))

        return Connection(self)


def logged(durability: str, *, immediate: bool) -> list[Any]:
    """What is written, started, told and let go of, in this order, by a flow of two tasks."""
    log: list[Any] = []
    engine = made(
        linear_flow.Flow("f").add(Step("a"), Step("b")), log, Writing(log), durability=durability
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
def test_each(immediate: bool) -> None:
    """Nothing is started, told or let go of before what led to it is written."""
    assert logged("each", immediate=immediate) == [
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


def test_batch() -> None:
    """What a turn started and told may be ahead; what ended is let go of after it is written."""
    assert logged("batch", immediate=False) == [
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


def test_batch_where_tasks_run_at_once() -> None:
    """A turn is one write, with what its tasks came to."""
    assert logged("batch", immediate=True) == [
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
def test_end(immediate: bool) -> None:
    """One write when all is over; only then anything is let go of."""
    assert logged("end", immediate=immediate) == [
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
def test_whatever_ends_a_run_it_is_written(durability: str, way: str) -> None:
    """The next engine goes on from there."""
    backend = memory.MemoryBackend()

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
    found = kept(engine, backend)
    (first,) = [atom for atom in found if atom.name == "a"]
    expected = {"suspended": states.SUSPENDED, "interrupted": states.SUSPENDED}
    assert found.state == expected.get(way, states.FAILURE)
    assert first.state == (states.FAILURE if way == "failed" else states.SUCCESS)
    if way != "failed":
        other = [Step("a", provides="r"), Step("b")]
        again(engine, linear_flow.Flow("f").add(*other), backend).run()
        assert [step.runs for step in other] == [0, 1]


@pytest.mark.parametrize("durability", LEVELS)
def test_what_runs_elsewhere_can_be_told_by_its_record(durability: str) -> None:
    """Before anything is started, the records that name it are in the store."""
    backend = memory.MemoryBackend()
    seen: list[str] = []

    def look() -> None:
        seen.extend(atom.uuid for atom in kept(engine, backend))

    engine = engines.load(Step("a", look), backend=backend, durability=durability)
    engine.run()
    assert seen == [engine.storage.get_atom_uuid("a")]


def test_a_wide_flow_is_written_once_where_batch_will_do() -> None:
    """Each atom once, with its result; not when it begins."""
    rows: dict[str, int] = {}
    for durability in LEVELS:
        log: list[Any] = []
        flow = unordered_flow.Flow("f").add(*[Step(f"t{n}") for n in range(50)])
        engine = engines.load(flow, backend=Writing(log), durability=durability)
        engine.prepare()
        log.clear()
        engine.run()
        rows[durability] = sum(len(told) for _, told in log)
    # Besides them the flow's own row: RUNNING and the end.
    assert rows == {"each": 102, "batch": 52, "end": 52}


# -- when the store fails ----------------------------------------------------------------------


def turns(store: FaultyBackend) -> int:
    """How many turns were to be written."""
    return store.writes.count("save_changes")


def eventful(runs: dict[str, int]) -> Any:
    """Failures, retries, reverts, a Map and an ignored branch; counts who ran to an end."""

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


def finished(engine: Any) -> Any:
    storage = engine.storage
    return storage.get_flow_state(), storage.fetch_all(), {
        atom.name: atom.state for atom in storage.flow_detail
    }  # fmt: skip


@pytest.mark.parametrize("durability", LEVELS)
@pytest.mark.parametrize("same", [True, False], ids=["same engine", "another engine"])
def test_a_write_that_fails_three_times_ends_the_run(durability: str, same: bool) -> None:
    """At whichever number: the next run ends right, and what was saved does not run again."""

    def load(backend: Any, runs: dict[str, int]) -> Any:
        return engines.load(eventful(runs), {"numbers": [1, 2, 3]}, backend=backend, **options)

    options: dict[str, Any] = {"durability": durability}
    backend, once = FaultyBackend(), dict[str, int]()
    engine = load(backend, once)
    before_run = turns(backend)
    engine.run()
    expected, writes = finished(engine), turns(backend) - before_run
    assert expected[0] == states.SUCCESS and writes > 2
    for number in range(1, writes + 1):
        backend, runs = FaultyBackend(), dict[str, int]()
        engine = load(backend, runs)
        refused = backend.fail_next(3, skip=number - 1, method="save_changes")
        with pytest.raises(exceptions.StorageFailure, match="save_changes was refused"):
            engine.run()
        assert refused.count == 3
        assert engine.storage.get_flow_state() in (states.FAILURE, states.SUCCESS, states.SUSPENDED)
        saved = {atom.name for atom in kept(engine, backend) if atom.state == states.SUCCESS}
        before = dict(runs)
        if not same:
            engine = again(engine, eventful(runs), backend, **options)
        engine.run()
        assert finished(engine) == expected, number
        assert {atom.name: atom.state for atom in kept(engine, backend)} == expected[2], number
        for name in saved & {"a", "d"}:
            assert runs[name] == before[name], (number, name)
        if same:
            assert runs == once, f"what is not saved is still known here, {number}"


@pytest.mark.parametrize("durability", LEVELS)
def test_a_write_that_fails_once_or_twice_is_tried_again(durability: str) -> None:
    """Nobody notices."""
    backend = FaultyBackend()
    runs: dict[str, int] = {}
    engine = engines.load(eventful(runs), {"numbers": [1]}, backend=backend, durability=durability)
    for skip in (0, 1):  # two in a row, of three
        backend.fail_next(None, every=3, skip=skip, method="save_changes")
    engine.run()
    assert engine.storage.get_flow_state() == kept(engine, backend).state == states.SUCCESS


@pytest.mark.parametrize("durability", LEVELS)
def test_where_others_remember_what_ran_nothing_is_let_go_of(durability: str) -> None:
    """The executor is left as it is; the next run reads the store, and asks there."""
    log: list[Any] = []
    backend = FaultyBackend()
    flow = linear_flow.Flow("f").add(Step("a"), Step("b"))
    engine = made(flow, log, backend, durability=durability)
    faults: list[Fault] = []

    def refuse() -> None:
        if not faults:
            faults.append(backend.fail_next(None, method="save_changes"))

    engine.executor.after = refuse  # when the first task ended
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
    assert engine.storage.get_flow_state() == kept(engine, backend).state == states.SUCCESS


@pytest.mark.parametrize("durability", LEVELS)
def test_what_workers_did_meanwhile_is_not_done_again(durability: str, tmp_path: Path) -> None:
    """Whatever write fails: the next run finds in the ledger what ended."""
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
        before = turns(backend)
        engine.run()
        expected, failed = finished(engine), 0
        for number in range(turns(backend) - before):
            engine, backend, folder = load(str(number))
            backend.fail_next(3, skip=number, method="save_changes")
            # What arrives together is one write: sometimes there are fewer.
            try:
                engine.run()
            except exceptions.StorageFailure:
                failed += 1
                engine.run()
            assert finished(engine)[0::2] == expected[0::2], number
            assert sorted(map_tasks.notes(folder)) == ["+1", "+2", "+3"], number
            assert kept(engine, backend).state == states.SUCCESS
    assert failed > 1


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_a_store_that_stays_away_is_not_waited_for_again_and_again(kind: str) -> None:
    """Three tries, then one for what ended meanwhile, and one for the end of the run."""
    backend = FaultyBackend()
    engine: Any = engines.load(
        linear_flow.Flow("f").add(Step("a"), Step("b")), backend=backend, engine=kind
    )

    faults: list[Fault] = []

    def refuse(state: str, details: Any) -> None:
        if not faults:
            faults.append(backend.fail_next(None, method="save_changes"))

    engine.atom_notifier.register(states.RUNNING, refuse)
    with pytest.raises(exceptions.StorageFailure, match="save_changes was refused"):
        engine.run()
    assert 3 <= faults[0].count <= 5
    assert engine.storage.get_atom_state("a") == states.SUCCESS
    engine.atom_notifier.deregister(states.RUNNING, refuse)
    backend.heal()
    engine.run()
    assert kept(engine, backend).state == states.SUCCESS
    assert engine.storage.get_attempt("a").attempt == 1, "what ended was not lost"


def test_the_tasks_of_threads_end_and_are_saved_if_that_works_again() -> None:
    """After a failure of the store there is one more try, when all have ended."""
    backend = FaultyBackend()
    steps = [Step(name) for name in "abc"]
    last = Step("last")
    flow = linear_flow.Flow("f").add(unordered_flow.Flow("wide").add(*steps), last)
    engine: Any = engines.load(flow, backend=backend, engine="parallel", max_workers=1)

    faults: list[Fault] = []

    def refuse(state: str, details: Any) -> None:
        if not faults:
            faults.append(backend.fail_next(3, method="save_changes"))

    engine.atom_notifier.register(states.SUCCESS, refuse)
    with pytest.raises(exceptions.StorageFailure):
        engine.run()
    found = {atom.name: atom.state for atom in kept(engine, backend)}
    assert kept(engine, backend).state == states.FAILURE
    ran = {step.name for step in [*steps, last] if step.runs}
    assert ran and {name for name, state in found.items() if state == states.SUCCESS} == ran


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system that is soon full."""
    with disks.small_disk(tmp_path / "small", "2m") as path:
        yield path


@pytest.mark.parametrize("kind", ["dir", "sqlite"])
@pytest.mark.parametrize("durability", LEVELS)
def test_a_disk_that_is_full(kind: str, durability: str, small: Path) -> None:
    """A clear error; when there is room again the flow goes on."""
    uri = f"dir://{small / 'store'}" if kind == "dir" else f"sqlite:///{small / 'store.db'}"
    ballast = small / "ballast"

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
        other = again(engine, flow, backend, on_busy="wait")
        other.run(deadline=100)
        assert kept(engine, backend).state == states.SUCCESS
        assert other.storage.fetch("r") in ("y", "x" * 50000)


@pytest.mark.parametrize("durability", LEVELS)
@pytest.mark.parametrize("kind", ["dir", "sqlite"])
def test_what_is_transient_never_reaches_the_store(
    kind: str, durability: str, tmp_path: Path
) -> None:
    """No file of it holds the value, however the run ends, while another runs, and after."""
    secret, stays = "s3cr3t-v4lue", "pers1stent-v4lue"
    uri = f"dir://{tmp_path / 'store'}" if kind == "dir" else f"sqlite:///{tmp_path / 'store.db'}"
    with backends.backend(uri) as backend:

        def check(password: str, token: str, stays: str) -> int:
            other = again(engine, line, backend)
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


def test_serial_tasks_that_take_long_are_written_in_pieces() -> None:
    """Often where each counts, seldom where the turn does, never where only the end does."""
    from wbengine import _clock

    found = {}
    for durability in LEVELS:
        clock = _clock.ManualClock()
        log: list[Any] = []
        wait = functools.partial(clock.advance, 0.1)
        flow = unordered_flow.Flow("f").add(*[Step(f"t{n:02}", wait) for n in range(30)])
        engine: Any = engines.load(flow, backend=Writing(log), durability=durability)
        engine._clock = clock
        engine.prepare()
        log.clear()
        engine.run()
        found[durability] = len([told for _, told in log if states.SUCCESS in told.values()])
    assert found["each"] >= 15 > found["batch"] >= 3 and found["end"] <= 2

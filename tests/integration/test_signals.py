"""Tasks that wait for signals."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seams.scheduling import load_at
from tests.support import engine_threads, signalled
from tests.support.fresh import process
from tests.support.reading import read_flow
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states, task
from wbengine._concurrency import manual_clock
from wbengine.engines import _submission
from wbengine.engines import base as engine_base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import _lease_renewer, backends, base
from wbengine.signals import Signal
from wbengine.views import _shown_states
from wbengine.views import flow_status as views

LINE = linear_flow.Flow


class Step(task.Task):
    def execute(self) -> str:
        return self.name


class Use(task.Task):
    def execute(self, approval: Any) -> Any:
        return ("used", approval)


class Spoils(task.Task):
    def execute(self) -> None:
        raise LookupError("spoilt")


STORES = ["none", "memory", "sqlite"]


@pytest.fixture(params=STORES)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[base.Backend | None]:
    if request.param == "none":
        yield None
        return
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/flows.db"
    with backends.backend(url) as store:
        yield store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        yield backend


class Running(engine_threads.Running):
    """Running engine that is started at once."""

    def __init__(self, engine: engine_base.Engine) -> None:
        super().__init__(engine)
        self.start()

    def state_of(self, name: str) -> Any:
        return self.engine.storage.get_atom_state(name)

    def waits(self, name: str = "wait-for-approved") -> Running:
        until(lambda: self.engine.storage.get_flow_state() == states.RUNNING)
        until(lambda: self.state_of(name) == states.RUNNING)
        return self


def approval(**options: Any) -> task.WaitFor:
    return task.WaitFor("approved", provides="approval", **options)


def line(**options: Any) -> linear_flow.Flow:
    return LINE("f").add(Step("first"), approval(**options), Use("use", provides="found"))


def resume_engine(before: engine_base.Engine, flow: Any, store: base.Backend, **more: Any) -> Any:
    detail = read_flow(store, before.storage.flow_uuid)
    return engines.load(flow, flow_detail=detail, backend=store, **more)


def test_first_signal_is_used_by_all_waiting_tasks(backend: base.Backend | None) -> None:
    flow = graph_flow.Flow("f").add(
        task.WaitFor("s", provides="one", name="w1"), task.WaitFor("s", provides="two", name="w2")
    )
    engine = engines.load(flow, backend=backend)
    engine.signal("s", 1)
    with pytest.raises(exceptions.Duplicate, match="already has signal 's'"):
        engine.signal("s", 2)
    with pytest.raises(exceptions.NotFound, match="Flow 'f' has no task that waits for signal 'S'"):
        engine.signal("S", 2)
    with pytest.raises(exceptions.NotEncodable, match="signal 's'"):
        engine.signal("s", object())
    engine.run()
    assert (engine.storage.fetch("one"), engine.storage.fetch("two")) == (1, 1)


def test_signal_in_same_process_is_received_without_polling(
    store: base.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender uses another backend object of the same store, and polling is disabled."""
    monkeypatch.setattr(_lease_renewer, "POLL_SECONDS", 10_000.0)
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as other:
        run = Running(engines.load(line(), backend=store)).waits()
        operations.signal(other, run.engine.storage.flow_uuid, "approved", 1)
        assert run.end() == states.SUCCESS


def test_signal_from_another_process_is_received_by_polling(
    store: base.Backend,
) -> None:
    run = Running(engines.load(line(), backend=store)).waits()
    with store.get_connection() as connection:
        connection.send_signal(run.engine.storage.flow_uuid, Signal.of("approved", 1, time.time()))
    assert run.end() == states.SUCCESS


# -- flows that accept any signal


def test_signals_of_one_name_are_numbered_in_order(backend: base.Backend | None) -> None:
    engine = engines.load(signalled.ticks(), backend=backend)
    assert [engine.signal("tick", value) for value in "ab"] == [1, 2]
    assert engine.signal("tock") == 1
    run = Running(engine).waits("tick 3")
    assert engine.signal("tick", "c") == 3
    assert run.end() == states.SUCCESS
    assert [engine.storage.fetch(f"value {number}") for number in (1, 2, 3)] == ["a", "b", "c"]
    with pytest.raises(exceptions.InvalidState, match="has ended in SUCCESS"):
        engine.signal("tick", "d")


def test_signals_from_threads_get_different_numbers(backend: base.Backend | None) -> None:
    engine = engines.load(signalled.ticks(20), backend=backend)
    start, sent = threading.Barrier(4), dict[int, int]()

    def send(first: int) -> None:
        start.wait(60)
        for value in range(first, first + 5):
            sent[engine.signal("tick", value)] = value

    engine.compile()
    threads = [threading.Thread(target=send, args=(first,)) for first in (0, 5, 10, 15)]
    for thread in threads:
        thread.start()
    run = Running(engine)
    for thread in threads:
        thread.join(60)
    assert run.end() == states.SUCCESS
    assert sorted(sent) == list(range(1, 21)) and sorted(sent.values()) == list(range(20))
    assert sent == {number: engine.storage.fetch(f"value {number}") for number in sent}


def test_too_long_name_takes_no_number_of_a_signal() -> None:
    engine = engines.load(signalled.ticks())
    name = "x" * 254
    assert engine.signal(name) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match=r"number 2 must have at most 253 characters"):
            engine.signal(name)


def test_signals_from_other_processes_are_received_in_order(store: base.Backend) -> None:
    engine = engines.load(signalled.ticks(), backend=store)
    run = Running(engine).waits("tick 3")
    uuid = engine.storage.flow_uuid
    handle = _submission.handle(uuid, backend=store)
    assert operations.signal(store, uuid, "tick", "a") == 1
    assert handle.signal("tick", "b") == 2
    assert operations.signal(store, uuid, "tick", "c") == 3
    assert run.end() == states.SUCCESS
    assert [engine.storage.fetch(f"value {number}") for number in (1, 2, 3)] == ["a", "b", "c"]


def test_signals_are_numbered_before_the_first_start(store: base.Backend) -> None:
    """Only the engine knows then whether the flow has a workflow."""
    engine = engines.load(signalled.ticks(2), backend=store)
    uuid = engine.storage.flow_uuid
    assert operations.signal(store, uuid, "tick", "a") == 1
    assert operations.signal(store, uuid, "tick", "b") == 2
    assert engine.signal("tick", "c") == 3
    engine.run()
    assert [engine.storage.fetch(f"value {number}") for number in (1, 2)] == ["a", "b"]


def test_strict_signal_is_refused_unless_it_is_awaited(store: base.Backend) -> None:
    engine = engines.load(signalled.order, backend=store)
    uuid = engine.storage.flow_uuid

    def refusal(name: str) -> str:
        with pytest.raises(exceptions.NotFound) as raised:
            operations.signal(store, uuid, name, strict=True)
        return str(raised.value)

    assert "no signal is awaited" in refusal("approved")  # it never ran
    with engine_threads.Running(engine):
        until(lambda: engine.storage.flow_detail.waits_for)
        assert "(did you mean 'approved'?); awaited signals: approved" in refusal("aproved")
        assert "nothing waits for signal 'paid' now" in refusal("paid")
        assert operations.signal(store, uuid, "aproved") == 1
        assert operations.signal(store, uuid, "approved", strict=True) == 1
        with contextlib.closing(store.get_connection()) as connection:
            until(lambda: connection.awaited_signals(uuid) == ["paid or cancelled"])
        assert "awaited signals: paid or cancelled" in refusal("approved")
        assert operations.signal(store, uuid, "cancelled", strict=True) == 1
    assert engine.storage.fetch("result") == (None, ("cancelled", None))


def test_strict_signal_of_a_complete_wait_is_refused(store: base.Backend) -> None:
    flow = linear_flow.Flow("f").add(task.WaitFor("one"), task.WaitFor("two"))
    engine = engines.load(flow, backend=store)
    with engine_threads.Running(engine), contextlib.closing(store.get_connection()) as connection:
        until(lambda: engine.storage.flow_detail.waits_for)
        uuid = engine.storage.flow_uuid
        assert connection.awaited_signals(uuid) == ["one", "two"]
        operations.signal(store, uuid, "one", strict=True)
        until(lambda: connection.awaited_signals(uuid) == ["two"])
        with pytest.raises(exceptions.NotFound, match="awaited signals: two"):
            operations.signal(store, uuid, "one", strict=True)
        operations.signal(store, uuid, "two", strict=True)


def test_first_of_several_early_signals_is_used_without_a_workflow(store: base.Backend) -> None:
    flow = linear_flow.Flow("f").add(task.WaitFor("s", provides="value"))
    engine = engines.load(flow, backend=store)
    for value in (1, 2):
        operations.signal(store, engine.storage.flow_uuid, "s", value)
    engine.run()
    assert engine.storage.fetch("value") == 1


# -- timeouts


@pytest.mark.parametrize("park_after", [10, 100])
def test_flow_is_parked_only_if_timeout_is_far_away(park_after: float, store: base.Backend) -> None:
    clock = manual_clock.ManualClock()
    engine = load_at(clock, line(timeout=50), backend=store)
    engine.park_after = park_after
    if park_after < 50:
        engine.run()
        assert engine.storage.get_flow_state() == states.SUSPENDED
        assert (engine.parked.seconds, clock.time()) == (pytest.approx(50), 0)
    else:
        with pytest.raises(exceptions.SignalTimeout):
            engine.run()
        assert (engine.parked, clock.time()) == (None, pytest.approx(50))


def test_changed_wall_clock_does_not_change_signal_timeout() -> None:
    class Jumping(manual_clock.ManualClock):
        def time(self) -> float:
            return 5000.0 - 10 * self.monotonic()

    clock = Jumping()
    with pytest.raises(exceptions.SignalTimeout):
        load_at(clock, line(timeout=60)).run()
    assert clock.monotonic() == pytest.approx(60)


def test_signal_read_from_store_when_wait_starts_is_used(store: base.Backend) -> None:
    """Another process sends the signal before the wait starts, and this engine does not poll."""
    clock = manual_clock.ManualClock()
    engine = load_at(clock, line(), backend=store)

    def send(state: str, details: dict[str, Any]) -> None:
        if details["task_name"] == "first":
            with store.get_connection() as connection:
                connection.put_signal(
                    engine.storage.flow_uuid, Signal.of("approved", 1, time.time())
                )

    engine.atom_notifier.register(states.SUCCESS, send)
    engine.run(deadline=1000)
    assert engine.storage.fetch("found") == ("used", 1)
    assert clock.time() == 0


class Approval(task.WaitFor):
    """A task type of its own, which can be paused."""


def test_signal_during_pause_of_its_task_is_used_after_pause(store: base.Backend) -> None:
    clock = manual_clock.ManualClock(time.time())
    pause = operations.pause_tasks(store, f"{__name__}.Approval", seconds=1000)
    assert pause.until is not None
    engine = load_at(clock, LINE("f").add(Approval("approved", provides="approval")), backend=store)
    engine.signal("approved", 1)
    engine.run(deadline=10_000)
    assert engine.storage.fetch("approval") == 1
    assert clock.time() == pytest.approx(pause.until, abs=0.01)


def test_unread_signal_precedes_timeout(store: base.Backend) -> None:
    """Another process sent the signal, and this engine has not read it when the wait ends."""
    clock = manual_clock.ManualClock()
    engine = load_at(clock, line(timeout=3600), backend=store)
    engine.compile()
    engine.prepare()
    signal = Signal.of("approved", 1, time.time())
    with store.get_connection() as connection:
        for state in engine.run_iter(deadline=10_000):
            if state == states.WAITING and clock.time() == 0 and approved_waits(engine):
                connection.put_signal(engine.storage.flow_uuid, signal)
    assert engine.storage.fetch("found") == ("used", 1)


def test_timeout_waits_until_the_signals_can_be_read(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = manual_clock.ManualClock()
    engine = load_at(clock, line(timeout=3600), backend=store)
    engine.compile()
    engine.prepare()
    signal = Signal.of("approved", 1, time.time())
    with store.get_connection() as connection:
        read = type(connection).signals

        def read_late(self: Any, uuids: Any) -> Any:
            if 3600 <= clock.monotonic() < 3605:
                raise exceptions.StorageFailure("the store is unreachable")
            return read(self, uuids)

        monkeypatch.setattr(type(connection), "signals", read_late)
        for state in engine.run_iter(deadline=10_000):
            if state == states.WAITING and clock.time() == 0 and approved_waits(engine):
                connection.put_signal(engine.storage.flow_uuid, signal)
    assert engine.storage.fetch("found") == ("used", 1)
    assert clock.monotonic() == 3605


def approved_waits(engine: engine_base.Engine) -> bool:
    return engine.storage.get_atom_state("wait-for-approved") == states.RUNNING


# -- end of the wait


PROGRAM = """
import sys
from pathlib import Path
from wbengine import engines, exceptions, retry, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, base

FOLDER = Path(sys.argv[1])

class Notes(task.Task):
    def execute(self, **given):
        with open(FOLDER / "notes", "a") as file:
            print(self.name, given.get("approval", ""), file=file)

def flow():
    return linear_flow.Flow("f").add(
        Notes("first"), task.WaitFor("approved", timeout=3600, provides="approval"),
        Notes("then", requires=["approval"]))

with backends.backend(f"sqlite:///{FOLDER}/flows.db") as backend:
    with backend.get_connection() as connection:
        found = [row.uuid for row in connection.list_flows().flows]
        detail = connection.get_flow_details(found[0]) if found else None
    engine = engines.load(flow(), flow_detail=detail, backend=backend)
    print(engine.storage.flow_uuid, flush=True)
    def told(state, details):
        print(details["task_name"], flush=True)
    engine.atom_notifier.register("RUNNING", told)
    engine.run()
    print("ended", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 3])
def test_flow_of_killed_engine_resumes_with_signal(
    kills: int, store: base.Backend, tmp_path: Path
) -> None:
    """Another process resumes the flow, receives the signal and repeats no task."""
    since = set()
    for _ in range(kills):
        with process("-c", PROGRAM, str(tmp_path), stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            uuid = child.stdout.readline().strip()
            while child.stdout.readline().strip() != "wait-for-approved":
                pass
            with store.get_connection() as connection:
                view = views.read(connection, uuid)
                atoms = {atom.name: atom for atom in connection.get_atoms_for_flow(uuid)}
            assert "signal 'approved' since " in (view.waiting or "") and not view.queued
            since.add(atoms["wait-for-approved"].meta["waits_for"]["until"])
            child.kill()
    with store.get_connection() as connection:
        view = views.read(connection, uuid)
        waiting = view.atom("wait-for-approved")
    assert waiting is not None and "no engine runs the flow" in (waiting.waiting or "")
    assert (waiting.attempt, view.shown_state) == (1, _shown_states.INTERRUPTED)
    assert len(since) == 1
    operations.signal(store, uuid, "approved", "yes")
    with process("-c", PROGRAM, str(tmp_path), stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.read().endswith("ended\n")
    assert (tmp_path / "notes").read_text() == "first \nthen yes\n"


def test_interrupted_reversion_does_not_wait_for_signal_again(store: base.Backend) -> None:
    """The engine died after another task had failed."""
    flow = unordered_flow.Flow("f").add(approval(), Spoils("spoils"))
    engine = engines.load(flow, backend=store, never_resolve=True)
    with pytest.raises(LookupError):
        engine.run()
    with store.get_connection() as connection:
        detail = connection.get_flow_details(engine.storage.flow_uuid)
        for atom in detail:
            if atom.name == "wait-for-approved":
                atom.state = states.RUNNING
        detail.state = states.RUNNING
        connection.save_changes(detail, list(detail))
    later = resume_engine(engine, flow, store)
    with pytest.raises(LookupError):
        later.run()
    assert later.storage.get_flow_state() == states.REVERTED


def test_unreadable_signal_fails_its_task(store: base.Backend) -> None:
    engine = engines.load(line(), backend=store)
    with store.get_connection() as connection:
        odd = Signal("approved", '{"$wbe": "no such tag"}', 1.0)
        connection.put_signal(engine.storage.flow_uuid, odd)
    with pytest.raises(exceptions.InvalidFormat):
        engine.run()

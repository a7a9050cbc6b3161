"""Leases of flows: at most one engine runs a flow."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from tests.contract import records
from tests.integration.owned_flows import Step, load_recording_engine, reload_engine, stored_flow
from tests.support import fresh, python
from tests.support.engine_threads import Gate, running
from tests.support.reading import read_flow
from tests.support.waiting import until
from wbengine import engines, exceptions, retry, states, task
from wbengine._concurrency import crash_points
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import _leases, _owners, backends, models
from wbengine.persistence.backends import _memory
from wbengine.testing import _stores


@pytest.fixture
def backend() -> _memory.MemoryBackend:
    return _memory.MemoryBackend()


def line(*steps: Any) -> Any:
    return linear_flow.Flow("f").add(*steps)


def owner_of(engine: base.Engine, backend: Any) -> _leases.Lease | None:
    with backend.get_connection() as connection:
        lease: _leases.Lease | None = connection.get_lease(engine.storage.flow_uuid)
        return lease


def everything(backend: Any) -> Any:
    with backend.get_connection() as connection:
        return records.of_store(connection)


def hold(engine: base.Engine, backend: Any, owner: str, seconds: float) -> _leases.Lease:
    with backend.get_connection() as connection:
        lease: _leases.Lease = connection.acquire_lease(engine.storage.flow_uuid, owner, seconds)
        return lease


def take_over(engine: base.Engine, backend: Any, seconds: float = 0.0) -> _leases.Lease:
    """Acquire the lease as an engine does that (wrongly) considers the owner dead."""
    with backend.get_connection() as connection:
        held = connection.get_lease(engine.storage.flow_uuid)
        lease: _leases.Lease = connection.acquire_lease(
            engine.storage.flow_uuid, "elsewhere", seconds, dead=held.epoch if held else None
        )
        return lease


# -- one at a time -----------------------------------------------------------------------------


def test_second_engine_raises_flow_busy_with_owner(backend: Any) -> None:
    seen: list[exceptions.FlowBusy] = []

    def second() -> None:
        other = reload_engine(first, line(Step("a")), backend)
        other.compile()
        before = stored_flow(first, backend).to_dict()
        for call in (
            other.run,
            other.prepare,
            lambda: list(other.run_iter()),
            lambda: asyncio.run(other.arun()),
        ):
            with pytest.raises(exceptions.FlowBusy) as caught:
                call()
            seen.append(caught.value)
        assert stored_flow(first, backend).to_dict() == before

    first = engines.load(line(Step("a", second)), backend=backend)
    first.run()
    assert len(seen) == 4
    for busy in seen:
        text = str(busy)
        assert f"process {os.getpid()} (this process) on host" in text
        assert "Flow 'f' is run by" in text and "15 s" in text and "on_busy='wait'" in text
        assert busy.epoch == 1 and 0 < busy.seconds <= 15
        assert _owners.Owner.parse(busy.owner) is not None
    assert owner_of(first, backend) is None


@pytest.mark.parametrize(
    "end", ["succeeds", "fails", "is suspended", "is refused", "is interrupted"]
)
def test_lease_is_released_however_run_ends(end: str, backend: Any) -> None:

    def act() -> None:
        held = owner_of(engine, backend)
        assert held is not None and held.epoch == 1 and engine.storage.writer.lease == held
        assert engine.storage.writer.first_epoch == 1024
        if end == "fails":
            raise ValueError("no")
        if end == "is suspended":
            engine.suspend()

    def interrupt(state: str, details: Any) -> None:
        raise KeyboardInterrupt

    engine = engines.load(line(Step("a", act), Step("b")), backend=backend)
    if end == "is interrupted":
        engine.atom_notifier.register(states.RUNNING, interrupt)
    if end == "is refused":
        engine = engines.load(task.FunctorTask(lambda x: None, "a"), backend=backend)
    with contextlib.suppress(ValueError, KeyboardInterrupt, exceptions.MissingDependencies):
        engine.run()
    assert owner_of(engine, backend) is None and engine.storage.writer.lease is None
    assert engine.storage.writer.first_epoch == 1
    assert stored_flow(engine, backend).epoch == engine.storage.flow_detail.epoch == 1
    assert hold(engine, backend, "x", 1).epoch == 2


def test_loading_and_reading_need_no_lease(backend: Any) -> None:
    gate = Gate()
    first = engines.load(line(Step("a", lambda: gate() or "held", provides="x")), backend=backend)
    with running(first, gate=gate):
        other = reload_engine(first, line(Step("a", provides="x")), backend)
        other.compile()
        assert other.difference is None
        assert other.storage.get_atom_state("a") == states.RUNNING
        other.suspend()
        assert stored_flow(first, backend).state == states.RUNNING
    assert first.storage.fetch("x") == "held"
    assert stored_flow(first, backend).state == states.SUCCESS


# -- waiting -----------------------------------------------------------------------------------


def test_waiting_engine_resumes_from_records_of_previous_owner(backend: Any) -> None:
    gate = Gate()
    held = Step("a", lambda: gate() or first.suspend())
    first = engines.load(line(held, Step("b")), backend=backend)
    steps = Step("a"), Step("b")
    with running(first, gate=gate):
        other = reload_engine(first, line(*steps), backend, on_busy="wait")
        threading.Timer(0.05, gate.let.set).start()
        other.run()
    assert [step.runs for step in steps] == [0, 1]
    assert stored_flow(first, backend).state == states.SUCCESS
    assert stored_flow(first, backend).epoch == 2


@pytest.mark.parametrize("act", ["run", "prepare", "run with inputs"])
def test_engine_leaves_flow_that_another_engine_reverted_unchanged(act: str, backend: Any) -> None:
    """Inputs are stored when the engine is loaded, which reads the records again."""

    def fail() -> None:
        raise ValueError("no")

    first = engines.load(line(Step("a"), Step("b", fail)), backend=backend)
    uuid, step = first.storage.flow_uuid, Step("a")
    detail = read_flow(backend, uuid)
    other = engines.load(line(step, Step("b")), flow_detail=detail, backend=backend)
    other.compile()
    with pytest.raises(ValueError, match="no"):
        first.run()
    if act == "run with inputs":
        other = engines.load(
            line(step, Step("b")), store={"x": 1}, flow_detail=detail, backend=backend
        )
    before = stored_flow(first, backend).history
    for _ in range(2):
        with pytest.raises(exceptions.InvalidState, match="has ended in REVERTED since"):
            getattr(other, act.partition(" ")[0])()
    assert step.runs == 0 and stored_flow(first, backend).history == before
    reload_engine(first, line(step, Step("b")), backend).run()
    assert step.runs == 1 and stored_flow(first, backend).state == states.SUCCESS


def test_reset_is_refused_after_another_engine_completed_the_flow(backend: Any) -> None:
    first = engines.load(line(Step("a")), backend=backend)
    other = reload_engine(first, line(Step("a")), backend)
    other.prepare()
    first.run()
    with pytest.raises(exceptions.InvalidState, match="has ended in SUCCESS since"):
        other.reset()
    other.run()
    assert stored_flow(first, backend).state == states.SUCCESS


@pytest.mark.parametrize("how", ["suspend", "iterate", "cancel", "cancel at once"])
def test_waiting_engine_can_be_suspended_or_cancelled(how: str, backend: Any) -> None:
    gate = Gate()
    first = engines.load(line(Step("a", gate)), backend=backend)
    step = Step("a")
    with running(first, gate=gate):
        other = reload_engine(first, line(step), backend, on_busy="wait")
        asked = threading.Event()
        take = other._ownership._acquire  # type: ignore[attr-defined]

        def taking(*args: Any) -> Any:
            asked.set()
            return take(*args)

        other._ownership._acquire = taking  # type: ignore[attr-defined]

        def suspend() -> None:
            assert asked.wait(30)
            other.suspend()

        if how == "cancel at once":
            # The engine is suspended while it still compiles the flow.
            early, plain = threading.Event(), other.suspend

            def suspend_early() -> None:
                plain()
                early.set()

            other.suspend = suspend_early  # type: ignore[method-assign]
            other.compile = lambda: early.wait(30)  # type: ignore[assignment,method-assign]

        if how.startswith("cancel"):

            async def main() -> None:
                running = asyncio.ensure_future(other.arun())
                if how == "cancel":
                    await asyncio.to_thread(asked.wait, 30)
                else:
                    await asyncio.sleep(0)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running

            asyncio.run(main())
        else:
            thread = threading.Thread(target=suspend)
            thread.start()
            if how == "suspend":
                other.run()
            else:
                assert list(other.run_iter()) == [states.SUSPENDED]
            thread.join(60)
        assert stored_flow(first, backend).state == states.RUNNING
    assert step.runs == 0


@pytest.mark.parametrize("wait", ["prepare", "reset"])
def test_suspend_ends_waiting_to_prepare_or_reset(wait: str, backend: Any) -> None:
    gate, over = Gate(), threading.Event()

    def suspend() -> None:
        while not over.wait(0.01):
            other.suspend()

    first = engines.load(line(Step("a", gate)), backend=backend)
    other = reload_engine(first, line(Step("a")), backend, on_busy="wait")
    if wait == "reset":
        other.prepare()
    with running(first, gate=gate):
        thread = threading.Thread(target=suspend)
        thread.start()
        with pytest.raises(exceptions.FlowBusy) as caught:
            getattr(other, wait)()
        over.set()
        thread.join(60)
    assert re.search("run by process .* `suspend` or `cancel` ended the wait", str(caught.value))
    assert caught.value.owner and caught.value.epoch == stored_flow(first, backend).epoch


def test_deadline_expires_while_engine_waits_for_owner(backend: Any) -> None:

    def second() -> None:
        other = reload_engine(first, line(Step("a")), backend, on_busy="wait")
        with pytest.raises(exceptions.DeadlineExceeded, match=r"is run by process .* 0\.05 sec"):
            other.run(deadline=0.05)

    first = engines.load(line(Step("a", second)), backend=backend)
    first.run()


# -- dead owners


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_lease_of_dead_process_is_taken_over_at_once(backend: Any) -> None:
    """An owner whose death is uncertain keeps its lease."""
    engine = engines.load(line(Step("a")), backend=backend)
    program = "from wbengine.persistence import _owners as owners; print(owners.new())"
    dead = fresh.run(program).stdout.strip()
    hold(engine, backend, dead, 1000)
    engine.run()
    assert stored_flow(engine, backend).epoch == 2
    hold(engine, backend, dead.replace("/", "x/", 1), 1000)
    with pytest.raises(exceptions.FlowBusy):
        engine.run()


def test_lease_that_could_not_be_released_does_not_block_next_run() -> None:
    class Keeps(_memory.MemoryBackend):
        def get_connection(self) -> _memory.MemoryConnection:
            class Connection(_memory.MemoryConnection):
                def release_lease(self, *_: Any, **__: Any) -> None:
                    raise exceptions.StorageFailure("not now")

                end_lease = release_lease

            return Connection(self)

    backend = Keeps()
    engine = engines.load(line(Step("a")), backend=backend)
    engine.run()
    assert owner_of(engine, backend) is not None
    engine.reset()
    engine.run()
    other = reload_engine(engine, line(Step("a")), backend)
    other.run()
    assert stored_flow(engine, backend).epoch == 4


def test_lease_of_unknown_process_is_taken_over_after_it_expired(backend: Any) -> None:
    engine = engines.load(line(Step("a")), backend=backend, on_busy="wait")
    hold(engine, backend, "somewhere/else", 0.1)
    engine.run()
    assert stored_flow(engine, backend).epoch == 2


# -- lost leases


@pytest.mark.parametrize("durability", ["each", "batch", "end"])
@pytest.mark.parametrize("suspended", [False, True])
def test_engine_that_lost_its_lease_writes_and_submits_nothing(
    durability: str, suspended: bool, backend: Any
) -> None:
    log = list[Any]()
    engine = load_recording_engine(
        line(Step("a"), Step("b")), log, backend, durability=durability, lease=0
    )
    before = stored_flow(engine, backend).epoch
    notified: list[str] = []
    for notifier in (engine.notifier, engine.atom_notifier):
        notifier.register("*", lambda state, details: notified.append(state))
    taken: list[Any] = []

    def lose() -> None:
        if not taken:
            taken.append(take_over(engine, backend))
            if suspended:
                engine.suspend()
            taken.append(stored_flow(engine, backend).to_dict())
            taken.append([atom.to_dict() for atom in stored_flow(engine, backend)])
            log.clear()
            notified.clear()

    engine.executor.after = lose  # type: ignore[attr-defined]
    with pytest.raises(exceptions.LeaseLost, match=r"taken over.*elsewhere"):
        engine.run()
    assert log == ["disown", "stop"] and notified == []
    assert stored_flow(engine, backend).to_dict() == taken[1]
    assert [atom.to_dict() for atom in stored_flow(engine, backend)] == taken[2]
    assert engine.storage.get_flow_state() == states.FAILURE
    engine.suspend()
    assert notified == []
    # A later run resumes from the stored records.
    log.clear()
    engine.run()
    assert engine.storage.get_flow_state() == stored_flow(engine, backend).state == states.SUCCESS
    assert stored_flow(engine, backend).epoch == before + 3
    assert ("submit", "a") in log and ("submit", "b") in log


def test_lost_lease_ends_waiting_for_running_task_at_once(backend: Any) -> None:
    gate = Gate()
    steps = [Step("a", gate), Step("b"), Step("c")]
    flow = unordered_flow.Flow("f").add(*steps)
    engine = engines.load(
        flow, backend=backend, engine="parallel", max_workers=1, lease=0.1, durability="end"
    )
    with pytest.raises(exceptions.LeaseLost), running(engine, gate=gate):
        held = engine._ownership.held  # type: ignore[attr-defined]
        take_over(engine, backend, 1000)
        assert held is not None
        lost = threading.Event()
        inner = held.on_lost

        def hear() -> None:
            inner()
            lost.set()

        held.on_lost = hear
        if held.error is None:
            assert lost.wait(30)
    assert [step.runs for step in steps] == [1, 0, 0]
    assert stored_flow(engine, backend).state == states.RUNNING


@pytest.mark.parametrize("durability", ["each", "batch", "end"])
def test_expired_lease_with_unreachable_store_starts_no_task(durability: str, backend: Any) -> None:
    log = list[Any]()
    engine = load_recording_engine(
        unordered_flow.Flow("f").add(Step("a"), Step("b")), log, backend, durability=durability
    )

    def freeze() -> None:
        held = engine._ownership.held
        assert held is not None
        held.until = 0.0
        held.backend = Away()

    engine.executor.after = freeze  # type: ignore[attr-defined]
    with pytest.raises(exceptions.LeaseLost, match="was not renewed in time"):
        engine.run()
    assert [entry for entry in log if entry[0] == "submit"] == [("submit", "a")]
    assert log[-2:] == ["disown", "stop"]


class Away(_memory.MemoryBackend):
    """Store that is unreachable."""

    def get_connection(self) -> _memory.MemoryConnection:
        raise exceptions.StorageFailure("away")


# -- outdated records


def test_engine_reloads_records_changed_by_another_engine(backend: Any) -> None:
    names = ["a", "b", "c", "d"]

    def steps(engine: list[Any]) -> list[Any]:
        return [Step(name, lambda: engine[0].suspend(), provides=f"r{name}") for name in names]

    one: list[Any] = []
    two: list[Any] = []
    mine, theirs = steps(one), steps(two)
    one.append(engines.load(line(*mine), store={"x": 1}, backend=backend))
    one[0].prepare()
    two.append(reload_engine(one[0], line(*theirs), backend))
    two[0].prepare()
    for turn in range(len(names)):
        (one, two)[turn % 2][0].run()
    assert [step.runs for step in mine] == [1, 0, 1, 0]
    assert [step.runs for step in theirs] == [0, 1, 0, 1]
    assert stored_flow(one[0], backend).state == states.SUCCESS
    assert len(stored_flow(one[0], backend)) == len(names) + 1
    assert one[0].storage.flow_detail.epoch + 1 == two[0].storage.flow_detail.epoch


def test_single_engine_never_reloads_records(backend: Any) -> None:
    engine = engines.load(line(Step("a")), store={"x": 1}, backend=backend)
    engine.run()
    engine.storage.inject({"y": 2})
    engine.storage.update_flow_metadata({"m": 1})
    engine.reset()
    engine.run()
    assert engine.storage.readings == 0
    meta = stored_flow(engine, backend).meta
    meta.pop(models.LOG_LEVEL, None)  # depends on the logging of the test process
    assert meta == {"m": 1}


OUTSIDE: dict[str, Any] = {
    "inject": lambda storage: storage.inject({"y": 2}),
    "inject_atom_args": lambda storage: storage.inject_atom_args("a", {"z": 4}, transient=False),
    "update_flow_metadata": lambda storage: storage.update_flow_metadata({"by": "other"}),
    "update_atom_metadata": lambda storage: storage.update_atom_metadata("a", {"mark": 1}),
    "ensure_atom": lambda storage: storage.ensure_atom(Step("new")),
    "save": lambda storage: storage.save("a", "other"),
    "reset": lambda storage: storage.reset("a"),
    "set_atom_state": lambda storage: storage.set_atom_state("a", states.REVERTING),
    "set_atom_intention": lambda storage: storage.set_atom_intention("a", states.REVERT),
    "set_task_progress": lambda storage: storage.set_task_progress("a", 0.5),
    "set_flow_state": lambda storage: storage.set_flow_state(states.FAILURE),
    "change_flow_state": lambda storage: storage.change_flow_state(states.SUSPENDING),
}


def test_change_of_flow_run_by_another_engine_raises_flow_busy(backend: Any) -> None:
    refused: dict[str, str] = {}

    def meddle() -> str:
        other = reload_engine(first, line(Step("a", provides="r")), backend)
        there, here = everything(backend), other.storage.flow_detail.to_dict()
        for name, change in OUTSIDE.items():
            with pytest.raises(exceptions.FlowBusy) as caught:
                change(other.storage)
            refused[name] = str(caught.value)
        other.storage.inject({"secret": 3}, transient=True)
        assert other.storage.fetch("secret") == 3
        assert everything(backend) == there
        assert other.storage.flow_detail.to_dict() == here
        return "held"

    first = engines.load(line(Step("a", meddle, provides="r")), store={"x": 1}, backend=backend)
    first.run()
    assert refused.keys() == OUTSIDE.keys()
    assert all(f"process {os.getpid()} (this process)" in message for message in refused.values())


@pytest.mark.parametrize("name", OUTSIDE)
def test_change_outside_run_is_saved_and_releases_lease(name: str, backend: Any) -> None:
    engine = engines.load(line(Step("a", provides="r")), backend=backend)
    engine.prepare()
    engine.storage.set_flow_state(states.RUNNING)
    engine.storage.save("a", "first")
    before = stored_flow(engine, backend)
    OUTSIDE[name](engine.storage)
    assert owner_of(engine, backend) is None
    after = stored_flow(engine, backend)
    assert records.of_flow(after) != records.of_flow(before)
    assert records.of_flow(after) == records.of_flow(engine.storage.flow_detail)


@contextlib.contextmanager
def changing(change: Callable[[], object]) -> Iterator[threading.Event]:
    """Make one change in a thread that holds the lease until the event is set."""
    gate = Gate()

    def hold(point: str) -> None:
        if point == "storage.before-save" and threading.current_thread().name == "changing_0":
            gate()

    with futures.ThreadPoolExecutor(1, "changing") as pool:
        crash_points.install(hold)
        try:
            load_recording_engine = pool.submit(change)
            assert gate.inside.wait(30)
            yield gate.let
        finally:
            gate.let.set()
            futures.wait([load_recording_engine], 60)
            crash_points.install(None)
        load_recording_engine.result(0)


MOMENTARY: dict[str, Callable[[Any], object]] = {
    "inject": lambda engine: engine.storage.inject({"y": 2}),
    "prepare": lambda engine: engine.prepare(),
    "reset": lambda engine: engine.reset(),
}


@pytest.mark.parametrize(
    "held, waits",
    [*itertools.product(MOMENTARY, ["run"]), *itertools.product(["inject"], MOMENTARY)],
)
def test_engine_waits_for_momentary_change_by_another(held: str, waits: str, backend: Any) -> None:
    one = engines.load(line(Step("a")), backend=backend)
    if held != "prepare":
        one.prepare()
    if held == "reset":
        one.run()
    seen = _stores.FaultyBackend(backend)
    other = reload_engine(one, line(Step("a")), seen)
    other.compile()
    if waits == "reset":
        other.prepare()
    tried = seen.writes.count("acquire_lease")
    with futures.ThreadPoolExecutor(1) as pool, changing(lambda: MOMENTARY[held](one)) as let:
        waiting = pool.submit(MOMENTARY.get(waits, lambda engine: engine.run()), other)
        until(lambda: waiting.done() or seen.writes.count("acquire_lease") >= tried + 2)
        assert not waiting.done(), waiting.exception()
        let.set()
        waiting.result(60)
    stored = stored_flow(one, backend)
    assert waits != "run" or stored.state == states.SUCCESS
    assert (owner_of(one, backend), other.storage.flow_detail.epoch) == (None, stored.epoch)
    if held == "inject":
        assert other.storage.fetch("y") == 2


def test_flow_busy_is_raised_when_change_by_another_does_not_end(backend: Any) -> None:
    one = engines.load(line(Step("a")), backend=backend)
    one.prepare()
    others = [reload_engine(one, line(Step("a")), backend) for _ in range(2)]
    message = rf"Flow 'f' is changed by process {os.getpid()} .*; if that process dies, its lease"
    with futures.ThreadPoolExecutor(2) as pool, changing(lambda: MOMENTARY["inject"](one)):
        run = pool.submit(others[0].run)
        change = pool.submit(MOMENTARY["inject"], others[1])
        with pytest.raises(exceptions.FlowBusy, match=message):
            change.result(60)
        with pytest.raises(exceptions.FlowBusy, match=message + r".*on_busy='wait'"):
            run.result(60)
    assert stored_flow(one, backend).epoch == 2


def test_suspend_and_deadline_end_waiting_for_change(backend: Any) -> None:
    one = engines.load(line(Step("a")), backend=backend)
    one.prepare()
    seen = _stores.FaultyBackend(backend)
    step = Step("a")
    other = reload_engine(one, line(step), seen)
    other.compile()
    with futures.ThreadPoolExecutor(1) as pool, changing(lambda: MOMENTARY["inject"](one)):
        with pytest.raises(
            exceptions.DeadlineExceeded, match=r"is changed by process .* 0\.05 sec"
        ):
            other.run(deadline=0.05)
        tried = len(seen.writes)
        waiting = pool.submit(other.run)
        until(lambda: waiting.done() or len(seen.writes) >= tried + 2)
        other.suspend()
        waiting.result(60)
    assert step.runs == 0 and stored_flow(one, backend).epoch == 2


def test_change_during_release_of_own_lease_is_saved(backend: Any) -> None:
    engine = engines.load(line(Step("a")), backend=backend)
    engine.prepare()
    with futures.ThreadPoolExecutor(1) as pool:
        changes: list[futures.Future[None]] = []

        def change(point: str) -> None:
            if point == "lease.before-give-back" and not changes:
                changes.append(pool.submit(engine.storage.inject, {"y": 2}))
                # The change either is refused at once or waits for this thread.
                futures.wait(changes, 0.2)

        crash_points.install(change)
        try:
            engine.run()
        finally:
            crash_points.install(None)
        changes[0].result(60)
    assert stored_flow(engine, backend).epoch == 3
    assert records.of_flow(stored_flow(engine, backend)) == records.of_flow(
        engine.storage.flow_detail
    )
    assert engine.storage.fetch("y") == 2 and owner_of(engine, backend) is None


def test_values_for_busy_flow_are_injected_when_waiting_run_starts(backend: Any) -> None:
    gate = Gate()
    held = Step("a", lambda: gate() or first.suspend())
    first = engines.load(line(held, Step("b")), store={"x": 1}, backend=backend)
    with running(first, gate=gate):
        with pytest.raises(exceptions.FlowBusy):
            reload_engine(first, line(Step("a"), Step("b")), backend, store={"y": 2})
        flow = line(Step("a"), Step("b"))
        other = reload_engine(first, flow, backend, store={"y": 2}, on_busy="wait")
    other.run()
    (injector,) = [
        atom for atom in stored_flow(other, backend) if atom.name == "_wbengine_injector"
    ]
    assert injector.results == {"x": 1, "y": 2}


def test_outdated_engine_applies_changes_to_newest_records(backend: Any) -> None:
    old = engines.load(line(Step("a", provides="r")), store={"x": 1}, backend=backend)
    old.prepare()
    reload_engine(old, line(Step("a", provides="r")), backend).run()
    old.storage.update_atom_metadata("a", {"mark": 1})
    stored_atoms = {atom.name: atom for atom in stored_flow(old, backend)}
    assert (stored_atoms["a"].state, stored_atoms["a"].results) == (states.SUCCESS, "a")
    assert stored_atoms["a"].meta["mark"] == 1
    assert old.storage.fetch("r") == "a", "and it has read them"
    old.run()
    assert old.storage.get_flow_state() == states.SUCCESS


def test_two_engines_that_load_new_flow_share_its_records(backend: Any) -> None:
    one = engines.load(line(Step("a")), store={"x": 1, "only": 1}, backend=backend)
    step = Step("a")
    two = reload_engine(one, line(step), backend)
    two.storage.inject({"x": 2})
    one.prepare()
    two.prepare()
    one.run()
    stored = stored_flow(one, backend)
    (injector,) = [atom for atom in stored if atom.name == one.storage.injector_name]
    assert injector.results == {"x": 2, "only": 1}
    assert one.storage.fetch("x") == 2
    two.run()
    assert two.storage.get_atom_state("a") == states.SUCCESS, "the record that was used counts"
    assert two.storage.get_attempt("a").attempt == 1  # type: ignore[union-attr]
    assert step.runs == 0


def test_ignored_atom_stays_ignored_when_two_engines_loaded_new_flow(backend: Any) -> None:

    def graph() -> Any:
        steps = Step("a"), Step("b")
        flow = graph_flow.Flow("f").add(*steps)
        return flow.link(*steps, decider=lambda history: False)

    one = engines.load(graph(), backend=backend)
    two = reload_engine(one, graph(), backend)
    one.prepare()
    two.prepare()
    two.run()
    third = reload_engine(one, graph(), backend)
    third.prepare()
    assert third.storage.get_atom_state("b") == states.IGNORE
    third.run()
    assert third.storage.get_atom_state("b") == states.IGNORE


def test_retry_history_changed_by_another_engine_is_reloaded(backend: Any) -> None:

    def flow(does: Any) -> Any:
        return linear_flow.Flow("f", retry.Times(2, "r")).add(Step("a", does, provides="x"))

    def fail() -> None:
        raise ValueError("no")

    one = engines.load(flow(fail), backend=backend)
    with pytest.raises(ValueError, match="no"):
        one.run()
    two = reload_engine(one, flow(lambda: "right"), backend)
    two.run()
    assert two.storage.fetch("x") == "right"
    assert one.storage.has_failures()
    one.run()
    assert one.storage.fetch("x") == "right" and not one.storage.has_failures()


# -- processes ---------------------------------------------------------------------------------

CHILD = """
import sys
from wbengine import engines, task
from wbengine.persistence import backends

def hold():
    print("inside", flush=True)
    sys.stdin.readline()

with backends.backend(sys.argv[1]) as backend:
    with backend.get_connection() as connection:
        detail = connection.get_flow_details(sys.argv[2])
    engines.load(
        task.FunctorTask(hold, "a"), flow_detail=detail, backend=backend, lease=600
    ).run()
    print("over", flush=True)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
@pytest.mark.parametrize("kind", ["dir", "sqlite"])
def test_killed_engine_process_is_replaced_at_once(kind: str, tmp_path: Path) -> None:
    uri = f"dir://{tmp_path / 'store'}" if kind == "dir" else f"sqlite:///{tmp_path / 'store.db'}"
    with backends.backend(uri) as backend:
        first = engines.load(line(Step("a")), backend=backend)
        child = python.start(
            ["-c", CHILD, uri, first.storage.flow_uuid],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "inside\n"
            engine = reload_engine(first, line(Step("a")), backend)
            with pytest.raises(exceptions.FlowBusy, match=f"process {child.pid} on host"):
                engine.run()
        finally:
            child.kill()
            child.communicate()
        engine.run()
        stored = stored_flow(engine, backend)
        assert (stored.state, stored.epoch) == (states.SUCCESS, 2)
        assert [(atom.name, atom.attempt) for atom in stored] == [("a", 2)]


# Python only prints an interrupt that arrives while a weak reference is cleared.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_ctrl_c_at_any_moment_releases_lease_and_run_can_be_resumed() -> None:
    chance, interrupted = random.Random(7), 0
    for number in range(60):
        backend = _memory.MemoryBackend()
        steps = [Step(f"s{n}") for n in range(30)]
        engine = engines.load(line(*steps), backend=backend)
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.006))
                engine.run()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
        except KeyboardInterrupt:
            interrupted += 1
        saved = {atom.name for atom in stored_flow(engine, backend) if atom.state == states.SUCCESS}
        ran = {step.name: step.runs for step in steps}
        other = reload_engine(engine, line(*steps), backend)
        (other if number % 2 else engine).run()
        assert stored_flow(engine, backend).state == states.SUCCESS
        assert {step.name: step.runs for step in steps if step.name in saved} == {
            name: ran[name] for name in saved
        }
        assert owner_of(engine, backend) is None
    assert interrupted > 10


def interrupted_at(number: int, engine: base.Engine, step: Step) -> bool:
    """Run the engine with Ctrl-C before the given line of its module, unless `step` has run."""
    lines = itertools.count()

    def trace(frame: types.FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != base.__file__:
            return None
        if event == "line" and next(lines) == number and not step.runs:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        engine.run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.slow
def test_engine_interrupted_before_any_line_of_its_start_runs_again() -> None:
    for number in itertools.count():
        step = Step("s")
        engine = engines.load(line(step), backend=_memory.MemoryBackend())
        came = interrupted_at(number, engine, step)
        if came:
            engine.run()
        assert step.runs == 1
        if not came:
            break
    assert number > 40


# -- reverted flows


def broken(detail: models.FlowDetail | None, backend: Any, well: bool) -> base.Engine:
    def fails() -> None:
        if not well:
            raise ValueError("no")

    flow = line(Step("a"), Step("b", fails))
    return engines.load(flow, flow_detail=detail, backend=backend)


@pytest.mark.parametrize("first", ["nothing", "prepare", "reset"])
def test_reverted_flow_runs_again_in_another_engine(first: str, backend: Any) -> None:
    engine = broken(None, backend, well=False)
    with pytest.raises(ValueError, match="no"):
        engine.run()
    later = broken(stored_flow(engine, backend), backend, well=True)
    if first != "nothing":
        later.compile()
        later.prepare()
        later.validate()
    if first == "reset":
        later.reset()
    later.run()
    assert stored_flow(later, backend).state == states.SUCCESS
    assert {atom.state for atom in stored_flow(later, backend)} == {states.SUCCESS}

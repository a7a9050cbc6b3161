"""At most one engine runs a flow, wherever the others are."""

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
from tests.integration.owned_flows import Step, again, kept, made
from tests.support.beside import Gate, running
from tests.support.waiting import until
from wbengine import _crash, engines, exceptions, retry, states, task
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import backends, leases, models, owners
from wbengine.persistence.backends import memory
from wbengine.testing import stores


def line(*steps: Any) -> Any:
    return linear_flow.Flow("f").add(*steps)


def owner_of(engine: base.Engine, backend: Any) -> leases.Lease | None:
    with backend.get_connection() as connection:
        found: leases.Lease | None = connection.get_lease(engine.storage.flow_uuid)
        return found


def everything(backend: Any) -> Any:
    with backend.get_connection() as connection:
        return records.of_store(connection)


def take_over(engine: base.Engine, backend: Any, seconds: float = 0.0) -> leases.Lease:
    """What an engine elsewhere does that knows of the death of this one (wrongly)."""
    with backend.get_connection() as connection:
        held = connection.get_lease(engine.storage.flow_uuid)
        lease: leases.Lease = connection.take_lease(
            engine.storage.flow_uuid, "elsewhere", seconds, dead=held.epoch if held else None
        )
        return lease


# -- one at a time -----------------------------------------------------------------------------


def test_a_second_engine_is_told_who_runs_the_flow() -> None:
    """While the first one runs; when that has ended in whatever way, the flow is free."""
    backend = memory.MemoryBackend()
    seen: list[exceptions.FlowBusy] = []

    def second() -> None:
        other = again(first, line(Step("a")), backend)
        other.compile()
        before = kept(first, backend).to_dict()
        for call in (
            other.run,
            other.prepare,
            lambda: list(other.run_iter()),
            lambda: asyncio.run(other.arun()),
        ):
            with pytest.raises(exceptions.FlowBusy) as caught:
                call()
            seen.append(caught.value)
        assert kept(first, backend).to_dict() == before

    first = engines.load(line(Step("a", second)), backend=backend)
    first.run()
    assert len(seen) == 4
    for busy in seen:
        text = str(busy)
        assert f"process {os.getpid()}, which is this one, on host" in text
        assert "Flow 'f' is run by" in text and "15 s" in text and "on_busy='wait'" in text
        assert busy.epoch == 1 and 0 < busy.seconds <= 15
        assert owners.Owner.parse(busy.owner) is not None
    assert owner_of(first, backend) is None


@pytest.mark.parametrize(
    "end", ["succeeds", "fails", "is suspended", "is refused", "is interrupted"]
)
def test_however_a_run_ends_the_flow_is_free(end: str) -> None:
    """And the next engine takes the next epoch."""
    backend = memory.MemoryBackend()

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
    assert kept(engine, backend).epoch == engine.storage.flow_detail.epoch == 1
    with backend.get_connection() as connection:
        assert connection.take_lease(engine.storage.flow_uuid, "x", 1).epoch == 2


def test_looking_needs_no_lease() -> None:
    """Loading, compiling and reading work while somebody else runs the flow."""
    backend = memory.MemoryBackend()
    gate = Gate()
    first = engines.load(line(Step("a", lambda: gate() or "held", provides="x")), backend=backend)
    with running(first, gate=gate):
        other = again(first, line(Step("a", provides="x")), backend)
        other.compile()
        assert other.difference is None
        assert other.storage.get_atom_state("a") == states.RUNNING
        other.suspend()
        assert kept(first, backend).state == states.RUNNING
    assert first.storage.fetch("x") == "held"
    assert kept(first, backend).state == states.SUCCESS


# -- waiting -----------------------------------------------------------------------------------


def test_whoever_waits_goes_on_from_what_the_other_left() -> None:
    """Nothing that ended runs again."""
    backend = memory.MemoryBackend()
    gate = Gate()
    held = Step("a", lambda: gate() or first.suspend())
    first = engines.load(line(held, Step("b")), backend=backend)
    steps = Step("a"), Step("b")
    with running(first, gate=gate):
        other = again(first, line(*steps), backend, on_busy="wait")
        threading.Timer(0.05, gate.let.set).start()
        other.run()
    assert [step.runs for step in steps] == [0, 1]
    assert kept(first, backend).state == states.SUCCESS
    assert kept(first, backend).epoch == 2


@pytest.mark.parametrize("how", ["suspend", "iterate", "cancel", "cancel at once"])
def test_whoever_waits_can_be_suspended(how: str) -> None:
    """It has changed nothing, and raises nothing."""
    backend = memory.MemoryBackend()
    gate = Gate()
    first = engines.load(line(Step("a", gate)), backend=backend)
    step = Step("a")
    with running(first, gate=gate):
        other = again(first, line(step), backend, on_busy="wait")
        asked = threading.Event()
        take = other._ownership._take  # type: ignore[attr-defined]

        def taking(*args: Any) -> Any:
            asked.set()
            return take(*args)

        other._ownership._take = taking  # type: ignore[attr-defined]

        def suspend() -> None:
            assert asked.wait(30)
            other.suspend()

        if how == "cancel at once":
            # It is suspended before it is so far that it could hear of that.
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
        assert kept(first, backend).state == states.RUNNING
    assert step.runs == 0


@pytest.mark.parametrize("wait", ["prepare", "reset"])
def test_suspend_ends_waiting_to_prepare_or_reset(wait: str) -> None:
    """The error says who runs the flow, and that it was waited for."""
    backend = memory.MemoryBackend()
    gate, over = Gate(), threading.Event()

    def suspend() -> None:
        while not over.wait(0.01):
            other.suspend()

    first = engines.load(line(Step("a", gate)), backend=backend)
    other = again(first, line(Step("a")), backend, on_busy="wait")
    if wait == "reset":
        other.prepare()
    with running(first, gate=gate):
        thread = threading.Thread(target=suspend)
        thread.start()
        with pytest.raises(exceptions.FlowBusy) as found:
            getattr(other, wait)()
        over.set()
        thread.join(60)
    assert re.search("run by process .* was waited for until `suspend`", str(found.value))
    assert found.value.owner and found.value.epoch == kept(first, backend).epoch


def test_a_deadline_counts_while_it_waits() -> None:
    """The error says what it waited for."""
    backend = memory.MemoryBackend()

    def second() -> None:
        other = again(first, line(Step("a")), backend, on_busy="wait")
        with pytest.raises(exceptions.DeadlineExceeded, match=r"is run by process .* 0\.05 sec"):
            other.run(deadline=0.05)

    first = engines.load(line(Step("a", second)), backend=backend)
    first.run()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"on_busy": "wiat"}, "Option on_busy is one of fail, wait, not 'wiat'.*'wait'"),
        ({"on_busy": None}, "Option on_busy is one of"),
        ({"durability": "eech"}, "Option durability is one of each, batch, end.*'each'"),
        ({"lease": -1}, "lease"),
        ({"lease": "soon"}, "lease"),
    ],
)
def test_options_have_few_values(options: dict[str, Any], words: str) -> None:
    """The nearest one is named."""
    with pytest.raises(ValueError, match=words):
        engines.load(line(), **options)


# -- whoever died ------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_an_owner_whose_process_died_is_taken_over_at_once() -> None:
    """One whose death is not certain is not."""
    backend = memory.MemoryBackend()
    engine = engines.load(line(Step("a")), backend=backend)
    program = "from wbengine.persistence import owners; print(owners.new())"
    dead = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()
    with backend.get_connection() as connection:
        connection.take_lease(engine.storage.flow_uuid, dead, 1000)
    engine.run()
    assert kept(engine, backend).epoch == 2
    with backend.get_connection() as connection:
        connection.take_lease(engine.storage.flow_uuid, dead.replace("/", "x/", 1), 1000)
    with pytest.raises(exceptions.FlowBusy):
        engine.run()


def test_a_lease_that_could_not_be_given_back_is_no_obstacle() -> None:
    """Neither for this engine nor for another one of this process."""

    class Keeps(memory.MemoryBackend):
        def get_connection(self) -> memory.MemoryConnection:
            class Connection(memory.MemoryConnection):
                def give_back_lease(self, lease: leases.Lease) -> None:
                    raise exceptions.StorageFailure("not now")

            return Connection(self)

    backend = Keeps()
    engine = engines.load(line(Step("a")), backend=backend)
    engine.run()
    assert owner_of(engine, backend) is not None
    engine.reset()
    engine.run()
    other = again(engine, line(Step("a")), backend)
    other.run()
    assert kept(engine, backend).epoch == 4


def test_an_owner_that_gives_no_sign_of_life_is_over_in_its_time() -> None:
    """Whoever it was."""
    backend = memory.MemoryBackend()
    engine = engines.load(line(Step("a")), backend=backend, on_busy="wait")
    with backend.get_connection() as connection:
        connection.take_lease(engine.storage.flow_uuid, "somewhere/else", 0.1)
    engine.run()
    assert kept(engine, backend).epoch == 2


# -- whoever lost it ---------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["each", "batch", "end"])
@pytest.mark.parametrize("suspended", [False, True])
def test_whoever_lost_the_flow_does_nothing_more(durability: str, suspended: bool) -> None:
    """Nothing is written, started, let go of, taken back or told; `LeaseLost` says why."""
    backend, log = memory.MemoryBackend(), list[Any]()
    engine = made(line(Step("a"), Step("b")), log, backend, durability=durability, lease=0)
    before = kept(engine, backend).epoch
    told: list[str] = []
    for notifier in (engine.notifier, engine.atom_notifier):
        notifier.register("*", lambda state, details: told.append(state))
    taken: list[Any] = []

    def lose() -> None:
        if not taken:
            taken.append(take_over(engine, backend))
            if suspended:
                engine.suspend()
            taken.append(kept(engine, backend).to_dict())
            taken.append([atom.to_dict() for atom in kept(engine, backend)])
            log.clear()
            told.clear()

    engine.executor.after = lose  # type: ignore[attr-defined]
    with pytest.raises(exceptions.LeaseLost, match=r"taken over.*elsewhere"):
        engine.run()
    assert log == ["disown", "stop"] and told == []
    assert kept(engine, backend).to_dict() == taken[1]
    assert [atom.to_dict() for atom in kept(engine, backend)] == taken[2]
    assert engine.storage.get_flow_state() == states.FAILURE
    engine.suspend()
    assert told == []
    # Later it goes on from what is stored.
    log.clear()
    engine.run()
    assert engine.storage.get_flow_state() == kept(engine, backend).state == states.SUCCESS
    assert kept(engine, backend).epoch == before + 3
    assert ("submit", "a") in log and ("submit", "b") in log


def test_whoever_waits_for_a_task_hears_of_the_loss_at_once() -> None:
    """By the thread that keeps the lease; what waits in the pool is not started."""
    backend = memory.MemoryBackend()
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
    assert kept(engine, backend).state == states.RUNNING


@pytest.mark.parametrize("durability", ["each", "batch", "end"])
def test_nothing_is_started_when_time_is_over_and_the_store_is_away(durability: str) -> None:
    """Who froze for long cannot know who runs the flow; what was written before counts."""
    backend, log = memory.MemoryBackend(), list[Any]()
    engine = made(
        unordered_flow.Flow("f").add(Step("a"), Step("b")), log, backend, durability=durability
    )

    def freeze() -> None:
        held = engine._ownership.held
        assert held is not None
        held.until = 0.0
        held.backend = Away()

    engine.executor.after = freeze  # type: ignore[attr-defined]
    with pytest.raises(exceptions.LeaseLost, match="could not be renewed"):
        engine.run()
    assert [entry for entry in log if entry[0] == "submit"] == [("submit", "a")]
    assert log[-2:] == ["disown", "stop"]


class Away(memory.MemoryBackend):
    """A store that does not answer."""

    def get_connection(self) -> memory.MemoryConnection:
        raise exceptions.StorageFailure("away")


# -- what is older than the store --------------------------------------------------------------


def test_records_that_somebody_else_changed_are_read_again() -> None:
    """Two engines of one flow, in turns: each goes on from what the other left."""
    backend = memory.MemoryBackend()
    names = ["a", "b", "c", "d"]

    def steps(engine: list[Any]) -> list[Any]:
        return [Step(name, lambda: engine[0].suspend(), provides=f"r{name}") for name in names]

    one: list[Any] = []
    two: list[Any] = []
    mine, theirs = steps(one), steps(two)
    one.append(engines.load(line(*mine), store={"x": 1}, backend=backend))
    one[0].prepare()
    two.append(again(one[0], line(*theirs), backend))
    two[0].prepare()
    for turn in range(len(names)):
        (one, two)[turn % 2][0].run()
    assert [step.runs for step in mine] == [1, 0, 1, 0]
    assert [step.runs for step in theirs] == [0, 1, 0, 1]
    assert kept(one[0], backend).state == states.SUCCESS
    assert len(kept(one[0], backend)) == len(names) + 1
    assert one[0].storage.flow_detail.epoch + 1 == two[0].storage.flow_detail.epoch


def test_an_engine_alone_reads_nothing_again() -> None:
    """Its records are those of the store."""
    backend = memory.MemoryBackend()
    engine = engines.load(line(Step("a")), store={"x": 1}, backend=backend)
    engine.run()
    engine.storage.inject({"y": 2})
    engine.storage.update_flow_metadata({"m": 1})
    engine.reset()
    engine.run()
    assert engine.storage.readings == 0
    assert kept(engine, backend).meta == {"m": 1}


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


def test_change_while_another_engine_runs_the_flow_is_refused() -> None:
    """`FlowBusy` says who runs it; nothing is changed, here or in the store."""
    backend = memory.MemoryBackend()
    refused: dict[str, str] = {}

    def meddle() -> str:
        other = again(first, line(Step("a", provides="r")), backend)
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
    assert all(f"process {os.getpid()}, which is this one," in told for told in refused.values())


@pytest.mark.parametrize("name", OUTSIDE)
def test_change_outside_a_run_is_written_and_gives_the_lease_back(name: str) -> None:
    """Whoever loads the flow next finds it, and may run the flow at once."""
    backend = memory.MemoryBackend()
    engine = engines.load(line(Step("a", provides="r")), backend=backend)
    engine.prepare()
    engine.storage.set_flow_state(states.RUNNING)
    engine.storage.save("a", "first")
    before = kept(engine, backend)
    OUTSIDE[name](engine.storage)
    assert owner_of(engine, backend) is None
    after = kept(engine, backend)
    assert records.of_flow(after) != records.of_flow(before)
    assert records.of_flow(after) == records.of_flow(engine.storage.flow_detail)


@contextlib.contextmanager
def changing(change: Callable[[], object]) -> Iterator[threading.Event]:
    """Make one change in a thread of its own, which holds the lease until the event is set."""
    gate = Gate()

    def hold(point: str) -> None:
        if point == "storage.before-save" and threading.current_thread().name == "changing_0":
            gate()

    with futures.ThreadPoolExecutor(1, "changing") as pool:
        _crash.install(hold)
        try:
            made = pool.submit(change)
            assert gate.inside.wait(30)
            yield gate.let
        finally:
            gate.let.set()
            futures.wait([made], 60)
            _crash.install(None)
        made.result(0)


MOMENTARY: dict[str, Callable[[Any], object]] = {
    "inject": lambda engine: engine.storage.inject({"y": 2}),
    "prepare": lambda engine: engine.prepare(),
    "reset": lambda engine: engine.reset(),
}


@pytest.mark.parametrize(
    "held, waits",
    [*itertools.product(MOMENTARY, ["run"]), *itertools.product(["inject"], MOMENTARY)],
)
def test_change_by_another_is_waited_for(held: str, waits: str) -> None:
    """By a run and by other changes, without on_busy='wait'; both are written."""
    backend = memory.MemoryBackend()
    one = engines.load(line(Step("a")), backend=backend)
    if held != "prepare":
        one.prepare()
    if held == "reset":
        one.run()
    seen = stores.FaultyBackend(backend)
    other = again(one, line(Step("a")), seen)
    other.compile()
    if waits == "reset":
        other.prepare()
    tried = seen.writes.count("take_lease")
    with futures.ThreadPoolExecutor(1) as pool, changing(lambda: MOMENTARY[held](one)) as let:
        waiting = pool.submit(MOMENTARY.get(waits, lambda engine: engine.run()), other)
        until(lambda: waiting.done() or seen.writes.count("take_lease") >= tried + 2)
        assert not waiting.done(), waiting.exception()
        let.set()
        waiting.result(60)
    found = kept(one, backend)
    assert waits != "run" or found.state == states.SUCCESS
    assert (owner_of(one, backend), other.storage.flow_detail.epoch) == (None, found.epoch)
    if held == "inject":
        assert other.storage.fetch("y") == 2


def test_change_that_does_not_end_is_waited_for_in_vain() -> None:
    """Two seconds; `FlowBusy` says that the flow is changed, and by which process."""
    backend = memory.MemoryBackend()
    one = engines.load(line(Step("a")), backend=backend)
    one.prepare()
    others = [again(one, line(Step("a")), backend) for _ in range(2)]
    told = rf"Flow 'f' is changed by process {os.getpid()}, .*; its lease ends \d+ s from now if"
    with futures.ThreadPoolExecutor(2) as pool, changing(lambda: MOMENTARY["inject"](one)):
        run = pool.submit(others[0].run)
        change = pool.submit(MOMENTARY["inject"], others[1])
        with pytest.raises(exceptions.FlowBusy, match=told):
            change.result(60)
        with pytest.raises(exceptions.FlowBusy, match=told + r".*on_busy='wait'"):
            run.result(60)
    assert kept(one, backend).epoch == 2


def test_waiting_for_a_change_is_ended_by_suspend_and_by_a_deadline() -> None:
    """As waiting for a run is."""
    backend = memory.MemoryBackend()
    one = engines.load(line(Step("a")), backend=backend)
    one.prepare()
    seen = stores.FaultyBackend(backend)
    step = Step("a")
    other = again(one, line(step), seen)
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
    assert step.runs == 0 and kept(one, backend).epoch == 2


def test_change_while_its_own_engine_gives_the_lease_back_is_written() -> None:
    """It takes the lease after the run, and is not refused because of it."""
    backend = memory.MemoryBackend()
    engine = engines.load(line(Step("a")), backend=backend)
    engine.prepare()
    with futures.ThreadPoolExecutor(1) as pool:
        changes: list[futures.Future[None]] = []

        def change(point: str) -> None:
            if point == "lease.before-give-back" and not changes:
                changes.append(pool.submit(engine.storage.inject, {"y": 2}))
                # Either it ends at once, because it is refused, or it waits for this thread.
                futures.wait(changes, 0.2)

        _crash.install(change)
        try:
            engine.run()
        finally:
            _crash.install(None)
        changes[0].result(60)
    assert kept(engine, backend).epoch == 3
    assert records.of_flow(kept(engine, backend)) == records.of_flow(engine.storage.flow_detail)
    assert engine.storage.fetch("y") == 2 and owner_of(engine, backend) is None


def test_values_for_a_kept_flow_wait_with_the_run() -> None:
    """With on_busy='wait' they are injected when the flow is free; otherwise `load` is refused."""
    backend = memory.MemoryBackend()
    gate = Gate()
    held = Step("a", lambda: gate() or first.suspend())
    first = engines.load(line(held, Step("b")), store={"x": 1}, backend=backend)
    with running(first, gate=gate):
        with pytest.raises(exceptions.FlowBusy):
            again(first, line(Step("a"), Step("b")), backend, store={"y": 2})
        flow = line(Step("a"), Step("b"))
        other = again(first, flow, backend, store={"y": 2}, on_busy="wait")
    other.run()
    (injector,) = [atom for atom in kept(other, backend) if atom.name == "_wbengine_injector"]
    assert injector.results == {"x": 1, "y": 2}


def test_an_old_engine_overwrites_nothing_from_outside_a_run() -> None:
    """What it is given goes to the newest records."""
    backend = memory.MemoryBackend()
    old = engines.load(line(Step("a", provides="r")), store={"x": 1}, backend=backend)
    old.prepare()
    again(old, line(Step("a", provides="r")), backend).run()
    old.storage.update_atom_metadata("a", {"mark": 1})
    found = {atom.name: atom for atom in kept(old, backend)}
    assert (found["a"].state, found["a"].results) == (states.SUCCESS, "a")
    assert found["a"].meta["mark"] == 1
    assert old.storage.fetch("r") == "a", "and it has read them"
    old.run()
    assert old.storage.get_flow_state() == states.SUCCESS


def test_two_that_load_a_new_flow_share_its_records() -> None:
    """Of a value that both inject the latest counts."""
    backend = memory.MemoryBackend()
    one = engines.load(line(Step("a")), store={"x": 1, "only": 1}, backend=backend)
    step = Step("a")
    two = again(one, line(step), backend)
    two.storage.inject({"x": 2})
    one.prepare()
    two.prepare()
    one.run()
    found = kept(one, backend)
    (injector,) = [atom for atom in found if atom.name == one.storage.injector_name]
    assert injector.results == {"x": 2, "only": 1}
    assert one.storage.fetch("x") == 2
    two.run()
    assert two.storage.get_atom_state("a") == states.SUCCESS, "the record that was used counts"
    assert two.storage.get_attempt("a").attempt == 1  # type: ignore[union-attr]
    assert step.runs == 0


def test_what_was_ignored_stays_so_where_two_loaded_a_new_flow() -> None:
    """Of two records of an atom that never ran, the one that somebody decided about counts."""
    backend = memory.MemoryBackend()

    def graph() -> Any:
        steps = Step("a"), Step("b")
        flow = graph_flow.Flow("f").add(*steps)
        return flow.link(*steps, decider=lambda history: False)

    one = engines.load(graph(), backend=backend)
    two = again(one, graph(), backend)
    one.prepare()
    two.prepare()
    two.run()
    third = again(one, graph(), backend)
    third.prepare()
    assert third.storage.get_atom_state("b") == states.IGNORE
    third.run()
    assert third.storage.get_atom_state("b") == states.IGNORE


def test_a_retry_and_its_history_are_read_again_too() -> None:
    """Failures of records that are replaced are forgotten with them."""
    backend = memory.MemoryBackend()

    def flow(does: Any) -> Any:
        return linear_flow.Flow("f", retry.Times(2, "r")).add(Step("a", does, provides="x"))

    def fail() -> None:
        raise ValueError("no")

    one = engines.load(flow(fail), backend=backend)
    with pytest.raises(ValueError, match="no"):
        one.run()
    two = again(one, flow(lambda: "right"), backend)
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
def test_a_process_that_is_killed_is_replaced_at_once(kind: str, tmp_path: Path) -> None:
    """While it lives it is named; nobody waits for who is dead until his lease ends."""
    uri = f"dir://{tmp_path / 'store'}" if kind == "dir" else f"sqlite:///{tmp_path / 'store.db'}"
    with backends.backend(uri) as backend:
        first = engines.load(line(Step("a")), backend=backend)
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, uri, first.storage.flow_uuid],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "inside\n"
            engine = again(first, line(Step("a")), backend)
            with pytest.raises(exceptions.FlowBusy, match=f"process {child.pid} on host"):
                engine.run()
        finally:
            child.kill()
            child.communicate()
        engine.run()
        found = kept(engine, backend)
        assert (found.state, found.epoch) == (states.SUCCESS, 2)
        assert [(atom.name, atom.attempt) for atom in found] == [("a", 2)]


# One that comes while a weak reference is cleared is lost: Python can only print it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_whenever_ctrl_c_comes_the_flow_is_free_and_goes_on() -> None:
    """Anywhere between the lease and its end; nothing that is saved runs again."""
    chance, interrupted = random.Random(7), 0
    for number in range(60):
        backend = memory.MemoryBackend()
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
        saved = {atom.name for atom in kept(engine, backend) if atom.state == states.SUCCESS}
        ran = {step.name: step.runs for step in steps}
        other = again(engine, line(*steps), backend)
        (other if number % 2 else engine).run()
        assert kept(engine, backend).state == states.SUCCESS
        assert {step.name: step.runs for step in steps if step.name in saved} == {
            name: ran[name] for name in saved
        }
        assert owner_of(engine, backend) is None
    assert interrupted > 10


def interrupted_at(number: int, engine: base.Engine, step: Step) -> bool:
    """Run it; Ctrl-C comes before the given line of the engine's own module, unless `step` ran."""
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


def test_engine_interrupted_before_any_line_of_its_start_runs_again() -> None:
    """From `run` to the first task, one line after the other."""
    for number in itertools.count():
        step = Step("s")
        engine = engines.load(line(step), backend=memory.MemoryBackend())
        came = interrupted_at(number, engine, step)
        if came:
            engine.run()
        assert step.runs == 1
        if not came:
            break
    assert number > 40


# -- what was reverted ----------------------------------------------------------------------------


def broken(detail: models.FlowDetail | None, backend: Any, well: bool) -> base.Engine:
    def fails() -> None:
        if not well:
            raise ValueError("no")

    flow = line(Step("a"), Step("b", fails))
    return engines.load(flow, flow_detail=detail, backend=backend)


@pytest.mark.parametrize("first", ["nothing", "prepare", "reset"])
def test_a_reverted_flow_starts_anew_elsewhere(first: str) -> None:
    """Whatever was called before it is run: the records were read before the run, and are again."""
    backend = memory.MemoryBackend()
    engine = broken(None, backend, well=False)
    with pytest.raises(ValueError, match="no"):
        engine.run()
    later = broken(kept(engine, backend), backend, well=True)
    if first != "nothing":
        later.compile()
        later.prepare()
        later.validate()
    if first == "reset":
        later.reset()
    later.run()
    assert kept(later, backend).state == states.SUCCESS
    assert {atom.state for atom in kept(later, backend)} == {states.SUCCESS}

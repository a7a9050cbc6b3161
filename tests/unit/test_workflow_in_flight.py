"""Steps that are in flight when a run is interrupted, and whose workflow then ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import pytest

from tests.support.continued_engines import continued
from tests.support.engine_threads import Running
from tests.support.waiting import until
from wbengine import engines, exceptions, states, task
from wbengine._calls import invocation
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, base
from wbengine.steps import AsyncSteps, Steps
from wbengine.types import failure as ft

EFFECTS: list[tuple[str, str]] = []
#: Keys of steps that interrupt the run, each once, after their effect.
INTERRUPTING: set[str] = set()
#: Lets slow steps end.
GATE = threading.Event()
#: Whether functions call another step than before.
CHANGED: list[bool] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    EFFECTS.clear()
    CHANGED.clear()
    INTERRUPTING.clear()
    GATE.set()


@pytest.fixture
def store() -> Iterator[base.Backend]:
    backend = backends.fetch("memory://")
    yield backend
    backend.close()


@task.task
def work(key: str) -> str:
    if key == "slow":
        EFFECTS.append(("begin", key))
        assert GATE.wait(60)
    else:
        wait_for_slow()
    EFFECTS.append(("do", key))
    if key in INTERRUPTING:
        INTERRUPTING.remove(key)
        raise KeyboardInterrupt
    return key


@work.revert
def undo_work(key: str, result: Any) -> None:
    EFFECTS.append(("undo", key))
    if isinstance(result, ft.Failure):
        assert result.check(exceptions.Interrupted)


def wait_for_slow() -> None:
    """Wait until the slow step is in flight, unless the engine is serial."""
    until(lambda: GATE.is_set() or ("begin", "slow") in EFFECTS)


@task.task
def fail() -> None:
    wait_for_slow()
    EFFECTS.append(("do", "failure"))
    raise ValueError("it fails")


@task.workflow
async def gathered(steps: AsyncSteps) -> None:
    await asyncio.gather(steps.run(fail), steps.run(work, "slow"))


@task.workflow
async def scoped(steps: AsyncSteps) -> None:
    async with steps.scope():
        await asyncio.gather(steps.run(fail), steps.run(work, "slow"))


@task.workflow
async def waiting(steps: AsyncSteps) -> None:
    await asyncio.gather(steps.wait_for("never"), steps.run(fail), steps.run(work, "slow"))


@task.workflow
async def returning(steps: AsyncSteps) -> None:
    calls = [steps.run(work, "fast"), steps.run(work, "slow")]
    await asyncio.wait(map(asyncio.ensure_future, calls), return_when=asyncio.FIRST_COMPLETED)


@task.workflow
def mapped(steps: Steps) -> None:
    def items() -> Iterator[str]:
        yield "slow"
        steps.run(work, "fast")
        raise LookupError("the iterable fails")

    steps.map(work, items())


@task.workflow
async def unfinished(steps: AsyncSteps) -> None:
    if CHANGED:
        await steps.run(work, "changed")
    await asyncio.gather(steps.run(work, "fast"), steps.run(work, "slow"))
    await steps.wait_for("never")


def returning_before_failure() -> Any:
    return linear_flow.Flow("flow").add(returning(), fail())


def beside_failure() -> Any:
    return unordered_flow.Flow("flow").add(fail(), unfinished())


#: Flows that fail, with the effect after which they cannot succeed any more.
FAILING: dict[str, tuple[Callable[[], Any], str]] = {
    "gather": (gathered, "failure"),
    "scope": (scoped, "failure"),
    "wait": (waiting, "failure"),
    "return": (returning_before_failure, "fast"),
    "map": (mapped, "fast"),
    "sibling": (beside_failure, "failure"),
}


class Fleet(invocation.TaskExecutor):
    """Runs tasks that survive their engine, as workers with a ledger do."""

    survives_engine = has_ledger = True

    def __init__(self) -> None:
        #: Whether calls of this run are lost before they are sent.
        self.is_disconnected = False
        self._pool = futures.ThreadPoolExecutor(8)
        self._calls: dict[tuple[str, str, int], futures.Future[invocation.Outcome]] = {}
        self._in_flight: dict[invocation.Invocation, invocation.Done] = {}

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        key = call.uuid, call.action, call.attempt
        if self.is_disconnected:
            interruption = ft.Failure.from_exception(KeyboardInterrupt())
            done(call, invocation.Outcome(interruption))
            return
        if key not in self._calls:
            if call.cancellation.cancelled:
                refusal = exceptions.Cancelled("it was not sent")
                done(call, invocation.Outcome(ft.Failure.from_exception(refusal)))
                return
            self._calls[key] = self._pool.submit(invocation.invoke, call)
        self._in_flight[call] = done
        self._calls[key].add_done_callback(lambda future: self._end(call, future.result()))

    def _end(self, call: invocation.Invocation, outcome: invocation.Outcome) -> None:
        done = self._in_flight.pop(call, None)
        if done is not None:
            done(call, outcome)

    def interrupt_engine(self) -> None:
        interruption = ft.Failure.from_exception(KeyboardInterrupt())
        for call in list(self._in_flight):
            self._end(call, invocation.Outcome(interruption))


def begin(flow: Any, store: base.Backend, kind: str, effect: str) -> Any:
    """Run a flow until it is interrupted while "slow" is in flight; return it from the store.

    :returns: a function that returns an engine for the flow.
    """
    options: dict[str, Any] = {"engine": kind}
    if kind != "serial":
        GATE.clear()
    if kind == "fleet":
        options = {"engine": "parallel", "executor": Fleet()}
    else:
        INTERRUPTING.add("slow")
    engine = engines.load(flow(), backend=store, **options)
    with Running(engine) as running:
        if kind != "serial":
            until(lambda: ("begin", "slow") in EFFECTS and is_stored(engine, store, effect))
        if kind == "fleet":
            options["executor"].interrupt_engine()
        else:
            GATE.set()
    assert isinstance(running.error, KeyboardInterrupt)
    GATE.set()
    return lambda: continued(engine, flow(), store, **options)


def is_stored(engine: Any, store: base.Backend, effect: str) -> bool:
    """Return whether the result of the step, or task, with an effect is stored."""
    detail = store.get_connection().get_flow_details(engine.storage.flow_uuid)
    if effect == "failure":
        return any(atom.failure is not None for atom in detail)
    return any(atom.is_step and atom.results == effect for atom in detail)


def check_reverted(engine: Any, kind: str) -> None:
    """Check that the flow has no work left, and that a fleet did and undid it once."""
    assert engine.storage.get_flow_state() == states.REVERTED
    latest = {key: what for what, key in EFFECTS if key != "failure"}
    assert set(latest.values()) == {"undo"}, EFFECTS
    if kind == "fleet":
        assert len(EFFECTS) == len(set(EFFECTS)), EFFECTS
    left = {atom.name: atom.state for atom in engine.storage.flow_detail if atom.is_step}
    assert not {states.RUNNING, states.REVERTING}.intersection(left.values()), left


KINDS = ["serial", "parallel", "fleet"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAILING)
def test_step_in_flight_of_failing_flow_is_reverted(
    store: base.Backend, name: str, kind: str
) -> None:
    flow, effect = FAILING[name]
    load = begin(flow, store, kind, effect)
    engine = load()
    with pytest.raises((ValueError, LookupError)):
        engine.run()
    check_reverted(engine, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["cancel", "deadline"])
def test_step_in_flight_of_given_up_flow_is_reverted(
    store: base.Backend, command: str, kind: str
) -> None:
    engine = begin(unfinished, store, kind, "fast")()
    if command == "cancel":
        engine.notifier.register(states.RUNNING, lambda state, details: engine.cancel())
    with pytest.raises((exceptions.Cancelled, exceptions.DeadlineExceeded)):
        engine.run(deadline=0 if command == "deadline" else None)
    check_reverted(engine, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_step_in_flight_of_changed_function_is_reverted(store: base.Backend, kind: str) -> None:
    load = begin(unfinished, store, kind, "fast")
    CHANGED.append(True)
    with pytest.raises(exceptions.NonDeterministicWorkflow):
        load().run()
    engine = load()
    engine.notifier.register(states.RUNNING, lambda state, details: engine.cancel())
    with pytest.raises(exceptions.Cancelled):
        engine.run()
    check_reverted(engine, kind)


def test_step_of_cancelled_flow_that_was_not_sent_is_not_reverted(store: base.Backend) -> None:
    fleet = Fleet()
    options: dict[str, Any] = {"backend": store, "engine": "parallel", "executor": fleet}
    fleet.is_disconnected = True
    engine = engines.load(careful, **options)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    detail = store.get_connection().get_flow_details(engine.storage.flow_uuid)
    assert [step.state for step in detail if step.is_step] == [states.RUNNING]
    fleet.is_disconnected = False
    engine = engines.load(careful, flow_detail=detail, **options)
    engine.notifier.register(states.RUNNING, lambda state, details: engine.cancel())
    with pytest.raises(exceptions.Cancelled):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert EFFECTS == []


@task.task
def note(key: str) -> None:
    EFFECTS.append(("do", key))


@note.revert(failed=True)
def undo_note(key: str) -> None:
    EFFECTS.append(("undo", key))


@task.workflow
def careful(steps: Steps) -> None:
    steps.run(note, "slow")

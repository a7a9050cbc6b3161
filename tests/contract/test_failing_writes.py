"""Engines over stores in which one write fails or loses its reply.

For each write, the next run completes the flow and repeats no task whose result is stored.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import map_tasks
from wbengine import engines, exceptions, retry, states, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import base, models
from wbengine.testing import FaultyBackend

#: Attempts of an engine for each write.
TRIES = 3


def refused(store: FaultyBackend, skip: int) -> Any:
    """Let the store reject the write."""
    return store.fail_next(TRIES, skip=skip)


def written(store: FaultyBackend, skip: int) -> Any:
    """Let the store execute the write three times without a reply."""
    return store.lose_answer(TRIES, skip=skip)


def written_once(store: FaultyBackend, skip: int) -> Any:
    """Let the store execute the write without a reply, and then be unreachable."""
    store.fail_next(TRIES - 1, skip=skip + 1)
    return store.lose_answer(skip=skip)


class Tally:
    """Number of complete executions of each body."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()

    def step(self, name: str, fails: Callable[[int], bool] = lambda turn: False) -> Any:
        def execute(turn: int = 9) -> str:
            if fails(turn):
                raise ValueError(name)
            result = f"{name} of turn {turn}"
            self.ends[result] += 1
            return result

        def revert(**more: Any) -> None:
            self.ends[f"-{name}"] += 1

        return task.FunctorTask(execute, name, provides=f"r_{name}", revert=revert)


def succeeds(tally: Tally) -> Any:
    """Return a flow with a retry that tries twice, a Map and unordered tasks."""
    inner = linear_flow.Flow("inner", retry.Times(3, "times", provides="turn"))
    inner.add(tally.step("b"), tally.step("c", lambda turn: turn < 2))
    mapped = task.Map(map_tasks.Square(), name="m", over="numbers", item="item", provides="squares")
    wide = unordered_flow.Flow("wide").add(tally.step("d"), tally.step("e"))
    return linear_flow.Flow("f").add(tally.step("a"), inner, mapped, wide)


def reverts(tally: Tally) -> Any:
    return linear_flow.Flow("f").add(
        tally.step("a"), tally.step("b"), tally.step("c", lambda turn: True)
    )


#: Factory, kind of engine and final state of each flow.
FLOWS: dict[str, tuple[Callable[[Tally], Any], str, str]] = {
    "succeeds": (succeeds, "parallel", states.SUCCESS),
    "reverts": (reverts, "serial", states.REVERTED),
}


def picture(detail: models.FlowDetail) -> Any:
    return detail.state, {atom.name: (atom.state, atom.results) for atom in detail}


def ended(detail: models.FlowDetail) -> set[str]:
    """Return the bodies whose result is stored."""
    done = {str(atom.results) for atom in detail if atom.state == states.SUCCESS}
    return done | {f"-{atom.name}" for atom in detail if atom.state == states.REVERTED}


class FlowRuns:
    """Flow in a store that engines run one after another."""

    def __init__(self, store: FaultyBackend, make: Callable[[Tally], Any], kind: str) -> None:
        self._store, self._make, self._kind = store, make, kind
        self.tally = Tally()
        book = models.LogBook("b")
        flow = models.FlowDetail("f")
        book.add(flow)
        with store.inner.get_connection() as connection:
            connection.save_logbook(book)
        self._uuid = flow.uuid

    def kept(self) -> models.FlowDetail:
        with self._store.inner.get_connection() as connection:
            return connection.get_flow_details(self._uuid)

    def run(self) -> None:
        """Run until the flow ends or the store fails."""
        engine = engines.load(
            self._make(self.tally), {"numbers": [1, 2, 3]}, flow_detail=self.kept(),
            backend=self._store, engine=self._kind,
        )  # fmt: skip
        with contextlib.suppress(ValueError):
            engine.run()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *(("sqlite", fault) for fault in (refused, written, written_once)),
        # The faults are in front of the store, so another kind has one of them.
        ("memory", written_once),
        ("postgresql", written_once),
    ],
    indirect=["kind"],
)
@pytest.mark.parametrize("flow", FLOWS)
def test_run_after_any_failed_write_succeeds_and_repeats_no_saved_task(
    backend: base.Backend, flow: str, fault: Callable[..., Any]
) -> None:
    make, engine, end = FLOWS[flow]
    whole = FlowRuns(FaultyBackend(backend), make, engine)
    whole.run()
    expected = picture(whole.kept())
    assert expected[0] == end
    ended_runs = 0
    for skip in itertools.count():
        store = FaultyBackend(backend)
        life = FlowRuns(store, make, engine)
        struck = fault(store, skip)
        try:
            life.run()
        except exceptions.StorageFailure:
            ended_runs += 1
        if not struck.count:
            break  # there are no more writes
        store.heal()
        found = life.kept()
        before = life.tally.ends.copy()
        if found.state != end:
            life.run()
        assert picture(life.kept()) == expected, (skip, store.writes)
        again = {body for body in ended(found) if life.tally.ends[body] != before[body]}
        assert not again, (skip, store.writes)
        more = life.tally.ends - whole.tally.ends
        assert all(count == 1 for count in more.values()), (skip, more)
    assert skip > 5 and ended_runs > 2

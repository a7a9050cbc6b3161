"""Engines over stores of each kind of which one write fails, or is written and not answered.

Whatever write it is: the flow ends right after the next run, and nothing runs again whose end is in
the store.
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

#: An engine tries each write so many times before it gives up.
TRIES = 3


def refused(store: FaultyBackend, skip: int) -> Any:
    """The store does nothing."""
    return store.fail_next(TRIES, skip=skip)


def written(store: FaultyBackend, skip: int) -> Any:
    """The store does it, three times, and never says so."""
    return store.lose_answer(TRIES, skip=skip)


def written_once(store: FaultyBackend, skip: int) -> Any:
    """The store does it, does not say so, and then is away."""
    store.fail_next(TRIES - 1, skip=skip + 1)
    return store.lose_answer(skip=skip)


class Tally:
    """How often each body ran to its end."""

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
    """A retry that tries twice, a Map, and tasks side by side."""
    inner = linear_flow.Flow("inner", retry.Times(3, "times", provides="turn"))
    inner.add(tally.step("b"), tally.step("c", lambda turn: turn < 2))
    mapped = task.Map(map_tasks.Square(), name="m", over="numbers", item="item", provides="squares")
    wide = unordered_flow.Flow("wide").add(tally.step("d"), tally.step("e"))
    return linear_flow.Flow("f").add(tally.step("a"), inner, mapped, wide)


def reverts(tally: Tally) -> Any:
    return linear_flow.Flow("f").add(
        tally.step("a"), tally.step("b"), tally.step("c", lambda turn: True)
    )


#: How a flow is made, by which kind of engine it is run, and how it ends.
FLOWS: dict[str, tuple[Callable[[Tally], Any], str, str]] = {
    "succeeds": (succeeds, "parallel", states.SUCCESS),
    "reverts": (reverts, "serial", states.REVERTED),
}


def picture(detail: models.FlowDetail) -> Any:
    return detail.state, {atom.name: (atom.state, atom.results) for atom in detail}


def ended(detail: models.FlowDetail) -> set[str]:
    """The bodies whose end is in the store."""
    done = {str(atom.results) for atom in detail if atom.state == states.SUCCESS}
    return done | {f"-{atom.name}" for atom in detail if atom.state == states.REVERTED}


class Life:
    """One flow in one store, run by one engine after the other."""

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
        """Until the flow ended, or the store failed."""
        engine = engines.load(
            self._make(self.tally), {"numbers": [1, 2, 3]}, flow_detail=self.kept(),
            backend=self._store, engine=self._kind,
        )  # fmt: skip
        with contextlib.suppress(ValueError):
            engine.run()


@pytest.mark.parametrize("fault", [refused, written, written_once])
@pytest.mark.parametrize("flow", FLOWS)
def test_whatever_write_fails_the_next_run_ends_right_and_repeats_nothing(
    backend: base.Backend, flow: str, fault: Callable[..., Any]
) -> None:
    make, engine, end = FLOWS[flow]
    whole = Life(FaultyBackend(backend), make, engine)
    whole.run()
    expected = picture(whole.kept())
    assert expected[0] == end
    ended_runs = 0
    for skip in itertools.count():
        store = FaultyBackend(backend)
        life = Life(store, make, engine)
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

"""Runs of parents and children in a process that is killed, and what remains afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.crashing import children as processes
from tests.support import child_flows
from wbengine import engines, exceptions, operations, states, task, testing
from wbengine._concurrency import crash_points
from wbengine.conductors.backends import impl_executor
from wbengine.persistence import backends
from wbengine.persistence import base as persistence

ITEMS = ["tea", "cup"]


class Scenario(NamedTuple):
    """A workflow with two children, commands after its first run, and the expected states."""

    workflow: type[task.Workflow]
    commands: tuple[str, ...]
    parent: str
    child: str
    effects: tuple[str, ...]


_RESERVED = ("reserve-cup", "reserve-tea")
_RELEASED = ("release-cup", "release-tea", *_RESERVED)
SCENARIOS = {
    "succeed": Scenario(child_flows.order_async, (), states.SUCCESS, states.SUCCESS, _RESERVED),
    "fail": Scenario(child_flows.order_and_fail, (), states.REVERTED, states.REVERTED, _RELEASED),
    "undo": Scenario(
        child_flows.order, ("revert",), states.REVERTED, states.REVERTED, _RELEASED
    ),
    "cancel": Scenario(
        child_flows.order_and_wait, ("cancel",), states.REVERTED, states.REVERTED, _RELEASED
    ),
    "suspend": Scenario(
        child_flows.order_and_wait, ("suspend", "resume", "signal"),
        states.SUCCESS, states.SUCCESS, _RESERVED,
    ),
}  # fmt: skip


class Stage:
    """A folder with the store and the effects of one scenario."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self.folder, self.scenario = folder, scenario
        self.uri = f"sqlite:///{folder}/flows.db"

    def submit(self) -> None:
        given = {"folder": str(self.folder), "items": ITEMS}
        with backends.backend(self.uri) as store:
            handle = engines.submit(self.scenario.workflow, inputs=given, backend=store)
            (self.folder / "parent").write_text(handle.id)

    @property
    def parent(self) -> str:
        return (self.folder / "parent").read_text()

    def run(self) -> None:
        """Run the scenario to its end. A repetition sends the same commands again."""
        impl_executor.ExecutorConductor.CLAIM_SECONDS = 0.2
        with backends.backend(self.uri) as store:
            # Before its end, a revert would be a cancellation.
            self._finish(store, until_ended="revert" in self.scenario.commands)
            for command in self.scenario.commands:
                with contextlib.suppress(exceptions.InvalidState):
                    self._send(store, command)
                self._finish(store, until_ended=command == self.scenario.commands[-1])
            if not self.scenario.commands:
                self._finish(store, until_ended=True)

    def _send(self, store: persistence.Backend, command: str) -> None:
        if command == "signal":
            for uuid, state in self.states(store).items():
                if uuid != self.parent and state not in states.FLOW_ENDED:
                    operations.signal(store, uuid, "go")
        elif command in ("cancel", "suspend"):
            getattr(operations, command)(store, self.parent)
        else:
            operations.request(store, self.parent, command)

    def _finish(self, store: persistence.Backend, *, until_ended: bool = False) -> None:
        """Run flows until none can run now. Claims of killed processes expire meanwhile."""

        def is_over() -> bool:
            testing.run_submitted(store)
            found = self.states(store)
            if until_ended:
                return all(state in states.FLOW_ENDED for state in found.values())
            return self._is_idle(store)

        processes.until(is_over, 30.0, "the flows do not end")

    @staticmethod
    def _is_idle(store: persistence.Backend) -> bool:
        with store.get_connection() as connection:
            rows = connection.list_flows().flows
        return all(
            row.state in states.FLOW_ENDED or (row.state == states.SUSPENDED and not row.lease)
            for row in rows
        )

    @staticmethod
    def states(store: persistence.Backend) -> dict[str, str]:
        with store.get_connection() as connection:
            return {row.uuid: row.state for row in connection.list_flows().flows}

    def problems(self) -> list[str]:
        """Return the differences from the expected states and effects."""
        scenario, found = self.scenario, []
        with backends.backend(self.uri) as store:
            stored = self.states(store)
            with store.get_connection() as connection:
                records = connection.flow_records(list(stored))
        parent = self.parent
        if stored.pop(parent) != scenario.parent:
            found.append(f"parent is {records[parent].state}: {records[parent].error}")
        if sorted(stored.values()) != [scenario.child] * len(ITEMS):
            found.append(f"children are {sorted(stored.values())}")
        if any(records[uuid].parent != parent for uuid in stored):
            found.append("a child has no parent")
        effects = Counter(child_flows.effects(self.folder))
        if sorted(effects) != sorted(scenario.effects):
            found.append(f"effects are {dict(effects)}")
        return found


def run_killed(stage: Stage, number: int) -> bool:
    """Run a scenario in a process that is killed at crash point `number`, then in another one.

    :returns: whether the first process reached that point.
    """
    log = stage.folder / "log"

    def run_until_killed() -> None:
        count = 0

        def hit(point: str) -> None:
            nonlocal count
            count += 1
            if count == number:
                (stage.folder / "point").write_text(point)
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()

        crash_points.install(hit)
        stage.run()

    was_killed = processes.wait(processes.fork(run_until_killed, log)) == -signal.SIGKILL
    code = processes.wait(processes.fork(stage.run, log))
    if code:
        raise AssertionError(f"the second process ended with {code}: {log.read_text()[-3000:]}")
    return was_killed


def sweep(folder: Path, name: str, numbers: Iterable[int]) -> tuple[int, list[str]]:
    """Kill a scenario at these crash points. Return the number of kills, and problems."""
    kills, problems = 0, list[str]()
    for number in numbers:
        place = folder / f"{name}-{number}"
        place.mkdir(parents=True)
        stage = Stage(place, SCENARIOS[name])
        stage.submit()
        try:
            was_killed = run_killed(stage, number)
        except AssertionError as error:
            was_killed = True
            problems.append(f"{name} #{number}: {error}")
        point = (place / "point").read_text() if was_killed else "end"
        problems += [f"{name} #{number} at {point}: {each}" for each in stage.problems()]
        kills += was_killed
        if not was_killed:
            break
    return kills, problems


if __name__ == "__main__":
    # A process of its own: forks must not have the threads of other tests.
    counted, found_problems = sweep(Path(sys.argv[1]), sys.argv[2], map(int, sys.argv[3:]))
    print(json.dumps([counted, found_problems]))

"""Parents with children, and flows with forks: kills at each crash point of their conductors.

The flows are submitted to a database. Each process conducts all of them, one after the other.
"""

from __future__ import annotations

import contextlib
import functools
import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.crashing import children, engines, spreading, stages, sweep
from tests.crashing.children import Kill
from tests.seams import stores
from tests.support import child_flows
from wbengine import engines as flows
from wbengine import exceptions, operations, states, task, testing
from wbengine.conductors.backends import impl_executor
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends, base

STORES = ("sqlite", "postgresql")

_ITEMS = ["tea", "cup"]
_PATIENCE = 30.0
#: Number of cases with a second kill, for each point that only a resuming process reaches.
_TRIES = 2


class Scenario(NamedTuple):
    """A workflow with two children, commands after its first run, and the expected end.

    :ivar others: the states of the other flows: children, then a fork and its children.
    """

    workflow: type[task.Workflow]
    commands: tuple[str, ...]
    parent: str
    others: tuple[str, ...]
    effects: tuple[str, ...]


_RESERVED = ("reserve-cup", "reserve-tea")
_RELEASED = ("release-cup", "release-tea", *_RESERVED)
_SUCCESS = (states.SUCCESS, (states.SUCCESS,) * 2, _RESERVED)
_REVERTED = (states.REVERTED, (states.REVERTED,) * 2, _RELEASED)
SCENARIOS: Mapping[str, Scenario] = {
    "succeed": Scenario(child_flows.order_async, (), *_SUCCESS),
    "map": Scenario(child_flows.order_by_map, (), *_SUCCESS),
    "fail": Scenario(child_flows.order_and_fail, (), *_REVERTED),
    "refuse": Scenario(child_flows.order_and_refuse, (), *_REVERTED),
    "undo": Scenario(child_flows.order, ("revert",), *_REVERTED),
    "cancel": Scenario(child_flows.order_and_wait, ("cancel",), *_REVERTED),
    "suspend": Scenario(child_flows.order_and_wait, ("suspend", "resume", "signal"), *_SUCCESS),
    # From the step after both children.
    "fork": Scenario(
        child_flows.order_and_pack, ("fork 2",),
        states.REVERTED, (states.SUCCESS,) * 3,
        (*_RESERVED, "reserve-box", "release-box", "reserve-box"),
    ),
    # From the second child.
    "fork-child": Scenario(
        child_flows.order_by_map, ("fork 1",),
        states.REVERTED, (states.REVERTED, *(states.SUCCESS,) * 3),
        (*_RESERVED, "release-cup", "reserve-cup"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Kills in a scenario: each kills one process, and the next one continues."""

    store: str
    scenario: str
    kills: tuple[Kill, ...] = ()

    def __str__(self) -> str:
        return f"{self.store} x {self.scenario}, killed at {', then '.join(map(str, self.kills))}"


class Stage:
    """A store and a folder with the effects of one scenario."""

    def __init__(self, folder: Path, url: str, scenario: Scenario) -> None:
        self.folder, self.url, self.scenario = folder, url, scenario
        given = {"folder": str(folder), "items": _ITEMS}
        with backends.backend(url) as store:
            self.parent = flows.submit(scenario.workflow, inputs=given, backend=store).id
        #: Effects of which the store did not contain the results when a process was killed.
        self.unsaved: Counter[str] = Counter()

    def run(self, hits: children.Hits, report: Path) -> None:
        """Run the scenario to its end. A repetition sends the same commands again."""
        impl_executor.ExecutorConductor.CLAIM_SECONDS = 0.5
        hits.install()
        commands = self.scenario.commands
        with backends.backend(self.url) as store:
            # A running flow has no fork, and its revert would be a cancellation.
            waits = "suspend" in commands or "cancel" in commands
            self._finish(store, until_ended=not waits)
            for command in commands:
                with contextlib.suppress(exceptions.InvalidState):
                    self._send(store, command)
                self._finish(store, until_ended=command == commands[-1])
        engines.write_json(report, hits.counts)

    def _send(self, store: base.Backend, command: str) -> None:
        name, _, start = command.partition(" ")
        if name == "signal":
            for uuid, state in self._states(store).items():
                if uuid != self.parent and state not in states.FLOW_ENDED:
                    operations.signal(store, uuid, "go")
        elif name in ("cancel", "suspend"):
            getattr(operations, name)(store, self.parent)
        elif name == "fork":
            with store.get_connection() as connection:
                is_forked = bool(connection.get_flow_details(self.parent).forks)
            if not is_forked:
                operations.fork(store, self.parent, start, undo=True)
        else:
            operations.request(store, self.parent, name)

    def _finish(self, store: base.Backend, *, until_ended: bool) -> None:
        """Run flows until none can run now. Claims of killed processes expire meanwhile."""

        def is_over() -> bool:
            testing.run_submitted(store)
            with store.get_connection() as connection:
                rows = connection.list_flows().flows
            if until_ended:
                return not _jobs(store) and all(row.state in states.FLOW_ENDED for row in rows)
            return all(
                row.state in states.FLOW_ENDED or (row.state == states.SUSPENDED and not row.lease)
                for row in rows
            )

        children.until(is_over, _PATIENCE, "the flows do not end")

    @staticmethod
    def _states(store: base.Backend) -> dict[str, str]:
        with store.get_connection() as connection:
            return {row.uuid: row.state for row in connection.list_flows().flows}

    def note_kill(self) -> list[str]:
        """Note the effect whose result is not stored. Return a problem if there are more."""
        effects, stored = child_flows.effects(self.folder), 0
        with backends.backend(self.url) as store, store.get_connection() as connection:
            for row in connection.list_flows().flows:
                for record in connection.get_flow_details(row.uuid):
                    if record.name.endswith("-reserve"):
                        stored += _EFFECTS_IN.get(record.state, 0)
        self.unsaved.update(effects[stored:])
        is_correct = len(effects) - 1 <= stored <= len(effects)
        return [] if is_correct else [f"{stored} results are stored after {effects}"]

    def problems(self) -> list[str]:
        """Return the differences from the expected states and effects, and what remains."""
        scenario, found = self.scenario, []
        with backends.backend(self.url) as store, store.get_connection() as connection:
            uuids = [row.uuid for row in connection.list_flows().flows]
            records = {uuid: connection.get_flow_details(uuid) for uuid in uuids}
            if left := connection.commands(uuids):
                found.append(f"commands are left: {left}")
            if left_jobs := _jobs(store):
                found.append(f"{left_jobs} jobs are left")
            for book in connection.get_logbooks():
                connection.destroy_logbook(book.uuid)
        remains = stores.left_in({"connection": self.url})
        found += [f"the store still has {left}" for left in remains]
        parent = records.pop(self.parent)
        if parent.state != scenario.parent:
            found.append(f"the parent is {parent.state}")
        states_of_others = sorted(record.state for record in records.values())
        if states_of_others != sorted(scenario.others):
            found.append(f"the other flows are {states_of_others}")
        roots = {self.parent, *(fork["flow"] for fork in parent.forks)}
        if any(roots.isdisjoint((uuid, record.parent)) for uuid, record in records.items()):
            found.append("a child has no parent")
        observed = Counter(child_flows.effects(self.folder))
        expected = Counter(scenario.effects)
        if expected - observed or (observed - expected) - self.unsaved:
            found.append(f"effects are {dict(observed)}, unsaved were {dict(self.unsaved)}")
        return found


#: Number of effects that are complete when a step is in a state.
_EFFECTS_IN = {states.SUCCESS: 1, states.REVERTING: 1, states.REVERTED: 2}


def _jobs(store: base.Backend) -> int:
    board = impl_sql.SQLJobBoard("observed", persistence=store)
    with contextlib.closing(board):
        board.connect()
        return board.job_count


class _Clean(children.Clean):
    """Conductors log the tracebacks of flows that fail."""

    WORDS = ("ERROR", "CRITICAL")


def run(case: Case, folder: Path, url: str) -> dict[str, Any]:
    """Run a case. Return its problems and figures."""
    began = time.monotonic()
    folder.mkdir(parents=True)
    stage = Stage(folder, url, SCENARIOS[case.scenario])
    log, report = folder / "log", folder / "hits"
    problems, deaths, code = list[str](), 0, 0
    for kill in [*case.kills, None]:
        hits = children.Hits(kill)
        code = children.wait(children.fork(functools.partial(stage.run, hits, report), log))
        if kill is None or code != -signal.SIGKILL:
            break
        deaths += 1
        problems += stage.note_kill()
    if code:
        problems.append(f"process {deaths} ended with {code}: {log.read_text()[-2000:]}")
    else:
        problems += [*stage.problems(), *_Clean.problems({"log": log})]
    found = engines.read_json(report) or {}
    effects = Counter(child_flows.effects(folder))
    if not problems:
        shutil.rmtree(folder)
    return {
        "config": [case.store, case.scenario],
        "point": case.kills[-1].point if case.kills else "nothing",
        "kills": [[kill.point, kill.hit] for kill in case.kills],
        "reached": deaths == len(case.kills),
        "hits": found,
        "runs": effects.total(),
        "again": (effects - Counter(SCENARIOS[case.scenario].effects)).total(),
        "seconds": time.monotonic() - began,
        "problems": [f"{case}: {problem} (in {folder})" for problem in problems],
    }


class FamilySweep:
    """Kills in all scenarios, in a number of processes.

    :param sample: number of random cases; None: several hits of each point in each scenario.
    """

    def __init__(self, plan: stages.Plan, sample: int | None, folder: Path) -> None:
        self._kinds = sorted({store for store, _ in plan.configs}.intersection(STORES))
        self._plan = plan
        self._sample = sample
        self._chance = random.Random(plan.seed)
        self._folder = folder
        self._tallies: dict[str, stages.Tally] = defaultdict(stages.Tally)
        self._told: list[dict[str, Any]] = []
        self._servers: dict[str, Any] = {}
        self._stage = 0
        self.problems: list[str] = []

    def run(self) -> int:
        """Run the sweep, print the table, and return the number of problems."""
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            if "postgresql" in self._kinds:
                from tests.support import servers

                self._servers["postgresql"] = stack.enter_context(servers.postgresql())
            engines.preload(self._kinds)
            census = self._spread([Case(kind, name) for kind in self._kinds for name in SCENARIOS])
            cases = [
                Case(*report["config"], (Kill(name, hit),))
                for report in census
                for name, count in sorted(report["hits"].items())
                if self._plan.only in name
                for hit in sweep.hits_to_try(name, count, self._chance, thorough=True)
            ]
            if self._sample is not None:
                cases = self._chance.sample(cases, min(self._sample, len(cases)))
            self._all(cases)
            if self._sample is None:
                self._all(self._second())
                self._check_reached()
        seconds = time.monotonic() - began
        points = sum(tally.reached > 0 for tally in self._tallies.values())
        stages.print_table(points, self._tallies, self._told, seconds, len(self.problems))
        return len(self.problems)

    def _all(self, cases: Sequence[Case]) -> None:
        reports = self._spread(cases)
        for report in reports:
            self._tallies[report["point"]].add(report)
        self._told += reports

    def _second(self) -> list[Case]:
        """Return cases whose second kill is at a point that only a resuming process reaches."""
        wanted: dict[tuple[str, ...], list[Case]] = defaultdict(list)
        for report in self._told:
            for name in report["hits"]:
                cases = wanted[(name, *report["config"])]
                if name in self._tallies or self._plan.only not in name or len(cases) == _TRIES:
                    continue
                first = Case(*report["config"], (Kill(*report["kills"][0]),))
                cases.append(replace(first, kills=(*first.kills, Kill(name))))
        return [case for cases in wanted.values() for case in cases]

    def _check_reached(self) -> None:
        reached = {name for name, tally in self._tallies.items() if tally.reached}
        for name, reason in stages.UNREACHED.items():
            if reason == stages.OF_FAMILIES and self._plan.only in name and name not in reached:
                self._problem(f"no parent, child or fork came to {name} and died there")

    def _spread(self, cases: Sequence[Case]) -> list[dict[str, Any]]:
        self._stage += 1
        place = self._folder / f"stage-{self._stage}"

        def do(numbered: tuple[int, Case]) -> dict[str, Any]:
            number, case = numbered
            folder = place / str(number)
            if case.store not in self._servers:
                return run(case, folder, f"sqlite:///{folder}/flows.db")
            with self._servers[case.store].database() as url:
                return run(case, folder, url)

        @contextlib.contextmanager
        def enter(number: int) -> Iterator[Callable[[tuple[int, Case]], dict[str, Any]]]:
            yield do

        return list(spreading.report(cases, self._plan.jobs, enter, self.problems))

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        print(f"PROBLEM {text}", flush=True)

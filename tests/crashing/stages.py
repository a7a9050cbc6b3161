"""The whole sweep: the list of cases and the final table."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.crashing import engines, judging, points, spreading, stores, sweep
from tests.crashing.children import Kill
from tests.crashing.sweep import Case

OF_FAMILIES: Final = "only submitted parents and forks; `tools/crash sweep --children` has some"
#: Points that no process reaches in a sweep over all stores and engines, with the reason.
UNREACHED: Mapping[str, str] = {
    "submit.kept": "engines load their flows themselves; tests of job boards die there",
    "lease.before-late-command": "nobody sends commands; `tools/crash commands` does",
    "sql.before-park-commit": "only conductors park flows; `tools/crash commands` has conductors",
    "sql.before-assign-commit": "only `wbengine flow assign` assigns flows to other code",
    "sql.before-block-commit": "only conductors with other code block flows",
    **dict.fromkeys(
        (
            "sql.before-children-commit",
            "sql.before-fork",
            "sql.before-fork-commit",
            "sql.after-fork-commit",
        ),
        OF_FAMILIES,
    ),
    **dict.fromkeys(
        (
            "step.before-row",
            "step.after-row",
            "step.after-function",
            "step.before-commit",
            "step.after-commit",
        ),
        "only tasks with transactions, whose tests die there",
    ),
    **dict.fromkeys(
        (
            "sql.before-bulk-commit",
            "sql.after-bulk-commit",
            "sql.before-advance-commit",
            "sql.after-advance-commit",
        ),
        "only operations on many flows, whose tests die there",
    ),
    **dict.fromkeys(
        (
            "sql.after-duty-claim",
            "sql.after-duty-end",
            "notify.before-outbox",
            "notify.before-send",
            "notify.after-send",
        ),
        "only `wbengine serve` sends notifications, whose tests die there",
    ),
    **dict.fromkeys(
        ("payloads.before-condemn", "payloads.after-condemn"),
        "only `wbengine db sweep` deletes large values, whose tests die there",
    ),
}

#: Constants with smaller values, so that small stores behave like big ones.
LIMITS: Mapping[str, Any] = {}

#: Additional flows and options for the points that the usual flows do not reach.
EXTRA: Sequence[tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]] = (
    (("slow",), (("lease", 0.6),)),
)

#: Words in names of points outside the runs of engines. A process that resumes there can have
#: little : work.
_BESIDE: Sequence[str] = ("wish", "flow-destroy", "flow-forgotten", "removal-commit")

#: Conditions of points or areas. Every engine reaches the other points.
_AREAS: Mapping[str, Callable[[str, str], bool]] = {
    **dict.fromkeys(
        (
            "engine.before-retire",
            "engine.after-retire",
            "executor",
            "worker",
            "proxy",
            "sender",
            "ledger",
            "requests",
        ),
        lambda store, engine: engine == "worker-based",
    ),
}


#: Number of attempts for a point that is only reached after a kill.
_TRIES = 3


@dataclass(frozen=True)
class Plan:
    """The scope of a sweep: configurations of (store, engine), and the depth of their tests."""

    configs: tuple[tuple[str, str], ...]
    thorough: bool = True
    jobs: int = 2
    seed: int = 0
    only: str = ""
    durability: str = "each"
    flows: tuple[str, ...] = sweep.FLOWS


@dataclass
class Tally:
    """Figures of one point."""

    configs: set[str] = field(default_factory=set)
    cases: int = 0
    reached: int = 0
    runs: int = 0
    again: int = 0
    seconds: float = 0.0

    def add(self, report: Mapping[str, Any]) -> None:
        self.configs.add("/".join(report["config"]))
        self.cases += 1
        self.reached += report["reached"]
        self.runs += report["runs"]
        self.again += report["again"]
        self.seconds += report["seconds"]


class Sweep:
    """One sweep with its folder and its problems."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.points = {point.name: point for point in points.find()}
        self.problems: list[str] = []
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self._chance = random.Random(plan.seed)
        self._folder = folder
        self._stage = 0
        self._databases: list[dict[str, str]] = []
        self._expected: Mapping[str, judging.FlowHistory] = {}
        self._told: list[dict[str, Any]] = []

    def run(self) -> int:
        """Run the sweep, print the table, and return the number of problems."""
        began = time.monotonic()
        kinds = {store for store, _ in self.plan.configs}
        with stores.databases(kinds, self.plan.jobs) as self._databases:
            names = sorted(
                {
                    *self.plan.flows,
                    "harmless",
                    "broad",
                    *(name for flows, _ in EXTRA for name in flows),
                }
            )
            engines.preload(kinds)
            self._expected = engines.expected(self._folder / "expected", names)
            plain, extra = self._census()
            cases = [case for config in plain for case in self._cases(config, plain[config])]
            later = self._all(cases + [case for several in extra for case in several])
            self._all(self._second(later))
        self._check_reached()
        seconds = time.monotonic() - began
        print_table(len(self.points), self.tallies, self._told, seconds, len(self.problems))
        return len(self.problems)

    def _census(self) -> tuple[dict[tuple[str, str], dict[str, int]], list[list[Case]]]:
        """Return the points that each configuration reaches without kills, and the cases of points
        that only slow flows reach.
        """
        plain: dict[tuple[str, str], dict[str, int]] = {}
        extra = []
        cases = [self._case(*config) for config in self.plan.configs]
        slow = [
            self._case(*config, flows=flows, options=options)
            for config in self.plan.configs
            for flows, options in EXTRA
        ]
        for report in self._spread([*cases, *slow]):
            case = report["of"]
            hits = {**report["hits"], **report["worker_hits"]}
            if not case.options:
                plain[case.store, case.engine] = hits
            else:
                extra.append((case, hits))
        chosen = []
        for case, hits in extra:
            known = plain.get((case.store, case.engine), {})
            chosen.append([self._at(case, name, 1) for name in hits if self._new(name, known)])
        return plain, chosen

    def _case(self, store: str, engine: str, **more: Any) -> Case:
        given = {"flows": self.plan.flows, "durability": self.plan.durability, **more}
        return Case(store, engine, **given)

    def _new(self, name: str, known: Mapping[str, int]) -> bool:
        return name not in known and self.plan.only in name

    def _cases(self, config: tuple[str, str], hits: Mapping[str, int]) -> Iterator[Case]:
        usual, short = self._case(*config), self._case(*config, flows=("harmless",))
        for name, count in sorted(hits.items()):
            if self.plan.only in name:
                case = short if any(word in name for word in _BESIDE) else usual
                for hit in sweep.hits_to_try(name, count, self._chance, self.plan.thorough):
                    yield self._at(case, name, hit)

    def _at(self, case: Case, name: str, hit: int) -> Case:
        if self.points[name].of_worker:
            return dataclasses.replace(case, worker=Kill(name, hit))
        return dataclasses.replace(case, kills=(Kill(name, hit),))

    def _all(self, cases: Sequence[Case]) -> list[dict[str, Any]]:
        reports = []
        for report in self._spread(cases):
            self.tallies[report["point"]].add(report)
            reports.append(report)
        self._told += reports
        return reports

    def _second(self, reports: Sequence[Mapping[str, Any]]) -> list[Case]:
        """Return cases for points that only a resuming process reaches: a second kill happens
        there.
        """
        wanted: dict[tuple[str, ...], list[Case]] = defaultdict(list)
        for one in reports:
            for name in one["resumed_hits"]:
                if self.plan.only not in name or self.tallies[name].reached or not one["kills"]:
                    continue
                # Threads can interleave differently in each run.
                cases = wanted[(name, *one["config"])]
                if len(cases) < _TRIES:
                    first = Kill(*one["kills"][0])
                    cases.append(self._case(*one["config"], kills=(first, Kill(name))))
        chosen = [case for cases in wanted.values() for case in cases]
        return [*chosen, *self._both()]

    def _both(self) -> Iterator[Case]:
        """Yield cases for points that an engine reaches only if it finds requests whose worker is
        dead, or that no worker has claimed.
        """
        for config in self.plan.configs:
            for name in sorted(self.points):
                wanted = name.startswith("executor.") and self.plan.only in name
                if config[1] == "worker-based" and wanted and not self.tallies[name].reached:
                    yield self._case(
                        *config,
                        kills=(Kill("wherever"), Kill(name)),
                        worker=Kill("worker.after-claim", 2),
                        flows=("broad",),
                        both=True,
                    )

    def _spread(self, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
        self._stage += 1
        folder = self._folder / f"stage-{self._stage}"

        @contextlib.contextmanager
        def enter(number: int) -> Iterator[Any]:
            with sweep.bench(
                folder / str(number), self._databases[number], self._expected, LIMITS
            ) as do:
                yield lambda case: {**do(case[1]), "number": case[0]}

        for report in spreading.report(cases, self.plan.jobs, enter, self.problems):
            report["of"] = cases[report["number"]]
            yield report

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        print(f"PROBLEM {text}", flush=True)

    def _check_reached(self) -> None:
        if self.plan.only or self.plan.durability != "each" or self.plan.flows != sweep.FLOWS:
            return  # with other durability, a resuming process finds fewer records
        reached = {name for name, tally in self.tallies.items() if tally.reached}
        for name, point in sorted(self.points.items()):
            if name not in reached and name not in UNREACHED and self._within(name):
                self._problem(f"nobody came to {name} ({point.place}) and died there")
        for name in sorted(reached & UNREACHED.keys()):
            self._problem(f"{name} is reached after all: drop its exception")

    def _within(self, name: str) -> bool:
        """Return whether a configuration of this sweep can reach the point."""
        needs = _AREAS.get(name) or _AREAS.get(name.partition(".")[0])
        return needs is None or any(needs(*config) for config in self.plan.configs)


def print_table(
    points: int,
    tallies: Mapping[str, Tally],
    reports: Sequence[Mapping[str, Any]],
    seconds: float,
    problems: int,
) -> None:
    """Print the figures of each point, of each configuration, and their sums."""
    print(f"{'point':<36}{'configs':>8}{'cases':>7}{'died':>6}{'runs':>7}{'again':>7}{'s':>7}")
    for name, tally in sorted(tallies.items()):
        print(
            f"{name:<36}{len(tally.configs):>8}{tally.cases:>7}{tally.reached:>6}"
            f"{tally.runs:>7}{tally.again:>7}{tally.seconds:>7.1f}"
        )
    by_config: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    total = list(tallies.values())
    for report in reports:
        sums = by_config["/".join(report["config"])]
        for index, value in enumerate((1, report["runs"], report["again"])):
            sums[index] += value
    for config, (cases, runs, again) in sorted(by_config.items()):
        print(f"{config:<36}{cases:>7} cases {runs:>7} runs, {again} of them again")
    print(
        f"{points} points, {sum(t.cases for t in total)} cases,"
        f" {sum(t.runs for t in total)} runs, {sum(t.again for t in total)} of them again,"
        f" {seconds:.0f} s, {problems} problems"
    )

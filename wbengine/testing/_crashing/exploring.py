"""Runs of one flow with all single faults, then with pairs of faults."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from wbengine import states, task
from wbengine._introspection import object_names
from wbengine.engines import _flow_factories
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.testing._crashing import argument_checks, real, schedules, sources
from wbengine.testing._crashing import checks as checking
from wbengine.testing._crashing.checks import CHECKS, Expected, Problem
from wbengine.testing._crashing.memory import ProcessMemory
from wbengine.testing._crashing.outcome import Outcome, OwnCheck, Subject
from wbengine.testing._crashing.report import Report
from wbengine.testing._crashing.schedules import At, Schedule
from wbengine.testing._crashing.simulated_run import simulate
from wbengine.testing._worlds.world import World

__all__ = ["crash_everywhere"]

#: Seconds that the runs of one call may take.
_BUDGET: Final = 10.0

#: Seconds by which the clock of the second run without faults is ahead: results that contain times
#: differ then.
_LATER: Final = 100_000.5

#: States in which a flow may have to end.
_ENDS: Final = (states.SUCCESS, states.REVERTED, states.FAILURE, states.WAITING)

#: A run with faults has at most this number of moments, and this multiple of those without.
_MIN_MOMENTS: Final = 300
_MORE_MOMENTS: Final = 10

#: More runs without faults, before the first result or effect that differs is reported: it can be
#: random, and equal by chance in the first two.
_MORE_COMPARED: Final = 10

#: Seconds that a flow may sleep if processes are real.
_MAX_REAL_WAIT: Final = 10.0

_ENGINES: Final = {"worker-based": True, "serial": False}

_clock = time.monotonic


def crash_everywhere(
    flow: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    world: World | Iterable[World] = (),
    end: str = states.SUCCESS,
    signals: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    exceptions: Mapping[str, Sequence[type[Exception]]] | None = None,
    engine: str = "worker-based",
    budget: float = _BUDGET,
    max_runs: int | None = None,
    checks: OwnCheck | Iterable[OwnCheck] = (),
    without: Iterable[str] = (),
    seed: int = 0,
    only: str | None = None,
    real_runs: int = 0,
) -> Report:
    """Run a flow many times, each time with another fault, and check what it did outside.

    First it runs without faults. Then each fault is injected at each moment at which it can occur:
    processes of engines and workers are killed before each write, message and result and after each
    effect; the store is unreachable; steps and calls of outside systems raise exceptions, also
    after their effect; signals are early, late, twice or missing; the flow is cancelled, and its
    deadline passes. A process that is killed has no further effects, and another one continues the
    flow. If nothing is found, pairs of faults follow until the budget is used. All these runs are
    in this process, with a simulated clock and simulated workers, so waits take no time.

    :param flow: a workflow, or a function without parameters that returns a flow; or a flow, whose
        task objects all runs share.
    :param world: the worlds that the tasks use.
    :param end: state in which the flow has to end without faults: SUCCESS, REVERTED, FAILURE, or
        WAITING if it waits for a signal that is not in `signals`.
    :param signals: values by name, or pairs in the order in which they are sent. Each is sent when
        the flow waits for it.
    :param exceptions: classes of exceptions that steps raise in production, by the name of the
        task. Other exceptions are injected in any case.
    :param engine: "worker-based": steps run on workers. "serial": they run, and end, with the
        engine.
    :param budget: maximum number of seconds.
    :param max_runs: maximum number of runs with faults; None: as many as the budget allows. With a
        large budget, the same runs are made on each machine.
    :param checks: own checks. Each is called at the end of each run with a `FinishedRun`, while
        the worlds contain the effects of the run, and raises AssertionError.
    :param without: names of checks that are not made.
    :param seed: selects the pairs of faults.
    :param only: the faults of one run, as a report shows them: repeats this run.
    :param real_runs: number of runs with processes that end with SIGKILL: an engine and two workers
        on SQLite. They follow the single faults, and take seconds each, in addition to the budget.
    :raises TypeError, ValueError: if an argument is invalid.
    :raises ValueError: if the flow does not wait for a signal when there are no faults; if no step
        has a name of `exceptions`; if a fault of `only` does not occur; or if the flow sleeps, or
        does not end, and `real_runs` is not 0.
    """
    argument_checks.check_choice("engine", engine, _ENGINES)
    argument_checks.check_choice("end", end, _ENDS)
    argument_checks.check_limits(budget, max_runs)
    argument_checks.check_real_runs(real_runs, engine, end)
    subject = Subject(
        _maker(flow),
        dict(inputs or {}),
        argument_checks.worlds(world),
        argument_checks.signals(signals),
        argument_checks.exceptions(exceptions),
        is_remote=_ENGINES[engine],
        options=RequestOptions(),
        own_checks=argument_checks.checks(checks),
    )
    explorer = _Explorer(subject, _selected(without), end, budget, max_runs, seed, real_runs)
    schedule = None if only is None else schedules.parse(only)
    return explorer.explore() if schedule is None else explorer.repeat(schedule)


def _maker(flow: Any) -> Callable[[], Any]:
    if isinstance(flow, str):
        return lambda: _flow_factories.remake(flow, None, None, None)
    if _flow_factories.is_workflow(flow) or _flow_factories.is_flow(flow):
        return lambda: flow
    if callable(flow):
        return flow  # type: ignore[no-any-return]
    raise TypeError(
        f"flow must be a workflow, or a function that returns a flow, got {flow!r:.200}"
    )


def _selected(without: Iterable[str]) -> list[checking.Check]:
    omitted = {without} if isinstance(without, str) else set(without)
    for name in sorted(omitted):
        argument_checks.check_choice("without", name, CHECKS)
    return [check for name, check in CHECKS.items() if name not in omitted]


def _modules(flow: Any) -> Iterator[str]:
    """Yield the modules of a flow's tasks, as far as they are known before a run."""
    if isinstance(flow, type):
        yield flow.__module__
    elif isinstance(flow, task.Task):
        yield type(flow).__module__
    else:
        for atom in flow.iter_nodes():
            yield from _modules(atom[0] if isinstance(atom, tuple) else atom)


@dataclass
class _Single:
    """A run with one fault, and its later moments."""

    schedule: Schedule
    trace: Sequence[At]
    steps: set[str]


class _Explorer:
    def __init__(
        self,
        subject: Subject,
        checks: Sequence[checking.Check],
        end: str,
        budget: float,
        max_runs: int | None,
        seed: int,
        real_runs: int,
    ) -> None:
        self._end = end
        self._max_runs = max_runs
        self._real_runs = real_runs
        self._checks = checks
        self._until = _clock() + budget
        self._chance = random.Random(seed)
        self._report = Report(seed)
        flow = subject.make()
        modules = {*_modules(flow), getattr(subject.make, "__module__", "")}
        modules = {name for name in modules if not name.startswith("wbengine.")}
        self._subject = replace(subject, memory=ProcessMemory(modules))
        self._modules = modules
        #: What runs without faults did, and whether many of them were compared.
        self._expected: Expected
        self._has_compared_more = False

    def explore(self) -> Report:
        """Run all single faults, and pairs if these show no problems."""
        report, started = self._report, _clock()
        trace = self._learn()
        if not trace:
            report.seconds = _clock() - started
            return report
        found = list(schedules.singles(trace, [each.label for each in self._subject.signals]))
        if self._subject.is_remote:
            found.insert(0, Schedule(is_separate=True))
        report.singles = len(found)
        singles: list[_Single] = []
        for schedule in found:
            if self._is_over():
                break
            outcome = self._run(schedule)
            report.singles_run += 1
            if outcome.trace[schedule.last + 1 :] and not schedule.is_separate:
                singles.append(_Single(schedule, outcome.trace, outcome.steps))
        if not report.findings:
            self._check_names(set().union(*(single.steps for single in singles)))
            self._run_real(found, trace)
        if not report.findings:
            self._pairs(singles)
        report.seconds = _clock() - started
        return report

    def repeat(self, schedule: Schedule) -> Report:
        """Run one schedule."""
        started = _clock()
        trace = self._learn()
        outcome = self._run(schedule, trace)
        for place, fault in (*schedule.moments, *schedule.signals):
            if place not in outcome.occurred:
                raise ValueError(
                    f"The fault '{place}:{fault}' did not occur: the flow has changed, or its runs"
                    " differ"
                )
        self._report.singles = self._report.singles_run = 1
        self._report.seconds = _clock() - started
        return self._report

    def _learn(self) -> Sequence[At]:
        """Run twice without faults. Return the moments; none if the flow ends wrongly.

        :raises ValueError: if `world` or `signals` do not fit the flow.
        """
        first = simulate(self._subject, Schedule())
        self._check_arguments(first)
        uses: Sequence[sources.Use] = ()
        second = first
        is_right = not first.is_endless and first.state == self._end
        if is_right:
            self._limit(first)
            with sources.observed() as uses:
                second = simulate(self._subject, Schedule(), later=_LATER)
        self._expected = Expected.of(first, second)
        if is_right or first.is_endless:
            problems = checking.problems(first, self._expected, self._checks)
        else:
            error = "" if first.error is None else f": {type(first.error).__name__}: {first.error}"
            text = f"without faults, the flow ended in {first.state}, not in {self._end}{error}"
            problems = [Problem("end", first.state, text)]
        self._report.add(first, problems)
        if any(check is CHECKS["replayable"] for check in self._checks):
            for use in uses:
                text = (
                    f"the workflow function {use.what}, which no replay repeats: use"
                    f" {use.replacement}, or do it in a step"
                )
                self._report.add(second, [Problem("replayable", use.line, text, line=use.line)])
        return first.trace if is_right else ()

    def _limit(self, first: Outcome) -> None:
        """Limit the moments of later runs, and restore the variables of all modules of tasks."""
        modules = self._modules | {
            each.__module__ for each in first.tasks if not each.__module__.startswith("wbengine.")
        }
        self._subject = replace(
            self._subject,
            tasks=frozenset(first.tasks),
            max_moments=_MIN_MOMENTS + _MORE_MOMENTS * len(first.trace),
            memory=self._subject.memory if modules == self._modules else ProcessMemory(modules),
        )

    def _check_arguments(self, first: Outcome) -> None:
        """Check the parameters `world` and `signals` with a run without faults."""
        if first.state == states.PENDING and first.error is not None:
            raise first.error  # It cannot start, for example because an input is missing.
        if first.unknown_worlds:
            names = ", ".join(sorted(repr(each) for each in first.unknown_worlds))
            raise ValueError(f"world must contain all worlds that the tasks use, also {names}")
        if self._real_runs and first.seconds > _MAX_REAL_WAIT:
            raise ValueError(
                f"real_runs must be 0 for a flow that waits: it takes {first.seconds:.0f} s"
            )
        if first.unsent and first.state == self._end and not first.is_endless:
            raise ValueError(
                f"signals contains {first.unsent[0]!r}, but the flow ended in {first.state} without"
                " waiting for it"
            )

    def _check_names(self, steps: Collection[str]) -> None:
        """Check that the parameter `exceptions` names steps.

        Fallback steps run only after faults, so this follows the runs with single faults.

        :raises ValueError: if no run had a step of this name.
        """
        for name in self._subject.exceptions:
            if name not in steps and self._report.singles_run == self._report.singles:
                hint = object_names.hint(name, steps)
                raise ValueError(f"exceptions contains {name!r}, but no step has this name{hint}")

    def _pairs(self, singles: Sequence[_Single]) -> None:
        """Run pairs of faults in random order until the time is over or a problem is found."""
        choices = [
            (single, number, fault)
            for single in singles
            for number in range(single.schedule.last + 1, len(single.trace))
            for fault in single.trace[number].faults
        ]
        self._report.pairs = len(choices)
        self._chance.shuffle(choices)
        for single, number, fault in choices:
            if self._is_over() or self._report.findings:
                break
            self._run(single.schedule.extended(number, fault))
            self._report.pairs_run += 1

    def _run_real(self, singles: Sequence[Schedule], trace: Sequence[At]) -> None:
        """Run a random sample of the single faults with real processes."""
        if not self._real_runs:
            return
        choices = [each for each in singles if real.can_be_real(each, trace)]
        for schedule in self._chance.sample(choices, min(self._real_runs, len(choices))):
            outcome = self._run(replace(schedule, is_real=True), trace)
            self._report.real_runs += 1
            self._report.real_kills += bool(outcome.occurred)

    def _is_over(self) -> bool:
        runs = self._report.singles_run + self._report.pairs_run
        return _clock() >= self._until or (self._max_runs is not None and runs >= self._max_runs)

    def _run(self, schedule: Schedule, trace: Sequence[At] = ()) -> Outcome:
        """Run a schedule and report its problems.

        :param trace: the moments of a run without faults, for real processes.
        """
        if schedule.is_real:
            outcome = real.run_real(self._subject, schedule, trace)
        else:
            outcome = simulate(self._subject, schedule)
            self._subject = replace(self._subject, tasks=self._subject.tasks | outcome.tasks)
        problems = checking.problems(outcome, self._expected, self._checks)
        if not self._has_compared_more and any(
            each.check in checking.COMPARING for each in problems
        ):
            self._has_compared_more = True
            for _ in range(_MORE_COMPARED):
                self._expected = self._expected.common_with(simulate(self._subject, Schedule()))
            problems = checking.problems(outcome, self._expected, self._checks)
        self._report.add(outcome, problems)
        return outcome

"""The checks, which use only the audit file and the stored records.

The functions are pure: the argument is a `History`, the result is a `Verdict` with its problems.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos import audit, flows
from tests.chaos.audit import Line


@dataclass(frozen=True)
class Fault:
    """A fault: its kind, its time, its process (0: none), and its end."""

    kind: str
    at: float
    pid: int = 0
    until: float = math.inf

    @property
    def kills(self) -> bool:
        return self.kind.startswith(("kill ", "no broker"))


@dataclass(frozen=True)
class FinalState:
    """The final stored state of a flow, with the `results` of the atoms that succeeded."""

    name: str
    state: str | None
    results: Mapping[str, object]


@dataclass
class History:
    lines: Sequence[Line]
    kept: Sequence[FinalState]
    faults: Sequence[Fault] = ()
    #: With a ledger, a task may run again only if its owner was lost.
    ledger: bool = False
    #: Seconds of silence after which a worker is lost.
    expiry: float = 0.0
    #: Remaining content of brokers and stores.
    left: Sequence[str] = ()


@dataclass
class Run:
    """One run of a task, with its start and, if it ended, its end."""

    name: str
    request: str
    epoch: int
    attempt: int
    pid: int
    began: float
    ended: float = math.inf


@dataclass
class Verdict:
    problems: list[str] = field(default_factory=list)
    #: Counts by name.
    counts: Counter[str] = field(default_factory=Counter)
    #: Sorted seconds from the loss of a worker to the next run of its tasks.
    detected: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Return the detection time that this share of the losses did not exceed."""
        if not self.detected:
            return math.nan
        return self.detected[min(len(self.detected) - 1, int(share * len(self.detected)))]


def judge(history: History) -> Verdict:
    verdict = Verdict()
    runs = runs_of(history.lines, verdict.problems)
    verdict.counts["runs"] = len(runs)
    _flows(history, verdict, {run.name for run in runs})
    _once(runs, verdict)
    _count_lost_requests(runs, history.lines, verdict)
    if history.ledger:
        _again(runs, history, verdict)
    verdict.detected = sorted(_detected(runs, history.faults, history.expiry))
    verdict.problems += [f"left behind: {what}" for what in history.left]
    return verdict


def runs_of(lines: Sequence[Line], problems: list[str]) -> list[Run]:
    """Return the runs in the order of their starts."""
    runs: list[Run] = []
    open_: dict[tuple[str, str, int, int], Run] = {}
    for line in lines:
        key = (line.name, line.request, line.epoch, line.pid)
        if line.what == audit.STARTED:
            open_[key] = Run(line.name, line.request, line.epoch, line.attempt, line.pid, line.at)
            runs.append(open_[key])
        elif line.what == audit.ENDED:
            run = open_.pop(key, None)
            if run is None:
                problems.append(f"{line.name} ended in {line.pid}, and never began")
            else:
                run.ended = line.at
    return runs


def _flows(history: History, verdict: Verdict, ran: set[str]) -> None:
    """Check that each flow reached the expected state, with the results that its tasks produced."""
    for final in history.kept:
        wanted = flows.end_of(final.name)
        verdict.counts["flows"] += 1
        if final.state != wanted:
            stuck = final.state not in ("SUCCESS", "REVERTED")
            verdict.counts["stuck" if stuck else "wrong ends"] += 1
            how = "is stuck in" if stuck else "ended as"
            verdict.problems.append(f"{final.name} {how} {final.state}, not {wanted}")
            continue
        for name, value in flows.results(final.name).items():
            if final.results.get(name) != value:
                verdict.counts["wrong results"] += 1
                verdict.problems.append(f"{name} is {final.results.get(name)!r:.80}, not {value}")
        for name in flows.tasks_of(final.name):
            verdict.counts["tasks"] += 1
            if name not in ran:
                verdict.counts["lost"] += 1
                verdict.problems.append(f"{name} never ran")


def _once(runs: Sequence[Run], verdict: Verdict) -> None:
    """Check that each epoch of a request ran at most once."""
    counts = Counter((run.name, run.request, run.epoch) for run in runs if run.request != "-")
    verdict.counts["most runs of one epoch"] = max(counts.values(), default=0)
    for (name, request, epoch), count in counts.items():
        if count > 1:
            pids = [run.pid for run in runs if (run.request, run.epoch) == (request, epoch)]
            verdict.counts["doubled"] += 1
            verdict.problems.append(
                f"{name} ran {count} times under epoch {epoch} of {request}, in {pids}"
            )


def _count_lost_requests(runs: Sequence[Run], lines: Sequence[Line], verdict: Verdict) -> None:
    """Count the requests that ended as WorkerLost, and those of them whose tasks never began.

    A task began if its function started under the id of the request, in any epoch.
    """
    lost = {line.request for line in lines if line.what == audit.LOST}
    verdict.counts["WorkerLost"] = len(lost)
    verdict.counts["WorkerLost never begun"] = len(lost - {run.request for run in runs})


def _again(runs: Sequence[Run], history: History, verdict: Verdict) -> None:
    """Check that requests ran again only after the loss of their owner."""
    for name, earlier, later in _pairs(runs):
        verdict.counts["again"] += 1
        if not _lost(earlier, later.began, history):
            verdict.counts["again without a loss"] += 1
            verdict.problems.append(
                f"{name} ran again under epoch {later.epoch} in {later.pid}, though {earlier.pid},"
                f" which had it under epoch {earlier.epoch}, was not lost"
            )


def _pairs(runs: Sequence[Run]) -> list[tuple[str, Run, Run]]:
    by: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.request != "-":
            by[run.request].append(run)
    return [
        (same_request[0].name, earlier, later)
        for same_request in by.values()
        for earlier, later in itertools.pairwise(same_request)
        if earlier.epoch != later.epoch
    ]


def _lost(run: Run, then: float, history: History) -> bool:
    """Return whether the process of a run was killed, or silent for too long, before `then`."""
    for fault in history.faults:
        if fault.pid != run.pid or fault.at > then or fault.until < run.began:
            continue
        # Heartbeats are checked periodically: the silence can have begun a little earlier.
        if fault.kills or min(fault.until, then) - fault.at > history.expiry * 0.5:
            return True
    return False


def _detected(runs: Sequence[Run], faults: Sequence[Fault], expiry: float) -> list[float]:
    """Return the seconds from the loss of a worker to the next run of each of its tasks."""
    by: defaultdict[str, list[Run]] = defaultdict(list)
    held: defaultdict[int, list[Run]] = defaultdict(list)
    for run in runs:
        by[run.name].append(run)
        held[run.pid].append(run)
    seconds = []
    for fault in faults:
        if not (fault.kills or fault.until - fault.at > expiry):
            continue
        for run in held.get(fault.pid, ()):
            if run.began <= fault.at < run.ended:
                after = [each.began for each in by[run.name] if each.began > fault.at]
                # The late end of a task of a stopped worker is not a detection.
                seconds += [min(after) - fault.at] if after else []
    return seconds

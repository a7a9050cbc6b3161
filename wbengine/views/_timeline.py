"""The attempts of a flow over time, by worker."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wbengine import states
from wbengine.views._atoms import AtomView, AttemptView, StepView
from wbengine.views.flow_status import FlowView

__all__ = ["Bar", "Lane", "Timeline", "timeline"]

_REVERT_STATES: Final = (states.REVERTING, states.REVERTED, states.REVERT_FAILURE)


@dataclass(frozen=True, slots=True)
class Bar:
    """One attempt, with times in Unix time. `state` is the final state, RUNNING or REVERTING.

    :ivar is_step: whether it belongs to a step of a workflow. The bar of the workflow contains it.
    """

    uuid: str | None
    name: str
    node: int
    attempt: int
    action: str
    state: str
    started: float
    ended: float
    error: str | None = None
    executions: int = 0
    reversions: int = 0
    queued: float | None = None
    is_step: bool = False

    @property
    def seconds(self) -> float:
        return self.ended - self.started


@dataclass(frozen=True, slots=True)
class Lane:
    """The attempts of one worker (None: unknown), in rows whose bars do not overlap.

    The number of rows is the maximum number of attempts that ran at the same time.
    """

    worker: str | None
    rows: tuple[tuple[Bar, ...], ...]

    @property
    def bars(self) -> list[Bar]:
        return [bar for row in self.rows for bar in row]

    @property
    def attempts(self) -> int:
        """Number of attempts of atoms, without steps of workflows."""
        return sum(not bar.is_step for bar in self.bars)

    @property
    def busy(self) -> float:
        """Total duration of the attempts of atoms in seconds, without steps of workflows."""
        return sum(bar.seconds for bar in self.bars if not bar.is_step)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The time from the first start to the last end, or to now."""

    begin: float
    end: float
    lanes: tuple[Lane, ...]

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def timeline(view: FlowView, now: float | None = None) -> Timeline:
    """Return the stored attempts in lanes, ordered by their first start.

    Of a workflow, the timeline also contains the steps in `AtomView.steps`: of a folded loop, those
    of the latest iteration. It does not contain inherited results.

    Running attempts end at `now` (None: the time of the view), or when the flow was suspended.
    """
    now = view.now if now is None else now
    if view.state == states.SUSPENDED and view.ended is not None:
        now = min(now, view.ended)
    by_worker: dict[str | None, list[Bar]] = {}
    for atom in view.atoms:
        for attempt in () if atom.inherited else atom.attempts:
            bar = _bar(atom, attempt, now)
            if bar is not None:
                by_worker.setdefault(attempt.worker, []).append(bar)
        for step in () if atom.steps is None else atom.steps.shown:
            bar = None if step.inherited else _step_bar(atom, step, now)
            if bar is not None:
                by_worker.setdefault(step.worker, []).append(bar)
    lanes = []
    for worker, bars in by_worker.items():
        bars.sort(key=lambda bar: (bar.started, bar.ended, bar.node))
        lanes.append(Lane(worker, _packed(bars)))
    lanes.sort(key=lambda lane: lane.rows[0][0].started)
    begin = min((lane.rows[0][0].started for lane in lanes), default=now)
    end = max((bar.ended for lane in lanes for row in lane.rows for bar in row), default=begin)
    return Timeline(begin, end, tuple(lanes))


def _bar(atom: AtomView, attempt: AttemptView, now: float) -> Bar | None:
    latest = attempt.attempt == atom.attempt
    started = attempt.started if attempt.started is not None else attempt.submitted
    if started is None or (atom.queued and latest):
        return None
    ended, state = attempt.ended, attempt.state
    if ended is None:
        if not latest or atom.state not in (states.RUNNING, states.REVERTING):
            return None  # The end is unknown.
        ended = max(now, started)
    if state is None:
        state = states.REVERTING if attempt.action == "revert" else states.RUNNING
    return Bar(
        atom.uuid,
        atom.name,
        atom.node,
        attempt.attempt,
        attempt.action,
        state,
        started,
        max(started, ended),
        attempt.error,
        attempt.executions,
        attempt.reversions,
        attempt.queued,
    )


def _step_bar(atom: AtomView, step: StepView, now: float) -> Bar | None:
    """Return the latest execution or reversion of a step."""
    is_running = step.state in (states.RUNNING, states.REVERTING)
    if step.started is None or (step.ended is None and not is_running):
        return None
    latest = f" (latest of {step.repeated:,})" if step.repeated > 1 else ""
    return Bar(
        step.uuid,
        f"{atom.name} / {step.position} {step.name}{latest}",
        atom.node,
        step.executions,
        "revert" if step.state in _REVERT_STATES else "execute",
        step.state,
        step.started,
        max(step.started, now if step.ended is None else step.ended),
        step.error,
        step.executions,
        is_step=True,
    )


def _packed(bars: Sequence[Bar]) -> tuple[tuple[Bar, ...], ...]:
    """Put each bar (ordered by start) into the first free row. Cost: O(n log n)."""
    rows: list[list[Bar]] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for bar in bars:
        while busy and busy[0][0] <= bar.started:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row = len(rows)
            rows.append([])
        rows[row].append(bar)
        heapq.heappush(busy, (bar.ended, row))
    return tuple(map(tuple, rows))

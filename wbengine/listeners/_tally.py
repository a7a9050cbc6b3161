"""The current state of every atom of a run, in one byte each.

The thread of the engine writes each event in O(1). Displays read at any time without a lock, so
they may read a combination of states that never existed at one time.
"""

from __future__ import annotations

import bisect
import functools
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wbengine import states
from wbengine._runtime import plan as plan_module
from wbengine._tasks.sleep_and_wait_for import WaitingTask
from wbengine._tasks.workflow import Workflow
from wbengine.drawing import _styles, _terminal_tree
from wbengine.persistence import models
from wbengine.types import failure as ft
from wbengine.views import _formatting, _structure
from wbengine.views import _waiting as waiting
from wbengine.views._atoms import QUEUED, StepsView
from wbengine.views._shown_states import OF_RETRY

if TYPE_CHECKING:
    from wbengine.listeners._step_tally import StepTally

__all__ = ["Event", "Tally"]

#: The mark of a task is the index of its state in `_STATES`. The mark of a retry is this index plus
#: RETRY. 0 means no atom.
_STATES: Final = ("", *_styles.STATES)
_MARKS: Final = {state: mark for mark, state in enumerate(_STATES)}
RETRY: Final = 32
_PENDING: Final = _MARKS[states.PENDING]
_EXECUTING: Final = (_MARKS[states.RUNNING], _MARKS[states.WAITING])


def _any_of(state_names: Iterable[str]) -> re.Pattern[bytes]:
    marks = [_MARKS[state] for state in state_names]
    return re.compile(b"[%s]" % re.escape(bytes([*marks, *(mark + RETRY for mark in marks)])))


_FAILED_PATTERN: Final = _any_of(_terminal_tree.FAILED_STATES)
_RUNNING_PATTERN: Final = _any_of(_terminal_tree.RUNNING_STATES)

#: States of tasks that were passed to the executor, but may not have started.
_SUBMITTED: Final = (states.RUNNING, states.REVERTING)
#: Time for which a computed queue stays valid, for each task of the executor.
_QUEUE_SECONDS: Final = 1e-5

#: Minimum number of running atoms from which the displayed ones are selected.
_MAX_COMPARED_ATOMS: Final = 256
#: Maximum number of failures that are stored with their text.
_MAX_FAILURES: Final = 100
#: Maximum number of events to be displayed. Further events are only counted.
_MAX_EVENTS: Final = 20


class Event(NamedTuple):
    """An event that is displayed on its own line."""

    node: int
    state: str
    words: str


class _Queue(NamedTuple):
    #: Indexes of nodes that no slot or worker has started, ascending, by state.
    waiting: Mapping[str, Sequence[int]] = {}
    #: The first nodes that were started, in the order of their submission.
    begun: Sequence[int] = ()
    #: Expiry of this data, on the clock of the tally.
    until: float = 0.0

    def counts(self, node_range: range) -> Iterator[tuple[str, int]]:
        for state, nodes in self.waiting.items():
            first = bisect.bisect_left(nodes, node_range.start)
            yield state, bisect.bisect_left(nodes, node_range.stop, first) - first


class Tally(_terminal_tree.Source):
    def __init__(
        self,
        plan: plan_module.Plan,
        clock: Callable[[], float] = time.monotonic,
        shown_state: Callable[[str], str] = str,
        *,
        has_queue: bool = False,
        paused: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Create a tally in which all atoms are PENDING.

        :param has_queue: whether tasks may wait in the executor for a slot or a worker. Their
            records contain the start time.
        :param paused: returns the number of tasks that wait because their type is paused, by type.
        """
        self.plan = plan
        self._paused = paused
        self._has_queue = has_queue
        self._queue = _Queue()
        self.clock = clock
        self._shown_state = shown_state
        self._waits = {
            node for node, item in enumerate(plan.items) if isinstance(item, WaitingTask)
        }
        self.names = plan.names
        parents = {enter + 2: plan.parent[enter] for enter in plan.retried}
        self.parents = (
            [parents.get(node, parent) for node, parent in enumerate(plan.parent)]
            if parents
            else plan.parent
        )
        self.root = 2 if 0 in plan.retried else 0
        #: For each task with retries: its own state, and the state of its retry.
        self._own: dict[int, tuple[str, str]] = {}
        retry = plan_module.RETRY
        self._base = bytes(RETRY * (kind == retry) for kind in plan.kinds)
        self.marks = bytearray(
            _PENDING + self._base[node] if plan.is_atom(node) else 0 for node in range(len(plan))
        )
        for enter in plan.retried:
            self.marks[enter + 1] = 0
        #: The records by node, empty before the first run. Only atoms have records.
        self.records: Sequence[models.AtomDetail | None] = ()
        self.since: dict[int, float] = {}
        self.failures: dict[int, str] = {}
        self.events: deque[Event] = deque()
        self.dropped = 0
        #: How often a retry ran its flow again.
        self.retry_runs = 0
        self._state: str = states.PENDING
        self._began: float | None = None
        self._ended: float | None = None
        #: None as long as no step is known.
        self._steps: StepTally | None = None

    def load(
        self,
        records: Sequence[models.AtomDetail | None],
        all_records: Iterable[models.AtomDetail] = (),
    ) -> None:
        """Read the states of the atoms from the records of an earlier run.

        :param records: the records by node.
        :param all_records: all records of the flow, with those of steps.
        """
        self.records = records
        for node, record in enumerate(records):
            if record is not None:
                self._mark(node, record.state or states.PENDING)
        if any(record.is_step for record in all_records):
            self._get_steps().load(all_records)

    def _get_steps(self) -> StepTally:
        if self._steps is None:
            from wbengine.listeners import _step_tally  # most flows have no workflow

            self._steps = _step_tally.StepTally()
        return self._steps

    def _mark(self, node: int, state: str) -> None:
        """Store the state of an atom. A task with retries and its retry share a mark."""
        retried = self.plan.retried
        if retried and (node - 1 in retried or node - 2 in retried):
            task = node + 1 if node - 1 in retried else node
            own_state, retry_state = self._own.get(task, (states.PENDING, states.PENDING))
            self._own[task] = own_state, retry_state = (
                (own_state, state) if task != node else (state, retry_state)
            )
            node, state = task, retry_state if retry_state in OF_RETRY else own_state
        if state == states.RUNNING and node in self._waits:
            state = states.WAITING
        self.marks[node] = _MARKS.get(state, _PENDING) + self._base[node]

    def flow(self, state: str) -> None:
        """Record that the flow entered `state`."""
        self._state = state
        if state == states.RUNNING:
            self._began, self._ended = self.clock(), None
        elif state not in (states.SUSPENDING, states.PENDING):
            self._ended = self.clock()
            self.since.clear()
            if self._steps is not None:
                self._steps.forget_views()

    def atom(self, name: str, state: str, result: Any) -> None:
        """Record that an atom entered `state`."""
        node = self.plan.by_name.get(name)
        if node is None:
            return
        self._mark(node, state)
        if node - 1 in self.plan.retried:
            if state not in OF_RETRY:
                return
            node += 1
        if state in (states.RUNNING, states.REVERTING):
            self.since[node] = self.clock()
        else:
            self.since.pop(node, None)
        if state in _terminal_tree.FAILED_STATES:
            line = _format_failure(result)
            if len(self.failures) < _MAX_FAILURES:
                self.failures[node] = line
            self._add_event(Event(node, state, line))
        elif state in (states.PENDING, states.RUNNING):
            self.failures.pop(node, None)
        elif state == states.RETRYING:
            self.retry_runs += 1
            self._add_event(Event(node, state, ""))

    def step(self, record: models.AtomDetail, state: str) -> None:
        """Record that a step of a workflow entered `state`."""
        steps = self._get_steps()
        workflow = steps.add(record, state)
        node = None if workflow is None else self._workflow_nodes.get(workflow)
        if workflow is not None and node is not None and self.marks[node] in _EXECUTING:
            self._mark(node, states.WAITING if steps.waits(workflow) else states.RUNNING)

    @functools.cached_property
    def _workflow_nodes(self) -> Mapping[str, int]:
        items, records = self.plan.items, self.records
        return {
            record.uuid: node
            for node, record in enumerate(records)
            if record is not None and isinstance(items[node], Workflow)
        }

    def _add_event(self, event: Event) -> None:
        if len(self.events) < _MAX_EVENTS:
            self.events.append(event)
        else:
            self.dropped += 1

    @property
    def state(self) -> str:  # type: ignore[override]  # of a source it can be set
        return self._shown_state(self._state)

    @property
    def duration(self) -> float | None:
        if self._began is None:
            return None
        return (self.clock() if self._ended is None else self._ended) - self._began

    def remarks(self) -> Iterator[str]:
        if self.retry_runs:
            yield _formatting.count(self.retry_runs, "retry", "retries")
        if paused := sum(self._paused().values()):
            yield f"{paused:,} paused"

    def is_flow(self, node: int) -> bool:
        return self.plan.kinds[node] == plan_module.FLOW

    def is_retry(self, node: int) -> bool:
        return bool(self._base[node])

    def members(self, flow: int) -> Iterator[int]:
        node, end = flow + 1, self.plan.end[flow]
        while node < end:
            yield node + 2 if node in self.plan.retried else node
            node = self.plan.whole(node).stop

    def counts(self, node: int) -> Mapping[str, int]:
        node_range = self.plan.whole(node)
        marks = self.marks[
            node_range.start : node_range.stop
        ]  # a copy, because other threads write to it
        by_state = {state: marks.count(mark) for mark, state in enumerate(_STATES) if mark}
        for state, count in self._queued().counts(node_range):
            queued = min(count, by_state[state])  # some may have ended since
            by_state[state] -= queued
            by_state[QUEUED] += queued
        return {state: count for state, count in by_state.items() if count}

    def state_of(self, node: int) -> str:
        if self.is_flow(node):
            return _structure.state_of(self.counts(node))
        state = _STATES[self.marks[node] & ~RETRY]
        return QUEUED if state in _SUBMITTED and self._is_queued(node) else state

    def _is_queued(self, node: int) -> bool:
        """Return True if the executor has the task, but no slot or worker has started it."""
        record = self._record(node) if self._has_queue and not self.is_retry(node) else None
        if record is None or record.items is not None:
            return False
        return record.started is None and record.progress is None

    def _queued(self) -> _Queue:
        queue, now = self._queue, self.clock()
        if not self._has_queue or now < queue.until:
            return queue
        waiting: dict[str, list[int]] = {state: [] for state in _SUBMITTED}
        started: list[int] = []
        handed_out = list(self.since)
        for node in handed_out:
            state = _STATES[self.marks[node] & ~RETRY]
            if state in waiting and self._is_queued(node):
                waiting[state].append(node)
            elif len(started) < _MAX_COMPARED_ATOMS:
                started.append(node)
        for nodes in waiting.values():
            nodes.sort()
        self._queue = queue = _Queue(waiting, started, now + len(handed_out) * _QUEUE_SECONDS)
        return queue

    def progress(self, node: int) -> float | None:
        record = self._record(node)
        if record is None or self.state_of(node) != states.RUNNING:
            return None
        return float(record.progress) if isinstance(record.progress, int | float) else None

    def _record(self, node: int) -> models.AtomDetail | None:
        return self.records[node] if self.records else None

    def details(self, node: int) -> Iterator[str]:
        retry = self._record(node - 1 if node - 2 in self.plan.retried else node)
        if isinstance(retry, models.RetryDetail) and len(retry.results) > 1:
            yield f"attempt {len(retry.results)}"
        began, record, now = self.since.get(node), self._record(node), time.time()
        if self.state_of(node) == states.WAITING:
            wait = waiting.wait_of(record)
            if wait is not None:
                yield waiting.describe_wait(wait, now)
        elif wait := waiting.start_of(record, now):
            yield waiting.describe_start(wait, now)
        elif began is not None and self.state_of(node) != QUEUED:
            yield _formatting.seconds(max(0.0, self.clock() - began - self._queue_seconds(node)))
        line = self.failures.get(node)
        if line:
            yield line
        at = retry.meta_value(models.RETRY_AT) if retry is not None else None
        if self.state_of(node) == states.RETRYING and isinstance(at, int | float):
            yield f"again in {max(0.0, at - time.time()):.0f} s"

    def _queue_seconds(self, node: int) -> float:
        record = self._record(node) if self._has_queue else None
        if record is None or record.started is None or record.submitted is None:
            return 0.0
        return max(0.0, record.started - record.submitted)

    def steps(self, node: int) -> StepsView | None:
        record = self._record(node)
        return None if self._steps is None or record is None else self._steps.view(record.uuid)

    def failed_atoms(self, most: int) -> list[int]:
        """Return failed atoms. Reverted ones come last."""
        nodes = _first(_FAILED_PATTERN, self.marks, most)
        reverted = [node for node in self.failures.copy() if node not in nodes]
        return nodes + reverted[: most - len(nodes)]

    def running_atoms(self, most: int) -> list[int]:
        """Return running atoms, those with progress first, without queued atoms.

        An executor may have received many more tasks than it can run.
        """
        nodes = _first(_RUNNING_PATTERN, self.marks, max(most, _MAX_COMPARED_ATOMS))
        if self._has_queue:
            begun = dict.fromkeys((*nodes, *self._queued().begun))
            nodes = [node for node in begun if self.state_of(node) in _terminal_tree.RUNNING_STATES]
        return sorted(nodes, key=lambda node: self.progress(node) is None)[:most]


def _first(pattern: re.Pattern[bytes], among: bytearray, max_nodes: int) -> list[int]:
    nodes: list[int] = []
    # A copy, because a bytearray cannot grow during a search and other threads write to it.
    for match in pattern.finditer(bytes(among)):
        if len(nodes) == max_nodes:
            break
        nodes.append(match.start())
    return nodes


def _format_failure(result: Any) -> str:
    if not isinstance(result, ft.Failure):
        return ""
    kind = next(iter(result), "").rpartition(".")[2]
    message = next(iter(result.exception_str.splitlines()), "")
    return f"{kind}: {message}" if message else kind

"""What is known of a run at any moment: where every atom is, in one byte each.

Written by the engine's thread, one event at a time and O(1) each; read by whoever shows it, at any
time.  A reader sees each atom as it was told last; it may see two atoms as they never were at the
same moment, which for a picture is good enough, and needs no lock.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import states
from wbengine.runtime import plan as plan_module
from wbengine.types import failure as ft

__all__ = ["Counts", "News", "Tally"]

# Where a task is; where a retry is, is the same plus RETRY.  0: no atom.
WAITING: Final = 1
RUNNING: Final = 2
DONE: Final = 3
IGNORED: Final = 4
FAILED: Final = 5
RETRYING: Final = 6
REVERTING: Final = 7
REVERTED: Final = 8
STUCK: Final = 9
RETRY: Final = 16

_MARKS: Final[Mapping[str | None, int]] = {
    states.RUNNING: RUNNING,
    states.SUCCESS: DONE,
    states.IGNORE: IGNORED,
    states.FAILURE: FAILED,
    states.RETRYING: RETRYING,
    states.REVERTING: REVERTING,
    states.REVERTED: REVERTED,
    states.REVERT_FAILURE: STUCK,
}


def _any_of(*marks: int) -> re.Pattern[bytes]:
    return re.compile(b"[%s]" % bytes([*marks, *(mark + RETRY for mark in marks)]))


_WRONG: Final = _any_of(FAILED, STUCK)
_UNDER_WAY: Final = _any_of(RUNNING, RETRYING, REVERTING)

#: Of so many atoms under way those to be shown are chosen.
_MOST_COMPARED: Final = 256
#: So many failures are kept with their words.
_MOST_FAILURES: Final = 100
#: So many events wait at most to be said; those before them are only counted.
_MOST_NEWS: Final = 20


class Counts(NamedTuple):
    """How many tasks of a flow are where."""

    total: int
    waiting: int
    running: int
    done: int
    ignored: int
    failed: int
    reverting: int
    reverted: int

    @property
    def settled(self) -> int:
        """How many need not run any more."""
        return self.done + self.ignored


class News(NamedTuple):
    """Something worth a line of its own."""

    node: int
    state: str
    words: str


class Tally:
    """Where the atoms of one plan are."""

    def __init__(self, plan: plan_module.Plan, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan = plan
        self.clock = clock
        self._kinds = bytes(plan.kinds)
        retry = plan_module.RETRY
        self._base = bytes(RETRY * (kind == retry) for kind in plan.kinds)
        self.marks = bytearray(
            WAITING + self._base[node] if plan.is_atom(node) else 0 for node in range(len(plan))
        )
        #: The records by node, once there are any.
        self.records: Sequence[Any] = ()
        #: When what is under way began.
        self.since: dict[int, float] = {}
        #: What went wrong, in a line.
        self.failures: dict[int, str] = {}
        #: What was not said yet, and how much was dropped since the beginning.
        self.news: deque[News] = deque()
        self.dropped = 0
        #: How often a retry had its flow run again.
        self.waves = 0
        self.flow_state: str = states.PENDING
        self._began: float | None = None
        self._ended: float | None = None

    # -- writing --------------------------------------------------------------------------------

    def load(self, records: Sequence[Any]) -> None:
        """Read where the atoms are from their records: an earlier run may have left them there."""
        self.records = records
        for node, record in enumerate(records):
            if record is not None:
                self.marks[node] = _MARKS.get(record.state, WAITING) + self._base[node]

    def flow(self, state: str) -> None:
        """The flow entered `state`."""
        self.flow_state = state
        if state == states.RUNNING:
            self._began, self._ended = self.clock(), None
        elif state not in (states.SUSPENDING, states.PENDING):
            self._ended = self.clock()
            self.since.clear()

    def atom(self, name: str, state: str, result: Any) -> None:
        """An atom entered `state`."""
        node = self.plan.by_name.get(name)
        if node is None:
            return
        mark = _MARKS.get(state, WAITING)
        self.marks[node] = mark + self._base[node]
        if mark in (RUNNING, REVERTING):
            self.since[node] = self.clock()
        else:
            self.since.pop(node, None)
        if mark in (FAILED, STUCK):
            words = _in_a_line(result)
            if len(self.failures) < _MOST_FAILURES:
                self.failures[node] = words
            self._tell(News(node, state, words))
        elif mark in (WAITING, RUNNING):
            self.failures.pop(node, None)
        elif mark == RETRYING:
            self.waves += 1
            self._tell(News(node, state, ""))

    def _tell(self, news: News) -> None:
        if len(self.news) < _MOST_NEWS:
            self.news.append(news)
        else:
            self.dropped += 1

    # -- reading --------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since the flow began to run, or that it ran."""
        if self._began is None:
            return 0.0
        return (self.clock() if self._ended is None else self._ended) - self._began

    def lasted(self, node: int) -> float | None:
        """Seconds since an atom that is under way began."""
        began = self.since.get(node)
        return None if began is None else max(0.0, self.clock() - began)

    def progress(self, node: int) -> float | None:
        """How far a task says it is (0 to 1)."""
        if node >= len(self.records) or self.marks[node] != RUNNING:
            return None
        found = self.records[node].progress
        return float(found) if isinstance(found, int | float) else None

    def mark(self, node: int) -> int:
        """Where an atom is, be it a task or a retry."""
        return self.marks[node] & ~RETRY

    def is_retry(self, node: int) -> bool:
        return bool(self._base[node])

    def is_flow(self, node: int) -> bool:
        return self._kinds[node] == plan_module.FLOW

    def after(self, node: int) -> int:
        """The node behind an atom or a whole flow."""
        return self.plan.end[node] + 1 if self.is_flow(node) else node + 1

    def members(self, flow: int) -> Iterator[int]:
        """The retry, tasks and flows directly in a flow."""
        node, end = flow + 1, self.plan.end[flow]
        while node < end:
            yield node
            node = self.after(node)

    def counts(self, node: int) -> Counts:
        """How many of the tasks in a flow (or of the one that `node` is) are where."""
        start, stop, count = node, self.after(node), self.marks.count
        return Counts(
            self._kinds.count(plan_module.TASK, start, stop),
            count(WAITING, start, stop),
            count(RUNNING, start, stop),
            count(DONE, start, stop),
            count(IGNORED, start, stop),
            count(FAILED, start, stop) + count(STUCK, start, stop),
            count(REVERTING, start, stop),
            count(REVERTED, start, stop),
        )

    def wrong(self, most: int) -> list[int]:
        """Atoms that failed, at most so many; those that were reverted since come last."""
        found = _first(_WRONG, self.marks, most)
        since = [node for node in self.failures.copy() if node not in found]
        return found + since[: most - len(found)]

    def under_way(self, most: int) -> list[int]:
        """Atoms that run, are reverted or wait to run again, at most so many.

        An executor may have been given many more than it can run: those that told how far they are
        come first.
        """
        found = _first(_UNDER_WAY, self.marks, max(most, _MOST_COMPARED))
        return sorted(found, key=lambda node: self.progress(node) is None)[:most]


def _first(pattern: re.Pattern[bytes], marks: bytearray, most: int) -> list[int]:
    found: list[int] = []
    # A copy: a bytearray that is being searched cannot grow, and others write to it.
    for match in pattern.finditer(bytes(marks)):
        if len(found) == most:
            break
        found.append(match.start())
    return found


def _in_a_line(result: Any) -> str:
    if not isinstance(result, ft.Failure):
        return ""
    kind = next(iter(result), "").rpartition(".")[2]
    message = next(iter(result.exception_str.splitlines()), "")
    return f"{kind}: {message}" if message else kind

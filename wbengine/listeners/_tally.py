"""What is known of a run at any moment: where every atom is, in one byte each.

Written by the engine's thread, one event at a time and O(1) each; read by whoever shows it, at any
time.  A reader sees each atom as it was told last; it may see two atoms as they never were at the
same moment, which for a picture is good enough, and needs no lock.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import states
from wbengine.drawing import styles, tree
from wbengine.runtime import plan as plan_module
from wbengine.runtime import retries
from wbengine.types import failure as ft
from wbengine.views import formatting, structure

__all__ = ["News", "Tally"]

#: The mark of a task is the position of its state here, that of a retry the same plus RETRY.
#: 0: no atom.
_STATES: Final = ("", *styles.STATES)
_MARKS: Final = {state: mark for mark, state in enumerate(_STATES)}
RETRY: Final = 16
_PENDING: Final = _MARKS[states.PENDING]


def _any_of(wanted: Iterable[str]) -> re.Pattern[bytes]:
    found = [_MARKS[state] for state in wanted]
    return re.compile(b"[%s]" % re.escape(bytes([*found, *(mark + RETRY for mark in found)])))


_WRONG: Final = _any_of(tree.WRONG)
_BUSY: Final = _any_of(tree.BUSY)

#: Of so many atoms under way those to be shown are chosen.
_MOST_COMPARED: Final = 256
#: So many failures are kept with their words.
_MOST_FAILURES: Final = 100
#: So many events wait at most to be said; those before them are only counted.
_MOST_NEWS: Final = 20


class News(NamedTuple):
    """Something worth a line of its own."""

    node: int
    state: str
    words: str


class Tally(tree.Source):
    """Where the atoms of one plan are."""

    def __init__(self, plan: plan_module.Plan, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan = plan
        self.clock = clock
        self.names, self.parents = plan.names, plan.parent
        retry = plan_module.RETRY
        self._base = bytes(RETRY * (kind == retry) for kind in plan.kinds)
        self.marks = bytearray(
            _PENDING + self._base[node] if plan.is_atom(node) else 0 for node in range(len(plan))
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
        self.state: str = states.PENDING
        self._began: float | None = None
        self._ended: float | None = None

    # -- writing --------------------------------------------------------------------------------

    def load(self, records: Sequence[Any]) -> None:
        """Read where the atoms are from their records: an earlier run may have left them there."""
        self.records = records
        for node, record in enumerate(records):
            if record is not None:
                self.marks[node] = _MARKS.get(record.state, _PENDING) + self._base[node]

    def flow(self, state: str) -> None:
        """The flow entered `state`."""
        self.state = state
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
        self.marks[node] = _MARKS.get(state, _PENDING) + self._base[node]
        if state in (states.RUNNING, states.REVERTING):
            self.since[node] = self.clock()
        else:
            self.since.pop(node, None)
        if state in tree.WRONG:
            line = _in_a_line(result)
            if len(self.failures) < _MOST_FAILURES:
                self.failures[node] = line
            self._tell(News(node, state, line))
        elif state in (states.PENDING, states.RUNNING):
            self.failures.pop(node, None)
        elif state == states.RETRYING:
            self.waves += 1
            self._tell(News(node, state, ""))

    def _tell(self, news: News) -> None:
        if len(self.news) < _MOST_NEWS:
            self.news.append(news)
        else:
            self.dropped += 1

    # -- reading --------------------------------------------------------------------------------

    @property
    def duration(self) -> float | None:
        if self._began is None:
            return None
        return (self.clock() if self._ended is None else self._ended) - self._began

    def remarks(self) -> Iterable[str]:
        return [formatting.count(self.waves, "retry", "retries")] if self.waves else []

    def is_flow(self, node: int) -> bool:
        return self.plan.kinds[node] == plan_module.FLOW

    def is_retry(self, node: int) -> bool:
        return bool(self._base[node])

    def members(self, flow: int) -> Iterator[int]:
        node, end = flow + 1, self.plan.end[flow]
        while node < end:
            yield node
            node = self.plan.whole(node).stop

    def counts(self, node: int) -> Mapping[str, int]:
        whole = self.plan.whole(node)
        here = self.marks[whole.start : whole.stop]  # a copy, as others write to it
        found = ((state, here.count(mark)) for mark, state in enumerate(_STATES) if mark)
        return {state: count for state, count in found if count}

    def state_of(self, node: int) -> str:
        if self.is_flow(node):
            return structure.state_of(self.counts(node))
        return _STATES[self.marks[node] & ~RETRY]

    def progress(self, node: int) -> float | None:
        if node >= len(self.records) or self.state_of(node) != states.RUNNING:
            return None
        found = self.records[node].progress
        return float(found) if isinstance(found, int | float) else None

    def details(self, node: int) -> Iterator[str]:
        record = self.records[node] if self.is_retry(node) and self.records else None
        if record is not None and len(record.results) > 1:
            yield f"attempt {len(record.results)}"
        began = self.since.get(node)
        if began is not None:
            yield formatting.seconds(max(0.0, self.clock() - began))
        line = self.failures.get(node)
        if line:
            yield line
        at = record.meta.get(retries.RETRY_AT) if record is not None and record.has_meta else None
        if self.state_of(node) == states.RETRYING and isinstance(at, int | float):
            yield f"again in {max(0.0, at - time.time()):.0f} s"

    def wrong(self, most: int) -> list[int]:
        """Those that were reverted since come last."""
        found = _first(_WRONG, self.marks, most)
        since = [node for node in self.failures.copy() if node not in found]
        return found + since[: most - len(found)]

    def busy(self, most: int) -> list[int]:
        """An executor may have been given many more than it can run: those that told how far they
        are come first.
        """
        found = _first(_BUSY, self.marks, max(most, _MOST_COMPARED))
        return sorted(found, key=lambda node: self.progress(node) is None)[:most]


def _first(pattern: re.Pattern[bytes], among: bytearray, most: int) -> list[int]:
    found: list[int] = []
    # A copy: a bytearray that is being searched cannot grow, and others write to it.
    for match in pattern.finditer(bytes(among)):
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

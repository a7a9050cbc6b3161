"""Where each node of a plan is in its life, and how to read that from what was saved.

The scheduler knows more about a node than the saved state says (it is due, it was handed out, ...);
these are its own marks, small integers in one array.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from wbengine import states as st
from wbengine._core.plan import RETRY, Plan

# At rest.
PENDING: Final = 0
DONE: Final = 1
IGNORED: Final = 2
FAILED: Final = 3
REVERTED: Final = 4
#: Its reversion failed: it stays like that, and whatever comes before it stays too.
STUCK: Final = 5
# Waiting to be handed out.
READY: Final = 6
#: As READY, but it ran when its engine died: nothing may cancel it, it has to come to an end.
RERUN: Final = 7
VOTE: Final = 8
DUE: Final = 9
AGAIN: Final = 10
# Handed out.
ASKED: Final = 11
RUNNING: Final = 12
REVERTING: Final = 13

#: Saved state and intention of an atom.
Saved = tuple[str | None, str]

_MARKS: Final[Mapping[str | None, int]] = {
    None: PENDING,
    st.PENDING: PENDING,
    st.RUNNING: RERUN,
    st.SUCCESS: DONE,
    st.IGNORE: IGNORED,
    st.FAILURE: FAILED,
    st.REVERTING: DONE,
    st.REVERTED: REVERTED,
    st.REVERT_FAILURE: STUCK,
    st.RETRYING: DONE,
}
_NOTHING: Final[Saved] = (None, st.EXECUTE)
_UNDOING: Final = frozenset([st.REVERTING, st.REVERTED, st.REVERT_FAILURE])


@dataclass(slots=True)
class Progress:
    """What `read` found out."""

    marks: bytearray
    #: First node of each scope that is being reverted -> whether it is to run again then.
    scopes: dict[int, bool] = field(default_factory=dict)
    #: Enter nodes with deciders that need not be asked again.
    begun: set[int] = field(default_factory=set)
    failed: list[int] = field(default_factory=list)
    rerun: list[int] = field(default_factory=list)
    #: Ignored node -> the target whose deciders said no; a good guess, it is not saved.
    origins: dict[int, int] = field(default_factory=dict)


def read(plan: Plan, saved: Mapping[int, Saved]) -> Progress:
    """Translate saved states and intentions; O(V+E), and at once when nothing was saved."""
    progress = Progress(bytearray(len(plan)))
    marks = progress.marks
    if not saved:
        return progress
    for node, (state, intention) in sorted(saved.items()):
        mark = _MARKS[state]
        if mark == RERUN and intention == st.RETRY:
            # It was about to run again when the engine died, and has to begin with a clear scope.
            mark = DONE
        marks[node] = mark
        if mark == FAILED:
            progress.failed.append(node)
        elif mark == RERUN:
            progress.rerun.append(node)
    progress.scopes = _scopes(plan, saved)
    if plan.deciders:
        _read_votes(plan, progress)
    return progress


def _scopes(plan: Plan, saved: Mapping[int, Saved]) -> dict[int, bool]:
    """The widest scopes that were being reverted, or were reverted for good."""
    whole = False
    found: dict[int, bool] = {}
    # Retry -> the nearest one, itself included, that has something to undo; -1: the whole plan has.
    answering: dict[int, int] = {-1: -1}
    for node in plan.atoms():
        state, intention = saved.get(node, _NOTHING)
        undoing = intention in (st.REVERT, st.RETRY) or state in _UNDOING or state == st.RETRYING
        if plan.kinds[node] == RETRY:
            # A retry that failed itself is undone by what is around it.
            own = undoing and state != st.FAILURE
            answering[node] = node if own else answering[plan.controller[node]]
            if own:
                found[node] = intention == st.RETRY or state == st.RETRYING
                continue
        if undoing:
            whole = whole or answering[plan.controller[node]] < 0
    # Where there are only retries on the outermost level, all of them stand for the whole plan.
    tops = [node for node in plan.atoms() if plan.controller[node] < 0]
    if whole or (tops and all(found.get(node) is False for node in tops)):
        return {0: False}
    widest: dict[int, bool] = {}
    stop = 0
    for start in sorted(found):
        if start >= stop:
            widest[start] = found[start]
            stop = plan.scope(start).stop
    return widest


def _read_votes(plan: Plan, progress: Progress) -> None:
    """Which flows were let in, and who ignored the ignored."""
    marks, origins = progress.marks, progress.origins
    begun = [n for n in plan.atoms() if marks[n] not in (PENDING, IGNORED)]
    pending = [n for n in plan.atoms() if marks[n] == PENDING]
    ignored = [n for n in plan.atoms() if marks[n] == IGNORED]
    settled = bytearray(len(plan))
    for node in range(len(plan)):
        reached = all(settled[p] for p in plan.pred[node])
        end = plan.end.get(node)
        if end is not None and node in plan.deciders:
            if _any_within(begun, node, end):
                progress.begun.add(node)
            elif _any_within(ignored, node, end) and not _any_within(pending, node, end):
                marks[node] = IGNORED
        settled[node] = reached and (not plan.is_atom(node) or marks[node] in (DONE, IGNORED))
        if reached and marks[node] == IGNORED and node in plan.deciders:
            # It was asked.  (Or not, because something before it was; then it does not matter:
            # nothing that is settled is ever taken back without what comes after it.)
            origins[node] = node
        elif marks[node] == IGNORED or not plan.is_atom(node):
            before = [origins[p] for p in plan.pred[node] if p in origins]
            if before:
                origins[node] = min(before)


def _any_within(ids: list[int], low: int, high: int) -> bool:
    at = bisect_left(ids, low)
    return at < len(ids) and ids[at] < high

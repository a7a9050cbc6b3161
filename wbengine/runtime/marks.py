"""Marks: where each node of a plan is in its life, and how to read that from what was saved.

The scheduler knows more about a node than the saved state says (it is due, it was handed out, ...);
these are its own marks, small integers in one array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from wbengine import states as st
from wbengine.runtime.plan import RETRY, Plan

# At rest, and nothing keeps it from being undone, if there is something to undo.
PENDING: Final = 0
DONE: Final = 1
IGNORED: Final = 2
FAILED: Final = 3
REVERTED: Final = 4
# Not to be undone now: REVERTED is the last one that may be.
#: Its reversion failed: it stays like that, and whatever comes before it stays too.
STUCK: Final = 5
# Waiting to be handed out.
READY: Final = 6
#: As READY, but it ran when its engine died: nothing may cancel it, it has to come to an end.
RERUN: Final = 7
VOTE: Final = 8
DUE: Final = 9
AGAIN: Final = 10
#: A retry that waits for its time; somebody will wake it.
ASLEEP: Final = 11
# Handed out.
ASKED: Final = 12
RUNNING: Final = 13
REVERTING: Final = 14

#: Nothing of it is executed, or will be, unless it is tried again.
ENDED: Final = frozenset({DONE, IGNORED, FAILED, REVERTED, STUCK, DUE, REVERTING})

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
class Standing:
    """How far an earlier run came."""

    marks: bytearray
    #: First node of each scope that is being reverted -> whether it is to run again then.
    scopes: dict[int, bool] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    rerun: list[int] = field(default_factory=list)


def read(plan: Plan, saved: Mapping[int, Saved]) -> Standing:
    """Translate saved states and intentions; O(V), and at once when nothing was saved."""
    found = Standing(bytearray(len(plan)))
    marks = found.marks
    if not saved:
        return found
    for node, (state, intention) in sorted(saved.items()):
        mark = _MARKS[state]
        if mark == RERUN and intention == st.RETRY:
            # It was about to run again when the engine died, and has to begin with a clear scope.
            mark = DONE
        marks[node] = mark
        if mark == FAILED:
            found.failed.append(node)
        elif mark == RERUN:
            found.rerun.append(node)
    found.scopes = _scopes(plan, saved)
    return found


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
                # A retry that waits for its time may have been overridden meanwhile.
                waits = state == st.RETRYING and intention != st.REVERT
                found[node] = intention == st.RETRY or waits
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

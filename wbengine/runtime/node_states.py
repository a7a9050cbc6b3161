"""Where each node of a plan is in a run, and where a resumed flow begins.

The scheduler knows more about a node than its saved state says (it is ready, was handed out, ...):
these are its own marks, small integers in one array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from wbengine import states as st
from wbengine.runtime.plan import Plan

# At rest, and nothing keeps it from being undone, if there is something to undo.
PENDING: Final = 0
DONE: Final = 1
IGNORED: Final = 2
FAILED: Final = 3
REVERTED: Final = 4
# Not to be undone now: REVERTED is the last one that may be.
#: Its reversion failed: it and whatever comes before it stay as they are, unless the flow is
#: cancelled in a later run.
REVERT_FAILED: Final = 5
# Waiting to be handed out.
READY: Final = 6
#: As READY, but it ran when its engine died: nothing may cancel it, it has to come to an end.
RERUN: Final = 7
DECISION_READY: Final = 8
REVERT_READY: Final = 9
RETRY_READY: Final = 10
#: A retry that waits for its time; somebody will wake it.
RETRY_WAITING: Final = 11
# Handed out.
DECIDING: Final = 12
RUNNING: Final = 13
REVERTING: Final = 14

#: Nothing of it is executed, or will be, unless it is tried again.
ENDED: Final = frozenset({DONE, IGNORED, FAILED, REVERTED, REVERT_FAILED, REVERT_READY, REVERTING})

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
    st.REVERT_FAILURE: REVERT_FAILED,
    st.RETRYING: DONE,
}


@dataclass(slots=True)
class SavedStates:
    """How far an earlier run came; nodes ascending."""

    marks: bytearray
    failed: list[int] = field(default_factory=list)
    rerun: list[int] = field(default_factory=list)


def read(plan: Plan, saved: Mapping[int, Saved]) -> SavedStates:
    """Translate saved states and intentions; O(V), and at once when nothing was saved."""
    found = SavedStates(bytearray(len(plan)))
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
    return found

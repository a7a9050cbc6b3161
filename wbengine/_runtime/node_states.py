"""Marks of the nodes of a plan in a run, and their initial values for a resumed flow.

The scheduler distinguishes more states than records do (for example, ready and submitted).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from wbengine import states as st
from wbengine._runtime.plan import Plan

# At rest. These marks allow a revert, if there is something to revert.
PENDING: Final = 0
DONE: Final = 1
IGNORED: Final = 2
FAILED: Final = 3
#: Done, but another flow reverts it.
NOT_OWNED: Final = 4
REVERTED: Final = 5
# The following marks do not allow a revert; REVERTED is the last one that does.
#: The revert failed. This node and all nodes before it keep their states until a later
#: cancellation.
REVERT_FAILED: Final = 6
# Waiting for submission.
READY: Final = 7
#: READY, but it ran when its engine died: it cannot be cancelled and has to end.
RERUN: Final = 8
DECISION_READY: Final = 9
REVERT_READY: Final = 10
RETRY_READY: Final = 11
#: A retry controller that waits for its time.
RETRY_WAITING: Final = 12
# Submitted.
DECIDING: Final = 13
RUNNING: Final = 14
REVERTING: Final = 15

#: Nothing of the node is executed, or will be, unless it is retried.
ENDED: Final = frozenset(
    {DONE, IGNORED, FAILED, NOT_OWNED, REVERTED, REVERT_FAILED, REVERT_READY, REVERTING}
)

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
    """The progress of an earlier run; nodes in ascending order."""

    marks: bytearray
    failed: list[int] = field(default_factory=list)
    rerun: list[int] = field(default_factory=list)


def read(plan: Plan, saved: Mapping[int, Saved], not_owned: Collection[int] = ()) -> SavedStates:
    """Translate saved states and intentions. Takes O(V), or O(1) if nothing was saved.

    :param not_owned: nodes whose results another flow reverts.
    """
    saved_states = SavedStates(bytearray(len(plan)))
    marks = saved_states.marks
    if not saved:
        return saved_states
    for node, (state, intention) in sorted(saved.items()):
        mark = _MARKS[state]
        if mark == RERUN and intention == st.RETRY:
            # The controller was about to run again when the engine died; its scope has to be reset
            # first.
            mark = DONE
        if mark == DONE and node in not_owned:
            mark = NOT_OWNED
        marks[node] = mark
        if mark == FAILED:
            saved_states.failed.append(node)
        elif mark == RERUN:
            saved_states.rerun.append(node)
    return saved_states

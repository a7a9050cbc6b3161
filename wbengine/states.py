"""The states of flows, atoms and jobs, and their transitions.

The `check_*_transition` functions return True if a transition is allowed, and False if it must be
ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from wbengine import exceptions
from wbengine._introspection import object_names

# Jobs.
UNCLAIMED: Final = "UNCLAIMED"
CLAIMED: Final = "CLAIMED"
COMPLETE: Final = "COMPLETE"

# Flows and atoms.
PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"
REVERTING: Final = "REVERTING"
REVERTED: Final = "REVERTED"

# Flows only.
RESUMING: Final = "RESUMING"
SUSPENDING: Final = "SUSPENDING"
SUSPENDED: Final = "SUSPENDED"

# Atoms only.
IGNORE: Final = "IGNORE"
REVERT_FAILURE: Final = "REVERT_FAILURE"
RETRYING: Final = "RETRYING"

# Events of a running atom that do not change its state.
WORKER_LOST: Final = "WORKER_LOST"
RESENT: Final = "RESENT"
INCIDENTS: Final = (WORKER_LOST, RESENT)

# Shown in histories and views for a cancelled flow, before and after it is reverted. Records do not
# contain these states: such a flow is RUNNING and finally REVERTED.
CANCELLING: Final = "CANCELLING"
CANCELLED: Final = "CANCELLED"

# Shown in views for a suspended flow whose code does not repeat its recorded steps.
BLOCKED: Final = "BLOCKED"

# Intentions of an engine for an atom. IGNORE is also a state.
EXECUTE: Final = "EXECUTE"
REVERT: Final = "REVERT"
RETRY: Final = "RETRY"
INTENTIONS: Final = (EXECUTE, IGNORE, REVERT, RETRY)

#: All states of flows.
FLOW_STATES: Final = (
    PENDING,
    RUNNING,
    SUCCESS,
    FAILURE,
    REVERTED,
    RESUMING,
    SUSPENDING,
    SUSPENDED,
)
#: States of flows that have ended. SUSPENDED is not one of them.
FLOW_ENDED: Final = frozenset({SUCCESS, FAILURE, REVERTED})
#: States of a flow during a run. If no engine runs such a flow, its engine died.
FLOW_RUNNING: Final = (RUNNING, SUSPENDING, RESUMING)

ATOM_STATES: Final = (
    PENDING,
    RUNNING,
    SUCCESS,
    FAILURE,
    REVERTING,
    REVERTED,
    IGNORE,
    REVERT_FAILURE,
    RETRYING,
)

# States of the run loop, in addition to RESUMING and the final states.
SCHEDULING: Final = "SCHEDULING"
WAITING: Final = "WAITING"
ANALYZING: Final = "ANALYZING"
GAME_OVER: Final = "GAME_OVER"
UNDEFINED: Final = "UNDEFINED"

Pair = tuple[str, str]


def _pairs(froms: Iterable[str], tos: Iterable[str]) -> set[Pair]:
    targets = tuple(tos)
    return {(old, new) for old in froms for new in targets}


_FLOW_ALLOWED: Final[frozenset[Pair]] = frozenset(
    {(PENDING, RUNNING), (SUSPENDED, RUNNING), (RESUMING, SUSPENDED)}
    | _pairs([RUNNING], [SUCCESS, FAILURE, REVERTED, SUSPENDING, RESUMING])
    | _pairs([SUCCESS, FAILURE], [RUNNING])
    # FAILURE and SUSPENDED are included for `Engine.reset`. (TaskFlow's reset fails halfway.)
    | _pairs([SUCCESS, REVERTED, FAILURE, SUSPENDED], [PENDING])
    | _pairs([SUSPENDING], [SUSPENDED, SUCCESS, FAILURE, REVERTED, RESUMING])
)
_IGNORED_FLOW_CHANGES: Final[frozenset[Pair]] = frozenset(
    _pairs([PENDING, FAILURE, SUCCESS, SUSPENDED, REVERTED], [SUSPENDING, SUSPENDED, RESUMING])
)
_TASK_ALLOWED: Final[frozenset[Pair]] = frozenset(
    _pairs([PENDING], [RUNNING, IGNORE])
    | _pairs([RUNNING], [SUCCESS, FAILURE])
    | _pairs([SUCCESS, FAILURE], [REVERTING])
    | _pairs([REVERTING], [REVERTED, REVERT_FAILURE])
    | {(REVERT_FAILURE, REVERTING)}
    | _pairs([REVERTED, IGNORE], [PENDING])
)
_RETRY_ALLOWED: Final[frozenset[Pair]] = _TASK_ALLOWED | {
    (SUCCESS, RETRYING),
    (RETRYING, RUNNING),
    # A surrounding flow was given up while the retry controller waited.
    (RETRYING, REVERTING),
}
_JOB_ALLOWED: Final[frozenset[Pair]] = frozenset(
    {(UNCLAIMED, CLAIMED), (CLAIMED, COMPLETE), (CLAIMED, UNCLAIMED)}
)


def _check(what: str, allowed: frozenset[Pair], old: str, new: str) -> bool:
    if old == new:
        return False
    if (old, new) in allowed:
        return True
    after = ", ".join(sorted(target for source, target in allowed if source == old))
    raise exceptions.InvalidState(
        f"{what} transition from {old} to {new} is not allowed (from {old}: {after or 'nothing'})"
        + _hint_at(new, allowed)
    )


def _hint_at(state: Any, allowed: frozenset[Pair]) -> str:
    targets = {target for _, target in allowed}
    return (
        ""
        if state in targets or not isinstance(state, str)
        else object_names.hint(state, sorted(targets))
    )


def check_known(what: str, word: str, known: tuple[str, ...]) -> str:
    """Return `word` if it is one of `known`.

    :raises ValueError: if it is not; the message contains `what` and the most similar word.
    """
    if word not in known:
        near = object_names.hint(word, known) if isinstance(word, str) else ""
        raise ValueError(f"Unknown {what} {word!r}{near}; known values: {', '.join(known)}")
    return word


def check_flow_transition(old_state: str, new_state: str) -> bool:
    """Return True if a flow may change its state this way.

    Suspending a flow that does not run is ignored (False).

    :raises InvalidState: if the transition is not allowed.
    """
    if (old_state, new_state) in _IGNORED_FLOW_CHANGES:
        return False
    return _check("Flow", _FLOW_ALLOWED, old_state, new_state)


def check_task_transition(old_state: str, new_state: str) -> bool:
    """Return True if a task may change its state this way. As in TaskFlow, raise nothing.

    >>> check_task_transition(PENDING, RUNNING)
    True
    >>> check_task_transition(RUNNING, PENDING)
    False
    """
    return (old_state, new_state) in _TASK_ALLOWED


def check_retry_transition(old_state: str, new_state: str) -> bool:
    """Return True if a retry controller may change its state this way."""
    return (old_state, new_state) in _RETRY_ALLOWED


def check_job_transition(old_state: str, new_state: str) -> bool:
    """Return True if a job may change its state this way.

    :raises InvalidState: if the transition is not allowed.
    """
    return _check("Job", _JOB_ALLOWED, old_state, new_state)

"""The states of flows, atoms and jobs, and which may follow which.

The tables are data; the `check_*_transition` functions read them.  They answer True when the
transition is to be made, False when it is to be ignored, and raise `InvalidState` when it is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from wbengine import _names, exceptions

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

# What happens to an atom that is under way on workers, and changes no state.
WORKER_LOST: Final = "WORKER_LOST"
RESENT: Final = "RESENT"
INCIDENTS: Final = (WORKER_LOST, RESENT)

# What an engine means to do with an atom (IGNORE is both a state and an intention).
EXECUTE: Final = "EXECUTE"
REVERT: Final = "REVERT"
RETRY: Final = "RETRY"
INTENTIONS: Final = (EXECUTE, IGNORE, REVERT, RETRY)

#: All states of flows, and of atoms.
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
#: A flow in one of these has ended; one that is SUSPENDED has not.
FLOW_ENDED: Final = frozenset({SUCCESS, FAILURE, REVERTED})

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

# What the run loop of an engine does (besides RESUMING and the end states).
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
    # FAILURE and SUSPENDED too: what `Engine.reset` promises (TaskFlow refuses them half way).
    | _pairs([SUCCESS, REVERTED, FAILURE, SUSPENDED], [PENDING])
    | _pairs([SUSPENDING], [SUSPENDED, SUCCESS, FAILURE, REVERTED, RESUMING])
)
_FLOW_IGNORED: Final[frozenset[Pair]] = frozenset(
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
    # It waited for its time when something around it gave up.
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
    known = {target for _, target in allowed}
    return "" if state in known or not isinstance(state, str) else _names.hint(state, sorted(known))


def check_known(what: str, word: str, known: tuple[str, ...]) -> str:
    """`word`, if it is among `known`.

    :raises ValueError: it is not; the text says what it was meant to be (`what`), and the nearest.
    """
    if word not in known:
        near = _names.hint(word, known) if isinstance(word, str) else ""
        raise ValueError(f"{word!r} is no {what}{near}; known: {', '.join(known)}")
    return word


def check_flow_transition(old_state: str, new_state: str) -> bool:
    """May a flow go from `old_state` to `new_state`?  Suspending what does not run is ignored.

    :raises InvalidState: it may not.
    """
    if (old_state, new_state) in _FLOW_IGNORED:
        return False
    return _check("Flow", _FLOW_ALLOWED, old_state, new_state)


def check_task_transition(old_state: str, new_state: str) -> bool:
    """May a task go from `old_state` to `new_state`?  (Nothing is raised, as in TaskFlow.)

    >>> check_task_transition(PENDING, RUNNING)
    True
    >>> check_task_transition(RUNNING, PENDING)
    False
    """
    return (old_state, new_state) in _TASK_ALLOWED


def check_retry_transition(old_state: str, new_state: str) -> bool:
    """May a retry go from `old_state` to `new_state`?"""
    return (old_state, new_state) in _RETRY_ALLOWED


def check_job_transition(old_state: str, new_state: str) -> bool:
    """May a job go from `old_state` to `new_state`?

    :raises InvalidState: it may not.
    """
    return _check("Job", _JOB_ALLOWED, old_state, new_state)

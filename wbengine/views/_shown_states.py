"""States of flows and tasks as users see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wbengine import states
from wbengine.persistence import _commands

__all__ = [
    "INTERRUPTED",
    "LISTED",
    "OF_RETRY",
    "REQUESTED",
    "STATES_WITHOUT_RUN",
    "UNFINISHED",
    "have_command",
    "shown_state",
    "stored_states",
]

#: Displayed state of a flow that is stored as running but has no live engine.
INTERRUPTED: Final = "INTERRUPTED"

#: Displayed state of a flow that ended or is suspended, and for which a conductor has not begun a
#: request to resume, retry or revert it.
REQUESTED: Final = "REQUESTED"

#: States of a retry controller created for `Task.retries` that are shown as states of its task.
OF_RETRY: Final = frozenset({states.RETRYING, states.FAILURE, states.REVERT_FAILURE})

#: States of a flow that no engine runs.
STATES_WITHOUT_RUN: Final = states.FLOW_ENDED | {states.SUSPENDED, states.PENDING}

_NOT_ENDED: Final = frozenset(states.FLOW_STATES) - states.FLOW_ENDED

#: Displayed states that differ from the stored ones, with the stored states of such flows.
_STORED: Final = {
    states.WAITING: _NOT_ENDED,
    states.BLOCKED: frozenset({states.SUSPENDED}),
    states.SUSPENDING: _NOT_ENDED,
    INTERRUPTED: _NOT_ENDED - STATES_WITHOUT_RUN,
    REQUESTED: frozenset({states.FAILURE, states.REVERTED, states.SUSPENDED}),
    states.CANCELLING: _NOT_ENDED,
    states.CANCELLED: frozenset({states.REVERTED}),
}

#: States by which lists of flows can be filtered.
LISTED: Final = tuple(dict.fromkeys((*states.FLOW_STATES, *_STORED)))

#: Displayed states of flows that run or will run without a command of a user.
UNFINISHED: Final = (
    *(states.PENDING, states.RUNNING, states.RESUMING, states.SUSPENDING),
    *(states.WAITING, states.BLOCKED, INTERRUPTED, REQUESTED),
)


def stored_states(names: Iterable[str]) -> frozenset[str]:
    """Return the stored states of flows that can have one of these states in `LISTED`."""
    return frozenset[str]().union(*(_STORED.get(name, {name}) for name in names))


def have_command(names: Iterable[str]) -> bool:
    """Return whether all flows in these displayed states have a command. Few flows have one."""
    return set(names) == {REQUESTED}


def shown_state(
    state: str,
    owner: str | None,
    died: bool,
    *,
    cancelled: bool = False,
    command: str | None = None,
    parked: bool = False,
    waits: bool = False,
    blocked: bool = False,
) -> str:
    """Return the displayed state of a flow.

    REQUESTED: a request to resume, retry or revert it is pending, except for parked flows.
    INTERRUPTED: its engine has died or lost the lease. CANCELLING, CANCELLED: it was cancelled.
    SUSPENDING: a command to suspend it is pending. WAITING: it is parked, or only
    waits for signals. BLOCKED: its code does not repeat the recorded steps. Otherwise the result
    is `state`.

    :param owner: owner of the lease, or None.
    :param died: whether the owner has certainly ended.
    :param command: the pending command (one of `commands.COMMANDS`), or None.
    :param waits: whether all running tasks wait for signals.
    """
    is_requested = command in _commands.RERUN_COMMANDS and state in _STORED[REQUESTED]
    if state in states.FLOW_ENDED:
        if is_requested:
            return REQUESTED
        return states.CANCELLED if cancelled and state == states.REVERTED else state
    is_run = owner is not None and not died
    if not is_run and state not in STATES_WITHOUT_RUN:
        return INTERRUPTED
    if cancelled or command == _commands.CANCEL:
        return states.CANCELLING
    if command == _commands.SUSPEND:
        return states.SUSPENDING
    if is_requested and not parked:
        return REQUESTED
    if blocked:
        return states.BLOCKED
    return states.WAITING if parked or (waits and state == states.RUNNING) else state

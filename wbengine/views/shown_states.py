"""States of flows and tasks as users see them."""

from __future__ import annotations

from typing import Final

from wbengine import states
from wbengine.persistence import commands

__all__ = ["INTERRUPTED", "OF_RETRY", "STATES_WITHOUT_RUN", "shown_state"]

#: Displayed state of a flow that is stored as running but has no live engine.
INTERRUPTED: Final = "INTERRUPTED"

#: States of a retry controller created for `Task.retries` that are shown as states of its task.
OF_RETRY: Final = frozenset({states.RETRYING, states.FAILURE, states.REVERT_FAILURE})

#: States of a flow that no engine runs.
STATES_WITHOUT_RUN: Final = states.FLOW_ENDED | {states.SUSPENDED, states.PENDING}


def shown_state(
    state: str,
    owner: str | None,
    died: bool,
    *,
    cancelled: bool = False,
    command: str | None = None,
    parked: bool = False,
    waits: bool = False,
) -> str:
    """Return the displayed state of a flow.

    INTERRUPTED: its engine has died or lost the lease. CANCELLING, CANCELLED: it was cancelled.
    SUSPENDING: a command to suspend it is pending. WAITING: it is parked, or only
    waits for signals. Otherwise the result is `state`.

    :param owner: owner of the lease, or None.
    :param died: whether the owner has certainly ended.
    :param command: the pending command for the owner (one of `commands.COMMANDS`), or None.
    :param waits: whether all running tasks wait for signals.
    """
    if state in states.FLOW_ENDED:
        return states.CANCELLED if cancelled and state == states.REVERTED else state
    is_run = owner is not None and not died
    if not is_run and state not in STATES_WITHOUT_RUN:
        return INTERRUPTED
    if cancelled or (is_run and command == commands.CANCEL):
        return states.CANCELLING
    if is_run and command == commands.SUSPEND:
        return states.SUSPENDING
    return states.WAITING if parked or (waits and state == states.RUNNING) else state

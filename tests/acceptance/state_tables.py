"""State transitions that the code allows."""

from __future__ import annotations

from collections.abc import Callable

from wbengine import exceptions, states

CHECKS: dict[str, tuple[Callable[[str, str], bool], tuple[str, ...]]] = {
    "flow": (states.check_flow_transition, states.FLOW_STATES),
    "task": (
        states.check_task_transition,
        tuple(state for state in states.ATOM_STATES if state != states.RETRYING),
    ),
    "retry": (states.check_retry_transition, states.ATOM_STATES),
}


def transitions(what: str) -> dict[str, set[str]]:
    """Return the transitions that `wbengine.states` allows."""
    check, known = CHECKS[what]

    def may(old: str, new: str) -> bool:
        try:
            return check(old, new)
        except exceptions.InvalidState:
            return False

    return {old: {new for new in known if may(old, new)} for old in known}

"""What can be done to a flow as it is now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from wbengine import states
from wbengine.views import flow as flows

__all__ = ["ACTIONS", "Action", "of_flow"]


@dataclass(frozen=True, slots=True)
class Action:
    """A button: its word, what it asks before, and what is told afterwards.

    `runs`: it starts the flow again, in a process of its own.
    """

    name: str
    word: str
    asks: str
    done: str
    runs: bool = False
    danger: bool = False


ACTIONS: Final[Mapping[str, Action]] = {
    action.name: action
    for action in (
        Action("suspend", "Suspend", "", "Whoever runs the flow was asked to suspend it."),
        Action("resume", "Resume", "", "The flow is being resumed.", runs=True),
        Action("retry", "Retry failed", "", "What failed is being tried again.", runs=True),
        Action(
            "revert",
            "Revert",
            "Revert all that this flow has done?",
            "What the flow has done is being reverted.",
            runs=True,
            danger=True,
        ),
        Action(
            "cancel",
            "Cancel",
            "Cancel this flow, and revert what it has done?",
            "Whoever runs the flow was asked to cancel it.",
            danger=True,
        ),
    )
}

_WITH_FAILURES: Final = frozenset({states.FAILURE, states.SUSPENDED, states.REVERTED})
_ENDED: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED})


def of_flow(view: flows.FlowView, can_run: bool) -> list[Action]:
    """The actions that make sense; `can_run`: flows can be started from here."""
    if view.owner is not None and not view.owner_died:
        return [ACTIONS["suspend"], ACTIONS["cancel"]]
    if not can_run:
        return []
    names = []
    if view.state not in _ENDED:
        names.append("resume")
    if view.state == states.REVERTED or (view.failures and view.state in _WITH_FAILURES):
        names.append("retry")
    if view.state not in (states.REVERTED, states.PENDING, states.SUCCESS):
        names.append("revert")
    return [ACTIONS[name] for name in names]

"""Actions that are available for a flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from wbengine import states
from wbengine.views import flow_status as flows

__all__ = ["ACTIONS", "Action", "of_flow"]


@dataclass(frozen=True, slots=True)
class Action:
    """A button: its label, the confirmation before the action, and the notice after it.

    `runs`: whether the action starts the flow in a separate process.
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
        Action("suspend", "Suspend", "", "The engine was asked to suspend the flow."),
        Action("resume", "Resume", "", "The flow is being resumed.", runs=True),
        Action("retry", "Retry failed", "", "The failed tasks are being retried.", runs=True),
        Action(
            "revert",
            "Revert",
            "Revert all completed tasks of this flow?",
            "The flow is being reverted.",
            runs=True,
            danger=True,
        ),
        Action(
            "cancel",
            "Cancel",
            "Cancel this flow and revert its completed tasks?",
            "The engine was asked to cancel the flow.",
            danger=True,
        ),
    )
}

_WITH_FAILURES: Final = frozenset({states.FAILURE, states.SUSPENDED, states.REVERTED})
_ENDED: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED})


def of_flow(view: flows.FlowView, can_run: bool) -> list[Action]:
    """Return the actions for the state of the flow.

    :param can_run: whether the dashboard can start flows. Conductors run submitted ones.
    """
    if view.owner is not None and not view.owner_died:
        requested = {states.SUSPENDING: "suspend", states.CANCELLING: "cancel"}.get(
            view.shown_state
        )
        return [ACTIONS[name] for name in ("suspend", "cancel") if name != requested]
    if not (can_run or view.is_submitted):
        return []
    names = []
    if view.state not in _ENDED:
        names.append("resume")
    if view.state == states.REVERTED or (view.failures and view.state in _WITH_FAILURES):
        names.append("retry")
    if view.state not in (states.REVERTED, states.PENDING, states.SUCCESS):
        names.append("revert")
    return [ACTIONS[name] for name in names if name != view.command]

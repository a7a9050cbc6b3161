"""Operations that are available for a flow."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from wbengine import states
from wbengine.dashboard import _operation_forms
from wbengine.operations._operation import Operation
from wbengine.views import flow_status as flows

__all__ = ["RUNS", "actions", "of_flow", "others_of_flow"]

#: Operations that run a flow that was not submitted in a separate process.
RUNS: Final = frozenset({"resume", "retry", "revert"})
#: Operations that are available as `of_flow` describes.
_ACTIONS: Final = RUNS | {"suspend", "cancel"}
#: Operations on flows that were submitted, only.
_OF_SUBMITTED: Final = frozenset({"fork"})
#: Operations with a form of their own.
_SPECIAL: Final = frozenset({"signal"})

_WITH_FAILURES: Final = frozenset({states.FAILURE, states.SUSPENDED, states.REVERTED})
_ENDED: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED})
#: Displayed states of flows that stay suspended.
_SUSPENDED: Final = frozenset({states.SUSPENDED, states.SUSPENDING, states.BLOCKED})


@functools.cache
def actions() -> Mapping[str, Operation]:
    """Return the operations on flows that the page shows, by verb."""
    return _operation_forms.of_subject("flow")


def of_flow(view: flows.FlowView, can_run: bool) -> list[Operation]:
    """Return the operations for the state of the flow that change its run.

    :param can_run: whether the dashboard can start flows. Conductors run submitted ones.
    """
    if view.owner is not None and not view.owner_died:
        requested = {states.SUSPENDING: "suspend", states.CANCELLING: "cancel"}.get(
            view.shown_state
        )
        return [actions()[name] for name in ("suspend", "cancel") if name != requested]
    if not (can_run or view.is_submitted):
        return []
    names = []
    if view.state not in _ENDED:
        names.append("resume")
    if view.state == states.REVERTED or (view.failures and view.state in _WITH_FAILURES):
        names.append("retry")
    if view.state not in (states.REVERTED, states.PENDING):
        names.append("revert")
    if view.is_submitted and view.state not in _ENDED:
        # Its next engine carries these commands out.
        names += [] if view.shown_state in _SUSPENDED else ["suspend"]
        names += [] if view.shown_state == states.CANCELLING else ["cancel"]
    return [actions()[name] for name in names if name != view.command]


def others_of_flow(view: flows.FlowView) -> list[Operation]:
    """Return the other operations for the state of the flow."""
    return [
        each
        for verb, each in actions().items()
        if verb not in _ACTIONS | _SPECIAL
        and (view.is_submitted or verb not in _OF_SUBMITTED)
        and each.target is not None
        and (each.many is None or view.shown_state in each.many.states)
    ]

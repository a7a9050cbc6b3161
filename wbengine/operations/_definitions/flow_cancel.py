"""The operation `flow cancel`."""

from __future__ import annotations

from typing import Any

from wbengine import states
from wbengine.operations import _operation as op
from wbengine.operations import _suspend_and_cancel, _views
from wbengine.views import _shown_states


@op.operation(
    role=op.OPERATOR,
    result=_views.STATE_CHANGE,
    many=op.Many((*_shown_states.UNFINISHED, states.SUSPENDED), "requested to cancel"),
)
def cancel(scope: op.Scope, flow: op.FlowId, reason: op.Reason = None) -> dict[str, Any]:
    """Cancel a flow and revert its tasks.

    The engine that runs the flow reverts it. If no engine runs it, its next engine does so.
    """
    change = _suspend_and_cancel.cancel(scope.backend, flow, reason=reason, by=scope.by)
    return _views.state_change(scope.backend, flow, change)

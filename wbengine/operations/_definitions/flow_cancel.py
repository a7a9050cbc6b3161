"""The operation `flow cancel`."""

from __future__ import annotations

from typing import Any

from wbengine import operations, states
from wbengine.operations import _operation as op
from wbengine.operations import _views
from wbengine.views import _shown_states


@op.operation(
    role=op.OPERATOR,
    result=_views.STATE_CHANGE,
    many=op.Many(
        (*_shown_states.UNFINISHED, states.SUSPENDED), "requested to cancel", "that have not ended"
    ),
    command=op.Command(
        ("3f2a9c --wait 1m --reason 'order withdrawn'", "--tag customer=17 --dry-run")
    ),
    button=op.Button(
        "Cancel",
        "The engine was asked to cancel the flow.",
        "Cancel this flow and revert its completed tasks?",
        is_danger=True,
    ),
)
def cancel(scope: op.Scope, flow: op.FlowId, reason: op.Reason = None) -> dict[str, Any]:
    """Cancel a flow and revert its tasks.

    The engine that runs the flow reverts it. If no engine runs it, its next engine does so: a
    conductor, or `wbengine flow resume`. To revert such a flow at once, use `wbengine flow revert`.
    """
    change = operations.cancel(scope.backend, flow, reason=reason, by=scope.by)
    return _views.state_change(scope.backend, flow, change)

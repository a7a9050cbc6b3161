"""The operation `flow suspend`."""

from __future__ import annotations

from typing import Any

from wbengine import operations
from wbengine.operations import _operation as op
from wbengine.operations import _views
from wbengine.views import _shown_states


@op.operation(
    role=op.OPERATOR,
    result=_views.STATE_CHANGE,
    many=op.Many(
        _shown_states.UNFINISHED,
        "requested to suspend",
        "that have not ended and are not suspended",
    ),
    command=op.Command(
        (
            "3f2a9c --wait 1m --reason 'the shop is closed'",
            "--name order --tag shop=paris",
        )
    ),
    button=op.Button(notice="The engine was asked to suspend the flow."),
)
def suspend(scope: op.Scope, flow: op.FlowId, reason: op.Reason = None) -> dict[str, Any]:
    """Suspend a running flow.

    The engine that runs the flow finishes its running tasks and starts no others. `wbengine flow
    resume` continues the flow.
    """
    change = operations.suspend(scope.backend, flow, reason=reason, by=scope.by)
    return _views.state_change(scope.backend, flow, change)

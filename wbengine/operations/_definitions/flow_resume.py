"""The operation `flow resume`."""

from __future__ import annotations

from typing import Any

from wbengine import states
from wbengine.operations import _operation as op
from wbengine.operations import _requesting, _views
from wbengine.views import _shown_states


@op.operation(
    role=op.OPERATOR,
    result=_views.REQUESTED,
    many=op.Many(
        (states.SUSPENDED, states.BLOCKED, _shown_states.INTERRUPTED),
        "resumed",
        "that are SUSPENDED, BLOCKED or INTERRUPTED",
    ),
    button=op.Button(notice="The flow is being resumed."),
)
def resume(scope: op.Scope, flow: op.FlowId, reason: op.Reason = None) -> dict[str, Any]:
    """Continue a submitted flow that is suspended, blocked or was interrupted.

    A conductor (`wbengine serve`) carries the request out. A second request of the same kind
    returns the first one.
    """
    requested = _requesting.request(scope.backend, flow, "resume", reason=reason, by=scope.by)
    return _views.requested(flow, requested)

"""The operation `flow revert`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine import states
from wbengine.operations import _operation as op
from wbengine.operations import _requesting, _views
from wbengine.views import _shown_states

_Partial = Annotated[
    bool,
    op.Parameter(
        "Revert a complete flow although some of its tasks are irreversible.", {"type": "boolean"}
    ),
]


@op.operation(
    role=op.OPERATOR,
    result=_views.REQUESTED,
    many=op.Many(
        (
            states.FAILURE,
            states.SUSPENDED,
            states.BLOCKED,
            states.WAITING,
            _shown_states.INTERRUPTED,
        ),
        "reverted",
        "that have not ended, and flows in FAILURE",
        is_destructive=True,
        omits_children=True,
    ),
    button=op.Button(
        "Revert",
        "The flow is being reverted.",
        "Revert all completed tasks of this flow?",
        is_danger=True,
    ),
)
def revert(
    scope: op.Scope, flow: op.FlowId, partial: _Partial = False, reason: op.Reason = None
) -> dict[str, Any]:
    """Revert all completed tasks of a submitted flow, also after it succeeded.

    A conductor (`wbengine serve`) carries the request out. A second request of the same kind
    returns the first one.
    """
    requested = _requesting.request(
        scope.backend, flow, "revert", reason=reason, by=scope.by, partial=partial
    )
    return _views.requested(flow, requested)

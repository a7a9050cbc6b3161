"""The operation `flow retry`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from wbengine import states
from wbengine.operations import _operation as op
from wbengine.operations import _requesting, _views

_Inputs = Annotated[
    Mapping[str, Any] | None,
    op.Parameter("Inputs to replace, by name.", {"type": "object"}, role=op.EDITOR),
]
_Results = Annotated[
    Mapping[str, Any] | None,
    op.Parameter(
        "Results of complete tasks to replace, by the name of the task.",
        {"type": "object"},
        role=op.EDITOR,
    ),
]


@op.operation(
    role=op.OPERATOR,
    result=_views.REQUESTED,
    many=op.Many(
        (states.FAILURE, states.REVERTED),
        "retried",
        "in FAILURE or REVERTED",
        omits_children=True,
        omits_forked=True,
    ),
    button=op.Button("Retry failed", "The failed tasks are being retried."),
)
def retry(
    scope: op.Scope,
    flow: op.FlowId,
    inputs: _Inputs = None,
    results: _Results = None,
    reason: op.Reason = None,
) -> dict[str, Any]:
    """Run the failed tasks of a submitted flow again.

    A conductor (`wbengine serve`) carries the request out. A second request of the same kind
    returns the first one.
    """
    edits = _requesting.Edits(dict(inputs or {}), dict(results or {}))
    requested = _requesting.request(
        scope.backend, flow, "retry", reason=reason, by=scope.by, edits=edits or None
    )
    return _views.requested(flow, requested)

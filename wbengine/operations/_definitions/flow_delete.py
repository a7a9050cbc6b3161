"""The operation `flow delete`."""

from __future__ import annotations

from typing import Any

from wbengine import states
from wbengine.operations import _operation as op
from wbengine.operations import _removing


@op.operation(
    role=op.ADMIN,
    result={"uuid": {"type": "string"}},
    many=op.Many(
        (*sorted(states.FLOW_ENDED), states.CANCELLED),
        "deleted",
        "that have ended, unless --state is given",
        is_destructive=True,
    ),
    command=op.Command(("3f2a9c --yes", "--name test --state REVERTED --dry-run")),
    button=None,
)
def delete(scope: op.Scope, flow: op.FlowId) -> dict[str, Any]:
    """Delete a flow that has ended, with all its records and logs."""
    _removing.delete(scope.backend, flow, states=_removing.ENDED)
    return {"uuid": flow}

"""The operation `flow delete`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine import states
from wbengine.operations import _operation as op
from wbengine.operations import _removing

_AnyState = Annotated[
    bool,
    op.Parameter(
        "Also delete a flow that has not ended and that no engine runs.", {"type": "boolean"}
    ),
]
_Force = Annotated[
    bool,
    op.Parameter(
        "Delete the flow in any state, also if an engine runs it or the undo of a fork needs it.",
        {"type": "boolean"},
    ),
]


@op.operation(
    role=op.ADMIN,
    result={"uuid": {"type": "string"}},
    many=op.Many(
        (*sorted(states.FLOW_ENDED), states.CANCELLED),
        "deleted",
        "that have ended, unless --state is given",
        is_destructive=True,
        is_of_state=True,
    ),
    command=op.Command(("3f2a9c --yes", "--name test --state REVERTED --dry-run")),
    button=None,
)
def delete(
    scope: op.Scope, flow: op.FlowId, any_state: _AnyState = False, force: _Force = False
) -> dict[str, Any]:
    """Delete a flow that has ended, with all its records and logs."""
    among = states.FLOW_STATES if any_state or force else _removing.ENDED
    _removing.delete(scope.backend, flow, force=force, states=among)
    return {"uuid": flow}

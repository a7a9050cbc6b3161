"""The operation `flow signal`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine import states
from wbengine.operations import _operation as op
from wbengine.operations import _signalling

_Name = Annotated[
    str,
    op.Parameter("The name of the signal.", {"type": "string", "minLength": 1, "maxLength": 255}),
]
_Value = Annotated[Any, op.Parameter("The value of the signal: any JSON value.", {})]
_Strict = Annotated[
    bool, op.Parameter("Refuse the signal if nothing waits for it now.", {"type": "boolean"})
]


@op.operation(
    role=op.OPERATOR,
    result={
        "uuid": {"type": "string"},
        "signal": {"type": "string"},
        "number": {
            "type": "integer",
            "description": "The number of the signal among those of its name.",
        },
    },
    many=op.Many((states.WAITING,), "sent the signal to"),
)
def signal(
    scope: op.Scope, flow: op.FlowId, signal: _Name, value: _Value = None, strict: _Strict = False
) -> dict[str, Any]:
    """Send a signal to a flow, whose tasks wait for it now or later.

    If a signal of the same name was sent before, the request is refused, unless the flow has a
    workflow, which receives all signals.
    """
    number = _signalling.signal(scope.backend, flow, signal, value, strict=strict)
    return {"uuid": flow, "signal": signal, "number": number}

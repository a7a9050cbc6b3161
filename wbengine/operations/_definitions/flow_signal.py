"""The operation `flow signal`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine import signals, states
from wbengine.operations import _operation as op
from wbengine.operations import _signalling

_Name = Annotated[
    str,
    op.Parameter(
        "The name of the signal.",
        signals.NAME_SCHEMA,
        shown=op.Shown(is_argument=True, metavar="NAME"),
    ),
]
_Value = Annotated[
    Any, op.Parameter("Value of the signal: any JSON value.", {}, shown=op.Shown(default="null"))
]
_Strict = Annotated[
    bool, op.Parameter("Send nothing if nothing waits for the signal now.", {"type": "boolean"})
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
    many=op.Many((states.WAITING,), "sent the signal to", "that are WAITING for the signal"),
    command=op.Command(
        (
            """3f2a9c approved --value '{"by": "ann", "limit": 500}'""",
            "approved --name order --tag shop=paris",
        )
    ),
    button=op.Button(notice="The signal was sent to the flow."),
)
def signal(
    scope: op.Scope, flow: op.FlowId, signal: _Name, value: _Value = None, strict: _Strict = False
) -> dict[str, Any]:
    """Send a signal to a flow.

    A task (task.WaitFor) of the flow waits for the signal, or will do so later; its result is the
    value of the signal. If a signal of the same name was sent before, the request is refused,
    unless the flow has a workflow, which receives all signals.

    If nothing waits for the signal, the result of the command contains the awaited signals. A
    workflow may wait for it later.
    """
    number = _signalling.signal(scope.backend, flow, signal, value, strict=strict)
    return {"uuid": flow, "signal": signal, "number": number}

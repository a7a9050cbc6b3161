"""The operation `worker ping`."""

from __future__ import annotations

from typing import Any, Final

from wbengine import exceptions
from wbengine.operations import _operation as op

_TIMEOUT_SECONDS: Final = 2.0


@op.operation(
    role=op.OPERATOR,
    result={
        "worker": {"type": "string", "description": "The full name of the worker."},
        "seconds": {"type": "number", "description": "The response time."},
        "ahead": {
            "type": ["number", "null"],
            "description": "Seconds by which the clock of the worker is ahead, if known.",
        },
    },
    button=op.Button(notice="The worker answered."),
)
def ping(scope: op.Scope, worker: op.WorkerName) -> dict[str, Any]:
    """Measure the response time of a worker.

    A worker that does not answer within 2 seconds is an error.
    """
    (pong,) = scope.open_fleet().ping([worker], _TIMEOUT_SECONDS)
    if pong.seconds is None:
        raise exceptions.TransportFailure(
            f"Worker {pong.name!r} did not answer within {_TIMEOUT_SECONDS:g} s"
        )
    return {"worker": pong.name, "seconds": pong.seconds, "ahead": pong.ahead}

"""The operation `worker drain`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.operations import _worker_control


@op.operation(
    role=op.ADMIN,
    result=_worker_control.RESULT,
    button=op.Button(
        notice="The worker is draining.",
        asks="Drain {}? It finishes its running tasks and ends.",
        is_danger=True,
    ),
)
def drain(scope: op.Scope, worker: op.WorkerName) -> dict[str, Any]:
    """Stop a worker after its running tasks.

    The worker receives no more requests, finishes its running tasks and ends.
    """
    return _worker_control.send(scope, "drain", worker)

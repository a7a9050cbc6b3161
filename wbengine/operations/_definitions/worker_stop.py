"""The operation `worker stop`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.operations import _worker_control


@op.operation(
    role=op.ADMIN,
    result=_worker_control.RESULT,
    button=op.Button(
        notice="The worker was told to stop.",
        asks="Stop {} at once? Its running tasks are lost.",
        is_danger=True,
    ),
)
def stop(scope: op.Scope, worker: op.WorkerName) -> dict[str, Any]:
    """Stop a worker at once.

    Its running tasks fail with WorkerLost, or are resent to another worker if they are
    idempotent.
    """
    return _worker_control.send(scope, "stop", worker)

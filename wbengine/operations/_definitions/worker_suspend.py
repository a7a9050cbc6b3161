"""The operation `worker suspend`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.operations import _worker_control


@op.operation(
    role=op.ADMIN,
    result=_worker_control.RESULT,
    button=op.Button(notice="The worker is being suspended."),
)
def suspend(scope: op.Scope, worker: op.WorkerName) -> dict[str, Any]:
    """Suspend a worker.

    Its running tasks continue. The worker receives no requests until it is resumed.
    """
    return _worker_control.send(scope, "suspend", worker)

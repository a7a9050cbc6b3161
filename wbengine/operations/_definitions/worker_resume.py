"""The operation `worker resume`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.operations import _worker_control


@op.operation(
    role=op.ADMIN,
    result=_worker_control.RESULT,
    button=op.Button(notice="The worker is being resumed."),
)
def resume(scope: op.Scope, worker: op.WorkerName) -> dict[str, Any]:
    """Resume a suspended worker.

    It receives requests again.
    """
    return _worker_control.send(scope, "resume", worker)

"""The operation `tasks resume`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine.operations import _operation as op
from wbengine.operations import _pausing

_Pattern = Annotated[str, op.Parameter("The pattern of the pause.", {"type": "string"})]


@op.operation(role=op.OPERATOR, result={"pattern": {"type": "string"}})
def resume(scope: op.Scope, pattern: _Pattern) -> dict[str, Any]:
    """Remove the pause with this pattern. Its tasks start within a second."""
    _pausing.resume_tasks(scope.backend, pattern)
    return {"pattern": pattern}

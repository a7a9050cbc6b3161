"""The operation `flow assign`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine import operations
from wbengine.operations import _operation as op

_FromCode = Annotated[str, op.Parameter("Version of the flows.", {"type": "string"})]
_ToCode = Annotated[str, op.Parameter("Version that runs them next.", {"type": "string"})]
_App = Annotated[str | None, op.Parameter("Application; by default, all.", {"type": "string"})]
_DryRun = Annotated[bool, op.Parameter("Only return the number of flows.", {"type": "boolean"})]


@op.operation(
    role=op.ADMIN,
    result={
        "flows": {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "description": "The number of flows by application.",
        }
    },
    button=None,
)
def assign(
    scope: op.Scope,
    from_code: _FromCode,
    to_code: _ToCode,
    app: _App = None,
    dry_run: _DryRun = False,
) -> dict[str, Any]:
    """Assign flows to another version of their code.

    Conductors with the other version then run them. Flows that an engine runs are left out.
    """
    flows = operations.assign(scope.backend, from_code, to_code, app=app, dry_run=dry_run)
    return {"flows": flows}

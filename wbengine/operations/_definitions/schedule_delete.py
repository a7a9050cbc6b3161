"""The operation `schedule delete`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.schedules import Schedules


@op.operation(role=op.ADMIN, result={"schedule": {"type": "string"}})
def delete(scope: op.Scope, schedule: op.ScheduleName) -> dict[str, Any]:
    """Delete a schedule. Its flows stay."""
    Schedules(scope.backend).remove(schedule)
    return {"schedule": schedule}

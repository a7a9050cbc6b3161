"""The operation `schedule delete`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.schedules import Schedules


@op.operation(
    role=op.ADMIN,
    result={"schedule": {"type": "string"}},
    command=op.Command(("nightly",), note="deleted schedule {schedule}"),
    button=op.Button(
        notice="The schedule is deleted.",
        asks="Delete schedule {}? Its flows stay.",
        is_danger=True,
    ),
)
def delete(scope: op.Scope, schedule: op.ScheduleName) -> dict[str, Any]:
    """Delete a schedule, but not the flows that it submitted."""
    Schedules(scope.backend).remove(schedule)
    return {"schedule": schedule}

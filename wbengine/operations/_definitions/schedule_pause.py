"""The operation `schedule pause`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.schedules import Schedules


@op.operation(
    role=op.OPERATOR,
    result={"schedule": {"type": "string"}},
    command=op.Command(("nightly",), note="{schedule} is paused"),
    button=op.Button(notice="The schedule is paused."),
)
def pause(scope: op.Scope, schedule: op.ScheduleName) -> dict[str, Any]:
    """Pause a schedule.

    The schedule fires again after `wbengine schedule resume`; times that pass until then are
    skipped. Flows that it has submitted continue.
    """
    Schedules(scope.backend).pause(schedule)
    return {"schedule": schedule}

"""The operation `schedule add`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from wbengine.engines._flow_inputs import JsonInputs
from wbengine.jobs import base as jobs
from wbengine.jobs._places import DEFAULT_QUEUE
from wbengine.operations import _allowed_flows
from wbengine.operations import _operation as op
from wbengine.operations._definitions.flow_submit import UndoUntil
from wbengine.operations._job_queues import QueueOfFlows
from wbengine.schedules import Schedule, Schedules
from wbengine.types import _written_tags
from wbengine.views import _formatting

_TEXT = {"type": "string", "minLength": 1}

_Factory = Annotated[
    str,
    op.Parameter(
        "The flow, the workflow, or the function that builds a flow: `MODULE:NAME`.", _TEXT
    ),
]
_Cron = Annotated[
    str | None,
    op.Parameter("Minute, hour, day, month and day of the week: `30 2 * * MON-FRI`.", _TEXT),
]
_Every = Annotated[
    int | None,
    op.Parameter("Interval in seconds instead of `cron`.", {"type": "integer", "minimum": 1}),
]
_TimeZone = Annotated[str, op.Parameter("Time zone of `cron`, such as `Europe/Berlin`.", _TEXT)]
_Jitter = Annotated[
    float, op.Parameter("Maximum random delay in seconds.", {"type": "number", "minimum": 0})
]
_CatchUp = Annotated[
    str,
    op.Parameter("Which of the missed times are fired.", {"enum": ["skip", "one", "all"]}),
]
_Overlap = Annotated[
    str,
    op.Parameter(
        "What happens at a time while the previous flow runs.",
        {"enum": ["skip", "queue", "cancel", "allow"]},
    ),
]
_Inputs = Annotated[
    Mapping[str, Any] | None, op.Parameter("The inputs of the flows, by name.", {"type": "object"})
]
_Tags = Annotated[
    Mapping[str, str] | None,
    op.Parameter("The tags of the flows.", _written_tags.TEXTS_SCHEMA),
]
_Priority = Annotated[
    str,
    op.Parameter("The priority of the flows.", {"enum": [each.value for each in jobs.JobPriority]}),
]
_Replace = Annotated[
    bool, op.Parameter("Replace an existing schedule of this name.", {"type": "boolean"})
]


@op.operation(
    role=op.ADMIN,
    result={
        "schedule": {"type": "string"},
        "next": {"type": ["string", "null"], "description": "The time of the next firing."},
    },
    button=None,
    choice=op.Choice(("cron", "every")),
)
def add(
    scope: op.Scope,
    schedule: op.ScheduleName,
    factory: _Factory,
    cron: _Cron = None,
    every: _Every = None,
    time_zone: _TimeZone = "UTC",
    jitter: _Jitter = 0.0,
    catch_up: _CatchUp = "one",
    overlap: _Overlap = "skip",
    inputs: _Inputs = None,
    tags: _Tags = None,
    priority: _Priority = jobs.JobPriority.NORMAL.value,
    queue: QueueOfFlows = None,
    undo_until: UndoUntil = None,
    replace: _Replace = False,
) -> dict[str, Any]:
    """Add a schedule, with which `wbengine serve` submits a flow at given times.

    The factory must be among the allowed flows of the server (`--flows`, `WBENGINE_FLOWS`). The
    flow has the input `scheduled_at`, the planned time of the firing.
    """
    with _allowed_flows.loading(factory):
        definition = Schedule(
            name=schedule,
            factory=factory,
            cron=cron,
            every=every,
            time_zone=time_zone,
            jitter=jitter,
            catch_up=catch_up,
            overlap=overlap,
            inputs=JsonInputs(inputs or {}),
            tags=tags or {},
            priority=priority,
            queue=queue or DEFAULT_QUEUE,
            undo_until=undo_until,
        )
        entry = Schedules(scope.backend).add(definition, replace=replace)
    return {"schedule": schedule, "next": _formatting.iso(entry.fires_at)}

"""The operation `tasks pause`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine.operations import _operation as op
from wbengine.operations import _pausing
from wbengine.persistence import _pauses

_Pattern = Annotated[
    str,
    op.Parameter(
        "The dotted name of a class or function, with the wildcards * and ?.",
        {
            "type": "string",
            "minLength": 1,
            "maxLength": _pauses.MAX_PATTERN_CHARACTERS,
            "pattern": _pauses.PATTERN,
        },
    ),
]
_Seconds = Annotated[
    float | None,
    op.Parameter(
        "The length of the pause in seconds. Without it, the pause has no end.",
        {"type": "number", "exclusiveMinimum": 0, "maximum": _pausing.MAX_PAUSE_SECONDS},
    ),
]

_TIME = {"type": ["number", "null"], "description": "Unix time in seconds."}
_TEXT = {"type": ["string", "null"]}


@op.operation(
    role=op.OPERATOR,
    result={
        "pattern": {"type": "string"},
        "reason": _TEXT,
        "by": _TEXT,
        "since": _TIME,
        "until": _TIME,
    },
)
def pause(
    scope: op.Scope, pattern: _Pattern, seconds: _Seconds = None, reason: op.Reason = None
) -> dict[str, Any]:
    """Pause the task types that match a pattern, in all flows of the store.

    Running engines follow within a second. Running tasks and reversions continue.
    """
    paused = _pausing.pause_tasks(
        scope.backend, pattern, reason=reason, by=scope.by, seconds=seconds
    )
    return paused.to_dict()

"""The operation `tasks resume`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine.operations import _operation as op
from wbengine.operations import _pausing

_Pattern = Annotated[
    str,
    op.Parameter(
        "The pattern of the pause.",
        {"type": "string"},
        shown=op.Shown(is_argument=True, metavar="NAME"),
    ),
]


@op.operation(
    role=op.OPERATOR,
    result={"pattern": {"type": "string"}},
    command=op.Command(("'shop.billing.*'",), line="{pattern}: resumed"),
    button=op.Button(notice="The task type is resumed."),
)
def resume(scope: op.Scope, pattern: _Pattern) -> dict[str, Any]:
    """Resume a paused task type.

    The pattern is that of the pause, as `wbengine tasks list` prints it. Its tasks start within a
    second.
    """
    _pausing.resume_tasks(scope.backend, pattern)
    return {"pattern": pattern}

"""`wbengine tasks`: pause task types in all flows of the store."""

from __future__ import annotations

from wbengine import operations
from wbengine._cli import base
from wbengine._cli import context as contexts
from wbengine.views import _formatting

__all__ = ["command"]

command = base.Group(
    "tasks", subject="tasks", help="Pause and resume task types in all flows of the store."
)


@command.command(
    "list",
    help="""List paused task types.

    \b
    Example:
      wbengine tasks list --json
    """,
)
def ls(context: contexts.Context) -> None:
    with context.backend() as backend:
        pauses = operations.paused_tasks(backend)
    printer = context.printer
    printer.document("tasks-list/1", {"pauses": [stored.to_dict() for stored in pauses]})
    rows = [
        (stored.pattern, _time(stored.since), _time(stored.until), stored.by, stored.reason)
        for stored in pauses
    ]
    columns = ("PAUSED", "SINCE", "UNTIL", "BY", "REASON")
    printer.table(columns, rows, empty="No task types are paused.")


def _time(at: float | None) -> str | None:
    return _formatting.iso(at)

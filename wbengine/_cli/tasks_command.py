"""`wbengine tasks`: pause task types in all flows of the store."""

from __future__ import annotations

import click

from wbengine import operations
from wbengine._cli import base, common_options, confirmation, errors, params, store_access
from wbengine._cli import context as contexts
from wbengine.views import _formatting

__all__ = ["command"]

command = base.Group("tasks", help="Pause and resume task types in all flows of the store.")

_PATTERN = click.argument("pattern", metavar="NAME")


@command.command(
    "pause",
    help="""Pause a task type.

    NAME is the dotted name of a class or function, with the wildcards * and ?. Tasks of this type
    do not start in any flow of the store until `wbengine tasks resume NAME`. Running engines follow
    within a second. Running tasks and reversions continue.

    \b
    Examples:
      wbengine tasks pause shop.billing.charge --reason 'the bank is down'
      wbengine tasks pause 'shop.billing.*' --for 2h
    """,
)
@_PATTERN
@click.option("--for", "seconds", type=params.WAIT, metavar="DURATION",
    help="Length of the pause, such as 90, 5m, 2h.", show_default="until `tasks resume`"
)  # fmt: skip
@common_options.REASON
def pause(
    context: contexts.Context, pattern: str, seconds: float | None, reason: str | None
) -> None:
    store_access.check_outlives(context.settings)
    with (
        context.backend(upgrade=True, missing_ok=True) as backend,
        errors.failing(errors.USAGE, ValueError),
    ):
        stored = operations.pause_tasks(
            backend, pattern, reason=reason, by=confirmation.current_user(), seconds=seconds
        )
    context.printer.document("tasks-pause/1", stored.to_dict())
    context.printer.line(f"{pattern}: paused{_until(stored.until)}")
    context.printer.guide(f"to resume it: wbengine tasks resume '{pattern}'")


@command.command(
    "resume",
    help="""Resume a paused task type.

    NAME is the name or pattern of the pause, as `wbengine tasks list` prints it.

    \b
    Example:
      wbengine tasks resume 'shop.billing.*'
    """,
)
@_PATTERN
def resume(context: contexts.Context, pattern: str) -> None:
    with context.backend() as backend:
        operations.resume_tasks(backend, pattern)
    context.printer.document("tasks-resume/1", {"pattern": pattern})
    context.printer.line(f"{pattern}: resumed")


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


def _until(at: float | None) -> str:
    return "" if at is None else f" until {_time(at)}"

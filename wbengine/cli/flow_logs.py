"""`wbengine flow logs`: what the tasks of a flow logged."""

from __future__ import annotations

import contextlib

import click

from wbengine._terminal import visible
from wbengine.cli import base, completions
from wbengine.cli import context as contexts

__all__ = ["command"]


@base.command(
    "logs",
    help="""Print what the tasks of a flow logged while they ran, or one of them: TASK is its name.

    With --json as JSON Lines.

    \b
    wbengine flow logs 3f2a9c
    wbengine flow logs 3f2a9c charge --attempt 2
    """,
)
@click.argument("flow", metavar="ID", shell_complete=completions.flows)
@click.argument("task", required=False)
@click.option("--attempt", type=click.IntRange(1), metavar="N",
    help="Only the N-th attempt at it, counting executions and reversions.")  # fmt: skip
def command(context: contexts.Context, flow: str, task: str | None, attempt: int | None) -> None:
    from wbengine import operations
    from wbengine.views import formatting, logs

    with context.backend() as backend, contextlib.closing(backend.get_connection()) as connection:
        uuid = operations.find(backend, flow).uuid
        found = logs.read(connection, uuid, task, attempt, redactor=context.redactor)
    printer = context.printer
    if printer.as_json:
        for line in found:
            printer.event("flow-logs/1", line.to_dict())
        return
    for line in found:
        name = line.task if line.item is None else f"{line.task}[{line.item}]"
        head = visible(f"{formatting.iso(line.at)} {line.level} {name}")
        # Further lines of a text are not to look like what another task logged.
        printer.lines(f"{head}: {line.text}".replace("\n", "\n    "))
    if not found:
        printer.line("Nothing was logged.")

"""`wbengine flow events` and `logs`: what happened to a flow, and what its tasks logged."""

from __future__ import annotations

import click

from wbengine._terminal import visible
from wbengine.cli import base, options
from wbengine.cli import context as contexts

__all__ = ["events", "logs"]


@base.command(
    "events",
    help="""Print what happened to a flow so far, in order: changes of its state, attempts, workers
    that were lost, and what was sent again.

    With --json as JSON Lines.  `wbengine flow watch` goes on from there.

    \b
    wbengine flow events 3f2a9c
    """,
)
@options.FLOW
def events(context: contexts.Context, flow: str) -> None:
    from wbengine.views import formatting, watcher

    with context.flow(flow) as (connection, uuid):
        found = watcher.events_of(connection.get_flow_details(uuid), context.redactor)
    printer = context.printer
    for event in found:
        printer.event("flow-events/1", event.to_dict())
    rows = [
        (
            formatting.iso(event.at),
            event.kind,
            event.name,
            event.state,
            str(formatting.nth(event)) if formatting.nth(event) else None,
            event.worker,
            event.error if event.lost_worker is None else f"{event.lost_worker} was lost",
        )
        for event in found
    ]
    columns = ("AT", "KIND", "NAME", "STATE", "ATTEMPT", "WORKER", "ERROR")
    printer.table(columns, rows, empty="Nothing happened yet.", right=("ATTEMPT",))


@base.command(
    "logs",
    help="""Print what the tasks of a flow logged while they ran, or one of them: TASK is its name.

    With --json as JSON Lines.

    \b
    wbengine flow logs 3f2a9c
    wbengine flow logs 3f2a9c charge --attempt 2
    """,
)
@options.FLOW
@click.argument("task", required=False)
@click.option("--attempt", type=click.IntRange(1), metavar="N",
    help="Only the N-th attempt at it, counting executions and reversions.")  # fmt: skip
def logs(context: contexts.Context, flow: str, task: str | None, attempt: int | None) -> None:
    from wbengine.views import formatting
    from wbengine.views import logs as lines

    with context.flow(flow) as (connection, uuid):
        found = lines.read(connection, uuid, task, attempt, redactor=context.redactor)
    printer = context.printer
    for line in found:
        printer.event("flow-logs/1", line.to_dict())
        name = line.task if line.item is None else f"{line.task}[{line.item}]"
        head = visible(f"{formatting.iso(line.at)} {line.level} {name}")
        # Further lines of a text are not to look like what another task logged.
        printer.lines(f"{head}: {line.text}".replace("\n", "\n    "))
    if not found:
        printer.line("Nothing was logged.")

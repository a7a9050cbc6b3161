"""`wbengine flow events`: what happened to a flow, in order."""

from __future__ import annotations

import contextlib

import click

from wbengine.cli import base, completions
from wbengine.cli import context as contexts

__all__ = ["command"]


@base.command(
    "events",
    help="""Print what happened to a flow so far, in order: changes of its state, attempts, workers
    that were lost, and what was sent again.

    With --json as JSON Lines.  `wbengine flow watch` goes on from there.

    \b
    wbengine flow events 3f2a9c
    """,
)
@click.argument("flow", metavar="ID", shell_complete=completions.flows)
def command(context: contexts.Context, flow: str) -> None:
    from wbengine import operations
    from wbengine.views import formatting, watcher

    with context.backend() as backend, contextlib.closing(backend.get_connection()) as connection:
        uuid = operations.find(backend, flow).uuid
        found = watcher.events_of(connection.get_flow_details(uuid), context.redactor)
    printer = context.printer
    if printer.as_json:
        for event in found:
            printer.event("flow-events/1", event.to_dict())
        return
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

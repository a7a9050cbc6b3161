"""`wbengine bulk`: list, show, resume and cancel operations on many flows."""

from __future__ import annotations

import contextlib

import click

from wbengine._cli import base, common_options, errors, stored_operation
from wbengine._cli import context as contexts
from wbengine.operations import _bulk
from wbengine.persistence._bulk_records import Bulk
from wbengine.views import _formatting

__all__ = ["command"]

command = base.Group("bulk", help="List, resume and cancel operations on many flows.")

_ID = click.argument("bulk", metavar="ID")


@command.command(
    "list",
    help="""List operations on many flows.

    They are deleted 30 days after their end. The list contains the unfinished ones and the latest
    500 others.

    \b
    Example:
      wbengine bulk list --json
    """,
)
def ls(context: contexts.Context) -> None:
    with context.backend() as backend, contextlib.closing(backend.get_connection()) as connection:
        bulks = _bulk.latest(connection)
    printer = context.printer
    printer.document("bulk-list/1", {"bulks": [bulk.to_dict() for bulk in bulks]})
    rows = [
        (
            bulk.uuid[:8] if printer.is_terminal else bulk.uuid,
            bulk.operation,
            bulk.state,
            f"{bulk.done:,}/{bulk.total:,}",
            bulk.skipped,
            _formatting.iso(bulk.created),
            bulk.by,
            bulk.reason,
        )
        for bulk in bulks
    ]
    columns = ("ID", "OPERATION", "STATE", "DONE", "SKIPPED", "CREATED", "BY", "REASON")
    printer.table(
        columns, rows, empty="No operations.", right=("DONE", "SKIPPED"), folded=("REASON",)
    )


@command.command(
    "show",
    help="""Show an operation on many flows.

    The tables contain the reasons for which flows were skipped, and the flows whose request was
    stored but refused by the conductor (`wbengine serve`). Exits with 1 if there are such flows.

    \b
    Example:
      wbengine bulk show 3f2a9c
    """,
)
@_ID
def show(context: contexts.Context, bulk: str) -> int:
    with context.backend() as backend, contextlib.closing(backend.get_connection()) as connection:
        found = _bulk.find(backend, bulk)
        reasons = connection.bulks.skipped(found.uuid)
        refused = _bulk.refused(connection, found)
    printer = context.printer
    content = {
        **found.to_dict(),
        "reasons": [each._asdict() for each in reasons],
        "refused": [{"uuid": uuid, "reason": reason} for uuid, reason in refused],
    }
    printer.document("bulk-show/1", content)
    printer.line(_summary(found))
    if reasons:
        rows = [(each.flows, each.reason, each.example) for each in reasons]
        columns = ("SKIPPED", "REASON", "EXAMPLE")
        printer.table(columns, rows, right=("SKIPPED",), folded=("REASON",))
    if refused:
        printer.table(("REFUSED", "REASON"), refused, folded=("REASON",))
    return errors.UNHEALTHY if reasons or refused else errors.OK


@command.command(
    "resume",
    help="""Resume an operation that was interrupted or cancelled.

    The command carries the operation out, unless another process does: then it follows it. Exits
    with 1 if flows were skipped or the operation was cancelled meanwhile.

    \b
    Example:
      wbengine bulk resume 3f2a9c
    """,
)
@_ID
@common_options.BACKGROUND
def resume(context: contexts.Context, bulk: str, background: bool) -> int:
    with context.backend() as backend:
        resumed = _bulk.resume(backend, _bulk.find(backend, bulk).uuid)
        if not background:
            resumed = stored_operation.follow(context, backend, resumed)
    context.printer.document("bulk-resume/1", resumed.to_dict())
    context.printer.line(_summary(resumed))
    is_good = background or (resumed.settled == resumed.total and not resumed.skipped)
    return errors.OK if is_good else errors.UNHEALTHY


@command.command(
    "cancel",
    help="""Cancel an operation on many flows.

    The batch of flows that is being changed is completed. Flows that were changed stay so.

    \b
    Example:
      wbengine bulk cancel 3f2a9c
    """,
)
@_ID
def cancel(context: contexts.Context, bulk: str) -> None:
    with context.backend() as backend:
        cancelled = _bulk.cancel(backend, _bulk.find(backend, bulk).uuid)
    context.printer.document("bulk-cancel/1", cancelled.to_dict())
    context.printer.line(_summary(cancelled))


def _summary(bulk: Bulk) -> str:
    owner = f", carried out by {bulk.owner}" if bulk.owner else ""
    return (
        f"{bulk.uuid}: {bulk.operation} is {bulk.state}: {bulk.done:,} of {bulk.total:,} flows"
        f" done, {bulk.skipped:,} skipped{owner}"
    )

"""`wbengine flow prune`: delete flows that ended long ago."""

from __future__ import annotations

import contextlib
from typing import Final

import click

from wbengine import operations, states
from wbengine._cli import base, common_options, confirmation, params, store_access
from wbengine._cli import context as contexts
from wbengine.persistence.base import FlowRow
from wbengine.views import _formatting

__all__ = ["command"]

_PRUNABLE_STATES: Final = (states.FAILURE, states.REVERTED, states.SUCCESS, states.SUSPENDED)
_MAX_KEPT_LINES: Final = 20


@base.command(
    "prune",
    help="""Delete flows that ended long ago, with their logs and jobs.

    Each flow is deleted in its own transaction and printed. Flows that an engine runs, that have a
    command that no engine has carried out, or that wait for a signal, a time or code (WAITING,
    BLOCKED) are never deleted. `wbengine serve --retention` does this by itself. Flows that an undo
    may need are kept, and printed: flows that can be undone (--undo-until), child flows of stored
    flows, and originals whose stored fork owns their results.

    \b
    Example:
      wbengine flow prune --older-than 30d --state SUCCESS --dry-run
    """,
)
@click.option("--older-than", type=params.DURATION, required=True, metavar="AGE",
    help="Delete flows that have not changed for this time, such as 30d.")  # fmt: skip
@click.option("--state", "state_names", multiple=True,
    type=params.Choice(_PRUNABLE_STATES, case_sensitive=False),
    metavar="STATE",
    help=f"Delete only flows in this state (repeatable): {', '.join(_PRUNABLE_STATES)}.",
    show_default="FAILURE, REVERTED and SUCCESS")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 10_000), default=100, metavar="N",
    help="Number of flows that are read at a time.")  # fmt: skip
@click.option("--undoable", is_flag=True,
    help="Also delete flows that can be undone until a later time.")  # fmt: skip
@common_options.dry_run("the flows that would be deleted")
@common_options.YES
def command(
    context: contexts.Context,
    older_than: float,
    state_names: tuple[str, ...],
    batch: int,
    undoable: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    from wbengine.operations import _removing

    printer = context.printer
    schema = f"{'-'.join(context.path.split()[1:])}/1"
    chosen = state_names or _removing.ENDED
    if not dry_run:
        which = f"flows in {', '.join(chosen)} older than {_formatting.seconds(older_than)}"
        confirmation.confirm(context, f"delete {which}", yes)
    count = kept = 0

    def print_kept(row: FlowRow, reason: str) -> None:
        nonlocal kept
        kept += 1
        if kept <= _MAX_KEPT_LINES:
            printer.note(f"kept {row.uuid} ({row.name}): {reason}")

    with context.backend() as backend:
        with contextlib.closing(backend.get_connection()) as connection:
            before = connection.now() - older_than
        deleted_flows = operations.prune(
            backend, before=before, states=chosen, batch=batch, dry_run=dry_run,
            undoable=undoable, on_kept=print_kept,
        )  # fmt: skip
        exists = store_access.store_exists(context.settings, backend)
        for row in deleted_flows:
            count += 1
            printer.event(schema, {"uuid": row.uuid, "name": row.name, "state": row.state,
                "created": _formatting.iso(row.created), "dry_run": dry_run})  # fmt: skip
            printer.line(f"{row.uuid}  {row.state:<9}  {row.name}")
    if kept > _MAX_KEPT_LINES:
        printer.note(f"kept {kept - _MAX_KEPT_LINES} more flows that an undo may need")
    if exists:
        printer.note(f"{'would delete' if dry_run else 'deleted'} {count} flows")
    else:
        printer.note(store_access.missing_message(context.settings))

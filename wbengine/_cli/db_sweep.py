"""`wbengine db sweep`: delete large values to which no flow refers."""

from __future__ import annotations

import dataclasses
import sys

import click

from wbengine import exceptions
from wbengine._cli import base, common_options, errors, params, store_access
from wbengine._cli import context as contexts
from wbengine._introspection import object_names
from wbengine.views import _formatting

__all__ = ["command"]


@base.command(
    "sweep",
    help="""Delete large values to which no flow refers.

    These are values in --payloads of flows that were deleted, and what interrupted processes left.
    The store must be that of all flows whose values are there. Engines may run meanwhile. The
    command can be interrupted and repeated.

    \b
    Example:
      wbengine db sweep --payloads s3://bucket/flows --dry-run
    """,
)
@click.option("--grace", type=params.DURATION, default="24h", metavar="AGE",
    help="Keep values that are younger, because their flow may not be stored yet.")  # fmt: skip
@click.option("--force", is_flag=True,
    help="Also sweep if the store contains none of the flows of the values.")  # fmt: skip
@common_options.dry_run("what would be deleted")
def command(context: contexts.Context, grace: float, force: bool, dry_run: bool) -> None:
    sweep = object_names.load("wbengine.operations._sweeping:sweep")
    settings, printer = context.settings, context.printer
    store_access.check_outlives(settings)
    with context.backend() as backend:
        if not store_access.store_exists(settings, backend):
            raise errors.Failed(store_access.missing_message(settings), errors.UNAVAILABLE)
        with errors.failing(errors.USAGE, exceptions.InvalidState):
            progress = sweep(backend, grace, dry_run=dry_run, force=force)
            swept = next(progress)
            hidden = settings.quiet or not sys.stderr.isatty()
            with click.progressbar(
                progress, length=swept.parts, label="sweep", hidden=hidden, file=sys.stderr
            ) as parts:
                for _ in parts:
                    pass
    content = {**dataclasses.asdict(swept), "dry_run": dry_run}
    printer.document("db-sweep/1", content)
    in_use, bytes_in_use = swept.kept - swept.young, swept.bytes_kept - swept.bytes_young
    printer.line(
        f"{'would delete' if dry_run else 'deleted'} {swept.deleted} values"
        f" ({_formatting.size(swept.bytes_deleted)}), kept {swept.kept}:"
        f" {in_use} in use ({_formatting.size(bytes_in_use)}),"
        f" {swept.young} younger than --grace ({_formatting.size(swept.bytes_young)})"
    )
    if dry_run and swept.needs_force and not force:
        printer.hint("this store contains none of the flows of the values, so --force is required")

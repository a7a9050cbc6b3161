"""`wbengine flow delete`: forget flows."""

from __future__ import annotations

import click

from wbengine.cli import asking, base, completions
from wbengine.cli import context as contexts

__all__ = ["command"]


@base.command(
    "delete",
    help="""Forget flows, with all that is kept of them.

    One that somebody runs is left alone, unless forced: then its run fails.

    \b
    wbengine flow delete 3f2a9c --yes
    """,
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=completions.flows)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also those that somebody runs.")
@click.option("--dry-run", is_flag=True, help="Only say which.")
def command(
    context: contexts.Context, ids: tuple[str, ...], yes: bool, force: bool, dry_run: bool
) -> None:
    from wbengine import operations

    printer = context.printer
    with context.backend() as backend:
        rows = [operations.find(backend, text) for text in ids]
        names = ", ".join(f"{row.name!r} ({row.uuid}, {row.state})" for row in rows)
        if not dry_run:
            asking.confirm(context, f"forget {names}", yes)
            for row in rows:
                operations.delete(backend, row.uuid, force=force)
    if printer.as_json:
        content = {"flows": [row.uuid for row in rows], "dry_run": dry_run}
        printer.document("flow-delete/1", content)
    else:
        printer.line(f"{'would forget' if dry_run else 'forgot'} {names}")

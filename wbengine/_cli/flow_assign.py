"""`wbengine flow assign`: assign flows to another version of their code."""

from __future__ import annotations

import click

from wbengine import exceptions, operations
from wbengine._cli import base, common_options, confirmation, errors
from wbengine._cli import context as contexts
from wbengine.views import _formatting

__all__ = ["command"]


@base.command(
    "assign",
    help="""Assign flows to another version of their code.

    After a rollback, flows of the later version wait for conductors with this or newer code. This
    command assigns all of them to another version, whose conductors then run them. If the function
    of a workflow does not repeat its recorded steps, the flow is blocked, and nothing of it is
    reverted. Flows that an engine runs are left out.

    \b
    Example:
      wbengine flow assign --from-code v43 --to-code v42 --dry-run
    """,
)
@click.option("--from-code", required=True, metavar="VERSION", help="Version of the flows.")
@click.option("--to-code", required=True, metavar="VERSION", help="Version that runs them next.")
@click.option("--app", metavar="NAME", help="Application.", show_default="all")
@click.option("--dry-run", is_flag=True, help="Only print the number of flows.")
@common_options.YES
def command(
    context: contexts.Context,
    from_code: str,
    to_code: str,
    app: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    printer = context.printer
    with context.backend() as backend, errors.failing(errors.USAGE, exceptions.NotFound):
        flows = operations.assign(backend, from_code, to_code, app=app, dry_run=True)
        count = sum(flows.values())
        if count and not dry_run:
            action = f"assign {_formatting.count(count, 'flow')} of code {from_code} to {to_code}"
            confirmation.confirm(context, action, yes)
            flows = operations.assign(backend, from_code, to_code, app=app)
    content = {"from": from_code, "to": to_code, "flows": flows, "dry_run": dry_run}
    printer.document("flow-assign/1", content)
    done = "would be assigned" if dry_run else "assigned"
    for name, number in flows.items():
        printer.line(f"{_formatting.count(number, 'flow')} of {name} {done}")

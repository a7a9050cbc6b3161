"""`wbengine limits`: list the limits in use and the flows that use them."""

from __future__ import annotations

import click

from wbengine._cli import base, errors
from wbengine._cli import context as contexts

__all__ = ["command"]


@base.command(
    "limits",
    help="""List the limits in use.

    For each limit of tasks and flows, print its maximum, the number of permits held, and the number
    of permits that flows wait for.

    \b
    Examples:
      wbengine limits
      wbengine limits --redis redis://limits.example/0 --json
    """,
)
@click.option("--redis", metavar="URL",
    help="List the limits in this Redis (option `limits` of engines) instead of the"
    " store.")  # fmt: skip
def command(context: contexts.Context, redis: str | None) -> None:
    from wbengine._limits import shared_accounts, usage

    if redis is None:
        with context.backend() as backend:
            limits = usage.in_use(shared_accounts.store_of(backend))
    else:
        with errors.failing(errors.USAGE, ValueError, ImportError):
            limits = usage.in_use(shared_accounts.store_of(shared_accounts.check_url(redis)))
    printer = context.printer
    printer.document("limits/1", {"limits": [limit.to_dict() for limit in limits]})
    rows = [
        (limit.name, limit.rate, limit.concurrency, limit.held, limit.waiting, len(limit.flows))
        for limit in limits
    ]
    columns = ("LIMIT", "RATE", "CONCURRENCY", "HELD", "WAITING", "FLOWS")
    printer.table(columns, rows, empty="No limits are in use.", right=columns[2:])

"""`wbengine limits`: list the limits in use and the flows that use them."""

from __future__ import annotations

from typing import Any

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
    from wbengine._limits import shared_accounts

    if redis is None:
        with context.backend() as backend:
            accounts = shared_accounts.store_of(backend).all()
    else:
        with errors.failing(errors.USAGE, ValueError, ImportError):
            accounts = shared_accounts.store_of(shared_accounts.check_url(redis)).all()
    limits: list[dict[str, Any]] = []
    for name, (account, now) in sorted(accounts.items()):
        flows = [
            {"uuid": uuid, "held": row.held, "waiting": row.wanted}
            for uuid, row in account.live(now).items()
        ]
        if flows:
            rate, _, concurrency = account.quota
            limits.append({"name": name, "rate": rate, "concurrency": concurrency, "flows": flows})
    printer = context.printer
    printer.document("limits/1", {"limits": limits})
    rows = [
        (
            limit["name"],
            limit["rate"],
            limit["concurrency"],
            sum(flow["held"] for flow in limit["flows"]),
            sum(flow["waiting"] for flow in limit["flows"]),
            len(limit["flows"]),
        )
        for limit in limits
    ]
    columns = ("LIMIT", "RATE", "CONCURRENCY", "HELD", "WAITING", "FLOWS")
    printer.table(columns, rows, empty="No limits are in use.", right=columns[2:])

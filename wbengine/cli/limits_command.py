"""`wbengine limits`: which limits are in use, and by whom."""

from __future__ import annotations

from typing import Any

import click

from wbengine.cli import base, errors
from wbengine.cli import context as contexts

__all__ = ["command"]


@base.command(
    "limits",
    help="""List the limits of tasks and flows that are in use: what each allows, how many of its
    permits are held, and how many more are waited for.

    \b
    wbengine limits
    wbengine limits --redis redis://limits.example/0 --json
    """,
)
@click.option("--redis", metavar="URL",
    help="Those in a Redis, as option `limits` of engines names it, not in the store.")  # fmt: skip
def command(context: contexts.Context, redis: str | None) -> None:
    from wbengine.permits import stores

    if redis is None:
        with context.backend() as backend:
            found = stores.store_of(backend).all()
    else:
        with errors.failing(errors.USAGE, ValueError, ImportError):
            found = stores.store_of(stores.check_url(redis)).all()
    limits: list[dict[str, Any]] = []
    for name, (account, now) in sorted(found.items()):
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
    columns = ("LIMIT", "RATE", "AT ONCE", "HELD", "WAITED FOR", "FLOWS")
    printer.table(columns, rows, empty="No limit is in use.", right=columns[2:])

"""`wbengine flow submit`: hand a new flow over to a conductor."""

from __future__ import annotations

from typing import Any

import click

from wbengine import _streams
from wbengine.cli import base, errors, options, params, stores
from wbengine.cli import context as contexts

__all__ = ["command"]


@base.command(
    "submit",
    help="""Keep a new flow in the store (--persistence), for a `wbengine serve` to run it, and
    print its uuid.

    With --board, the job is posted on a board elsewhere, for a `wbengine serve` of that.

    FACTORY is a function that makes the flow, or the flow itself.  Modules of the current folder
    are found, here and by `wbengine serve`.

    \b
    wbengine flow submit shop:order --inputs '{"order": 17}' --unique order-17
    """,
)
@options.FACTORY
@options.INPUTS
@options.NAME
@options.tags("To find it by (repeatable).")
@options.PRIORITY
@click.option("--eta", type=params.WAIT, metavar="DURATION",
    help="It does not begin before, such as 90, 5m, 2h from now.")  # fmt: skip
@click.option("--unique", metavar="KEY",
    help="While a flow of this key has not ended, print its uuid, and make none.")  # fmt: skip
def command(context: contexts.Context, factory: str, **given: Any) -> None:
    from wbengine import engines

    stores.check_outlives(context.settings)
    with context.backend(upgrade=True, missing_ok=True) as backend:
        with _streams.aside(), errors.making(factory):
            board = context.settings.board
            handle = engines.submit(factory, backend=backend, board=board, **given)
        context.printer.document("flow-submit/1", {"uuid": handle.id, "state": handle.state})
        context.printer.line(handle.id)

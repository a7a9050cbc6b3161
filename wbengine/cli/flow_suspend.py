"""`wbengine flow suspend` and `cancel`: what to tell whoever runs a flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from wbengine.cli import asking, base, completions, params
from wbengine.cli import context as contexts

__all__ = ["cancel", "command"]


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        click.option("--reason", metavar="TEXT", help="Why; it is kept with the flow."),
        click.option("--wait", type=params.WAIT, metavar="DURATION",
            help="Wait until its run is over, for so long at most; then exit with 75."),
        click.argument("flow", metavar="ID", shell_complete=completions.flows),
    ):  # fmt: skip
        function = decorate(function)
    return function


@base.command(
    "suspend",
    help="""Ask whoever runs a flow to suspend it.

    What runs is finished, and nothing more begins.  `wbengine flow resume` goes on with it.

    \b
    wbengine flow suspend 3f2a9c --wait 1m --reason 'the shop is closed'
    """,
)
@_options
def command(context: contexts.Context, flow: str, wait: float | None, reason: str | None) -> None:
    from wbengine import operations

    _ask(context, "flow-suspend/1", operations.suspend, flow, wait, reason)


@base.command(
    "cancel",
    help="""Ask whoever runs a flow to end it, and to revert what it did.

    Of a flow that nobody runs, `wbengine flow revert` does that.

    \b
    wbengine flow cancel 3f2a9c --wait 1m --reason 'nobody wants it any more'
    """,
)
@_options
def cancel(context: contexts.Context, flow: str, wait: float | None, reason: str | None) -> None:
    from wbengine import operations

    _ask(context, "flow-cancel/1", operations.cancel, flow, wait, reason)


def _ask(
    context: contexts.Context,
    schema: str,
    ask: Callable[..., Any],
    flow: str,
    wait: float | None,
    reason: str | None,
) -> None:
    from wbengine import operations

    with context.backend() as backend:
        row = operations.find(backend, flow)
        told = ask(backend, row.uuid, reason=reason, by=asking.who(), wait=wait)
    printer = context.printer
    if printer.as_json:
        printer.document(schema, {"uuid": row.uuid, "old": told.old, "new": told.new})
    else:
        printer.line(f"{row.name} {row.uuid}: {told.old} → {told.new}")

"""`wbengine flow suspend`, `cancel` and `signal`: what to tell whoever runs a flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from wbengine.cli import asking, base, errors, options, params
from wbengine.cli import context as contexts

__all__ = ["cancel", "signal", "suspend"]


_WAIT: Final = click.option("--wait", type=params.WAIT, metavar="DURATION",
    help="Wait until its run is over, for so long at most; then exit with 75.")  # fmt: skip


@base.command(
    "suspend",
    help="""Ask whoever runs a flow to suspend it.

    What runs is finished, and nothing more begins.  `wbengine flow resume` goes on with it.

    \b
    wbengine flow suspend 3f2a9c --wait 1m --reason 'the shop is closed'
    """,
)
@options.FLOW
@_WAIT
@options.REASON
def suspend(context: contexts.Context, flow: str, wait: float | None, reason: str | None) -> None:
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
@options.FLOW
@_WAIT
@options.REASON
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
    printer.document(schema, {"uuid": row.uuid, "old": told.old, "new": told.new})
    printer.line(f"{row.name} {row.uuid}: {told.old} → {told.new}")


@base.command(
    "signal",
    help="""Give a flow a signal that a task of it waits for (task.WaitFor), now or later.

    Each signal once: the first one counts.  Its value is what the task provides.

    \b
    wbengine flow signal 3f2a9c approved --value '{"by": "ann", "limit": 500}'
    """,
)
@click.option("--value", type=params.JSON, help="Its value (null).")
@options.FLOW
@click.argument("name", metavar="NAME")
def signal(context: contexts.Context, flow: str, name: str, value: Any) -> None:
    from wbengine import exceptions, operations

    with context.backend() as backend:
        row = operations.find(backend, flow)
        with errors.failing(errors.USAGE, exceptions.NotEncodable, ValueError):
            operations.signal(backend, row.uuid, name, value)
    context.printer.document("flow-signal/1", {"uuid": row.uuid, "signal": name})
    context.printer.line(f"{row.name} {row.uuid}: was given signal {name}")

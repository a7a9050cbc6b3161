"""`wbengine flow suspend`, `cancel` and `signal`: control a flow that another process runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from wbengine import _names, exceptions, operations, signals
from wbengine.cli import base, common_options, confirmation, errors, params
from wbengine.cli import context as contexts

__all__ = ["cancel", "signal", "suspend"]


_WAIT: Final = click.option("--wait", type=params.WAIT, metavar="DURATION",
    help="Wait until the run has ended; exit with 75 if it lasts longer than this.")  # fmt: skip


@base.command(
    "suspend",
    help="""Suspend a running flow.

    The engine that runs the flow finishes its running tasks and starts no others. `wbengine flow
    resume` continues the flow.

    \b
    Example:
      wbengine flow suspend 3f2a9c --wait 1m --reason 'the shop is closed'
    """,
)
@common_options.FLOW
@_WAIT
@common_options.REASON
def suspend(context: contexts.Context, flow: str, wait: float | None, reason: str | None) -> None:
    _request(context, "flow-suspend/1", operations.suspend, flow, wait, reason)


@base.command(
    "cancel",
    help="""Cancel a flow and revert its tasks.

    The engine that runs the flow reverts it. If no engine runs it, its next engine does so: a
    conductor, or `wbengine flow resume`. To revert such a flow at once, use `wbengine flow revert`.

    \b
    Example:
      wbengine flow cancel 3f2a9c --wait 1m --reason 'order withdrawn'
    """,
)
@common_options.FLOW
@_WAIT
@common_options.REASON
def cancel(context: contexts.Context, flow: str, wait: float | None, reason: str | None) -> None:
    _request(context, "flow-cancel/1", operations.cancel, flow, wait, reason)


def _request(
    context: contexts.Context,
    schema: str,
    ask: Callable[..., Any],
    flow: str,
    wait: float | None,
    reason: str | None,
) -> None:
    from wbengine.views import flow_list

    with context.backend() as backend:
        row = operations.find(backend, flow)
        # Computed now, because the owner may exit while this command waits.
        before = flow_list.shown_state(row)
        change = ask(backend, row.uuid, reason=reason, by=confirmation.current_user(), wait=wait)
        now = operations.find(backend, row.uuid)
    printer, shown = context.printer, flow_list.shown_state(now)
    content = {"uuid": row.uuid, "old": change.old, "new": change.new, "shown_state": shown}
    printer.document(schema, content)
    printer.line(f"{row.name} {row.uuid}: {before} → {shown}")
    if now.lease is not None:
        printer.guide(f"to watch it: wbengine flow watch {row.uuid}")
    elif now.command is not None:
        printer.guide(
            f"no engine runs it: its next engine will {now.command} it, a conductor or"
            f" wbengine flow resume {row.uuid}"
        )


@base.command(
    "signal",
    help="""Send a signal to a flow.

    A task (task.WaitFor) of the flow waits for the signal, or will do so later; its result is the
    value of the signal. If a signal of the same name was sent before, the first value counts,
    unless the flow has a workflow, which receives all signals.

    \b
    Example:
      wbengine flow signal 3f2a9c approved --value '{"by": "ann", "limit": 500}'
    """,
)
@click.option("--value", type=params.JSON, help="Value of the signal.", show_default="null")
@common_options.FLOW
@click.argument("name", metavar="NAME")
def signal(context: contexts.Context, flow: str, name: str, value: Any) -> None:
    with context.backend() as backend:
        row = operations.find(backend, flow)
        with errors.failing(errors.USAGE, exceptions.NotEncodable, ValueError):
            number = operations.signal(backend, row.uuid, name, value)
    context.printer.document(
        "flow-signal/1", {"uuid": row.uuid, "signal": name, "number": number}
    )
    label = signals.label(name, number)
    context.printer.line(f"{row.name} {row.uuid}: received signal {label}")
    awaited = {wait.signal for wait in row.waits_for}
    if name not in awaited and (hint := _names.hint(name, awaited)):
        context.printer.hint(f"nothing waits for signal {name!r} now{hint}")

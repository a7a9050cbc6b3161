"""`wbengine flow suspend`, `cancel` and `signal`: control a flow that another process runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import click

from wbengine import exceptions, operations, signals
from wbengine._cli import base, common_options, confirmation, errors, flow_selection, params
from wbengine._cli import context as contexts
from wbengine.operations import _operation
from wbengine.persistence._listing import FlowRow
from wbengine.views import _flow_list

__all__ = ["cancel", "signal", "suspend"]


_SUSPEND: Final = _operation.load("flow suspend")
_CANCEL: Final = _operation.load("flow cancel")
_SIGNAL: Final = _operation.load("flow signal")

_WAIT: Final = click.option("--wait", type=params.WAIT, metavar="DURATION",
    help="Wait until the run has ended; exit with 75 if it lasts longer than this.")  # fmt: skip


@base.command(
    "suspend",
    help="""Suspend a running flow.

    The engine that runs the flow finishes its running tasks and starts no others. `wbengine flow
    resume` continues the flow. Filters select flows that have not ended and are not suspended.

    \b
    Examples:
      wbengine flow suspend 3f2a9c --wait 1m --reason 'the shop is closed'
      wbengine flow suspend --name order --tag shop=paris
    """,
)
@flow_selection.flows_option
@_WAIT
@common_options.REASON
def suspend(context: contexts.Context, **options: Any) -> int:
    return _request(context, _SUSPEND, operations.suspend, **options)


@base.command(
    "cancel",
    help="""Cancel a flow and revert its tasks.

    The engine that runs the flow reverts it. If no engine runs it, its next engine does so: a
    conductor, or `wbengine flow resume`. To revert such a flow at once, use `wbengine flow revert`.
    Filters select flows that have not ended.

    \b
    Examples:
      wbengine flow cancel 3f2a9c --wait 1m --reason 'order withdrawn'
      wbengine flow cancel --tag customer=17 --dry-run
    """,
)
@flow_selection.flows_option
@_WAIT
@common_options.REASON
def cancel(context: contexts.Context, **options: Any) -> int:
    return _request(context, _CANCEL, operations.cancel, **options)


def _request(
    context: contexts.Context,
    operation: _operation.Operation,
    ask: Callable[..., Any],
    selection: flow_selection.Selection,
    wait: float | None,
    reason: str | None,
) -> int:
    by = confirmation.current_user()
    with context.backend() as backend:
        rows = flow_selection.rows_of(backend, selection, operation.states)
        if not selection.is_single or selection.dry_run:
            if wait is not None:
                raise errors.Failed("--wait requires one ID", errors.USAGE)
            return flow_selection.perform(context, operation, selection, rows,
                lambda row: ask(backend, row.uuid, reason=reason, by=by))  # fmt: skip
        (row,) = rows
        # Computed now, because the owner may exit while this command waits.
        before = _flow_list.shown_state(row)
        change = ask(backend, row.uuid, reason=reason, by=by, wait=wait)
        now = operations.find(backend, row.uuid)
    printer, shown = context.printer, _flow_list.shown_state(now)
    content = {"uuid": row.uuid, "old": change.old, "new": change.new, "shown_state": shown}
    printer.document(f"flow-{operation.verb}/1", content)
    printer.line(f"{row.name} {row.uuid}: {before} → {shown}")
    if now.lease is not None:
        printer.guide(f"to watch it: wbengine flow watch {row.uuid}")
    elif now.command is not None:
        printer.guide(
            f"no engine runs it: its next engine will {now.command} it, a conductor or"
            f" wbengine flow resume {row.uuid}"
        )
    return errors.OK


@base.command(
    "signal",
    help="""Send a signal to a flow.

    A task (task.WaitFor) of the flow waits for the signal, or will do so later; its result is the
    value of the signal. If a signal of the same name was sent before, the first value counts,
    unless the flow has a workflow, which receives all signals. Filters select flows that are
    WAITING for the signal.

    If nothing waits for the signal, the command lists the awaited signals. A workflow may wait for
    it later.

    \b
    Examples:
      wbengine flow signal 3f2a9c approved --value '{"by": "ann", "limit": 500}'
      wbengine flow signal approved --name order --tag shop=paris
    """,
)
@flow_selection.flows_option
@click.option("--value", type=params.JSON, help="Value of the signal.", show_default="null")
@click.option("--strict", is_flag=True,
    help="Send nothing if nothing waits for the signal now; exit with 66.")  # fmt: skip
@click.argument("signal_name", metavar="NAME")
def signal(
    context: contexts.Context,
    selection: flow_selection.Selection,
    signal_name: str,
    value: Any,
    strict: bool,
) -> int:
    name = signal_name
    with context.backend() as backend:
        rows = flow_selection.rows_of(
            backend,
            selection,
            _SIGNAL.states,
            lambda row: any(wait.signal == name for wait in row.waits_for),
        )
        if not selection.is_single or selection.dry_run:

            def send(row: FlowRow) -> int:
                return operations.signal(backend, row.uuid, name, value, strict=strict)

            return flow_selection.perform(context, _SIGNAL, selection, rows, send)
        (row,) = rows
        # Read now, because the wait may end when the signal arrives.
        reason = signals.not_awaited(name, [wait.signal for wait in row.waits_for])
        if reason is not None and not strict:
            with contextlib.closing(backend.get_connection()) as connection:
                has_run = connection.get_outline(row.uuid) is not None
                awaited = connection.awaited_signals(row.uuid) if has_run else [name]
            reason = signals.not_awaited(name, awaited)
        with errors.failing(errors.USAGE, exceptions.NotEncodable, ValueError):
            number = operations.signal(backend, row.uuid, name, value, strict=strict)
    context.printer.document("flow-signal/1", {"uuid": row.uuid, "signal": name, "number": number})
    label = signals.label(name, number)
    context.printer.line(f"{row.name} {row.uuid}: received signal {label}")
    if reason is not None:
        context.printer.hint(reason)
    return errors.OK

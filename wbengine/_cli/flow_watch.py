"""`wbengine flow watch`: follow a flow from any host that can read the store."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import operations, states
from wbengine._cli import base, common_options, errors, params, stop_signals
from wbengine._cli import context as contexts
from wbengine.persistence import _commands
from wbengine.views import _formatting

if TYPE_CHECKING:
    from rich.console import Console

    from wbengine._cli.output import Printer
    from wbengine.persistence import base as persistence
    from wbengine.views._event_history import Event
    from wbengine.views.flow_status import FlowView
    from wbengine.views.watcher import FlowWatcher

    _Show = Callable[[list[Event], FlowView, str | None], None]

__all__ = ["command"]

_EXIT_CODES: Final = {
    states.SUCCESS: errors.OK,
    states.FAILURE: errors.UNHEALTHY,
    states.REVERTED: errors.UNHEALTHY,
    states.SUSPENDED: errors.TRY_AGAIN,
}
#: Rows of a terminal that the tree leaves free.
_MARGIN_ROWS: Final = 3
#: Maximum number of rows of the tree that remains on the terminal at the end.
_MAX_FINAL_ROWS: Final = 200


@base.command(
    "watch",
    help="""Watch a flow until its run ends.

    On a terminal, the command draws a live tree with states, progress, retries and workers.
    Elsewhere, and with $NO_COLOR or TERM=dumb, it prints a line for each event; with --json, a line
    of JSON. The last event of each poll contains a "cursor". To continue there, pass it as
    --cursor; some earlier events may be repeated.

    Exits with 0 for SUCCESS, 1 for FAILURE and REVERTED, and 75 if the flow is suspended or lost
    its engine.

    \b
    Examples:
      wbengine flow watch 3f2a9c
      wbengine flow watch 3f2a9c --json | jq -r 'select(.error) | .name'
    """,
)
@common_options.FLOW
@click.option("--cursor", metavar="CURSOR", help="Continue after the event with this cursor.")
@click.option("--interval", type=params.WAIT, default=0.5, metavar="DURATION",
    help="Time between two polls of the store.")  # fmt: skip
def command(context: contexts.Context, flow: str, cursor: str | None, interval: float) -> int:
    with context.backend(patient=True) as backend:
        return follow(context, backend, operations.find(backend, flow).uuid, cursor, interval)


def follow(
    context: contexts.Context,
    backend: persistence.Backend,
    uuid: str,
    cursor: str | None = None,
    interval: float = 0.5,
) -> int:
    """Watch a flow until its run ends, and return the exit code."""
    from wbengine.views import watcher

    watch = watcher.FlowWatcher(backend, uuid, redactor=context.redactor, cursor=cursor)
    with contextlib.closing(watch):
        return _follow(context.printer, watch, interval)


def _follow(printer: Printer, watch: FlowWatcher, interval: float) -> int:
    from wbengine.drawing import _terminal_tree

    with contextlib.ExitStack() as until:
        show: _Show = functools.partial(_print_events, printer)
        if (
            printer.is_terminal
            and not printer.as_json
            and _terminal_tree.can_redraw(printer.console)
        ):
            show = until.enter_context(_screen(printer.console))
        owner_died = False
        while True:
            began = time.monotonic()
            events = watch.poll()
            view = watch.view()
            show(events, view, watch.cursor)
            code = _exit_code(view)
            if code is not None and owner_died == view.owner_died:
                break
            # A poll reads the owner last. It may have ended the flow, and then itself, meanwhile.
            owner_died = view.owner_died
            # A poll of a large flow is slow. At most a third of the time is spent on polls.
            time.sleep(max(interval, 2 * (time.monotonic() - began)))
    if view.state in states.FLOW_ENDED:
        printer.guide(f"{view.state}; details: wbengine flow show {view.uuid}")
    elif view.state == states.SUSPENDED:
        printer.note(f"suspended; to resume: wbengine flow resume {view.uuid}")
    elif code == errors.TRY_AGAIN:
        printer.note(
            f"{view.waiting or 'the flow has no engine'}; to resume:"
            f" wbengine flow resume {view.uuid}"
        )
    return code


def _exit_code(view: FlowView) -> int | None:
    """Return the exit code if the flow will not change by itself, else None."""
    if view.owner_died:
        return errors.TRY_AGAIN
    if view.owner is not None or view.parked or view.state not in _EXIT_CODES:
        return None
    if view.command in _commands.RERUN_COMMANDS or view.awaits_conductor:
        return None
    return _EXIT_CODES[view.state]


def _print_events(
    printer: Printer, events: list[Event], view: FlowView, cursor: str | None
) -> None:
    for number, event in enumerate(events, 1):
        last = cursor if number == len(events) else None
        printer.event("flow-watch/1", {**event.to_dict(), "cursor": last})
        printer.line(line_of(event))


@contextlib.contextmanager
def _screen(console: Console) -> Iterator[_Show]:
    from rich.live import Live

    from wbengine.drawing import _terminal_tree

    latest: list[FlowView] = []

    def draw() -> Any:
        rows = console.size.height - _MARGIN_ROWS
        return _terminal_tree.flow_tree(latest[-1], console, rows) if latest else ""

    def show(events: list[Event], view: FlowView, cursor: str | None) -> None:
        latest[:] = [view]
        live.refresh()

    live = Live(get_renderable=draw, console=console, transient=True, auto_refresh=False)
    try:
        with stop_signals.restoring_terminal(), live:
            yield show
    finally:
        for view in latest:
            console.print(_terminal_tree.flow_tree(view, console, _MAX_FINAL_ROWS))


def line_of(event: Event) -> str:
    """Return an event as a line of text."""
    parts = ["-" if event.at is None else _formatting.clock(event.at), event.state, event.name]
    if event.kind == "flow":
        parts[2] = f"flow {event.name}"
    if _formatting.nth(event) > 1:
        parts.append(f"attempt {_formatting.nth(event)}")
    if event.item is not None:
        parts.append(f"item {event.item}")
    if event.worker is not None:
        parts.append(f"on {event.worker}")
    if event.lost_worker is not None:
        parts.append(f"after {event.lost_worker} was lost")
    if event.progress is not None:
        parts.append(f"{event.progress:.0%}")
    if event.error is not None:
        parts.append(event.error)
    return "  ".join(parts)

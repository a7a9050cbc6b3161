"""`wbengine flow watch`: follow a flow, from wherever the store can be read."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import states
from wbengine.cli import base, errors, options, params
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from rich.console import Console

    from wbengine.cli.output import Printer
    from wbengine.views.flow import FlowView
    from wbengine.views.history import Event
    from wbengine.views.watcher import FlowWatcher

    _Show = Callable[[list[Event], FlowView, str | None], None]

__all__ = ["command"]

_ENDS: Final = {
    states.SUCCESS: errors.OK,
    states.FAILURE: errors.UNHEALTHY,
    states.REVERTED: errors.UNHEALTHY,
    states.SUSPENDED: errors.TRY_AGAIN,
}
#: Rows of a terminal that are not for the tree.
_MARGIN: Final = 3
#: Rows that are left on it in the end.
_MOST: Final = 200


@base.command(
    "watch",
    help="""Follow a flow until it ends.

    On a terminal: a live tree with states, progress, retries and workers.  Elsewhere, a line for
    each event; with --json as JSON Lines.  The last event of each look at the store has a "cursor":
    given by --cursor, what came after it is told, and maybe again what led to it.

    Exits with 0 for SUCCESS, 1 for FAILURE and REVERTED, 75 when the flow is suspended, or whoever
    ran it died.

    \b
    wbengine flow watch 3f2a9c
    wbengine flow watch 3f2a9c --json | jq -r 'select(.error) | .name'
    """,
)
@options.FLOW
@click.option("--cursor", metavar="TEXT", help="Begin after the event that told it.")
@click.option("--interval", type=params.WAIT, default=0.5, metavar="DURATION",
    help="Look at the store so often (0.5).")  # fmt: skip
def command(context: contexts.Context, flow: str, cursor: str | None, interval: float) -> int:
    from wbengine import operations
    from wbengine.views import watcher

    with context.backend(patient=True) as backend:
        uuid = operations.find(backend, flow).uuid
        watch = watcher.FlowWatcher(backend, uuid, redactor=context.redactor, cursor=cursor)
        with contextlib.closing(watch):
            return _follow(context.printer, watch, interval)


def _follow(printer: Printer, watch: FlowWatcher, interval: float) -> int:
    with contextlib.ExitStack() as until:
        show: _Show = functools.partial(_tell, printer)
        if printer.is_terminal and not printer.as_json:
            show = until.enter_context(_screen(printer.console))
        while True:
            began = time.monotonic()
            events = watch.turn()
            view = watch.view()
            show(events, view, watch.cursor)
            if (code := _ended(view)) is not None:
                break
            # Of a large flow a look takes long; most of the time is not for looking.
            time.sleep(max(interval, 2 * (time.monotonic() - began)))
    if view.state == states.SUSPENDED:
        printer.note(f"suspended; to go on: wbengine flow resume {view.uuid}")
    elif code == errors.TRY_AGAIN:
        printer.note(
            f"{view.waiting or 'nobody runs it'}; to go on: wbengine flow resume {view.uuid}"
        )
    return code


def _ended(view: FlowView) -> int | None:
    """The exit code, once nothing more happens."""
    if view.owner_died:
        return errors.TRY_AGAIN
    if view.owner is not None or view.state not in _ENDS:
        return None
    return _ENDS[view.state]


def _tell(printer: Printer, events: list[Event], view: FlowView, cursor: str | None) -> None:
    """Events, one in a line."""
    for number, event in enumerate(events, 1):
        last = cursor if number == len(events) else None
        printer.event("flow-watch/1", {**event.to_dict(), "cursor": last})
        printer.line(line_of(event))


@contextlib.contextmanager
def _screen(console: Console) -> Iterator[_Show]:
    """A tree that changes."""
    from rich.live import Live

    from wbengine.drawing import tree

    latest: list[FlowView] = []

    def draw() -> Any:
        rows = console.size.height - _MARGIN
        return tree.flow_tree(latest[-1], console, rows) if latest else ""

    def show(events: list[Event], view: FlowView, cursor: str | None) -> None:
        latest[:] = [view]
        live.refresh()

    live = Live(get_renderable=draw, console=console, transient=True, auto_refresh=False)
    try:
        with live:
            yield show
    finally:
        for view in latest:
            console.print(tree.flow_tree(view, console, _MOST))


def line_of(event: Event) -> str:
    """An event in a line."""
    from wbengine.views import formatting

    parts = ["-" if event.at is None else formatting.clock(event.at), event.state, event.name]
    if event.kind == "flow":
        parts[2] = f"flow {event.name}"
    if formatting.nth(event) > 1:
        parts.append(f"attempt {formatting.nth(event)}")
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

"""`wbengine flow watch`: follow a flow, from wherever the store can be read."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import states
from wbengine.cli import base, completions, errors, params
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.cli.output import Printer
    from wbengine.views.flow import FlowView
    from wbengine.views.history import Event
    from wbengine.views.watcher import FlowWatcher

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
@click.argument("flow", metavar="ID", shell_complete=completions.flows)
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
    live = printer.is_terminal and not printer.as_json
    with _Screen(printer) if live else _Lines(printer) as shown:
        while True:
            began = time.monotonic()
            events = watch.turn()
            view = watch.view()
            shown.show(events, view, watch.cursor)
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


class _Lines:
    """Events, one in a line."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def show(self, events: list[Event], view: FlowView, cursor: str | None) -> None:
        for number, event in enumerate(events, 1):
            if self._printer.as_json:
                last = cursor if number == len(events) else None
                self._printer.event("flow-watch/1", {**event.to_dict(), "cursor": last})
            else:
                self._printer.line(line_of(event))


class _Screen:
    """A tree that changes."""

    def __init__(self, printer: Printer) -> None:
        from rich.live import Live

        self._console = printer.console
        self._view: FlowView | None = None
        self._live = Live(
            get_renderable=self._draw, console=self._console, transient=True, auto_refresh=False
        )

    def __enter__(self) -> _Screen:
        self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        from wbengine.drawing import tree

        self._live.stop()
        if self._view is not None:
            self._console.print(tree.flow_tree(self._view, self._console, _MOST))

    def show(self, events: list[Event], view: FlowView, cursor: str | None) -> None:
        self._view = view
        self._live.refresh()

    def _draw(self) -> Any:
        from wbengine.drawing import tree

        if self._view is None:
            return ""
        rows = self._console.size.height - _MARGIN
        return tree.flow_tree(self._view, self._console, rows)


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

"""`wbengine flow show`: all that there is to know about a flow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from wbengine.cli import base, options
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.cli.output import Printer
    from wbengine.views.flow import FlowView

__all__ = ["command"]


@base.command(
    "show",
    help="""Show a flow: its state, why it waits, its tasks, and what failed.

    Values are hidden unless --show-values says otherwise; secrets always are.

    \b
    wbengine flow show 3f2a9c
    wbengine flow show 3f2a9c --traceback --timeline
    """,
)
@options.FLOW
@click.option("--tree", is_flag=True, help="Only its tasks, as a tree.")
@click.option("--timeline", is_flag=True, help="Only who ran what, and when.")
@click.option("--traceback", is_flag=True, help="Only its failures, with tracebacks.")
@click.option("--inputs", "--store", "inputs", is_flag=True,
    help="Only the values that it was given.")  # fmt: skip
@click.option("--show-values", is_flag=True, help="Show values, not only what they are.")
def command(
    context: contexts.Context,
    flow: str,
    tree: bool,
    timeline: bool,
    traceback: bool,
    inputs: bool,
    show_values: bool,
) -> None:
    from wbengine.views import flow as flows
    from wbengine.views import redaction

    redactor = redaction.Redactor(show_values=show_values)
    with context.flow(flow) as (connection, uuid):
        view = flows.read(connection, uuid, redactor=redactor)
    printer = context.printer
    printer.document("flow-show/1", view.to_dict())
    if printer.as_json:
        return  # the tree of a large flow takes its time
    every = not (tree or timeline or traceback or inputs)
    _head(printer, view)
    if tree or every:
        _tree(printer, view)
    if every:
        _items(printer, view)
    if timeline:
        _timeline(printer, view)
    if inputs:
        _values(printer, view)
    if traceback or every:
        _failures(printer, view, traceback)


def _head(printer: Printer, view: FlowView) -> None:
    from wbengine.views import formatting

    rows: list[tuple[str, Any]] = [
        ("flow", f"{view.name}  {view.uuid}"),
        ("state", view.shown_state),
        ("book", view.book_name),
        ("tags", ", ".join(f"{key}={value}" for key, value in view.tags.items()) or None),
        ("run by", view.owner),
        ("created", formatting.iso(view.created)),
        ("started", formatting.iso(view.started)),
        ("took", None if view.duration is None else formatting.seconds(view.duration)),
        ("waits", view.waiting),
        ("asked", view.wish),
    ]
    printer.pairs((name, value) for name, value in rows if value is not None)


def _tree(printer: Printer, view: FlowView) -> None:
    from wbengine.drawing import tree

    printer.line("")
    printer.rich(tree.flow_tree(view, printer.console))


def _items(printer: Printer, view: FlowView) -> None:
    """A table for each Map that has items."""
    from wbengine.views import formatting

    for atom in view.atoms:
        if not atom.item_rows:
            continue
        rows = [
            (
                str(item.index),
                item.input,
                item.state,
                item.worker,
                "" if item.runtime is None else formatting.seconds(item.runtime),
                str(item.tries),
                item.error,
            )
            for item in atom.item_rows
        ]
        columns = ("ITEM", "INPUT", "STATE", "WORKER", "TOOK", "TRIES", "ERROR")
        printer.line("")
        printer.line(f"items of {atom.name}:")
        printer.table(columns, rows, right=("ITEM", "TOOK", "TRIES"))
        more = sum((atom.items or {}).values()) - len(rows)
        if more > 0:
            printer.line(f"{formatting.count(more, 'more item')}")


def _timeline(printer: Printer, view: FlowView) -> None:
    from wbengine.views import formatting, timeline

    found = timeline.timeline(view)
    bars = [(lane.worker, bar) for lane in found.lanes for row in lane.rows for bar in row]
    bars.sort(key=lambda each: (each[1].started, each[1].name))
    rows = [
        (
            formatting.iso(bar.started),
            f"{bar.started - found.begin:.3f}",
            "" if bar.queued is None else formatting.seconds(bar.queued),
            formatting.seconds(bar.ended - bar.started),
            worker,
            bar.name,
            str(formatting.nth(bar)),
            bar.action,
            bar.state,
        )
        for worker, bar in bars
    ]
    columns = ("STARTED", "AFTER", "QUEUED", "TOOK", "WORKER", "TASK", "ATTEMPT", "ACTION", "STATE")
    printer.line("")
    printer.table(columns, rows, right=("AFTER", "QUEUED", "TOOK", "ATTEMPT"))


def _values(printer: Printer, view: FlowView) -> None:
    printer.line("")
    rows = [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in view.values.items()
    ]
    printer.table(("NAME", "VALUE"), rows, empty="It was given no values.")


def _failures(printer: Printer, view: FlowView, whole: bool) -> None:
    from wbengine.views import formatting

    for failure in view.failures:
        where = f"{failure.atom}, attempt {formatting.nth(failure)}" if failure.atom else "the flow"
        on = f", on {failure.worker}" if failure.worker else ""
        doing = ", reverting" if failure.action == "revert" else ""
        printer.line("")
        printer.line(f"failed: {where}{doing}{on}: {failure.line}")
        if whole:
            printer.lines(failure.text)
    if view.failures and not whole:
        printer.note(f"tracebacks: wbengine flow show {view.uuid} --traceback")

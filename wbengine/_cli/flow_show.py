"""`wbengine flow show`: show the records of a flow."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from wbengine import states
from wbengine._cli import base, common_options
from wbengine._cli import context as contexts
from wbengine._introspection import object_names
from wbengine.views import _formatting, _json_values

if TYPE_CHECKING:
    from wbengine._cli.output import Printer
    from wbengine.views._flow_list import RowView
    from wbengine.views.flow_status import FlowView, ForkView

__all__ = ["command"]


@base.command(
    "show",
    help="""Show the tasks, failures and waits of a flow.

    Values are shown only with --show-values and --results. Secrets are always masked.

    \b
    Examples:
      wbengine flow show 3f2a9c
      wbengine flow show 3f2a9c --traceback --timeline
    """,
)
@common_options.FLOW
@click.option("--tree", is_flag=True, help="Show only the tasks, as a tree.")
@click.option("--timeline", is_flag=True, help="Show only the attempts of tasks by time.")
@click.option("--traceback", is_flag=True, help="Show only the failures, with all frames.")
@click.option("--inputs", is_flag=True, help="Show only the inputs.")
@click.option("--results", "only_results", is_flag=True,
    help="Print only the results of tasks and steps, which are values, as JSON.")  # fmt: skip
@click.option(
    "--show-values", is_flag=True, help="Also show the inputs, and values instead of their types."
)
def command(
    context: contexts.Context,
    flow: str,
    tree: bool,
    timeline: bool,
    traceback: bool,
    inputs: bool,
    only_results: bool,
    show_values: bool,
) -> None:
    from wbengine.views import flow_status as flows
    from wbengine.views import redaction

    if only_results:
        _results(context, flow)
        return
    redactor = redaction.Redactor(show_values=show_values)
    with context.flow(flow) as (connection, uuid):
        view = flows.read(connection, uuid, redactor=redactor)
        has_logs = bool(connection.get_logs(uuid, limit=1))
        children: Collection[RowView] = ()
        if view.children:
            # Loaded here, because most flows have no children.
            children_of = object_names.load("wbengine._cli.flow_tree:children_of")
            children = children_of(connection, uuid, redactor)
    printer = context.printer
    printer.document("flow-show/1", view.to_dict())
    if printer.as_json:
        return  # the tree of a large flow is slow to build
    every = not (tree or timeline or traceback or inputs)
    _head(printer, view)
    if tree or every:
        _tree(printer, view)
    if every:
        _items(printer, view)
        _children(printer, view, children)
    if timeline:
        _timeline(printer, view)
    if inputs or (every and show_values):
        _values(printer, view)
    if traceback or every:
        _failures(printer, view, traceback)
    if has_logs and every:
        printer.guide(
            f"logs of its tasks are kept (INFO and higher): wbengine flow logs {view.uuid}"
        )
    for wait in [wait for wait in view.waits_for if wait.signal][:1]:
        printer.guide(f"to send the signal: wbengine flow signal {view.uuid} {wait.signal}")


def _results(context: contexts.Context, flow: str) -> None:
    from wbengine.persistence import models

    detail = context.flow_detail(flow)
    redactor = context.redactor.with_secrets_of_flow(detail)
    complete = [
        atom
        for atom in detail
        if isinstance(atom, models.TaskDetail)
        and atom.name != models.INJECTOR
        and atom.state == states.SUCCESS
    ]
    returned = {atom.name: atom.results for atom in complete if not atom.is_step}
    of_steps = {atom.name: atom.results for atom in complete if atom.is_step}
    content = {
        "uuid": detail.uuid,
        "name": detail.name,
        "state": detail.state,
        "results": _json_values.to_json(returned, redactor.text, repr),
        "steps": _json_values.to_json(of_steps, redactor.text, repr),
    }
    context.printer.document("flow-results/1", content, always=True)


def _head(printer: Printer, view: FlowView) -> None:
    rows: list[tuple[str, Any]] = [
        ("flow", f"{view.name}  {view.uuid}"),
        ("state", view.shown_state),
        ("logbook", None if view.book_name == view.name else view.book_name),
        ("tags", ", ".join(f"{key}={text}" for key, text in view.tag_texts.items()) or None),
        ("queue", view.queue),
        ("fair key", view.fair_key),
        ("parent", view.parent),
        ("children", view.children_text),
        ("forked from", None if view.forked_from is None else _fork(view.forked_from)),
        ("forks", ", ".join(map(_fork, view.forks)) or None),
        ("superseded by", view.superseded_by),
        ("owner", view.owner),
        ("created", _formatting.iso(view.created)),
        ("started", _formatting.iso(view.started)),
        ("took", None if view.duration is None else _formatting.seconds(view.duration)),
        ("steps", view.done if view.step_counts else None),
        ("waits", view.waiting),
        ("asked", view.wish),
        ("cancelled", None if view.wish else view.cancel_reason),
        ("undo", view.undo_text),
        *(("used by", f"{user.flow}  {user.kind} in {user.state}") for user in view.used_by),
        # Otherwise an atom shows it.
        ("error", None if view.failures else view.error),
    ]
    printer.pairs((name, value) for name, value in rows if value is not None)


def _fork(fork: ForkView) -> str:
    return f"{fork.flow} at {fork.start}"


def _tree(printer: Printer, view: FlowView) -> None:
    from wbengine.drawing import _terminal_tree

    printer.line("")
    printer.rich(_terminal_tree.flow_tree(view, printer.console, shows_types=True))


def _children(printer: Printer, view: FlowView, children: Collection[RowView]) -> None:
    if not children:
        return
    rows = [(row.uuid, row.name, row.shown_state, row.done, row.error) for row in children]
    printer.line("")
    printer.line("children:")
    printer.table(("UUID", "NAME", "STATE", "DONE", "ERROR"), rows, folded=("NAME", "ERROR"))
    if len(children) < sum(view.children.values()):
        printer.hint(f"for all children: wbengine flow list --parent {view.uuid}")


def _items(printer: Printer, view: FlowView) -> None:
    for atom in view.atoms:
        if not atom.item_rows:
            continue
        rows = [
            (
                str(item.index),
                item.input,
                item.state,
                item.worker,
                "" if item.runtime is None else _formatting.seconds(item.runtime),
                str(item.tries),
                item.error,
            )
            for item in atom.item_rows
        ]
        columns = ("ITEM", "INPUT", "STATE", "WORKER", "TOOK", "TRIES", "ERROR")
        printer.line("")
        printer.line(f"items of {atom.name}:")
        printer.table(columns, rows, right=("ITEM", "TOOK", "TRIES"))
        omitted = sum((atom.items or {}).values()) - len(rows)
        if omitted > 0:
            printer.line(f"{_formatting.count(omitted, 'more item')}")


def _timeline(printer: Printer, view: FlowView) -> None:
    from wbengine.views import _timeline as timeline

    chart = timeline.timeline(view)
    bars = [(lane.worker, bar) for lane in chart.lanes for row in lane.rows for bar in row]
    bars.sort(key=lambda each: (each[1].started, each[1].name))
    rows = [
        (
            _formatting.iso(bar.started),
            f"{bar.started - chart.begin:.3f}",
            "" if bar.queued is None else _formatting.seconds(bar.queued),
            _formatting.seconds(bar.ended - bar.started),
            worker,
            bar.name,
            str(_formatting.nth(bar)),
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
    printer.table(("NAME", "VALUE"), rows, empty="The flow has no inputs.")


def _failures(printer: Printer, view: FlowView, all_frames: bool) -> None:
    for failure in view.failures:
        where = (
            f"{failure.atom}, attempt {_formatting.nth(failure)}" if failure.atom else "the flow"
        )
        on = f", on {failure.worker}" if failure.worker else ""
        doing = ", reverting" if failure.action == "revert" else ""
        printer.line("")
        printer.line(f"failed: {where}{doing}{on}: {failure.line}")
        if text := failure.text if all_frames else failure.user_text:
            printer.lines(text)
    if view.failures and not all_frames:
        printer.note(f"all frames: wbengine flow show {view.uuid} --traceback")

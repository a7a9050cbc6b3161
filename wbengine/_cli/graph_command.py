"""`wbengine graph`: draw the structure of a flow, or a stored flow with its states."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import drawing, engines
from wbengine._cli import base, completions, errors, params, standard_streams
from wbengine._cli import context as contexts
from wbengine._cli.output import say
from wbengine._introspection import object_names
from wbengine._text.terminal_text import visible

if TYPE_CHECKING:
    from wbengine.types._outline import Outline
    from wbengine.views.flow_status import FlowView

__all__ = ["command"]

_FILE_SUFFIXES: Final = {
    "text": (".txt", ".text"),
    "mermaid": (".mmd", ".mermaid"),
    "dot": (".dot", ".gv"),
    "svg": (".svg",),
    "png": (".png",),
    "json": (".json",),
}
_FORMATS: Final = tuple(_FILE_SUFFIXES)


@base.command(
    "graph",
    help="""Draw a flow.

    Give either FACTORY, a function that builds the flow, or --flow-id for a flow of the store with
    its states. The formats svg and png need Graphviz (the program dot); without it, the command
    prints the flow as a tree.

    \b
    Examples:
      wbengine graph shop:order
      wbengine graph --flow-id 3f2a9c -f svg -o order.svg
    """,
)
@click.argument("factory", metavar="[MODULE:FACTORY]", required=False)
@click.option("--flow-id", metavar="ID", shell_complete=completions.flows,
    help="Draw this flow of the store.")  # fmt: skip
@click.option("-f", "--format", "form", type=params.Choice(_FORMATS),
    help="Format.", show_default="by the ending of --output, else text")  # fmt: skip
@click.option("-o", "--output", type=params.NEW_FILE, metavar="FILE",
    help="File to write.", show_default="the standard output")  # fmt: skip
@click.option("--states/--no-states", default=True,
    help="Show the states of a stored flow.")  # fmt: skip
@click.option("--direction", type=params.Choice(("auto", "LR", "TB")), default="auto",
    help="Direction of the graph: left to right (LR) or top to bottom (TB).")  # fmt: skip
def command(
    context: contexts.Context,
    factory: str | None,
    flow_id: str | None,
    form: str | None,
    output: str | None,
    states: bool,
    direction: str,
) -> None:
    if (factory is None) == (flow_id is None):
        raise click.UsageError("exactly one of MODULE:FACTORY and --flow-id is required")
    form = form or ("json" if context.settings.json else _form_of(output))
    if form == "png" and output is None and sys.stdout.isatty():
        raise click.UsageError(
            "a PNG cannot be printed on a terminal; write it to a file (-o FILE)"
        )
    if flow_id is not None:
        outline, view = _stored_outline(context, flow_id)
    else:
        outline, view = _new_outline(str(factory)), None
    view = view if states else None
    try:
        if form == "png":
            data = drawing.png(outline, view, direction=direction)
        else:
            text = drawing.draw(outline, view, format=form, direction=direction).rstrip()
            shown = visible(text, lines=True) if form == "text" else text
            data = f"{shown}\n".encode()
    except drawing.DrawingFailed:
        if not context.printer.as_json:
            for row in drawing.draw(outline, view).splitlines():
                say(row)
        raise
    context.printer.save(data, output)


def _form_of(output: str | None) -> str:
    ending = Path(output or "").suffix
    form_by_ending = {each: form for form, endings in _FILE_SUFFIXES.items() for each in endings}
    if not ending:
        return "text"
    if ending.lower() not in form_by_ending:
        near = object_names.hint(ending.lower(), form_by_ending)
        raise click.UsageError(
            f"--output must end in one of {', '.join(form_by_ending)}, got {ending!r}{near}; or"
            " pass the format (-f)"
        )
    return form_by_ending[ending.lower()]


def _new_outline(factory: str) -> Outline:
    from wbengine.engines import _flow_factories

    with standard_streams.aside(), errors.running_user_code(factory):
        loaded: Any = engines.load(_flow_factories.flow_of(factory))
    outline: Outline = loaded.compilation.outline
    return outline


def _stored_outline(context: contexts.Context, flow_id: str) -> tuple[Outline, FlowView]:
    from wbengine.views import flow_status as flows

    with context.flow(flow_id) as (connection, uuid):
        view = flows.read(connection, uuid, redactor=context.redactor)
    return view.outline, view

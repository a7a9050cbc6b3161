"""`wbengine graph`: draw a flow, as it is written or as it was run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import _names, _streams
from wbengine._terminal import visible
from wbengine.cli import base, completions, errors, params
from wbengine.cli import context as contexts
from wbengine.cli.output import say

if TYPE_CHECKING:
    from wbengine.types.outline import Outline
    from wbengine.views.flow import FlowView

__all__ = ["command"]

#: Those of `drawing.FORMATS`, and the endings of files that have them.
_ENDINGS: Final = {
    "text": (".txt", ".text"),
    "mermaid": (".mmd", ".mermaid"),
    "dot": (".dot", ".gv"),
    "svg": (".svg",),
    "png": (".png",),
    "json": (".json",),
}
_FORMATS: Final = tuple(_ENDINGS)


@base.command(
    "graph",
    help="""Draw a flow: one that is made here, or one of the store, with its states.

    svg and png need Graphviz (its program dot); without it the tree is shown.

    \b
    wbengine graph shop:order
    wbengine graph --flow-id 3f2a9c -f svg -o order.svg
    """,
)
@click.argument("factory", metavar="[MODULE:FACTORY]", required=False)
@click.option("--flow-id", metavar="ID", shell_complete=completions.flows,
    help="A flow of the store.")  # fmt: skip
@click.option("-f", "--format", "form", type=click.Choice(_FORMATS),
    help="How (default: by the name of the file, else text).")  # fmt: skip
@click.option("-o", "--output", type=params.NEW_FILE, metavar="FILE",
    help="Write it into this file (default: the standard output).")  # fmt: skip
@click.option("--states/--no-states", default=True, help="Show the states of a kept flow (yes).")
@click.option("--direction", type=click.Choice(("auto", "LR", "TB")), default="auto",
    help="From left to right, or top to bottom.")  # fmt: skip
def command(
    context: contexts.Context,
    factory: str | None,
    flow_id: str | None,
    form: str | None,
    output: str | None,
    states: bool,
    direction: str,
) -> None:
    from wbengine import drawing

    if (factory is None) == (flow_id is None):
        raise click.UsageError("give either MODULE:FACTORY or --flow-id ID")
    form = form or ("json" if context.settings.json else _form_of(output))
    if form == "png" and output is None and sys.stdout.isatty():
        raise click.UsageError("a picture is no text: write it into a file (-o FILE)")
    if flow_id is not None:
        outline, view = _kept(context, flow_id)
    else:
        outline, view = _made(str(factory)), None
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
    known = {each: form for form, endings in _ENDINGS.items() for each in endings}
    if not ending:
        return "text"
    if ending.lower() not in known:
        near = _names.hint(ending.lower(), known)
        raise click.UsageError(
            f"-o {output}: no format has the ending {ending}{near}; known: {', '.join(known)}; "
            "or give the format (-f)"
        )
    return known[ending.lower()]


def _made(factory: str) -> Outline:
    """The structure of a flow that is made here."""
    from wbengine import engines
    from wbengine.engines import factories

    with _streams.aside(), errors.making(factory):
        loaded: Any = engines.load(factories.flow_of(factory))
    found: Outline = loaded.compilation.outline
    return found


def _kept(context: contexts.Context, flow_id: str) -> tuple[Outline, FlowView]:
    from wbengine.views import flow as flows

    with context.flow(flow_id) as (connection, uuid):
        view = flows.read(connection, uuid, redactor=context.redactor)
    return view.outline, view

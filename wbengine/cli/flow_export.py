"""`wbengine flow export`: all that is known of a flow, to be kept or sent on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from wbengine._terminal import escaped_json
from wbengine.cli import base, params
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.views.events import Event
    from wbengine.views.flow import FlowView

__all__ = ["command"]


@base.command(
    "export",
    help="""Write down all that is known of a flow: as JSON, or as a page that needs no network.

    Values are left out unless --show-values says otherwise; secrets always are.

    \b
    wbengine flow export 3f2a9c --html -o order.html
    """,
)
@click.argument("flow", metavar="ID")
@click.option("--html", is_flag=True, help="A page with graph, timeline and failures.")
@click.option("-o", "--output", type=params.NEW_FILE, metavar="FILE",
    help="Write it into this file (default: the standard output).")  # fmt: skip
@click.option("--show-values", is_flag=True, help="With values.")
def command(
    context: contexts.Context, flow: str, html: bool, output: str | None, show_values: bool
) -> None:
    from wbengine import operations
    from wbengine.views import flow as flows
    from wbengine.views import masking, watching

    masker = masking.Masker(show_values=show_values)
    with context.backend() as backend, contextlib.closing(backend.get_connection()) as connection:
        uuid = operations.find(backend, flow).uuid
        view = flows.read(connection, uuid, masker=masker)
        events = watching.past(connection.get_flow_details(uuid), masker)
    if html:
        from wbengine import report

        text = report.html(view)
    else:
        text = _json(view, events)
    if output is None:
        context.printer.raw(text)
        return
    params.new_file(output, f"{text}\n".encode())
    context.printer.note(f"written: {output}")


def _json(view: FlowView, events: Iterable[Event]) -> str:
    from wbengine import drawing

    content = {
        **view.to_dict(),
        "schema": "wbengine/flow-export/1",
        "graph": json.loads(drawing.draw(view.outline, view, format="json")),
        "events": [event.to_dict() for event in events],
    }
    return escaped_json(json.dumps(content, ensure_ascii=False, indent=2))

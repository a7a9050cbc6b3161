"""`wbengine flow export` and `flow import`: a flow as a JSON document, or as a page for people."""

from __future__ import annotations

import contextlib
import json
from typing import BinaryIO

import click

from wbengine import exceptions
from wbengine._terminal import escaped_json
from wbengine.cli import base, completions, errors, params
from wbengine.cli import context as contexts

__all__ = ["command", "import_command"]


@base.command(
    "export",
    help="""Write down a flow: as JSON that `wbengine flow import` reads, or as a page that needs no
    network.

    The JSON is all that is kept, values and secrets too, and so goes into a file only. A page
    leaves values out unless --show-values says otherwise, and secrets always.

    \b
    wbengine flow export 3f2a9c -o order.json
    wbengine flow export 3f2a9c --html -o order.html
    """,
)
@click.argument("flow", metavar="ID", shell_complete=completions.flows)
@click.option("--html", is_flag=True, help="A page with graph, timeline and failures.")
@click.option("-o", "--output", "--out", type=params.NEW_FILE, metavar="FILE",
    help="Write it into this file (default, of a page: the standard output).")  # fmt: skip
@click.option("--show-values", is_flag=True, help="A page with values.")
def command(
    context: contexts.Context, flow: str, html: bool, output: str | None, show_values: bool
) -> None:
    from wbengine import operations

    if show_values and not html:
        raise errors.Failed("--show-values is for --html: JSON has all values", errors.USAGE)
    if output is None and not html:
        raise errors.Failed(
            "JSON has all values, secrets too: say into which file it goes (-o FILE)", errors.USAGE
        )
    with context.backend() as backend:
        uuid = operations.find(backend, flow).uuid
        if html:
            from wbengine import report
            from wbengine.views import flow as flows
            from wbengine.views import redaction

            redactor = redaction.Redactor(show_values=show_values)
            with contextlib.closing(backend.get_connection()) as connection:
                text = report.html(flows.read(connection, uuid, redactor=redactor))
        else:
            document = operations.export(backend, uuid)
            text = escaped_json(json.dumps(document, ensure_ascii=False, indent=2))
    if output is None:
        context.printer.raw(text)
        return
    params.new_file(output, f"{text}\n".encode(), private=not html)
    context.printer.note(f"written: {output}")


@base.command(
    "import",
    help="""Keep the flow that `wbengine flow export` wrote, in this store. One that is kept already
    is left as it is.

    \b
    wbengine flow import order.json --persistence postgresql://flows@db/flows
    """,
)
@click.argument("file", type=click.File("rb"))
def import_command(context: contexts.Context, file: BinaryIO) -> None:
    from wbengine import operations

    try:
        document = json.loads(file.read())
        with context.backend(upgrade=True, missing_ok=True) as backend:
            flow = operations.import_flow(backend, document)
    except (ValueError, RecursionError, exceptions.InvalidFormat) as error:
        raise errors.Failed(f"{file.name}: {errors.line_of(error)}", errors.USAGE) from error
    if context.printer.as_json:
        context.printer.document("flow-import/1", {"uuid": flow.uuid, "name": flow.name})
    else:
        context.printer.line(f"flow {flow.name!r} is kept as {flow.uuid}")

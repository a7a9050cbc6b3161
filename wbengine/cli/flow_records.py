"""`wbengine flow export`, `import` and `delete`: manage the records of flows."""

from __future__ import annotations

import json
from typing import BinaryIO

import click

from wbengine import exceptions, operations
from wbengine._terminal import escaped_json
from wbengine.cli import base, common_options, completions, confirmation, errors, params
from wbengine.cli import context as contexts

__all__ = ["delete", "export", "import_command"]


@base.command(
    "export",
    help="""Export a flow as JSON or as an HTML page.

    The JSON contains all records of the flow, including values and secrets, so it is written to a
    file only. `wbengine flow import` reads it. The page (--html) needs no network. It contains
    values only with --show-values, and never secrets.

    \b
    Examples:
      wbengine flow export 3f2a9c -o order.json
      wbengine flow export 3f2a9c --html -o order.html
    """,
)
@common_options.FLOW
@click.option("--html", is_flag=True, help="Write a page with graph, timeline and failures.")
@click.option("-o", "--output", type=params.NEW_FILE, metavar="FILE",
    help="File to write.", show_default="for a page, the standard output")  # fmt: skip
@click.option("--show-values", is_flag=True, help="Include values in the page.")
def export(
    context: contexts.Context, flow: str, html: bool, output: str | None, show_values: bool
) -> None:
    if show_values and not html:
        raise errors.Failed(
            "--show-values can be used only with --html: the JSON contains all values", errors.USAGE
        )
    if output is None and not html:
        raise errors.Failed(
            "--output is required for JSON, which contains all values and secrets", errors.USAGE
        )
    with context.flow(flow) as (connection, uuid):
        if html:
            from wbengine import report
            from wbengine.views import flow_status as flows
            from wbengine.views import redaction

            redactor = redaction.Redactor(show_values=show_values)
            text = report.html(flows.read(connection, uuid, redactor=redactor))
        else:
            document = operations.export(connection.backend, uuid)
            text = escaped_json(json.dumps(document, ensure_ascii=False, indent=2))
    context.printer.save(f"{text}\n".encode(), output, private=not html)


@base.command(
    "import",
    help="""Import an exported flow into the store.

    FILE is the JSON that `wbengine flow export` wrote. If the store already contains the flow, the
    command fails and changes nothing.

    \b
    Example:
      wbengine flow import order.json --persistence postgresql://flows@db/flows
    """,
)
@click.argument("file", type=click.File("rb"))
def import_command(context: contexts.Context, file: BinaryIO) -> None:
    wrong = (ValueError, RecursionError, exceptions.InvalidFormat)
    with errors.failing(errors.USAGE, *wrong, where=file.name):
        document = json.loads(file.read())
        with context.backend(upgrade=True, missing_ok=True) as backend:
            flow = operations.import_flow(backend, document)
    context.printer.document("flow-import/1", {"uuid": flow.uuid, "name": flow.name})
    context.printer.line(f"imported flow {flow.name!r} as {flow.uuid}")


@base.command(
    "delete",
    help="""Delete flows and their records.

    A flow that an engine runs is deleted only with --force; its run then fails.

    \b
    Example:
      wbengine flow delete 3f2a9c --yes
    """,
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=completions.flows)
@common_options.YES
@click.option("--force", is_flag=True, help="Also delete flows that an engine runs.")
@common_options.dry_run("the flows that would be deleted")
def delete(
    context: contexts.Context, ids: tuple[str, ...], yes: bool, force: bool, dry_run: bool
) -> None:
    printer = context.printer
    with context.backend() as backend:
        rows = [operations.find(backend, text) for text in ids]
        names = ", ".join(f"{row.name!r} ({row.uuid}, {row.state})" for row in rows)
        if not dry_run:
            confirmation.confirm(context, f"delete {names}", yes)
            for row in rows:
                operations.delete(backend, row.uuid, force=force, states=(row.state,))
    content = {"flows": [row.uuid for row in rows], "dry_run": dry_run}
    printer.document("flow-delete/1", content)
    printer.line(f"{'would delete' if dry_run else 'deleted'} {names}")

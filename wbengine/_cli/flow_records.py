"""`wbengine flow export`, `import` and `delete`: manage the records of flows."""

from __future__ import annotations

import json
from typing import BinaryIO, Final

import click

from wbengine import exceptions, operations
from wbengine._cli import (
    base,
    common_options,
    errors,
    flow_selection,
    params,
    stored_operation,
)
from wbengine._cli import context as contexts
from wbengine._text.terminal_text import escaped_json
from wbengine.operations import _document_references, _exporting, _operation
from wbengine.persistence import _listing

__all__ = ["delete", "export", "import_command"]

_DELETE: Final = _operation.load("flow delete")


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
    large_values = 0
    with context.flow(flow) as (connection, uuid):
        if html:
            from wbengine import report
            from wbengine.views import flow_status as flows
            from wbengine.views import redaction

            redactor = redaction.Redactor(show_values=show_values)
            text = report.html(flows.read(connection, uuid, redactor=redactor))
        else:
            document = operations.export(connection.backend, uuid)
            large_values = len(_document_references.references(document))
            text = escaped_json(json.dumps(document, ensure_ascii=False, indent=2))
    context.printer.save(f"{text}\n".encode(), output, private=show_values or not html)
    if large_values:
        context.printer.note(
            f"the file refers to large values ({large_values:,}) and does not contain them: copy"
            " the folder or bucket (--payloads), too"
        )


@base.command(
    "import",
    help="""Import an exported flow into the store.

    FILE is the JSON that `wbengine flow export` wrote. If the store already contains the flow, the
    command fails and changes nothing. FILE does not contain large values (--payloads): the command
    keeps those that are in the folder or bucket of the store, and names the missing ones.

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
            flow, large_values = _exporting.import_document(backend, document)
    missing = [each.address for each in large_values.missing]
    result = {"uuid": flow.uuid, "name": flow.name, "missing_values": missing}
    context.printer.document("flow-import/1", result)
    context.printer.line(f"imported flow {flow.name!r} as {flow.uuid}")
    if problem := large_values.describe_missing():
        context.printer.note(problem)


@base.command(
    "delete",
    help="""Delete flows and their records.

    A flow that an engine runs is deleted only with --force; its run then fails. So is a flow that
    the undo of a fork needs; without --force, the message names the flow to delete first. Filters
    select flows that have ended, unless --state is given.

    \b
    Examples:
      wbengine flow delete 3f2a9c --yes
      wbengine flow delete --name test --state REVERTED --dry-run
    """,
)
@flow_selection.flows_option
@click.option("--force", is_flag=True,
    help="Also delete flows that an engine runs, or that the undo of a fork needs.")  # fmt: skip
def delete(context: contexts.Context, selection: flow_selection.Selection, force: bool) -> int:
    with context.backend() as backend:
        rows = flow_selection.rows_of(backend, selection, _DELETE.states)

        def work(row: _listing.FlowRow) -> None:
            operations.delete(backend, row.uuid, force=force, states=(row.state,))

        stored = stored_operation.Stored(backend, {"any_state": True, "force": force})
        return flow_selection.perform(
            context, _DELETE, selection, rows, work, stored, "flow-delete/1"
        )

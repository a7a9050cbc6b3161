"""`wbengine flow export`, `import` and `delete`: flows are written down, kept and forgotten."""

from __future__ import annotations

import json
from typing import BinaryIO

import click

from wbengine import exceptions
from wbengine._terminal import escaped_json
from wbengine.cli import asking, base, completions, errors, options, params
from wbengine.cli import context as contexts

__all__ = ["delete", "export", "import_command"]


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
@options.FLOW
@click.option("--html", is_flag=True, help="A page with graph, timeline and failures.")
@click.option("-o", "--output", "--out", type=params.NEW_FILE, metavar="FILE",
    help="Write it into this file (default, of a page: the standard output).")  # fmt: skip
@click.option("--show-values", is_flag=True, help="A page with values.")
def export(
    context: contexts.Context, flow: str, html: bool, output: str | None, show_values: bool
) -> None:
    from wbengine import operations

    if show_values and not html:
        raise errors.Failed("--show-values is for --html: JSON has all values", errors.USAGE)
    if output is None and not html:
        raise errors.Failed(
            "JSON has all values, secrets too: say into which file it goes (-o FILE)", errors.USAGE
        )
    with context.flow(flow) as (connection, uuid):
        if html:
            from wbengine import report
            from wbengine.views import flow as flows
            from wbengine.views import redaction

            redactor = redaction.Redactor(show_values=show_values)
            text = report.html(flows.read(connection, uuid, redactor=redactor))
        else:
            document = operations.export(connection.backend, uuid)
            text = escaped_json(json.dumps(document, ensure_ascii=False, indent=2))
    context.printer.save(f"{text}\n".encode(), output, private=not html)


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

    wrong = (ValueError, RecursionError, exceptions.InvalidFormat)
    with errors.failing(errors.USAGE, *wrong, where=file.name):
        document = json.loads(file.read())
        with context.backend(upgrade=True, missing_ok=True) as backend:
            flow = operations.import_flow(backend, document)
    context.printer.document("flow-import/1", {"uuid": flow.uuid, "name": flow.name})
    context.printer.line(f"flow {flow.name!r} is kept as {flow.uuid}")


@base.command(
    "delete",
    help="""Forget flows, with all that is kept of them.

    One that somebody runs is left alone, unless forced: then its run fails.

    \b
    wbengine flow delete 3f2a9c --yes
    """,
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=completions.flows)
@options.YES
@click.option("--force", is_flag=True, help="Also those that somebody runs.")
@options.dry_run("which")
def delete(
    context: contexts.Context, ids: tuple[str, ...], yes: bool, force: bool, dry_run: bool
) -> None:
    from wbengine import operations

    printer = context.printer
    with context.backend() as backend:
        rows = [operations.find(backend, text) for text in ids]
        names = ", ".join(f"{row.name!r} ({row.uuid}, {row.state})" for row in rows)
        if not dry_run:
            asking.confirm(context, f"forget {names}", yes)
            for row in rows:
                operations.delete(backend, row.uuid, force=force)
    content = {"flows": [row.uuid for row in rows], "dry_run": dry_run}
    printer.document("flow-delete/1", content)
    printer.line(f"{'would forget' if dry_run else 'forgot'} {names}")

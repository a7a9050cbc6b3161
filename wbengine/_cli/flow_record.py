"""`wbengine flow record`: record the steps of a workflow for a test."""

from __future__ import annotations

import json

import click

from wbengine._cli import base, common_options, errors, params
from wbengine._cli import context as contexts
from wbengine._text.terminal_text import escaped_json
from wbengine.engines import _flow_records, _flow_replays, _loading

__all__ = ["command"]


@base.command(
    "record",
    help="""Record the steps of a workflow for a test.

    `wbengine.testing.replay` calls the function with the record, and compares its steps. Without
    --values, the record contains no values, only their types, and digests of the arguments of
    steps. With --values, it contains all of them, including secrets.

    \b
    Examples:
      wbengine flow record 3f2a9c > order.json
      wbengine flow record 3f2a9c --values -o order.json
    """,
)
@common_options.FLOW
@click.option("--values", is_flag=True, help="Record arguments and results.")
@click.option("--workflow", metavar="NAME",
    help="Workflow to record, if the flow has several.")  # fmt: skip
@click.option("-o", "--output", type=params.NEW_FILE, metavar="FILE",
    help="File to write.", show_default="the standard output")  # fmt: skip
def command(
    context: contexts.Context, flow: str, values: bool, workflow: str | None, output: str | None
) -> None:
    if values and output is None:
        raise errors.Failed(
            "--output is required with --values, because the record contains secrets", errors.USAGE
        )
    with (
        context.flow(flow) as (connection, uuid),
        errors.running_user_code(f"cannot load flow {uuid}"),
    ):
        detail = _loading.read_flow_detail(connection, uuid)
        payloads = connection.backend.payloads
        stored = _flow_replays.find(detail, workflow, payloads=payloads)
        content = _flow_records.record_of(stored, values=values)
    document = {"schema": _flow_records.SCHEMA, **content}
    text = escaped_json(json.dumps(document, ensure_ascii=False, indent=2))
    context.printer.save(f"{text}\n".encode(), output, private=values)

"""`wbengine flow signal`: what a task of a flow waits for."""

from __future__ import annotations

import json
from typing import Any

import click

from wbengine.cli import base, completions, errors
from wbengine.cli import context as contexts

__all__ = ["command"]


def _value(context: click.Context, option: click.Parameter, told: str | None) -> Any:
    if told is None:
        return None
    try:
        return json.loads(told)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"it is no JSON: {error}", context, option) from error


@base.command(
    "signal",
    help="""Give a flow a signal that a task of it waits for (task.WaitFor), now or later.

    Each signal once: the first one counts.  Its value is what the task provides.

    \b
    wbengine flow signal 3f2a9c approved --value '{"by": "ann", "limit": 500}'
    """,
)
@click.option("--value", metavar="JSON", callback=_value, help="Its value (null).")
@click.argument("flow", metavar="ID", shell_complete=completions.flows)
@click.argument("name", metavar="NAME")
def command(context: contexts.Context, flow: str, name: str, value: Any) -> None:
    from wbengine import exceptions, operations

    with context.backend() as backend:
        row = operations.find(backend, flow)
        try:
            operations.signal(backend, row.uuid, name, value)
        except (exceptions.NotEncodable, ValueError) as error:
            raise errors.Failed(errors.line_of(error), errors.USAGE) from error
    printer = context.printer
    if printer.as_json:
        printer.document("flow-signal/1", {"uuid": row.uuid, "signal": name})
    else:
        printer.line(f"{row.name} {row.uuid}: was given signal {name}")

"""`wbengine flow schema`: print the JSON schema of the inputs of a flow."""

from __future__ import annotations

import json

from wbengine._cli import base, common_options, errors, standard_streams
from wbengine._cli import context as contexts
from wbengine.engines import _input_schemas

__all__ = ["command"]


@base.command(
    "schema",
    help="""Print the JSON schema of the inputs of a flow.

    FACTORY is a flow, a workflow, or a function that builds a flow. The types are those of the
    annotations of its parameters, or of its tasks. Nothing is stored. If a function has parameters,
    the output contains their schema, as "arguments", and that of the "inputs", which is null if an
    argument is required.

    \b
    Example:
      wbengine flow schema shop:checkout
    """,
)
@common_options.FACTORY
def command(context: contexts.Context, factory: str) -> None:
    with standard_streams.aside(), errors.running_user_code(factory):
        schemas = _input_schemas.of_factory(factory)
    context.printer.document("flow-schema/1", {"factory": factory, **schemas._asdict()})
    if not context.printer.as_json:
        shown = schemas.inputs if schemas.arguments is None else schemas._asdict()
        context.printer.lines(json.dumps(shown, indent=2, ensure_ascii=False))

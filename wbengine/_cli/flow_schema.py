"""`wbengine flow schema`: print the JSON schema of the inputs of a flow."""

from __future__ import annotations

import json

from wbengine._cli import base, common_options, errors, standard_streams
from wbengine._cli import context as contexts
from wbengine.engines import _flow_factories, _input_types

__all__ = ["command"]


@base.command(
    "schema",
    help="""Print the JSON schema of the inputs of a flow.

    FACTORY is a flow, a workflow, or a function that builds a flow. The types are those of the
    annotations of its parameters, or of its tasks. Nothing is stored.

    \b
    Example:
      wbengine flow schema shop:checkout
    """,
)
@common_options.FACTORY
def command(context: contexts.Context, factory: str) -> None:
    with standard_streams.aside(), errors.running_user_code(factory):
        flow = _flow_factories.flow_of(factory)
        schema = _input_types.schema_of(flow)
    context.printer.document("flow-schema/1", {"factory": factory, "inputs": schema})
    if not context.printer.as_json:
        context.printer.lines(json.dumps(schema, indent=2, ensure_ascii=False))

"""`wbengine flow get`: print the values that workflows published."""

from __future__ import annotations

import json
from typing import Any

import click

from wbengine._cli import base, common_options, errors
from wbengine._cli import context as contexts
from wbengine._introspection import object_names
from wbengine._text.terminal_text import escaped_json
from wbengine.views import _json_values

__all__ = ["command"]


@base.command(
    "get",
    help="""Print the values that the workflows of a flow published.

    Workflows publish values with `steps.publish`. The flow may be running or not. With NAME, print
    only the value of this name, as JSON. Secrets are masked.

    \b
    Examples:
      wbengine flow get 3f2a9c
      wbengine flow get 3f2a9c progress
    """,
)
@common_options.FLOW
@click.argument("name", required=False)
def command(context: contexts.Context, flow: str, name: str | None) -> None:
    from wbengine.persistence import _published_values, _sealed_fields

    detail = context.flow_detail(flow)
    _sealed_fields.check_opened(detail)
    redactor = context.redactor.with_secrets_of_flow(detail)
    values = _json_values.to_json(_published_values.published_in(detail), redactor.text, repr)
    if name is not None and name not in values:
        raise errors.Failed(
            f"the flow has published no value {name!r}{object_names.hint(name, values)}",
            errors.NO_SUCH,
        )
    if name is not None:
        values = {name: values[name]}
    printer = context.printer
    printer.document("flow-get/1", {"uuid": detail.uuid, "values": values})
    if printer.as_json:
        return
    if name is not None:
        printer.line(_json(values[name]))
        return
    rows = [(key, _json(value)) for key, value in values.items()]
    printer.table(("NAME", "VALUE"), rows, empty="The flow has published no values.")


def _json(value: Any) -> str:
    return escaped_json(json.dumps(value, ensure_ascii=False))

"""`wbengine flow diff`: show where two runs part."""

from __future__ import annotations

import dataclasses
from collections import Counter

import click

from wbengine._cli import base, completions, errors
from wbengine._cli import context as contexts
from wbengine.persistence import _sealed_fields
from wbengine.views import _flow_differences, redaction

__all__ = ["command"]

_NOTHING = "nothing"


@base.command(
    "diff",
    help="""Show where two runs part.

    The command compares the inputs of two flows, their tasks, and the steps of their workflows: the
    call, the arguments, the signal, the failure, the state and the result. It prints the first
    difference, then a summary. Values are shown only with --show-values. The exit code is 1 if the
    runs differ.

    \b
    Examples:
      wbengine flow diff 3f2a9c 77b0e1
      wbengine flow diff 3f2a9c 77b0e1 --all --show-values
    """,
)
@click.argument("first", metavar="ID", shell_complete=completions.flows)
@click.argument("second", metavar="ID", shell_complete=completions.flows)
@click.option("--all", "has_all", is_flag=True, help="Print all differences.")
@click.option("--show-values", is_flag=True, help="Show values instead of their types.")
def command(
    context: contexts.Context, first: str, second: str, has_all: bool, show_values: bool
) -> int:
    details = context.flow_detail(first), context.flow_detail(second)
    for detail in details:
        _sealed_fields.check_opened(detail)
    redactor = redaction.Redactor(show_values=show_values)
    comparison = _flow_differences.compare(*details, redactor)
    differences = comparison.differences
    printer = context.printer
    content = {
        "first": details[0].uuid,
        "second": details[1].uuid,
        "equal": comparison.equal,
        "differences": [dataclasses.asdict(each) for each in differences],
    }
    printer.document("flow-diff/1", content)
    for difference in differences if has_all else differences[:1]:
        printer.line(f"{difference.where} differs: {difference.kind}")
        rows = [
            (f"  {flow.uuid}", _NOTHING if text is None else text)
            for flow, text in zip(details, (difference.first, difference.second), strict=True)
        ]
        printer.pairs(rows)
    kinds = Counter(each.kind for each in differences)
    parts = [f"{comparison.equal:,} equal", f"{len(differences):,} different"]
    if differences:
        parts[-1] += f" ({', '.join(f'{number} {kind}' for kind, number in kinds.items())})"
    printer.line(f"inputs, tasks and steps: {', '.join(parts)}")
    return errors.UNHEALTHY if differences else errors.OK

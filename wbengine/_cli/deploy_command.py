"""`wbengine deploy`: check whether the code of this checkout can continue the flows of a store."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from wbengine import states
from wbengine._cli import base, errors, flow_selection, output, params, store_access
from wbengine._cli import context as contexts
from wbengine.operations import _bulk_selection, _deploy_checks
from wbengine.operations._code_findings import Finding, Findings
from wbengine.views import _formatting, _shown_states

__all__ = ["command"]

command = base.Group("deploy", help="Check new code against the flows of a store.")

#: Displayed states of flows that the command checks without `--state`.
_UNFINISHED = (*_shown_states.UNFINISHED, states.SUSPENDED, states.CANCELLING)
_EFFECTS = {
    "continues": "would continue with another graph",
    "blocked": "would be blocked",
    "fails": "would fail",
    "abandons": "would not continue their steps",
    "refused": "could not continue",
    "unclear": "cannot be checked",
}


@command.command(
    "check",
    help="""Check whether the code of this checkout can continue the flows of a store.

    The command creates each unfinished flow with the code of this folder, compares its tasks with
    the records, and replays its workflows. It executes no task, writes nothing and acquires no
    lease. It exits with 1 if the code cannot continue a flow.

    \b
    Examples:
      wbengine deploy check --persistence postgresql://flows@db/flows
      wbengine deploy check --name checkout --json
    """,
)
@flow_selection.filters
@click.option("--timelimit", type=params.WAIT, default="10", metavar="DURATION",
    help="Maximum time of one flow, such as 10, 1m.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1, 64), metavar="N",
    help="Number of processes that check flows.", show_default="number of processors")  # fmt: skip
def check(
    context: contexts.Context,
    timelimit: float,
    processes: int | None,
    **filters: Any,
) -> int:
    settings, printer = context.settings, context.printer
    store_access.check_outlives(settings)
    code = _deploy_checks.Code(
        settings.store, tuple(settings.flows or ()), tuple(settings.include), timelimit
    )
    tags = tuple(map(str, filters.pop("tags")))
    conditions = _bulk_selection.Filter(filters.pop("state_names"), tags=tags, **filters)
    findings = Findings()
    with context.connection() as (_, connection), _progress(context, findings):
        count = processes or os.cpu_count() or 1
        for checked in _deploy_checks.check_flows(connection, conditions, _UNFINISHED, code, count):
            findings.add(checked)
    printer.document("deploy-check/1", findings.to_dict())
    for finding in findings.sorted():
        _print(printer, finding)
    printer.line(_summary(findings))
    return errors.UNHEALTHY if findings.problems else errors.OK


@contextlib.contextmanager
def _progress(context: contexts.Context, findings: Findings) -> Iterator[None]:
    """Show on a terminal how many flows are checked."""
    if not output.is_seen(sys.stderr) or context.settings.quiet:
        yield
        return
    with context.printer.stderr.status("") as status:
        findings.on_added = lambda: status.update(_summary(findings))
        yield
    findings.on_added = None


def _print(printer: output.Printer, finding: Finding) -> None:
    count = _formatting.count(finding.count, "flow")
    place = "" if finding.place is None else f" ({_relative(finding.place)})"
    effect = _EFFECTS[finding.result]
    name = finding.factory or repr(finding.name)
    printer.line(f"{count} of {name} {effect}: {finding.text}{place}")
    if finding.repair is not None:
        printer.line(f"    repair: {finding.repair}")
        printer.line(f"            {finding.hint}")
    more = ", ..." if finding.count > len(finding.examples) else ""
    printer.line(f"    flows: {', '.join(finding.examples)}{more}")


def _relative(place: str) -> str:
    """Return a place in a file below the current folder without this folder."""
    return place.removeprefix(f"{os.getcwd()}{os.sep}")


def _summary(findings: Findings) -> str:
    count = _formatting.count(findings.count, "flow")
    parts = [f"{findings.continuing:,} continue"]
    parts += [
        f"{number:,} {_EFFECTS[result]}" for result, number in findings.problem_counts().items()
    ]
    return f"checked {count}: {', '.join(parts)}"

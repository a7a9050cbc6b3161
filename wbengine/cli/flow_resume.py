"""`wbengine flow resume`, `retry` and `revert`: run a kept flow, one way or the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from wbengine.cli import base, completions, going_on, params
from wbengine.cli import context as contexts

__all__ = ["command", "retry", "revert"]


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        click.option("--report", type=params.NEW_FILE, metavar="FILE",
            help="Write a report of the run (HTML) into this file."),
        click.option("--progress/--no-progress", default=None,
            help="Show how far it is (default: on a terminal)."),
        click.option("--detach", is_flag=True, help="Let it run in a process of its own."),
        click.option("--dry-run", is_flag=True,
            help="Only list what would run, or be reverted."),
        click.option("--engine", metavar="KIND", shell_complete=completions.engines,
            help="Kind of engine, or a URI (default: as it was run before)."),
        click.argument("flow", metavar="ID", shell_complete=completions.flows),
    ):  # fmt: skip
        function = decorate(function)
    return function


_deadline = click.option("--deadline", type=params.WAIT, metavar="DURATION",
    help="Revert it if it takes longer.")  # fmt: skip


@base.command(
    "resume",
    help="""Go on with a flow that was suspended, or whose process died.

    Prints and exits as `wbengine flow run`.  What made the flow must be found here.

    \b
    wbengine flow resume 3f2a9c
    wbengine flow resume 3f2a9c --dry-run --json
    """,
)
@_options
@_deadline
@click.option("--yes", is_flag=True, hidden=True)
def command(
    context: contexts.Context, flow: str, deadline: float | None, yes: bool, **options: Any
) -> int:
    return going_on.perform(context, "resume", flow, deadline=deadline, **options)


@base.command(
    "retry",
    help="""Run again what failed.

    Of a flow that was kept in FAILURE, or suspended: what failed, and what comes after it.  Of one
    that was reverted: all of it.  Prints and exits as `wbengine flow run`.

    \b
    wbengine flow retry 3f2a9c
    """,
)
@_options
@_deadline
@click.option("--yes", is_flag=True, hidden=True)
def retry(
    context: contexts.Context, flow: str, deadline: float | None, yes: bool, **options: Any
) -> int:
    return going_on.perform(context, "retry", flow, deadline=deadline, **options)


@base.command(
    "revert",
    help="""Undo what a flow did.

    Whoever runs it is told to; a flow that nobody runs is reverted here.  One that has succeeded
    cannot be reverted.  Exits with 0 once the flow is in REVERTED, else with 1.

    \b
    wbengine flow revert 3f2a9c --yes --reason 'the customer does not wait any longer'
    """,
)
@_options
@click.option("--reason", metavar="TEXT", help="Why; it is kept with the flow.")
@click.option("--wait", type=params.WAIT, metavar="DURATION", default=60.0,
    help="How long to wait for whoever runs it (1 minute); then exit with 75.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask.")
def revert(
    context: contexts.Context,
    flow: str,
    reason: str | None,
    wait: float,
    yes: bool,
    **options: Any,
) -> int:
    return going_on.revert(context, flow, reason=reason, wait=wait, yes=yes, **options)

"""`wbengine flow resume`, `retry` and `revert`: run a kept flow, one way or the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from wbengine import _streams, states
from wbengine.cli import asking, base, completions, detaching, errors, params, running
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.engines.base import Engine
    from wbengine.persistence import base as persistence

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
    return _perform(context, "resume", flow, deadline=deadline, **options)


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
    return _perform(context, "retry", flow, deadline=deadline, **options)


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
    return _revert(context, flow, reason=reason, wait=wait, yes=yes, **options)


def _perform(
    context: contexts.Context,
    operation: str,
    flow: str,
    *,
    engine: str | None,
    dry_run: bool,
    detach: bool,
    progress: bool | None,
    report: str | None,
    deadline: float | None = None,
    reason: str | None = None,
) -> int:
    """Resume, retry or revert a flow that nobody runs; returns the exit code."""
    from wbengine import operations

    with context.backend(upgrade=True, patient=True) as backend:
        row = operations.find(backend, flow)
        if dry_run:
            return _tell_plan(context, backend, row.uuid, operation)
        if detach:
            return detaching.start(
                context,
                operation,
                row.uuid,
                engine,
                deadline=deadline,
                report=report,
                reason=reason,
            )
        more = {"reason": reason} if operation == "revert" else {}
        made = _engine(context, backend, operation, row.uuid, engine, **more)
        run = running.Running(
            context,
            backend,
            made,
            schema=f"flow-{operation}/1",
            progress=progress,
            report=report,
            deadline=deadline,
            wanted=states.REVERTED if operation == "revert" else states.SUCCESS,
        )
        code = run.perform()
        context.printer.note(f"{row.name} {row.uuid}: {row.state} → {run.state}")
        return code


def _revert(
    context: contexts.Context,
    flow: str,
    *,
    reason: str | None,
    wait: float,
    yes: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Have whoever runs a flow revert it, or do so here; returns the exit code."""
    from wbengine import operations

    with context.backend() as backend:
        row = operations.find(backend, flow)
        runs = operations.is_run(backend, row.uuid)
        if not dry_run:
            asking.confirm(context, f"revert {row.name!r} ({row.uuid}, {row.state})", yes)
        here = dry_run or not runs
        if not here:
            told = operations.cancel(backend, row.uuid, reason=reason, by=asking.who(), wait=wait)
    if here:
        return _perform(context, "revert", row.uuid, dry_run=dry_run, reason=reason, **options)
    printer = context.printer
    if printer.as_json:
        printer.document("flow-revert/1", {"uuid": row.uuid, "state": told.new})
    else:
        printer.line(f"{row.name} {row.uuid}: {told.old} → {told.new}")
    if told.new == states.REVERTED:
        return errors.OK
    again = "" if told.new == states.SUCCESS else f"; once more: wbengine flow revert {row.uuid}"
    printer.note(f"whoever ran it ended before it was reverted: it is in {told.new}{again}")
    return errors.UNHEALTHY


def _engine(
    context: contexts.Context,
    backend: persistence.Backend,
    operation: str,
    uuid: str,
    engine: str | None,
    **more: Any,
) -> Engine:
    from wbengine import operations
    from wbengine.operations import resuming

    make = {"resume": operations.resume, "retry": operations.retry, "revert": operations.revert}
    kind = engine or resuming.kind(backend, uuid)
    try:
        options = running.engine_options(context, kind)
        with _streams.aside():
            return make[operation](backend, uuid, engine=kind, **options, **more)
    except (ImportError, ValueError) as error:
        raise errors.Failed(
            f"what made the flow cannot be found here: {errors.line_of(error)}", errors.UNHEALTHY
        ) from error


def _tell_plan(
    context: contexts.Context, backend: persistence.Backend, uuid: str, operation: str
) -> int:
    from wbengine import operations

    found = operations.plan(backend, uuid, operation)
    printer = context.printer
    if printer.as_json:
        content = {"uuid": uuid, "dry_run": True, "run": found.run, "revert": found.revert}
        printer.document(f"flow-{operation}/1", content)
    else:
        rows = [("run", name) for name in found.run]
        rows += [("revert", name) for name in found.revert]
        printer.table(("WOULD", "TASK"), rows, empty="Nothing would be done.")
    return errors.OK

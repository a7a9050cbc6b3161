"""`wbengine flow resume`, `retry` and `revert`: run a kept flow, one way or the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wbengine import _streams, states
from wbengine.cli import asking, base, completions, detaching, errors, options, params, running
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.engines.base import Engine
    from wbengine.persistence import base as persistence

__all__ = ["command", "retry", "revert"]


def _options(function: Any) -> Any:
    """What all of them take."""
    for option in (
        options.REPORT,
        options.PROGRESS,
        click.option("--detach", is_flag=True, help="Let it run in a process of its own."),
        options.dry_run("what would run, or be reverted"),
        click.option("--engine", metavar="KIND", shell_complete=completions.engines,
            help="Kind of engine, or a URI (default: as it was run before)."),
        options.FLOW,
    ):  # fmt: skip
        function = option(function)
    return function


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
@options.DEADLINE
@click.option("--yes", is_flag=True, hidden=True)
def command(context: contexts.Context, flow: str, yes: bool, **given: Any) -> int:
    return _perform(context, "resume", flow, **given)


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
@options.DEADLINE
@click.option("--yes", is_flag=True, hidden=True)
def retry(context: contexts.Context, flow: str, yes: bool, **given: Any) -> int:
    return _perform(context, "retry", flow, **given)


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
@options.REASON
@click.option("--wait", type=params.WAIT, metavar="DURATION", default=60.0,
    help="How long to wait for whoever runs it (1 minute); then exit with 75.")  # fmt: skip
@options.YES
def revert(
    context: contexts.Context,
    flow: str,
    reason: str | None,
    wait: float,
    yes: bool,
    dry_run: bool,
    **given: Any,
) -> int:
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
        return _perform(context, "revert", row.uuid, dry_run=dry_run, reason=reason, **given)
    printer = context.printer
    printer.document("flow-revert/1", {"uuid": row.uuid, "state": told.new})
    printer.line(f"{row.name} {row.uuid}: {told.old} → {told.new}")
    if told.new == states.REVERTED:
        return errors.OK
    again = "" if told.new == states.SUCCESS else f"; once more: wbengine flow revert {row.uuid}"
    printer.note(f"whoever ran it ended before it was reverted: it is in {told.new}{again}")
    return errors.UNHEALTHY


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
            context=context,
            backend=backend,
            engine=made,
            schema=f"flow-{operation}/1",
            progress=progress,
            report=report,
            deadline=deadline,
            wanted=states.REVERTED if operation == "revert" else states.SUCCESS,
        )
        code = run.perform()
        context.printer.note(f"{row.name} {row.uuid}: {row.state} → {run.state}")
        return code


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
    what = "what made the flow cannot be found here"
    with (
        errors.failing(errors.UNHEALTHY, ImportError, ValueError, where=what),
        _streams.aside(),
    ):
        known = running.engine_options(context, kind)
        return make[operation](backend, uuid, engine=kind, **known, **more)


def _tell_plan(
    context: contexts.Context, backend: persistence.Backend, uuid: str, operation: str
) -> int:
    from wbengine import operations

    found = operations.plan(backend, uuid, operation)
    content = {"uuid": uuid, "dry_run": True, "run": found.run, "revert": found.revert}
    context.printer.document(f"flow-{operation}/1", content)
    rows = [(what, name) for what in ("run", "revert") for name in getattr(found, what)]
    context.printer.table(("WOULD", "TASK"), rows, empty="Nothing would be done.")
    return errors.OK

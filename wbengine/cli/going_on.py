"""Going on with a kept flow: resume, retry, revert, here or in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wbengine import _streams, states
from wbengine.cli import asking, detaching, errors, running

if TYPE_CHECKING:
    from wbengine.cli.context import Context
    from wbengine.engines.base import Engine
    from wbengine.persistence import base as persistence

__all__ = ["perform", "revert"]


def perform(
    context: Context,
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


def revert(
    context: Context,
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
        return perform(context, "revert", row.uuid, dry_run=dry_run, reason=reason, **options)
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
    context: Context,
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


def _tell_plan(context: Context, backend: persistence.Backend, uuid: str, operation: str) -> int:
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

"""`wbengine flow resume`, `retry` and `revert`: run a stored flow."""

from __future__ import annotations

import contextlib
import shlex
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import _streams, operations, states
from wbengine.cli import (
    base,
    common_options,
    completions,
    confirmation,
    detaching,
    engine_run,
    errors,
    flow_request,
    params,
)
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.engines.base import Engine
    from wbengine.persistence import base as persistence

__all__ = ["command", "retry", "revert"]

#: Default maximum wait for the end of a run that `revert` cancels.
_RUN_END_SECONDS: Final = 60.0


def _options(function: Any) -> Any:
    for option in (
        common_options.REPORT,
        common_options.PROGRESS,
        click.option("--detach", is_flag=True, help="Run the flow in a separate process."),
        click.option("--watch", is_flag=True, help="Submitted flow: watch it until its run ends."),
        common_options.dry_run("the tasks that would run or be reverted"),
        click.option("--engine", type=params.ENGINE, metavar="KIND",
            shell_complete=completions.engines,
            help="Kind of engine, or a URI.", show_default="that of the previous run"),
        common_options.FLOW,
    ):  # fmt: skip
        function = option(function)
    return function


_WAIT = click.option("--wait", type=params.WAIT, metavar="DURATION",
    help="Submitted flow: maximum wait for its end; then exit with 75.")  # fmt: skip


@base.command(
    "resume",
    help="""Resume a flow that was suspended or lost its engine.

    If the flow was submitted, the command requests that a conductor (`wbengine serve`) resumes it.
    With --wait, the exit codes are those of `wbengine flow run`.

    Otherwise the command runs the flow. The output and the exit codes are those of `wbengine flow
    run`. The function that built the flow must be importable.

    \b
    Examples:
      wbengine flow resume 3f2a9c
      wbengine flow resume 3f2a9c --dry-run --json
    """,
)
@_options
@_WAIT
@common_options.DEADLINE
def command(context: contexts.Context, flow: str, **options: Any) -> int:
    return _perform(context, "resume", flow, **options)


@base.command(
    "retry",
    help="""Run the failed tasks of a flow again.

    In a flow in FAILURE or SUSPENDED, the failed tasks and the tasks after them run. In a flow in
    REVERTED, all tasks run.

    If the flow was submitted, the command requests that a conductor (`wbengine serve`) retries it.
    With --wait, the exit codes are those of `wbengine flow run`. Otherwise the command runs the
    flow, with the output and the exit codes of `wbengine flow run`.

    \b
    Examples:
      wbengine flow retry 3f2a9c
      wbengine flow retry 3f2a9c --wait 5m --reason 'release 43 repairs it'
    """,
)
@_options
@_WAIT
@common_options.REASON
@common_options.DEADLINE
def retry(context: contexts.Context, flow: str, **options: Any) -> int:
    return _perform(context, "retry", flow, **options)


@base.command(
    "revert",
    help="""Revert the completed tasks of a flow.

    If an engine runs the flow, the command cancels that run and waits for its end. Otherwise a
    conductor (`wbengine serve`) reverts a submitted flow, and the command reverts another one. A
    flow in SUCCESS cannot be reverted. Exits with 0 if the flow is reverted or the request is
    stored, else with 1.

    \b
    Example:
      wbengine flow revert 3f2a9c --yes --reason 'order withdrawn'
    """,
)
@_options
@common_options.REASON
@click.option("--wait", type=params.WAIT, metavar="DURATION",
    show_default="1m if an engine runs the flow",
    help="Maximum wait for the engine that runs or will run the flow; then exit with 75.",
)  # fmt: skip
@common_options.YES
def revert(
    context: contexts.Context,
    flow: str,
    reason: str | None,
    wait: float | None,
    yes: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    from wbengine.views import flow_list

    with context.backend() as backend:
        row = operations.find(backend, flow)
        before = flow_list.shown_state(row)
        runs = operations.is_running(backend, row.uuid)
        if not dry_run:
            confirmation.confirm(context, f"revert {row.name!r} ({row.uuid}, {row.state})", yes)
        run_here = dry_run or not runs
        if not run_here:
            change = operations.cancel(
                backend,
                row.uuid,
                reason=reason,
                by=confirmation.current_user(),
                wait=_RUN_END_SECONDS if wait is None else wait,
            )
            now = operations.find(backend, row.uuid)
    if run_here:
        return _perform(
            context, "revert", row.uuid, dry_run=dry_run, reason=reason, wait=wait, **options
        )
    printer = context.printer
    printer.document("flow-revert/1", {"uuid": row.uuid, "state": change.new})
    printer.line(f"{row.name} {row.uuid}: {before} → {flow_list.shown_state(now)}")
    if change.new == states.REVERTED:
        return errors.OK
    advice = "" if change.new == states.SUCCESS else f"; to repeat: wbengine flow revert {row.uuid}"
    printer.note(f"the run ended before the flow was reverted: state {change.new}{advice}")
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
    watch: bool,
    wait: float | None,
    deadline: float | None = None,
    reason: str | None = None,
) -> int:
    """Resume, retry or revert a flow that no engine runs. Return the exit code."""
    from wbengine.views import flow_list

    with context.backend(upgrade=True, patient=True) as backend:
        row = operations.find(backend, flow)
        if dry_run:
            return _print_plan(context, backend, row.uuid, operation)
        if _is_submitted(backend, row.uuid):
            return flow_request.perform(
                context,
                backend,
                row,
                operation,
                reason=reason,
                watch=watch,
                wait=wait,
                unavailable={
                    "detach": detach, "engine": engine, "report": report, "deadline": deadline,
                    "progress": progress,
                },
            )  # fmt: skip
        has_request_options = wait is not None or reason is not None
        if watch or (has_request_options and operation != "revert"):
            raise errors.Failed(
                f"--watch, --wait and --reason are for submitted flows: this command runs flow"
                f" {row.uuid}",
                errors.USAGE,
            )
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
        arguments = {"reason": reason} if operation == "revert" else {}
        loaded_engine = _engine(context, backend, operation, row.uuid, engine, **arguments)
        previous = getattr(loaded_engine, "previous_broker", None)
        if previous is not None and engine is None:
            password = " (replace ** by the password)" if ":**@" in previous else ""
            context.printer.note(
                f"the previous run used another broker; to use it{password}: wbengine --broker"
                f" {shlex.quote(previous)} flow {operation} {row.uuid}"
            )
        run = engine_run.Running(
            context=context,
            backend=backend,
            engine=loaded_engine,
            schema=f"flow-{operation}/1",
            progress=progress,
            report=report,
            deadline=deadline,
            expected_state=states.REVERTED if operation == "revert" else states.SUCCESS,
        )
        code = run.perform()
        before, after = flow_list.shown_state(row), run.shown_state
        context.printer.note(f"{row.name} {row.uuid}: {before} → {after}")
        return code


def _is_submitted(backend: persistence.Backend, uuid: str) -> bool:
    with contextlib.closing(backend.get_connection()) as connection:
        return connection.get_flow_details(uuid, lazy=True).is_submitted


def _engine(
    context: contexts.Context,
    backend: persistence.Backend,
    operation: str,
    uuid: str,
    engine: str | None,
    **arguments: Any,
) -> Engine:
    from wbengine.operations import resuming

    make = {"resume": operations.resume, "retry": operations.retry, "revert": operations.revert}
    kind = engine or resuming.kind(backend, uuid)
    action = "cannot rebuild the flow"
    with (
        errors.failing(errors.UNHEALTHY, ImportError, ValueError, where=action),
        _streams.aside(),
    ):
        options = engine_run.engine_options(context, kind)
        return make[operation](backend, uuid, engine=kind, **options, **arguments)


def _print_plan(
    context: contexts.Context, backend: persistence.Backend, uuid: str, operation: str
) -> int:
    plan = operations.plan(backend, uuid, operation)
    content = {"uuid": uuid, "dry_run": True, "run": plan.run, "revert": plan.revert}
    context.printer.document(f"flow-{operation}/1", content)
    rows = [(action, name) for action in ("run", "revert") for name in getattr(plan, action)]
    context.printer.table(("WOULD", "TASK"), rows, empty="No task would run or be reverted.")
    return errors.OK

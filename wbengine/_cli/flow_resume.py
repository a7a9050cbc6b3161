"""`wbengine flow resume`, `retry` and `revert`: run a stored flow."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import exceptions, operations, states
from wbengine._cli import (
    base,
    common_options,
    completions,
    confirmation,
    detaching,
    edit_options,
    engine_options,
    engine_run,
    errors,
    flow_request,
    flow_selection,
    params,
    standard_streams,
    stored_operation,
)
from wbengine._cli import context as contexts
from wbengine.operations import _operation
from wbengine.views import _flow_list, _formatting

if TYPE_CHECKING:
    from wbengine.engines.base import Engine
    from wbengine.persistence import base as persistence
    from wbengine.persistence._edits import Edits
    from wbengine.persistence._listing import FlowRow

__all__ = ["command", "retry", "revert"]

#: Default maximum wait for the end of a run that `revert` cancels.
_RUN_END_SECONDS: Final = 60.0

_RESUME: Final = _operation.load("flow resume")
_RETRY: Final = _operation.load("flow retry")
_REVERT: Final = _operation.load("flow revert")


#: What `--dry-run` prints for groups of a plan, if that is not the name of the group.
_WOULD: Final = {
    "none": "no revert",
    "irreversible": "irreversible",
    "missing": "revert is missing in the code",
    "deleted": "child flow was deleted",
}


def _no_edits(uuid: str) -> Edits | None:
    return None


def _options(function: Any) -> Any:
    for option in (
        common_options.REPORT,
        common_options.PROGRESS,
        click.option("--detach", is_flag=True, help="Run the flow in a separate process."),
        click.option("--here", is_flag=True,
            help="Submitted flow: run it in this process, with the kind of engine and the broker of"
            " its previous run, instead of requesting it from the conductors."),
        click.option("--watch", is_flag=True, help="Submitted flow: watch it until its run ends."),
        click.option("--engine", type=params.ENGINE, metavar="KIND",
            shell_complete=completions.engines,
            help="Kind of engine, or a URI.", show_default="that of the previous run"),
        flow_selection.flows_option,
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
    run`. The function that built the flow must be importable. Several flows run one after another.

    Filters select flows that are SUSPENDED, BLOCKED or INTERRUPTED. With one ID, --dry-run prints
    the tasks that would run or be reverted.

    \b
    Examples:
      wbengine flow resume 3f2a9c
      wbengine flow resume 3f2a9c --dry-run --json
      wbengine flow resume --state INTERRUPTED --since 2h
    """,
)
@_options
@_WAIT
@common_options.DEADLINE
def command(context: contexts.Context, selection: flow_selection.Selection, **options: Any) -> int:
    return _perform_all(context, _RESUME, selection, **options)


@base.command(
    "retry",
    help="""Run the failed tasks of a flow again.

    In a flow in FAILURE or SUSPENDED, the failed tasks and the tasks after them run. A workflow
    that failed calls all of its steps again; with complete steps that have a `revert`, it is
    refused: see `flow fork --from failed`. In a flow in REVERTED, all tasks run.

    If the flow was submitted, the command requests that a conductor (`wbengine serve`) retries it.
    With --wait, the exit codes are those of `wbengine flow run`. Otherwise the command runs the
    flow, with the output and the exit codes of `wbengine flow run`; several flows run one after
    another.

    Filters select flows in FAILURE or REVERTED that were not cancelled or forked. With one ID,
    --dry-run prints the tasks that would run.

    An input or result is not replaced if a complete task or a recorded step of a workflow has used
    it.

    \b
    Examples:
      wbengine flow retry 3f2a9c
      wbengine flow retry 3f2a9c --wait 5m --reason 'release 43 repairs it'
      wbengine flow retry --error 'card declined' --since 2d --dry-run
      wbengine flow retry 3f2a9c --set 'address="3 Mill Lane"' --reason 'typo'
    """,
)
@edit_options.edit_options
@_options
@_WAIT
@common_options.REASON
@common_options.DEADLINE
def retry(
    context: contexts.Context,
    selection: flow_selection.Selection,
    inputs: dict[str, Any],
    results: dict[str, Any],
    edits_file: str | None,
    **options: Any,
) -> int:
    edits: Callable[[str], Edits | None]
    if edits_file is not None:
        if inputs or results:
            raise errors.Failed(
                "--edits contains the values: omit --set and --set-result", errors.USAGE
            )
        by_uuid = _edits_by_uuid(context, edits_file, selection)
        edits = by_uuid.get
        if not selection.is_given:
            selection = selection._replace(ids=tuple(by_uuid))
    else:
        same_edits = edit_options.edits_of(inputs, results)

        def edits(uuid: str) -> Edits | None:
            return same_edits

    return _perform_all(context, _RETRY, selection, edits=edits, **options)


def _edits_by_uuid(
    context: contexts.Context, path: str, selection: flow_selection.Selection
) -> dict[str, Edits]:
    """Return the edits of a file by the uuid of their flow.

    :raises Failed: if the file is invalid or empty, edits a flow twice, or edits a flow that is
        unknown or not selected.
    """
    by_uuid: dict[str, Edits] = {}
    selected = None
    with context.backend() as backend:
        if selection.is_given:
            rows = flow_selection.rows_of(backend, selection, _RETRY.states, many=_RETRY.many)
            selected = {row.uuid for row in rows}
        for entry in edit_options.read_edits(path):
            where = f"{path}, line {entry.line}"
            unknown = (exceptions.NotFound, exceptions.MultipleChoices)
            with errors.failing(errors.USAGE, *unknown, where=where):
                uuid = operations.find(backend, entry.flow).uuid
            fault = None
            if uuid in by_uuid:
                fault = "has an earlier line"
            elif selected is not None and uuid not in selected:
                fault = "is not selected by the IDs or filters"
            if fault:
                raise errors.Failed(f"{where}: flow {uuid} {fault}", errors.USAGE)
            by_uuid[uuid] = entry.edits
    if not by_uuid:
        raise errors.Failed(f"{path} contains no edits", errors.USAGE)
    return by_uuid


@base.command(
    "revert",
    help="""Revert the completed tasks of a flow.

    If an engine runs the flow, the command cancels that run and waits for its end. Otherwise a
    conductor (`wbengine serve`) reverts a submitted flow, and the command reverts another one. Also
    a flow in SUCCESS is reverted, unless a complete task of it is irreversible. Exits with 0 if the
    flow is reverted or the request is stored, else with 1. Of several flows, those that the command
    cannot revert are refused.

    Filters select flows that have not ended, and flows in FAILURE. With one ID, --dry-run prints
    the tasks that would be reverted and, of a flow in SUCCESS, those that cannot be undone.

    \b
    Examples:
      wbengine flow revert 3f2a9c --yes --reason 'order withdrawn'
      wbengine flow revert --state FAILURE --tag shop=paris
    """,
)
@_options
@common_options.REASON
@click.option("--wait", type=params.WAIT, metavar="DURATION",
    show_default="1m if an engine runs the flow",
    help="Maximum wait for the engine that runs or will run the flow; then exit with 75.",
)  # fmt: skip
@click.option("--partial", is_flag=True,
    help="Revert a complete flow although some of its tasks are irreversible.")  # fmt: skip
def revert(
    context: contexts.Context,
    selection: flow_selection.Selection,
    reason: str | None,
    wait: float | None,
    partial: bool,
    **options: Any,
) -> int:
    selection.check()
    options = {**options, "partial": partial}
    if not selection.is_single:
        return _perform_all(context, _REVERT, selection, reason=reason, wait=wait, **options)
    dry_run = selection.dry_run
    with context.backend() as backend:
        row = operations.find(backend, selection.ids[0])
        before = _flow_list.shown_state(row)
        runs = operations.is_running(backend, row.uuid)
        if not dry_run:
            action = f"revert {flow_selection.described([row])}"
            confirmation.confirm(context, action, selection.yes)
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
    printer.line(f"{row.name} {row.uuid}: {before} → {_flow_list.shown_state(now)}")
    if change.new == states.REVERTED:
        return errors.OK
    printer.note(
        f"the run ended before the flow was reverted: state {change.new};"
        f" to repeat: wbengine flow revert {row.uuid}"
    )
    return errors.UNHEALTHY


def _perform_all(
    context: contexts.Context,
    operation: _operation.Operation,
    selection: flow_selection.Selection,
    *,
    edits: Callable[[str], Edits | None] = _no_edits,
    reason: str | None = None,
    engine: str | None = None,
    here: bool = False,
    partial: bool = False,
    **options: Any,
) -> int:
    """Perform an operation on one or several flows. Return the exit code."""
    selection.check()
    if selection.is_single:
        return _perform(context, operation.verb, selection.ids[0], dry_run=selection.dry_run,
            reason=reason, edits=edits, engine=engine, here=here, partial=partial,
            **options)  # fmt: skip
    single_only = ("detach", "report", "deadline", "progress", "watch", "wait")
    for name in single_only:
        if options.get(name):
            raise flow_selection.one_flow_required(name)
    with context.backend(upgrade=True, patient=True) as backend:
        rows = flow_selection.rows_of(backend, selection, operation.states, many=operation.many)

        def work(row: FlowRow) -> None:
            arguments = _arguments(operation.verb, reason, edits(row.uuid), partial)
            with (
                _loaded(
                    context, backend, operation.verb, row, engine, row.submitted, **arguments
                ) as loaded_engine,
                standard_streams.aside(),
            ):
                try:
                    loaded_engine.run()
                except exceptions.StorageFailure:
                    raise
                except Exception as error:
                    if operation.verb != "revert" or not _is_reverted(loaded_engine):
                        reason_of_flow = loaded_engine.storage.flow_detail.error
                        raise errors.Failed(reason_of_flow or errors.line_of(error)) from error

        is_requested = not here and any(row.submitted for row in rows)
        if is_requested:
            assert operation.many is not None
            many = dataclasses.replace(operation.many, done=f"requested to {operation.verb}")
            operation = dataclasses.replace(operation, many=many)
        if selection.dry_run:
            rows = _editable(context, backend, rows, edits)
            if operation.verb == "revert":
                _note_refused_undo(context, backend, rows, partial)

        def edits_of(uuid: str) -> dict[str, Any] | None:
            given = edits(uuid)
            return {"inputs": given.inputs, "results": given.results} if given else None

        stored = stored_operation.Stored(
            backend,
            {"partial": True} if partial else {},
            reason,
            lambda row: row.submitted and not here,
            edits_of,
        )
        code = flow_selection.perform(context, operation, selection, rows, work, stored)
        if is_requested and not selection.dry_run:
            context.printer.note(flow_request.carried_out(backend))
        return code


def _editable(
    context: contexts.Context,
    backend: persistence.Backend,
    rows: Sequence[FlowRow],
    edits: Callable[[str], Edits | None],
) -> list[FlowRow]:
    """Return the rows whose edits are accepted, and print the number of the others."""
    accepted, reasons = [], []
    for row in rows:
        edits_of_flow = edits(row.uuid)
        try:
            if edits_of_flow:
                _check_edits(backend, row.uuid, edits_of_flow)
        except (exceptions.InvalidState, exceptions.NotFound) as error:
            reasons.append(errors.line_of(error))
        else:
            accepted.append(row)
    if reasons:
        context.printer.note(f"would refuse {len(reasons):,} flows: {reasons[0]}")
    return accepted


def _note_refused_undo(
    context: contexts.Context,
    backend: persistence.Backend,
    rows: Sequence[FlowRow],
    is_partial: bool,
) -> None:
    """Print the number of complete flows that cannot be undone, and the reason of the first."""
    refusals = []
    for row in rows:
        if row.state == states.SUCCESS:
            try:
                with standard_streams.aside():
                    refusal = operations.plan_undo(backend, row.uuid).refusal(is_partial)
            except Exception as error:  # The code of the user rebuilds the flow.
                refusal = errors.line_of(error)
            if refusal is not None:
                refusals.append(f"{row.uuid}: {refusal}")
    if refusals:
        context.printer.note(f"would refuse {len(refusals):,} complete flows: {refusals[0]}")


def _check_edits(backend: persistence.Backend, uuid: str, edits: Edits) -> None:
    from wbengine.operations import _requesting

    with contextlib.closing(backend.get_connection()) as connection:
        _requesting.check_edits(connection, uuid, edits)


def _is_reverted(engine: Engine) -> bool:
    return engine.storage.get_flow_state() == states.REVERTED


def _arguments(
    operation: str, reason: str | None, edits: Edits | None, partial: bool
) -> dict[str, Any]:
    """Return the arguments of an operation about its reason and edits."""
    if operation == "revert":
        return {"reason": reason, "partial": partial}
    if operation == "retry" and (edits or reason):
        because = f": {reason}" if reason else ""
        return {"reason": f"retried by {confirmation.current_user()}{because}", "edits": edits}
    return {}


def _perform(
    context: contexts.Context,
    operation: str,
    flow: str,
    *,
    engine: str | None,
    dry_run: bool,
    detach: bool,
    here: bool,
    progress: bool | None,
    report: str | None,
    watch: bool,
    wait: float | None,
    deadline: float | None = None,
    reason: str | None = None,
    edits: Callable[[str], Edits | None] = _no_edits,
    partial: bool = False,
) -> int:
    """Resume, retry or revert a flow that no engine runs. Return the exit code."""
    with context.backend(upgrade=True, patient=True) as backend:
        row = operations.find(backend, flow)
        edits_of_flow = edits(row.uuid)
        if dry_run:
            if edits_of_flow:
                _check_edits(backend, row.uuid, edits_of_flow)
            return _print_plan(context, backend, row.uuid, operation, partial)
        is_submitted = row.submitted
        if is_submitted and not here:
            return flow_request.perform(
                context,
                backend,
                row,
                operation,
                reason=reason,
                edits=edits_of_flow,
                partial=partial,
                watch=watch,
                wait=wait,
                unavailable={
                    "detach": detach, "engine": engine, "report": report, "deadline": deadline,
                    "progress": progress,
                },
            )  # fmt: skip
        if watch or (wait is not None and (here or operation != "revert")):
            raise errors.Failed(
                "--watch and --wait are for requests to conductors: this command runs flow"
                f" {row.uuid}",
                errors.USAGE,
            )
        if detach and partial:
            raise errors.Failed("--detach cannot be used with --partial", errors.USAGE)
        if detach and (edits_of_flow or here):
            raise errors.Failed(
                "--detach cannot be used with --here, --set or --set-result",
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
        arguments = _arguments(operation, reason, edits_of_flow, partial)
        with _loaded(
            context, backend, operation, row, engine, is_submitted, **arguments
        ) as loaded_engine:
            run = engine_run.Running(
                context=context,
                backend=backend,
                engine=loaded_engine,
                schema=f"flow-{operation}/1",
                progress=progress,
                report=report,
                deadline=deadline,
                expected_state=states.REVERTED if operation == "revert" else states.SUCCESS,
                is_submitted=is_submitted,
            )
            code = run.perform()
        before, after = _flow_list.shown_state(row), run.shown_state
        context.printer.note(f"{row.name} {row.uuid}: {before} → {after}")
        return code


@contextlib.contextmanager
def _loaded(
    context: contexts.Context,
    backend: persistence.Backend,
    operation: str,
    row: FlowRow,
    engine: str | None,
    is_submitted: bool,
    **arguments: Any,
) -> Iterator[Engine]:
    """Load the engine of an operation, and hold the job of a submitted flow in the block."""
    from wbengine.operations import _resuming

    make: dict[str, Callable[..., Engine]] = {
        "resume": operations.resume,
        "retry": operations.retry,
        "revert": operations.revert,
    }
    if is_submitted and engine is None and row.state == states.PENDING:
        raise errors.Failed(f"flow {row.uuid} has not run: --here requires --engine", errors.USAGE)
    kind = engine or _resuming.kind(backend, row.uuid)
    with contextlib.ExitStack() as holding:
        if is_submitted:
            from wbengine._cli import claimed_jobs  # not for other flows: it imports job boards

            holding.enter_context(claimed_jobs.claimed(context, backend, row))
        action = "cannot rebuild the flow"
        with (
            errors.failing(errors.UNHEALTHY, ImportError, ValueError, where=action),
            standard_streams.aside(),
        ):
            options = engine_options.from_settings(context, kind)
            loaded = make[operation](backend, row.uuid, engine=engine, **options, **arguments)
        loaded.suspends_on_difference = is_submitted
        yield loaded


def _print_plan(
    context: contexts.Context,
    backend: persistence.Backend,
    uuid: str,
    operation: str,
    is_partial: bool,
) -> int:
    more: dict[str, Any] = {}
    users: list[tuple[str, str]] = []
    plan: dict[str, tuple[str, ...]]
    if operation == "revert" and operations.find(backend, uuid).state == states.SUCCESS:
        with (
            errors.failing(
                errors.UNHEALTHY, ImportError, ValueError, where="cannot rebuild the flow"
            ),
            standard_streams.aside(),
        ):
            undo = operations.plan_undo(backend, uuid)
        plan = {
            "run": (),
            "revert": undo.revert,
            "none": undo.none,
            "irreversible": undo.irreversible,
            "missing": undo.missing,
            "deleted": undo.deleted,
        }
        more = {
            "undo_expired": _formatting.iso(undo.expired),
            "used_by": [user.to_dict() for user in undo.used_by],
        }
        users = [
            (f"used by {user.kind} in {user.state}", f"{user.name} {user.flow}")
            for user in undo.used_by
        ]
        refusal = undo.refusal(is_partial)
        if refusal is not None:
            context.printer.note(f"flow {uuid} would not be reverted: {refusal}")
    else:
        plan = operations.plan(backend, uuid, operation)._asdict()
    content = {"uuid": uuid, "dry_run": True, **plan, **more}
    context.printer.document(f"flow-{operation}/1", content)
    rows = [(_WOULD.get(key, key), name) for key, names in plan.items() for name in names]
    rows += users
    context.printer.table(("WOULD", "TASK"), rows, empty="No task would run or be reverted.")
    return errors.OK

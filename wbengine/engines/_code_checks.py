"""Check whether the code of this process can continue a stored flow, without executing anything."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wbengine import exceptions, signals, states
from wbengine._calls import invocation as calls
from wbengine._introspection import object_names
from wbengine._runtime import control, workflow_call
from wbengine._runtime.workflows import history, step_tasks
from wbengine._runtime.workflows.program import Program
from wbengine._tasks.commands import Command
from wbengine.engines import _allowed, _flow_errors, _flow_factories, _flow_replays, _loading
from wbengine.persistence import _commands, _history, _step_notes, models
from wbengine.persistence import base as persistence
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.engines import base

__all__ = [
    "ABANDONS", "BLOCKED", "CONTINUES", "FAILS", "REFUSED", "UNCLEAR", "LocatedHistory", "Verdict",
    "check", "check_stored",
]  # fmt: skip

#: An engine continues the flow.
CONTINUES: Final = "continues"
#: A conductor blocks the flow: the code does not repeat its steps, or cannot decode a value.
BLOCKED: Final = "blocked"
#: The function of a workflow raises an exception, so that the flow fails.
FAILS: Final = "fails"
#: The code has no engine for the flow, or cannot revert a step of it.
REFUSED: Final = "refused"
#: The code has no workflow of this name: its steps are neither continued nor reverted.
ABANDONS: Final = "abandons"
#: The check cannot tell.
UNCLEAR: Final = "unclear"

_REVERTING: Final = (_commands.CANCEL, _commands.REVERT)
_NOT_REVERTED: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTING})
_NOT_NAME: Final = re.compile(r"\W+")
_PACKAGE: Final = __name__.partition(".")[0]


class Verdict(NamedTuple):
    """What happens if an engine with the code of this process continues a flow.

    :ivar result: one of the constants of this module.
    :ivar text: the reason in one line; of a flow that continues, the changes of its graph.
    :ivar workflow: name of the workflow, for a step.
    :ivar step: position of the first step that differs.
    :ivar recorded: the recorded call.
    :ivar actual: how the code differs from it.
    :ivar place: file and line of the code.
    :ivar repair: line that makes the change depend on the version of the code.
    :ivar hint: which code to put below this line.
    :ivar factory: name of the factory of the flow, or None if its record cannot be read.
    """

    result: str
    text: str | None = None
    workflow: str | None = None
    step: int | None = None
    recorded: str | None = None
    actual: str | None = None
    place: str | None = None
    repair: str | None = None
    hint: str | None = None
    factory: str | None = None


class LocatedHistory(history.History):
    """A history that notes where the function differs from it.

    :ivar place: file and line of the first call that differs, or None.
    :ivar command: this call.
    """

    place: str | None = None
    command: Command | None = None

    def check(self, position: int, command: Command) -> None:
        try:
            super().check(position, command)
        except exceptions.NonDeterministicWorkflow:
            self.command, self.place = command, _place_of_caller()
            raise


def check_stored(
    connection: persistence.Connection,
    uuid: str,
    *,
    command: str | None = None,
    flows: _allowed.Flows = None,
) -> Verdict:
    """Return what happens to a flow of a store. This writes nothing and takes no lease.

    :param command: the command that no engine has carried out, or None.
    :param flows: allowed factories, see `flow_from_detail`.
    :raises NotFound: if the flow does not exist.
    :raises StorageFailure: if the store cannot be read.
    """
    try:
        detail = _loading.read_flow_detail(connection, uuid, flows)
        awaited = {name for wait in detail.waits_for for name in wait.signal.split(signals.OR)}
        if awaited:
            for signal in connection.signals([uuid]).get(uuid, ()):
                if signal.name in awaited:
                    signal.value  # noqa: B018  (it is decoded here)
    except exceptions.NotFound:
        raise
    except exceptions.StorageFailure as error:
        if not isinstance(error, exceptions.CorruptRecord):
            raise
        return _refused(error)
    except Exception as error:
        return _refused(error)
    verdict = check(detail, command=command, flows=flows, payloads=connection.backend.payloads)
    return verdict._replace(factory=_flow_factories.path_of(detail.meta.get(models.FACTORY)))


def check(
    detail: models.FlowDetail,
    *,
    command: str | None = None,
    flows: _allowed.Flows = None,
    payloads: Any = None,
) -> Verdict:
    """Return what happens to a flow with this record, which changes in memory only.

    :param payloads: where large values are.
    """
    try:
        engine = _flow_replays.prepared(detail, flows=flows, payloads=payloads)
        engine.check_inputs()
    except Exception as error:
        return _refused(error)
    except SystemExit as error:
        return Verdict(REFUSED, f"the code ends the process: {error!r}")
    is_reverting = command in _REVERTING or control.read_given_up(detail.meta) is not None
    for verdict in _workflow_verdicts(engine, is_reverting):
        if verdict.result != CONTINUES:
            return verdict
    difference = engine.difference
    if difference is None:
        return Verdict(CONTINUES)
    removed = map(difference.record, difference.removed)
    abandoned = any(
        record.state == states.RUNNING and record.meta_value(models.WORKFLOW) is not None
        for record in removed
    )
    return Verdict(ABANDONS if abandoned else CONTINUES, str(difference))


def _refused(error: Exception) -> Verdict:
    result = BLOCKED if _flow_errors.is_undecodable(error) else REFUSED
    return Verdict(result, f"{type(error).__name__}: {exceptions.exception_message(error)}")


def _workflow_verdicts(engine: base.Engine, is_reverting: bool) -> Iterator[Verdict]:
    """Yield a verdict for each workflow in progress."""
    for stored in _flow_replays.workflows(engine):
        record = stored.record
        try:
            steps = LocatedHistory(record.name, stored.recorded())
            if is_reverting or record.intention != states.EXECUTE:
                yield _reversion(stored.workflow, record, steps)
            elif _is_in_progress(record):
                yield _replayed(stored, steps, stored.replay(steps))
        except Exception as error:
            yield _refused(error)


def _is_in_progress(record: models.AtomDetail) -> bool:
    """Return whether a run continues an execution of the workflow."""
    return (
        record.state in (states.PENDING, states.RUNNING)
        and record.meta_value(models.WORKFLOW) is not None
        and record.action == calls.EXECUTE
        and workflow_call.latest_execution(record) == record.attempt
    )


def _replayed(
    stored: _flow_replays.StoredWorkflow, steps: LocatedHistory, program: Program
) -> Verdict:
    error, name = program.error, stored.record.name
    function = stored.workflow.fn
    if error is None and not program.is_over:
        try:
            steps.check_end(program.called_count)
        except exceptions.NonDeterministicWorkflow as later:
            text = (
                f"step {later.step} of workflow {name!r} is recorded as {later.recorded} and is not"
                " called while an earlier step has no result"
            )
            place = _definition(function)
            return Verdict(UNCLEAR, text, name, later.step, later.recorded, later.actual, place)
        return Verdict(CONTINUES)
    if isinstance(error, exceptions.NonDeterministicWorkflow):
        return Verdict(
            BLOCKED,
            _flow_errors.difference_of(error, None),
            name,
            error.step,
            error.recorded,
            error.actual,
            steps.place or _definition(function),
            *_repair(stored.record, error, steps, function),
        )
    if error is not None:
        return _refused(error)
    value = program.value
    if isinstance(value, ft.Failure) and not _is_of_step(value, steps):
        text = f"workflow {name!r} fails after step {program.called_count - 1}:"
        place = _definition(function)
        return Verdict(
            FAILS, f"{text} {_history.one_line(value)}", name, program.called_count, place=place
        )
    return Verdict(CONTINUES)


def _is_of_step(value: ft.Failure, steps: history.History) -> bool:
    """Return whether a step of the workflow raised the exception of a failure, or its cause."""
    failed = {
        _step_notes.identity_of(step.failure)
        for step, _ in steps.steps.values()
        if step.failure is not None
    }
    return not failed.isdisjoint(map(_step_notes.identity_of, (value, *value.causes)))


def _reversion(workflow: Any, record: models.AtomDetail, steps: history.History) -> Verdict:
    """Return whether the code contains the tasks of all steps that are to be reverted."""
    for position, (step, note) in sorted(steps.steps.items()):
        if note.arguments is None or step.state not in _NOT_REVERTED:
            continue
        if step_tasks.find(note.task, workflow.fn) is None:
            text = (
                f"step {position} of workflow {record.name!r} cannot be reverted: the module of the"
                f" workflow does not contain its task {note.task!r}"
            )
            place = _definition(workflow.fn)
            return Verdict(REFUSED, text, record.name, position, f"{note.task}({note.text})",
                place=place)  # fmt: skip
    return Verdict(CONTINUES)


def _repair(
    record: models.AtomDetail,
    error: exceptions.NonDeterministicWorkflow,
    steps: LocatedHistory,
    function: Callable[..., Any],
) -> tuple[str, str]:
    """Return the line that keeps the recorded call for flows that have begun, and a hint."""
    (step, note), command = steps.steps[error.step], steps.command
    recorded = note.short_name(step.name)
    is_new = False
    if command is None:
        hint = f"keep {recorded} below it"
    elif _is_missing(note.task, function):
        hint = f"restore the task {note.task}, and keep it below this line, the new call below else"
    elif any(
        (later.task, later.digest) == (command.path, command.digest)
        for _, later in steps.steps.values()
        if later.position > error.step
    ):
        hint = (
            f"keep {recorded} below it, before {command.name}. If the call moved: the old order"
            " below it, the new one below else"
        )
    elif command.path == note.task:
        hint = f"keep the recorded arguments of {recorded} below it, the new call below else"
    else:
        is_new = True
        hint = f"{command.name} below it. If it replaces {recorded}: keep {recorded} below else"
    name = _NOT_NAME.sub("-", command.name if is_new and command else recorded).strip("-")
    content: Mapping[str, Any] = record.meta_value(models.WORKFLOW) or {}
    newest = content.get(_step_notes.VERSIONS, {}).get(name, 1) + 1
    return f'if steps.version("{name}", {newest}) {">=" if is_new else "<"} {newest}:', hint


def _is_missing(path: str, function: Callable[..., Any]) -> bool:
    """Return whether a workflow has no task any more for a recorded step of its own code."""
    is_own = path.partition(":")[0].partition(".")[0] == _PACKAGE or ":" not in path
    return not is_own and step_tasks.find(path, function) is None


def _place_of_caller() -> str | None:
    """Return file and line of the code that called a method of `Steps`."""
    frame: Any = sys._getframe(1)
    while frame is not None and _is_own(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_own(module: str) -> bool:
    top = module.partition(".")[0]
    return top == _PACKAGE or top in sys.stdlib_module_names


def _definition(function: Any) -> str | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not isinstance(code, CodeType):
        return object_names.dotted(function)
    return f"{code.co_filename}:{code.co_firstlineno}"

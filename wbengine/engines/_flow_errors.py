"""Exceptions and summaries for flows that failed, were reverted or were cancelled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple, NoReturn

from wbengine import exceptions, states
from wbengine._runtime.control import GivenUp, read_given_up
from wbengine._runtime.plan import TASK, Plan
from wbengine._runtime.run import Run
from wbengine.persistence import _history, _step_notes
from wbengine.storage import Storage
from wbengine.types import failure as ft

__all__ = [
    "Reason", "difference_of", "in_short", "is_undecodable", "raise_failures", "raise_recorded",
]  # fmt: skip

#: States of atoms with effects that were not reverted.
_NOT_REVERTED: Final = (states.SUCCESS, states.FAILURE, states.REVERT_FAILURE)
_MAX_NAMES: Final = 3


def raise_failures(run: Run, storage: Storage, deadline: float | None) -> None:
    """Raise the failure of a run that is over, if it has one.

    :raises DeadlineExceeded: if the deadline passed in this run (of `deadline` seconds) or before.
    :raises Cancelled: if the flow was cancelled in this run or before.
    :raises Exception: the failure of the flow.
    """
    if run.state in (states.SUCCESS, states.SUSPENDED):
        return
    is_own = run.end_reason is not None and deadline is not None
    limit = f"{deadline:g} seconds" if is_own else None
    _raise(storage, run.errors, run.end_reason or read_given_up(storage.flow_meta), limit)


def raise_recorded(storage: Storage) -> NoReturn:
    """Raise the failure of a stored flow that is in FAILURE or REVERTED.

    :raises DeadlineExceeded: if its deadline passed.
    :raises Cancelled: if it was cancelled.
    :raises Exception: the failure of the flow.
    """
    _raise(storage, {}, read_given_up(storage.flow_meta))
    state = storage.get_flow_state()
    raise exceptions.ExecutionFailure(f"Flow {storage.flow_name!r} ended in {state}")


def _raise(
    storage: Storage,
    errors: Mapping[str, ft.Failure],
    given_up: GivenUp | None,
    limit: str | None = None,
) -> None:
    if given_up is None or given_up.undone:
        _raise_atom_failures(storage, errors)
        return
    cause: BaseException | None = None
    try:
        _raise_atom_failures(storage, errors, skip_cancelled=True)
    except BaseException as error:
        cause = error
    flow = f"Flow {storage.flow_name!r}"
    if not given_up.cancelled:
        flow = f"{flow} did not end within {limit or 'the deadline of an earlier run'}"
    end_error = given_up.error(flow, cause)
    end_error.__cause__ = cause
    raise end_error


def _raise_atom_failures(
    storage: Storage, errors: Mapping[str, ft.Failure], skip_cancelled: bool = False
) -> None:
    """Raise the failures of reversions; without such failures, the ones of executions.

    `errors` are failures of retries. The failures of executions become the context of the
    others. Failures by cancellation count only if there is no other failure, and not at all
    with `skip_cancelled` (the caller raises the cancellation itself).
    """
    revert_failures = storage.get_revert_failures().values()
    failed = [*errors.values(), *storage.get_execute_failures().values()]
    other_failures = [failure for failure in failed if not failure.check(exceptions.Cancelled)]
    try:
        ft.Failure.reraise_if_any(other_failures if other_failures or skip_cancelled else failed)
    except BaseException:
        ft.Failure.reraise_if_any(revert_failures)
        raise
    ft.Failure.reraise_if_any(revert_failures)


class Reason(NamedTuple):
    """Why a flow entered a state: one line, and the classes of the exceptions in it."""

    text: str | None = None
    errors: str | None = None

    @classmethod
    def of(cls, error: BaseException, more: str = "") -> Reason:
        name = type(error).__name__
        return cls(f"{name}: {exceptions.exception_message(error)}{more}", name)


def in_short(run: Run, storage: Storage, plan: Plan) -> Reason:
    """Return in one line why the run did not succeed; no text if it succeeded or was suspended.

    The line contains the first failure, the failures of retries, and the atoms of a reverted flow
    whose effects remain.
    """
    if run.state in (states.SUCCESS, states.SUSPENDED):
        return Reason()
    not_reverted = _list_not_reverted(storage, plan)
    given_up = run.end_reason or read_given_up(storage.flow_meta)
    if given_up is not None and not given_up.undone:
        error = given_up.error("the flow" if given_up.cancelled else "the deadline has passed")
        return Reason.of(error, not_reverted)
    failed = storage.get_execute_failures() or storage.get_revert_failures()
    first_failed = sorted(failed, key=lambda name: storage.record(name).ended or math.inf)[:1]
    why_failed = [
        *((_failed_name(storage, plan, name), failed[name]) for name in first_failed),
        *run.errors.items(),
    ]
    lines = [f"{name}: {_history.one_line(failure)}" for name, failure in why_failed]
    if not lines:
        return Reason()
    classes = (next(iter(failure), "Exception").rpartition(".")[2] for _, failure in why_failed)
    return Reason("; ".join(lines) + not_reverted, ", ".join(dict.fromkeys(classes)))


def _failed_name(storage: Storage, plan: Plan, name: str) -> str:
    """Return the name of a failed atom; of a workflow, that of the step whose exception it raised.

    If the exception of a step was only the cause of another one, the workflow itself failed.
    """
    record, node = storage.record(name), plan.by_name.get(name)
    steps = (each for each in storage.flow_detail if each.is_step)
    step = _step_notes.failed_steps(steps, storage.flow_detail).get(record.uuid)
    identity_of = _step_notes.identity_of
    if step is not None and identity_of(step.failure) == identity_of(record.failure):
        note = _step_notes.StepNote.of(step)
        return step.name if note is None else note.short_name(step.name)
    return name if node is None else plan.shown_name(node)


def _list_not_reverted(storage: Storage, plan: Plan) -> str:
    """Return the end of a line with the atoms that are not reverted although others are.

    Tasks come first, then retries, without the retries of single tasks.
    """
    tasks: list[str] = []
    retries: list[str] = []
    is_untouched = True
    for node in plan.atoms():
        record = storage.records[node]
        if record is None:
            continue
        is_untouched = is_untouched and record.intention == states.EXECUTE
        if record.state in _NOT_REVERTED and node - 1 not in plan.retried:
            (tasks if plan.kinds[node] == TASK else retries).append(record.name)
    names = tasks + retries
    if not names or is_untouched:
        return ""
    omitted = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"; not reverted: {', '.join(names[:_MAX_NAMES])}{omitted}"


def difference_of(error: BaseException, code: str | None) -> str | None:
    """Return how the code differs from the records, if that is the error, otherwise None."""
    if is_undecodable(error):
        return exceptions.exception_message(error)
    if not isinstance(error, exceptions.NonDeterministicWorkflow):
        return None
    where = "" if code is None else f" in code {code.partition(':')[2]}"
    return (
        f"step {error.step} of workflow {error.workflow!r} is recorded as {error.recorded} and"
        f" {error.actual}{where}"
    )


def is_undecodable(error: BaseException) -> bool:
    """Return whether this process cannot decode a stored value, or find the value out of line."""
    cause = error.__cause__ if isinstance(error, exceptions.CorruptRecord) else error
    return isinstance(cause, exceptions.UndecodableValue | exceptions.PayloadUnavailable)

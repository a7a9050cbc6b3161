"""What is raised, and told, about a flow that did not come to the end that was meant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NoReturn

from wbengine import exceptions, states
from wbengine.persistence import history
from wbengine.runtime.control import GivenUp, recorded
from wbengine.runtime.plan import TASK, Plan
from wbengine.runtime.run import Run
from wbengine.storage import Storage
from wbengine.types import failure as ft

__all__ = ["in_short", "line_of", "raise_failures", "raise_recorded"]

#: Atoms in these did something that was not undone.
_LEFT_DONE: Final = (states.SUCCESS, states.FAILURE, states.REVERT_FAILURE)
#: So many atoms at most are named in one line.
_NAMED: Final = 3


def raise_failures(run: Run, storage: Storage, deadline: float | None) -> None:
    """Raise what a run that is over failed with, if it did.

    :raises DeadlineExceeded: time was up, in this run (then `deadline` says how much that was) or
        in an earlier one.
    :raises Cancelled: somebody cancelled it, in this run or in an earlier one.
    :raises Exception: what failed.
    """
    if run.state in (states.SUCCESS, states.SUSPENDED):
        return
    own = run.end_reason is not None and deadline is not None
    given = f"{deadline:g} seconds" if own else None
    _raise(storage, run.errors, run.end_reason or recorded(storage.flow_meta), given)


def raise_recorded(storage: Storage) -> NoReturn:
    """Raise what a kept flow that is in FAILURE or REVERTED failed with.

    :raises DeadlineExceeded: time was up.
    :raises Cancelled: somebody cancelled it.
    :raises Exception: what failed.
    """
    _raise(storage, {}, recorded(storage.flow_meta))
    state = storage.get_flow_state()
    raise exceptions.ExecutionFailure(f"Flow {storage.flow_name!r} came to {state}")


def _raise(
    storage: Storage,
    errors: Mapping[str, ft.Failure],
    why: GivenUp | None,
    given: str | None = None,
) -> None:
    if why is None:
        _raise_what_stopped(storage, errors)
        return
    cause: BaseException | None = None
    try:
        _raise_what_stopped(storage, errors, besides=True)
    except BaseException as error:
        cause = error
    flow = f"Flow {storage.flow_name!r}"
    if not why.cancelled:
        flow = f"{flow} did not end within {given or 'the time an earlier run was given'}"
    found = why.error(flow, cause)
    found.__cause__ = cause
    raise found


def _raise_what_stopped(
    storage: Storage, errors: Mapping[str, ft.Failure], besides: bool = False
) -> None:
    """What kept atoms from being reverted, if anything did; else what failed.

    `errors` are those of retries.  The former has the latter as its context: it happened while that
    was being handled.  What was cancelled counts only if nothing else failed, and, where it is
    known (`besides`), not at all.
    """
    stuck = storage.get_revert_failures().values()
    failed = [*errors.values(), *storage.get_execute_failures().values()]
    others = [failure for failure in failed if not failure.check(exceptions.Cancelled)]
    try:
        ft.Failure.reraise_if_any(others if others or besides else failed)
    except BaseException:
        ft.Failure.reraise_if_any(stuck)
        raise
    ft.Failure.reraise_if_any(stuck)


def in_short(run: Run, storage: Storage, plan: Plan) -> str | None:
    """In one line: why the run ended as it did, if something went wrong: what failed first, the
    retries that failed to decide about it, and what is left done of a flow that was, or was to be,
    reverted.
    """
    if run.state in (states.SUCCESS, states.SUSPENDED):
        return None
    left = _left_done(storage, plan)
    why = run.end_reason or recorded(storage.flow_meta)
    if why is not None:
        error = why.error("the flow" if why.cancelled else "the time it was given is over")
        return f"{line_of(error)}{left}"
    failed = storage.get_execute_failures() or storage.get_revert_failures()
    told = sorted(failed, key=lambda name: storage.record(name).ended or math.inf)[:1]
    known = {**run.errors, **failed}
    lines = [f"{name}: {history.in_short(known[name])}" for name in [*told, *run.errors]]
    return "; ".join(lines) + left if lines else None


def _left_done(storage: Storage, plan: Plan) -> str:
    """Which atoms are not reverted, where others are, or were to be: tasks, then retries.

    The retry that was made for a task with retries of its own is not named.
    """
    tasks: list[str] = []
    retries: list[str] = []
    untouched = True
    for node in plan.atoms():
        record = storage.records[node]
        if record is None:
            continue
        untouched = untouched and record.intention == states.EXECUTE
        if record.state in _LEFT_DONE and node - 1 not in plan.retried:
            (tasks if plan.kinds[node] == TASK else retries).append(record.name)
    left = tasks + retries
    if not left or untouched:
        return ""
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return f"; not reverted: {', '.join(left[:_NAMED])}{more}"


def line_of(error: BaseException) -> str:
    """The type of an exception, and what it says."""
    return f"{type(error).__name__}: {exceptions.exception_message(error)}"

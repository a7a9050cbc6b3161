"""Requests to run submitted flows again; conductors carry them out."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from wbengine import exceptions, states
from wbengine._runtime import undo_plan
from wbengine.engines import _preparation
from wbengine.operations import _backends, _suspend_and_cancel
from wbengine.persistence import _commands, _owners, base, models
from wbengine.persistence._edits import Edits
from wbengine.types import codec

__all__ = ["Edits", "Requested", "check_undo_time", "request"]


class Requested(NamedTuple):
    """A request that is stored with its flow until a conductor carries it out.

    :ivar operation: 'resume', 'retry' or 'revert'. `reason`, `by` and `at` (Unix seconds) are those
        of the first request.
    :ivar is_new: False if the flow had the same request already.
    :ivar state: the state of the flow when it was requested.
    """

    operation: str
    reason: str | None
    by: str | None
    at: float
    is_new: bool
    state: str


def request(
    backend: base.Backend,
    uuid: str,
    operation: str,
    *,
    reason: str | None = None,
    by: str | None = None,
    edits: Edits | None = None,
    partial: bool = False,
) -> Requested:
    """Request that conductors resume, retry or revert a submitted flow. This does not wait.

    If the job board is in the store of the flow, its job is posted in the same transaction.
    Otherwise, a `ConductorService` of the board posts it within some seconds. `suspend` and
    `cancel` withdraw the request as long as no conductor has begun to carry it out.

    :param operation: 'resume', 'retry' or 'revert', as in `resuming`.
    :param edits: inputs and results to replace; only for 'retry'. If the conductor finds that a
        recorded step of a workflow has used an input, or a complete task a result, it does not
        retry the flow, and the history of the flow contains the reason.
    :param partial: as for `revert`; only for 'revert'. If a complete flow cannot be undone, the
        conductor does not revert it, and its history contains the reason.
    :raises NotFound: if the flow does not exist, or has no such input or task.
    :raises InvalidState: if the flow was not submitted, or its state does not allow the operation;
        if the flow is to be reverted after the time of `undo_until`; or if a complete task has used
        an input that `edits` replaces.
    :raises FlowBusy: if an engine runs a flow that is to be resumed or retried.
    :raises ValueError: if the operation is unknown.
    """
    _backends.check(backend)
    if operation not in _commands.RERUN_COMMANDS:
        raise ValueError(
            f"operation must be one of {', '.join(_commands.RERUN_COMMANDS)}, got {operation!r:.80}"
        )
    if edits and operation != _commands.RETRY:
        raise ValueError(f"edits= requires operation 'retry', got {operation!r}")
    if partial and operation != _commands.REVERT:
        raise ValueError(f"partial=True requires operation 'revert', got {operation!r}")
    data = edits.to_dict(uuid) if edits else None
    with contextlib.closing(backend.get_connection()) as connection:
        detail = _read(connection, uuid)
        # The engine compares this time with the end of the flow, which has the same clock.
        command = _commands.FlowCommand(operation, reason, by, connection.now(), data, partial)
        if not detail.is_submitted:
            raise exceptions.InvalidState(
                f"Flow {uuid} was not submitted to conductors: resume, retry or revert it with"
                f" operations.{operation}"
            )
        state = detail.state or states.PENDING
        if operation == _commands.REVERT:
            check_undo_time(detail, command.at)
        _check(connection, detail, command)
        if edits:
            check_edits(connection, uuid, edits)
        pending = connection.send_command(uuid, command)
    assert pending is not None  # a request is never a withdrawal
    is_new = pending.at == command.at and pending.by == by and pending.reason == reason
    return Requested(operation, pending.reason, pending.by, pending.at, is_new, state)


def check_undo_time(detail: models.FlowDetail, at: float) -> None:
    """Check that a flow can be undone at this time (Unix seconds of the store).

    :raises InvalidState: if it is complete, and the time of `undo_until` has passed.
    """
    late = undo_plan.expired(detail.undo_until, at)
    if late is not None:
        reason = undo_plan.UndoPlan(expired=late).refusal(is_partial=True)
        raise exceptions.InvalidState(f"Flow {detail.uuid} is complete: {reason}")


def _check(
    connection: base.Connection, detail: models.FlowDetail, command: _commands.FlowCommand
) -> None:
    """Check what the store does not check when it accepts the command."""
    lease = connection.get_lease(detail.uuid)
    is_running = lease is not None and not _owners.is_dead(lease.owner)
    if is_running and detail.state in states.FLOW_RUNNING and command.what == _commands.RESUME:
        pending = connection.commands([detail.uuid]).get(detail.uuid)
        if pending is None or pending.what != _commands.SUSPEND:
            assert lease is not None
            raise _suspend_and_cancel.busy(detail.uuid, lease.owner)
    if command.what == _commands.RETRY and detail.state in (states.FAILURE, states.SUSPENDED):
        with codec.unknown_classes_as_text():
            records = list(connection.get_atoms_for_flow(detail.uuid))
        atoms = [record for record in records if not record.is_step]
        _preparation.check_retriable(detail.name, atoms)
        failed = [record for record in atoms if record.state == states.FAILURE]
        _preparation.check_steps(detail.uuid, records, failed, connection.backend)


def check_edits(connection: base.Connection, uuid: str, edits: Edits) -> None:
    """Check by the records of a flow whether its inputs and results can be replaced.

    :raises NotFound, InvalidState: as `Edits.check`.
    """
    with codec.unknown_classes_as_text():
        detail = connection.get_flow_details(uuid)
    outline = connection.get_outline(uuid)
    edits.check(detail, {} if outline is None else outline.used_inputs)


def _read(connection: base.Connection, uuid: str) -> models.FlowDetail:
    try:
        return connection.get_flow_details(uuid, lazy=True)
    except exceptions.NotFound as error:
        raise exceptions.NotFound(f"Unknown flow {uuid!r}", error) from error

"""Forks: new flows that run again from a task or step of a stored flow."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from wbengine import engines, exceptions, states
from wbengine._payloads import checking
from wbengine._security import keys
from wbengine.engines import _loading
from wbengine.operations import _backends, _changing, _requesting
from wbengine.persistence import (
    _commands,
    _forks,
    _inherited_results,
    _living_forks,
    _macs,
    _trees,
    base,
    models,
)
from wbengine.persistence._edits import Edits
from wbengine.signals import Signal
from wbengine.types import codec
from wbengine.types._outline import ANY_SIGNAL

__all__ = ["Fork", "fork"]

_EMPTY: Final[Mapping[str, Any]] = {}


class Fork(NamedTuple):
    """A new flow that was forked from another one.

    :ivar uuid: the uuid of the new flow.
    :ivar start: the task or step from which it runs again.
    :ivar inherited: number of tasks and steps whose results it inherited.
    """

    uuid: str
    start: str
    inherited: int


def fork(
    backend: base.Backend,
    uuid: str,
    start: str,
    *,
    edits: Edits | None = None,
    own: bool = False,
    undo: bool = False,
    reason: str | None = None,
    by: str | None = None,
) -> Fork:
    """Submit a new flow that runs a flow again from a task or step. This does not wait.

    The new flow has the inputs, the tags and the queue of the original one. It inherits results
    that precede the start, and the signals that inherited steps received. The rest runs again. It
    does not revert inherited results, unless it owns them.

    :param start: the name of a task; or the name or the position of a step of a workflow, or both
        ('7-charge'); or 'failed' for the first one that failed.
    :param edits: inputs and inherited results to replace. This calls the factory of the flow.
    :param own: whether the fork reverts the inherited results from now on, and the original flow
        does not any more.
    :param undo: first revert the tasks and steps of the original flow after the start. The fork
        starts when the original flow is reverted. It owns the inherited results, and the unique
        keys of the original flow.
    :param reason: stored with both flows. `by` is the sender.
    :raises NotFound: if there is no such flow, task, step or input.
    :raises MultipleChoices: if several steps have the name.
    :raises InvalidState: if the flow was not submitted to conductors, or neither has ended nor is
        suspended, or is about to run again; or if an inherited task or step has used a value that
        `edits` replaces; or if the flow is itself a fork whose inherited results were reverted; or
        if `edits` are given and the code of the flow cannot be imported or raises an error.
    :raises FlowBusy: if an engine runs the flow.
    :raises NotTrusted: if there are keys, and a record has no valid MAC.
    """
    _backends.check(backend)
    with contextlib.ExitStack() as stack:
        connection, lease = stack.enter_context(_changing.owning(backend, uuid))
        if lease.command is not None:
            raise lease.command.pending_error(uuid)
        if edits:
            with _calling_code(uuid, ImportError):
                detail = engines.read_flow_detail(connection, uuid)
        else:
            stack.enter_context(codec.copying(unknown_only=True))
            detail = connection.get_flow_details(uuid)
        _check(detail)
        own = own or undo
        if own and (refusal := _living_forks.refusal(connection, detail, _commands.REVERT)):
            raise exceptions.InvalidState(refusal)
        revert: _commands.FlowCommand | None = None
        if undo and detail.state != states.REVERTED:
            revert = _commands.FlowCommand(_commands.REVERT, reason, by, connection.now())
            refusal = _commands.refusal(_commands.REVERT, uuid, detail.state)
            if refusal is not None:
                raise exceptions.InvalidState(refusal)
            _requesting.check_undo_time(detail, revert.at)
        outline = connection.get_outline(uuid)
        if outline is None:
            raise exceptions.InvalidState(f"Flow {uuid} has never run: there is nothing to inherit")
        workflows = _forks.steps_by_workflow(detail)
        point = _forks.start_of(start, detail, outline, workflows)
        inherited = _forks.inherited_atoms(detail, outline, point.task)
        copied = _forks.copy_of(detail, point, inherited, workflows, owns=own)
        new = copied.flow
        if (refusal := _inherited_results.refusal(connection, new, detail)) is not None:
            raise exceptions.InvalidState(refusal)
        _sign(detail, new)
        if edits:
            with _calling_code(uuid, Exception):
                _edit(detail, new, edits, backend)
        names = {
            node.signal
            for node in outline.nodes
            if node.name in inherited and node.signal not in (None, ANY_SIGNAL)
        }
        signals = [
            signal
            for signal in connection.signals([uuid]).get(uuid, ())
            if signal.stored_name in copied.signals
            or signal.name in names
            or signal.number < copied.first_signals.get(signal.name, 1)
        ]
        now = time.time()
        text = _reason(f"forked from {uuid} at {point.text}", reason, by)
        new.enter(states.PENDING, now, text)
        if revert is not None:
            new.meta[models.AWAITS_REVERSION] = True
        noted = {"flow": new.uuid, "start": point.text, "at": now, "own": own}
        detail.meta[models.FORKS] = [*detail.forks, noted]
        changed = []
        for record in copied.sources if own else ():
            if not record.has_other_owner:
                record.set_meta_value(models.RESULT_OWNER, new.uuid)
                changed.append(record)
        _keep_large_values(backend, new, signals)
        book = models.LogBook(new.name)
        book.meta[models.MADE_BY] = "wbengine"
        book.add(new)
        forked = base.NewFork(book, new, outline, signals, moves_keys=undo, revert=revert)
        connection.save_fork(forked, detail, changed, lease)
    return Fork(new.uuid, point.text, len(copied.sources))


def _check(flow: models.FlowDetail) -> None:
    """Check that a flow can be forked.

    :raises InvalidState: if it cannot.
    """
    if not flow.is_submitted:
        raise exceptions.InvalidState(f"Flow {flow.uuid} was not submitted to conductors")
    if flow.state not in states.FLOW_ENDED and not flow.is_suspended_by_command:
        raise exceptions.InvalidState(
            f"Flow {flow.uuid} is in {flow.state or states.PENDING}: only a flow that has ended, or"
            " that a command suspended (wbengine flow suspend), can be forked"
        )
    if flow.successor is not None:
        raise exceptions.InvalidState(
            f"Flow {flow.uuid} was superseded by its fork {flow.successor}: fork that flow instead"
        )


def _reason(text: str, reason: str | None, by: str | None) -> str:
    sender = f" by {by}" if by else ""
    return f"{text}{sender}{f': {reason}' if reason else ''}"


def _sign(flow: models.FlowDetail, new: models.FlowDetail) -> None:
    """Verify the MACs of a flow, and add those of the fork.

    :raises NotTrusted: if one is missing or wrong.
    """
    note = _loading.factory_note(flow)
    keyring = keys.keyring(None)
    if note is None or keyring is None:
        return
    _macs.check_inputs(flow)
    for record in flow:
        if record.is_step:
            _macs.check_step(flow.uuid, record, keyring)
        elif record.meta_value(models.CONTINUED) is not None:
            _macs.check_continuation(flow.uuid, record)
    new.meta[models.FACTORY] = note
    _macs.sign_again(new)
    for record in new:
        if record.meta_value(models.META_INJECTED):
            _macs.sign_injected(new, record)


@contextlib.contextmanager
def _calling_code(uuid: str, *kinds: type[Exception]) -> Iterator[None]:
    """Convert errors of the code of a flow, which the block imports or calls.

    :param kinds: classes of such errors. Errors of wbengine are not converted.
    :raises InvalidState: if the code raises an error, or ends the process.
    """
    caught: tuple[type[BaseException], ...] = (*kinds, SystemExit)
    try:
        yield
    except (exceptions.WbengineException, ValueError):
        raise
    except caught as error:
        raise exceptions.InvalidState(
            f"Flow {uuid} cannot be rebuilt: {type(error).__name__}: {error}"
        ) from error


def _edit(
    flow: models.FlowDetail, new: models.FlowDetail, edits: Edits, backend: base.Backend
) -> None:
    """Replace inputs and inherited results of a fork.

    :raises NotFound, InvalidState: as `fork`; the message names the original flow.
    """
    steps = {
        spelling: step.record.uuid
        for workflow in _forks.steps_by_workflow(new).values()
        for step in workflow.steps
        for spelling in _forks.spellings(step)
    }
    of_tasks = {name: value for name, value in edits.results.items() if name not in steps}
    of_steps = {steps[name]: value for name, value in edits.results.items() if name in steps}
    try:
        engine = engines.load_from_detail(new)
        engine.storage.payloads = backend.payloads
        engine.edit_fork(Edits(edits.inputs, of_tasks), of_steps)
    except exceptions.NonDeterministicWorkflow as error:
        names = ", ".join(map(repr, edits.results))
        raise exceptions.InvalidState(
            f"Result of {names} of flow {flow.uuid} cannot be replaced, because an inherited step"
            f" has used it: step {error.step} is recorded as {error.recorded} and {error.actual}"
        ) from error
    except (exceptions.InvalidState, exceptions.NotFound) as error:
        raise type(error)(str(error).replace(new.uuid, flow.uuid)) from error


def _keep_large_values(
    backend: base.Backend, new: models.FlowDetail, signals: Iterable[Signal]
) -> None:
    """Keep the large values of a fork while it is stored, also if the original flow is deleted."""
    payloads = backend.payloads
    if payloads is None:
        return
    trees = [_trees.tree_of(record) for record in (new, *new)]
    trees += [json.loads(signal.text) for signal in signals]
    for _, reference in checking.references_in(trees, ""):
        payloads.keep(reference, new.uuid)

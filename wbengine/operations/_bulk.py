"""Operations on many flows: `start` stores one, and `BulkRun` carries it out in batches."""

from __future__ import annotations

import contextlib
import time
import uuid as uuids
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions, states
from wbengine._text import json_text
from wbengine.operations import _operation
from wbengine.persistence import _commands, base
from wbengine.persistence._bulk_records import CANCELLED, RUNNING, Bulk, BulkFlow, Work

__all__ = [
    "MAX_REASON_CHARS",
    "MIN_RATE",
    "BulkRun",
    "all_arguments",
    "cancel",
    "carry_out",
    "find",
    "is_known",
    "latest",
    "operations",
    "refused",
    "resume",
    "start",
]

MAX_REASON_CHARS: Final = 500
#: Flows per second. A process claims an operation until its next flow is due.
MIN_RATE: Final = 1 / 86400
_MAX_SKIP_REASON_CHARS: Final = 1000
_MIN_PREFIX: Final = 4
#: Number of the latest operations that lists contain in addition to the unfinished ones.
_MAX_ENDED: Final = 500
#: Maximum number of flows of an operation whose histories are read, and number of each read.
_MAX_HISTORIES: Final = 10_000
_HISTORIES_PER_READ: Final = 500
#: Interval at which a process reads an operation that another one carries out.
_FOLLOW_SECONDS: Final = 0.5


def operations() -> Mapping[str, _operation.Operation]:
    """Return the operations that can be applied to many flows, by name."""
    table = _operation.table()
    return {name: each for name, each in table.items() if each.many is not None}


def is_known(bulk: Bulk) -> bool:
    """Return whether this release has the operation and its parameters, or a later one."""
    operation = operations().get(bulk.operation)
    return operation is not None and bulk.arguments.keys() <= operation.parameters.keys()


def start(
    backend: base.Backend,
    name: str,
    flows: Sequence[BulkFlow],
    arguments: Mapping[str, Any],
    *,
    filter: Mapping[str, Any] | None = None,
    reason: str | None = None,
    by: str | None = None,
    rate: float | None = None,
) -> Bulk:
    """Store an operation on many flows. `wbengine serve` or a `BulkRun` carries it out.

    :param flows: different flows; the operation is carried out in their order.
    :param arguments: JSON arguments of the operation, without the flow and the reason.
    :param rate: maximum number of flows per second, at least `MIN_RATE`.
    :raises ValueError: if the operation or an argument is unknown or invalid.
    """
    operation = operations().get(name)
    if operation is None:
        raise ValueError(f"operation must be one of {', '.join(operations())}, got {name!r:.80}")
    if rate is not None and not 0 < rate < float("inf"):
        raise ValueError(f"rate must be a number above 0, got {rate!r:.80}")
    if rate is not None and rate < MIN_RATE:
        raise ValueError(f"rate must be at least one flow per day, got {rate!r:.80}")
    if reason is not None and len(reason) > MAX_REASON_CHARS:
        raise ValueError(
            f"reason must have at most {MAX_REASON_CHARS} characters, got {len(reason)}"
        )
    if reason is not None and not json_text.is_text(reason):
        raise ValueError(f"reason must be valid Unicode, got {reason!r:.80}")
    bulk = Bulk(
        str(uuids.uuid4()),
        name,
        dict(arguments),
        dict(filter or {}),
        reason,
        by,
        rate,
        0.0,
        len(flows),
    )
    operation.check(_arguments(operation, bulk, BulkFlow("", "")))
    for flow in flows:
        if flow.arguments is not None:
            operation.check(_arguments(operation, bulk, flow))
    with contextlib.closing(backend.get_connection()) as connection:
        # Histories of flows have times of the same clock (see `refused`).
        bulk = bulk._replace(created=connection.now())
        connection.bulks.add(bulk, flows)
    return bulk


def find(backend: base.Backend, text: str) -> Bulk:
    """Return the operation whose uuid is or begins with a text.

    :raises NotFound: if there is none.
    :raises MultipleChoices: if several begin with it.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            return connection.bulks.get(text)
        except exceptions.NotFound:
            if len(text) < _MIN_PREFIX:
                raise
        bulks = connection.bulks.latest(limit=10_000)
    matching = [bulk for bulk in bulks if bulk.uuid.startswith(text)]
    if not matching:
        raise exceptions.NotFound(f"Unknown operation {text!r:.80}")
    if len(matching) > 1:
        raise exceptions.MultipleChoices(f"{len(matching)} operations begin with {text!r:.80}")
    return matching[0]


def latest(connection: base.Connection) -> list[Bulk]:
    """Return the unfinished operations and the latest other ones, the latest first."""
    store = connection.bulks
    bulks = store.latest((RUNNING,), limit=10_000) + store.latest(limit=_MAX_ENDED)
    by_uuid = {bulk.uuid: bulk for bulk in bulks}
    return sorted(by_uuid.values(), key=lambda bulk: bulk.created, reverse=True)


def all_arguments(backend: base.Backend, bulk: Bulk) -> Mapping[str, Any]:
    """Return arguments that need the same roles as the operation.

    Flows may have any arguments of their own: each of these is then True.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        if not connection.bulks.has_own_arguments(bulk.uuid):
            return bulk.arguments
    operation = operations()[bulk.operation]
    return {**dict.fromkeys(operation.parameters, True), **bulk.arguments}


def cancel(backend: base.Backend, uuid: str) -> Bulk:
    """Cancel an operation. It ends after the batch that is being carried out. Idempotent.

    :raises InvalidState: if it is complete.
    :raises NotFound: if it does not exist.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        return connection.bulks.change_state(uuid, CANCELLED)


def resume(backend: base.Backend, uuid: str) -> Bulk:
    """Continue a cancelled operation with its open flows. Idempotent.

    :raises InvalidState: if it is complete.
    :raises NotFound: if it does not exist.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        return connection.bulks.change_state(uuid, RUNNING)


def refused(connection: base.Connection, bulk: Bulk) -> list[tuple[str, str]]:
    """Return the flows whose conductor refused the request of an operation, and the reasons.

    These flows count as done, because the request was stored. Only the first 10,000 flows are read.
    """
    verb = bulk.operation.partition(" ")[2]
    if verb not in _commands.RERUN_COMMANDS:
        return []
    command = _commands.FlowCommand(verb, by=bulk.by)
    refusals: list[tuple[str, str]] = []
    for first in range(0, min(bulk.settled, _MAX_HISTORIES), _HISTORIES_PER_READ):
        page = connection.bulks.flows(bulk.uuid, _HISTORIES_PER_READ, first)
        uuids = [uuid for uuid, reason in page if reason is None]
        records = connection.flow_records(uuids)
        for flow in (records[uuid] for uuid in uuids if uuid in records):
            refusal = command.refusal_in(flow.history, since=bulk.created)
            if refusal is not None:
                refusals.append((flow.uuid, refusal))
    return refusals


class BulkRun:
    """Carries an operation out, one batch at a time. One process at a time has the claim.

    :param owner: name of this process in the store.
    """

    #: Time after which another process continues the work of one that died.
    CLAIM_SECONDS: Final = 10.0
    #: Time of the changes of a transaction: other writers of a SQLite file wait for its end.
    TRANSACTION_SECONDS: Final = 0.1
    #: Pause between two transactions, as a part of their length.
    PAUSE: Final = 0.2
    FIRST_BATCH = 10
    MAX_FLOWS_PER_TRANSACTION: Final = 200
    #: Batches per second at most if there is a rate limit.
    _LIMITED_BATCHES_PER_SECOND: Final = 4

    def __init__(self, backend: base.Backend, bulk: Bulk, owner: str) -> None:
        self._backend = backend
        self._owner = owner
        self._batch = self.FIRST_BATCH
        #: Time of the latest changes, without that of waiting for the transaction to begin.
        self._worked = 0.0
        #: The operation after the latest batch.
        self.bulk = bulk
        #: Number of flows that this object has done, and skipped.
        self.done = self.skipped = 0
        #: Time on the monotonic clock of the next batch.
        self.due = 0.0

    def advance(self) -> bool:
        """Carry out the next batch. Return False if another process does, or it is over.

        :raises StorageFailure: if the store fails; the batch can be repeated.
        """
        rate, batch = self.bulk.rate, self._batch
        if rate is not None:
            batch = max(1, min(batch, int(rate / self._LIMITED_BATCHES_PER_SECOND)))
        length = 0.0 if rate is None else batch / rate
        began = time.monotonic()
        try:
            bulk = self._carry_out(change, batch, length)
        except exceptions.RecordTooLarge as error:
            reason = str(error)
            # The store does not tell which flow it is, unless there is only one.
            self._batch = 1
            if batch > 1:
                return True
            bulk = self._carry_out(
                lambda _, __, flows: {flow.uuid: reason for flow in flows}, 1, length
            )
        if bulk is None:
            self.refresh()
            return False
        self.bulk = bulk
        fitting = int(batch * self.TRANSACTION_SECONDS / max(1e-4, self._worked))
        self._batch = max(1, min(fitting, 2 * batch, self.MAX_FLOWS_PER_TRANSACTION))
        seconds = time.monotonic() - began
        self.due = began + max(length, seconds * (1 + self.PAUSE))
        return True

    def _carry_out(self, work: Work, batch: int, length: float) -> Bulk | None:
        before: Bulk | None = None

        def noted(store: base.Backend, bulk: Bulk, flows: Sequence[BulkFlow]) -> Mapping[str, str]:
            nonlocal before
            before, began = bulk, time.monotonic()
            try:
                return work(store, bulk, flows)
            finally:
                self._worked = time.monotonic() - began

        with contextlib.closing(self._backend.get_connection()) as connection:
            after = connection.bulks.advance(
                self.bulk.uuid, self._owner, self.CLAIM_SECONDS + length, batch, noted
            )
        if before is not None and after is not None:
            self.done += after.done - before.done
            self.skipped += after.skipped - before.skipped
        return after

    def refresh(self) -> None:
        """Read the state of the operation, which another process may have changed."""
        with contextlib.closing(self._backend.get_connection()) as connection:
            self.bulk = connection.bulks.get(self.bulk.uuid)

    def release(self) -> None:
        """Let another process continue at once."""
        with contextlib.closing(self._backend.get_connection()) as connection:
            connection.bulks.release(self.bulk.uuid, self._owner)


def carry_out(run: BulkRun, report: Callable[[Bulk], object]) -> Bulk:
    """Carry an operation out until it is over, or follow the process that does.

    :param report: receives the operation after each batch.
    :raises StorageFailure: if the store fails.
    """
    while run.bulk.state == RUNNING:
        pause = max(0.0, run.due - time.monotonic())
        time.sleep(min(pause, _FOLLOW_SECONDS))
        if pause > _FOLLOW_SECONDS:
            run.refresh()
        elif not run.advance():
            run.due = time.monotonic() + _FOLLOW_SECONDS
        report(run.bulk)
    return run.bulk


def change(backend: base.Backend, bulk: Bulk, flows: Iterable[BulkFlow]) -> dict[str, str]:
    """Carry an operation out on some of its flows. Return the reasons of skipped ones by uuid.

    :raises StorageFailure: if the store fails, or this release has no such operation.
    """
    if not is_known(bulk):
        names = ", ".join(sorted(bulk.arguments))
        raise exceptions.StorageFailure(
            f"This release has no operation {bulk.operation!r:.80} with arguments: {names:.80}"
        )
    operation = operations()[bulk.operation]
    scope = _operation.Scope(backend, bulk.by)
    skipped = {}
    for flow in flows:
        reason = _changed(operation, bulk, flow)
        if reason is None:
            try:
                operation.perform(scope, _arguments(operation, bulk, flow))
            except (exceptions.CorruptRecord, exceptions.PayloadUnavailable) as error:
                reason = str(error)
            except exceptions.StorageFailure:
                raise
            except (exceptions.WbengineException, LookupError, TypeError, ValueError) as error:
                reason = str(error) or type(error).__name__
        if reason is not None:
            skipped[flow.uuid] = reason[:_MAX_SKIP_REASON_CHARS]
    return skipped


def _changed(operation: _operation.Operation, bulk: Bulk, flow: BulkFlow) -> str | None:
    """Return why a flow is not the one that was confirmed, or None.

    Most operations themselves decide on a flow that has not ended, whose state changes all the
    time.
    """
    if flow.current_state is None:
        return f"Flow {flow.uuid} was deleted"
    counts = bool({flow.state, flow.current_state} & states.FLOW_ENDED)
    if operation.many is not None and operation.many.is_of_state:
        counts = counts or not bulk.arguments.get("force")
    if flow.current_state != flow.state and counts:
        return (
            f"Flow {flow.uuid} has changed from {flow.state} to {flow.current_state} since it was"
            " selected"
        )
    return None


def _arguments(operation: _operation.Operation, bulk: Bulk, flow: BulkFlow) -> dict[str, Any]:
    arguments = {**bulk.arguments, **(flow.arguments or {}), str(operation.target): flow.uuid}
    if bulk.reason is not None and "reason" in operation.parameters:
        arguments["reason"] = bulk.reason
    return arguments

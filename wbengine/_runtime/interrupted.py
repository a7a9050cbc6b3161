"""Attempts that an earlier run began and did not finish.

If tasks run in the process of the engine, such attempts ended with it, and a new attempt begins. An
executor that survives the engine may still run the attempt, or have its result; the same attempt
then continues. It also continues if the work of the task is outside (`Task.detached`).

So an attempt that may have run is never dropped: it has a result, or the failure `Interrupted` if
it ended with its engine and does not run again. Both are reverted.
"""

from __future__ import annotations

from typing import Any, Final

from wbengine import exceptions, states
from wbengine import storage as storage_module
from wbengine._calls import invocation as calls
from wbengine._runtime import maps
from wbengine._runtime.executors import composite
from wbengine.persistence import _writer, models
from wbengine.types import failure as ft

__all__ = ["InterruptedAttempts", "has_lost_worker", "is_refusal"]

_BEGUN: Final = {calls.EXECUTE: states.RUNNING, calls.REVERT: states.REVERTING}


class InterruptedAttempts:
    """The attempts that a run continues. Only the thread of the engine uses it."""

    def __init__(
        self,
        storage: storage_module.Storage,
        executor: calls.TaskExecutor | None,
        local_tasks: composite.LocalTasks | None,
    ) -> None:
        self._storage = storage
        self._local_tasks = local_tasks
        self._executor = executor
        self._calls: dict[int, calls.Invocation] = {}

    def is_resumed(self, record: models.AtomDetail, atom: Any, action: calls.Action) -> bool:
        """Return whether `action` continues an unfinished attempt of an earlier run."""
        return (
            record.state == _BEGUN[action]
            and record.action == action
            and record.attempt > 0
            and record.kind == "task"
            and (atom.detached or self.may_be_under_way(atom))
        )

    def may_be_under_way(self, atom: Any) -> bool:
        """Return whether the executor may know the result of an unfinished attempt."""
        executor = self._executor
        return executor is not None and executor.survives_engine and not self._stays(atom)

    @property
    def has_ledger(self) -> bool:
        return self._executor is not None and self._executor.has_ledger

    def number_items(self, record: models.AtomDetail, atom: Any, action: calls.Action) -> bool:
        """Set the attempt number of a Map's items: that of an unfinished attempt, or the next one.

        :returns: whether the executor has to look up the result of each item, because some may be
            under way. Without a ledger, items that never started cannot be distinguished from lost
            ones, so all unfinished items then start again with new ids.
        """
        if not maps.resumes(record, action):
            record.archive_attempt()
            if action == calls.EXECUTE and atom.inner.transaction is not None:
                record.settle_attempts()
            record.attempt += 1
            record.epoch = 1
            if action == calls.EXECUTE:
                record.items = None
                return False
            record.reversions += 1
            failed = [item for item in record.items or () if item.undo_failed_revert()]
            self._storage.writer.mark_items(record, failed)
            return False
        assert record.items is not None
        if atom.detached or (self.has_ledger and not self._stays(atom)):
            self.raise_epoch(record)
            return record.items.in_flight
        record.items.resumed += 1
        return False

    def _stays(self, atom: Any) -> bool:
        return self._local_tasks is not None and atom in self._local_tasks

    def raise_epoch(self, record: models.AtomDetail) -> None:
        """Give a continued attempt an epoch that no run has used for it."""
        record.epoch = max(self._storage.writer.first_epoch, record.epoch + _writer.EPOCHS_PER_RUN)

    def mark_recovered(self, call: calls.Invocation, record: models.AtomDetail) -> None:
        """Mark a call as one that an earlier run may have submitted."""
        call.recovered = True
        call.lost = has_lost_worker(record)
        call.epoch = record.epoch
        self._calls[call.node] = call

    def keeps(self, node: int, withdrawn_call: calls.Invocation | None) -> bool:
        """Return whether a call that did not start in this run may still be in flight.

        Such a call has to be continued later. It is removed from the set.
        """
        call = self._calls.pop(node, withdrawn_call)
        if call is None or not call.recovered:
            return False
        record = self._storage.records[node]
        return record is not None and call.attempt == record.attempt  # it has not ended since


def has_lost_worker(record: models.AtomDetail) -> bool:
    """Return whether a worker was lost with the present attempt."""
    return any(
        each.event == states.WORKER_LOST and each.attempt == record.attempt
        for each in record.incidents
    )


def is_refusal(value: object) -> bool:
    """Return whether a value is the failure of a call that was cancelled, or has expired."""
    if not isinstance(value, ft.Failure) or value.check(exceptions.Interrupted):
        return False
    return value.check(exceptions.Cancelled, exceptions.Expired) is not None

"""Attempts that an earlier run began, and whose end it did not see.

Where tasks run in the engine's own process they ended with it: such an attempt is over, and the
next one begins.  An executor that survives the engine may still have it under way, or know how it
ended: then the same attempt goes on.  So it does where what the task began is outside
(`Task.detached`).
"""

from __future__ import annotations

from typing import Any, Final

from wbengine import composite_executor, states
from wbengine import invocation as calls
from wbengine import storage as storage_module
from wbengine.persistence import models, writer
from wbengine.runtime import maps

__all__ = ["InterruptedAttempts"]

_BEGUN: Final = {calls.EXECUTE: states.RUNNING, calls.REVERT: states.REVERTING}


class InterruptedAttempts:
    """What one run goes on with.  Only the engine's thread calls it."""

    def __init__(
        self,
        storage: storage_module.Storage,
        executor: calls.TaskExecutor | None,
        local_tasks: composite_executor.LocalTasks | None,
    ) -> None:
        self._storage = storage
        self._local_tasks = local_tasks
        self._executor = executor
        self._calls: dict[int, calls.Invocation] = {}

    def is_resumed(self, record: models.AtomDetail, atom: Any, action: calls.Action) -> bool:
        """Whether `action`, which is about to begin, is one that an earlier run left unfinished."""
        return (
            record.state == _BEGUN[action]
            and record.action == action
            and record.attempt > 0
            and record.kind == "task"
            and (atom.detached or self._may_be_under_way(atom))
        )

    def _may_be_under_way(self, atom: Any) -> bool:
        executor = self._executor
        return executor is not None and executor.survives_engine and not self._stays(atom)

    def number_items(self, record: models.AtomDetail, atom: Any, action: calls.Action) -> bool:
        """Give what is to become of the items of a Map its number: that of the attempt that was
        left unfinished, or else the next one.

        Returns whether the executor is to find out what became of each item.  Most of them may
        never have been started: if it cannot tell those from the lost ones, all that are not done
        are started, under new ids.
        """
        if not maps.resumes(record, action):
            record.keep_attempt()
            record.attempt += 1
            record.epoch = 1
            if action == calls.EXECUTE:
                record.items = None
                return False
            record.reversions += 1
            for item in record.items or ():
                item.revert_again()
            return False
        assert record.items is not None
        has_ledger = self._executor is not None and self._executor.has_ledger
        if atom.detached or (has_ledger and not self._stays(atom)):
            self.raise_epoch(record)
            return True
        record.items.resumed += 1
        return False

    def _stays(self, atom: Any) -> bool:
        return self._local_tasks is not None and atom in self._local_tasks

    def raise_epoch(self, record: models.AtomDetail) -> None:
        """Give an attempt that goes on an epoch that no run has used for it."""
        record.epoch = max(self._storage.writer.first_epoch, record.epoch + writer.EPOCHS_PER_RUN)

    def take_up(self, call: calls.Invocation, record: models.AtomDetail) -> None:
        """Let a call be the one that an earlier run may have submitted."""
        call.recovered = True
        call.epoch = record.epoch
        self._calls[call.node] = call

    def keeps(self, node: int) -> bool:
        """Whether what is given back may be under way all the same, so that it has to be gone on
        with later; asked once.
        """
        call = self._calls.pop(node, None)
        if call is None or not call.recovered:
            return False
        record = self._storage.records[node]
        return record is not None and call.attempt == record.attempt  # it did not end since

"""The record of a flow's earlier runs on workers: the executor's name, the ledgers, the broker.

It is stored in the `meta` of the flow before the first request is published. The next run uses it
to find requests in progress.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from wbengine import exceptions, states
from wbengine import storage as storage_module
from wbengine._calls import invocation
from wbengine.engines.worker_based import executor as executors
from wbengine.persistence import models
from wbengine.persistence._lease_renewer import HeldLease

KEY: Final = "worker_based"

_EXECUTOR: Final = "executor"
_LEDGERS: Final = "ledgers"
_BROKER: Final = "broker"

_RUNNING_STATES: Final = (states.RUNNING, states.REVERTING)
_REVERTED_STATES: Final = (states.REVERTED, states.REVERT_FAILURE)


class EarlierRuns:
    """The earlier runs of a flow, and the record for the next one.

    :param own: whether only this engine uses the executor. Then the executor may take over the
        name of the previous one.
    """

    def __init__(
        self,
        storage: storage_module.Storage,
        executor: executors.WorkerTaskExecutor,
        *,
        own: bool,
    ) -> None:
        self._storage = storage
        self._executor = executor
        self._own = own

    def _stored_record(self) -> dict[str, Any]:
        """Return the record of the previous run; empty in the first one."""
        record = self._storage.flow_meta.get(KEY)
        return record if isinstance(record, dict) else {}

    def other_broker(self) -> str | None:
        """Return the URL of the broker of the previous run, if this run uses another one."""
        address = self._stored_record().get(_BROKER)
        return address if isinstance(address, str) and address != self._executor.broker else None

    def take_name(self) -> None:
        """Name the executor like the previous one. Call this before the executor starts."""
        name = self._stored_record().get(_EXECUTOR)
        if self._own and isinstance(name, str) and name != self._executor.uuid:
            self._executor.take_name(name)

    def begin(self, lease: HeldLease | None) -> None:
        """Pass the ledgers of earlier runs to the started executor, and record those of this run.

        Earlier runs can no longer change the ledger.

        :raises LeaseLost: if another engine owns the flow.
        :raises LedgerFailure: if the ledger cannot be reached.
        """
        flow, record, executor = self._storage.flow_uuid, self._stored_record(), self._executor
        used: dict[str, str] = record.get(_LEDGERS, {})
        sole = self._own and executor.inheritable
        executor.guard(flow, None if lease is None else lease.check, sole=sole)
        if lease is not None:
            number = lease.lease.epoch
            fenced = executor.begin_run(flow, number, is_resumed=bool(record)) != number
            # Then another engine owns the flow, or the store was restored from an older backup.
            if fenced and not lease.renew():
                lease.check()
                raise exceptions.LeaseLost("a later run of the flow uses the ledger")
        # After the call to the ledger: an idle executor may not have noticed a loss of its rows.
        executor.expect(flow, used)
        name = executor.uuid if sole else record.get(_EXECUTOR)
        ledgers = {**used, **self._present_ledger()}
        self._store({_EXECUTOR: name, _LEDGERS: ledgers, _BROKER: executor.broker})
        if record:
            executor.sweep(ended(self._storage.flow_detail))

    def end(self, state: str) -> None:
        """Record the end of the run. Do not call this after an exception."""
        record = self._stored_record()
        if state != states.SUSPENDED and len(record.get(_LEDGERS, ())) > 1:
            # No request is in progress.
            self._store({**record, _LEDGERS: self._present_ledger()})

    def _present_ledger(self) -> dict[str, str]:
        return {self._executor.ledger or "": self._executor.ledger_place}

    def release(self) -> None:
        self._executor.unguard(self._storage.flow_uuid)

    def _store(self, record: dict[str, Any]) -> None:
        if record != self._stored_record():
            self._storage.update_flow_metadata({KEY: record})


def ended(flow_detail: models.FlowDetail) -> Iterator[str]:
    """Yield the ids of all requests that may have ended, including ids that were never used.

    An engine that died may have saved a result without removing the row. Cost: O(attempts).
    """
    for record in flow_detail:
        if record.kind != "task":
            continue
        for attempt in range(1, record.attempt + 1):
            # A resumed Map continues with the same attempt, whatever its state.
            unfinished = record.state in _RUNNING_STATES or record.items is not None
            latest = attempt == record.attempt and unfinished
            for action in (invocation.EXECUTE, invocation.REVERT):
                if not latest:
                    yield invocation.request_id(record.uuid, action, attempt)
                if record.items is not None:
                    yield from _items(record.uuid, action, attempt, record.items, latest)


def _items(
    uuid: str, action: str, attempt: int, items: models.Items, latest: bool
) -> Iterator[str]:
    for item in items:
        if latest:
            done = item.state != states.PENDING
            if not (item.state in _REVERTED_STATES if action == invocation.REVERT else done):
                continue
        for resumed in range(items.resumed + 1):
            yield invocation.request_id(uuid, action, attempt, item.index, resumed)

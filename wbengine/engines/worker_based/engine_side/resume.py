"""What a flow remembers of the runs on workers it had: by what name, and in which ledgers.

It stands in the flow's `meta`, and is written before the first request is published, so that
whoever runs the flow next knows where to look for what may be under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from wbengine import invocation, states
from wbengine import storage as storage_module
from wbengine.engines.worker_based import executor as executors
from wbengine.persistence import models

#: The key in the `meta` of a flow.
KEY: Final = "worker_based"

_EXECUTOR: Final = "executor"
_LEDGERS: Final = "ledgers"

_UNDER_WAY: Final = (states.RUNNING, states.REVERTING)
_UNDONE: Final = (states.REVERTED, states.REVERT_FAILURE)


class EarlierRuns:
    """The runs of one flow: those before this one, and what it leaves to the next.

    `own`: the executor is this engine's alone, so that it can take the name of the one before, and
    leave its own.
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

    def _known(self) -> dict[str, Any] | None:
        found = self._storage.flow_meta.get(KEY)
        return found if isinstance(found, dict) else None

    def take_name(self) -> None:
        """Be called as the executor before; call it before the executor starts."""
        known = self._known()
        name = known.get(_EXECUTOR) if known is not None else None
        if self._own and isinstance(name, str) and name != self._executor.uuid:
            self._executor.take_name(name)

    def begin(self, check: Callable[[], object] | None) -> None:
        """The executor has started: tell it what there may be, and note where this run looks.

        `check` raises LeaseLost when the flow is not ours any more.
        """
        flow, known, executor = self._storage.flow_uuid, self._known(), self._executor
        used = list(known.get(_LEDGERS, ())) if known is not None else []
        executor.expect(flow, tuple(used))
        executor.guard(flow, check, sole=self._own and executor.inheritable)
        name = (known or {}).get(_EXECUTOR)
        if self._own and executor.inheritable:
            name = executor.uuid
        now = [*used, *({executor.ledger} - {*used})]
        self._note({_EXECUTOR: name, _LEDGERS: now})
        if known is not None:
            executor.sweep(ended(self._storage.flow_detail))

    def end(self, state: str) -> None:
        """The run came to this end; call it unless it raised."""
        known = self._known()
        if known is not None and state != states.SUSPENDED and len(known[_LEDGERS]) > 1:
            self._note({**known, _LEDGERS: [self._executor.ledger]})  # nothing is under way

    def let_go(self) -> None:
        """The run is over, however."""
        self._executor.unguard(self._storage.flow_uuid)

    def _note(self, told: dict[str, Any]) -> None:
        if told != self._known():
            self._storage.update_flow_metadata({KEY: told})


def ended(flow_detail: models.FlowDetail) -> Iterator[str]:
    """The ids of the requests whose ends are known, as far as there were any.

    Whoever died may have saved an end, and not come to remove its row.  O(attempts).
    """
    for record in flow_detail:
        if record.kind != "task":
            continue
        for attempt in range(1, record.attempt + 1):
            # A Map keeps its number when it goes on, whatever state it was left in.
            unfinished = record.state in _UNDER_WAY or record.items is not None
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
            if not (item.state in _UNDONE if action == invocation.REVERT else done):
                continue
        for resumed in range(items.resumed + 1):
            yield invocation.request_id(uuid, action, attempt, item.index, resumed)

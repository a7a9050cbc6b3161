"""Operations on many flows in the memory of this process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from wbengine import exceptions
from wbengine._concurrency import clocks
from wbengine.persistence import _bulk_records, base
from wbengine.persistence._bulk_records import Bulk, BulkFlow, Skipped

__all__ = ["MemoryBulkStore"]


class _StoredBulk:
    def __init__(self, bulk: Bulk, flows: Sequence[BulkFlow]) -> None:
        self.bulk = bulk
        self.flows: Final = list(flows)
        self.reasons: Final[dict[str, str]] = {}
        self.until = 0.0
        #: One batch at a time. Other calls do not wait for it.
        self.advancing: Final = threading.Lock()


class MemoryBulkStore(_bulk_records.BulkStore):
    """The operations on many flows in a memory backend.

    :param state_of: returns the stored state of a flow, or None if it does not exist.
    """

    def __init__(
        self, backend: base.Backend, clock: clocks.Clock, state_of: Callable[[str], str | None]
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._state_of = state_of
        self._lock = threading.Lock()
        self._bulks: dict[str, _StoredBulk] = {}

    def add(self, bulk: Bulk, flows: Sequence[BulkFlow]) -> None:
        with self._lock:
            self._bulks[bulk.uuid] = _StoredBulk(bulk, flows)

    def get(self, uuid: str) -> Bulk:
        with self._lock:
            return self._now(self._stored(uuid))

    def latest(self, states: Sequence[str] = _bulk_records.STATES, limit: int = 100) -> list[Bulk]:
        with self._lock:
            bulks = [self._now(each) for each in reversed(self._bulks.values())]
        return [bulk for bulk in bulks if bulk.state in states][:limit]

    def advance(
        self, uuid: str, owner: str, seconds: float, limit: int, work: _bulk_records.Work
    ) -> Bulk | None:
        with self._lock:
            stored = self._stored(uuid)
        with stored.advancing:
            with self._lock:
                bulk = self._now(stored)
                if bulk.state != _bulk_records.RUNNING or bulk.owner not in (None, owner):
                    return None
                stored.bulk = bulk._replace(owner=owner)
                stored.until = self._clock.monotonic() + seconds
                flows = stored.flows[bulk.settled : bulk.settled + limit]
            flows = [flow._replace(current_state=self._state_of(flow.uuid)) for flow in flows]
            reasons = work(self._backend, stored.bulk, flows)
            with self._lock:
                stored.reasons.update(reasons)
                after = _bulk_records.after(stored.bulk, len(flows), len(reasons))
                if after.state == _bulk_records.COMPLETE:
                    after = after._replace(ended=self._clock.time())
                stored.bulk = after
                return after

    def release(self, uuid: str, owner: str) -> None:
        with self._lock:
            stored = self._stored(uuid)
            if stored.bulk.owner == owner:
                stored.bulk = stored.bulk._replace(owner=None)

    def change_state(self, uuid: str, state: str) -> Bulk:
        with self._lock:
            stored = self._stored(uuid)
            _bulk_records.check_change(stored.bulk, state)
            if stored.bulk.state != state:
                ended = None if state == _bulk_records.RUNNING else self._clock.time()
                stored.bulk = stored.bulk._replace(state=state, ended=ended, owner=None)
            return self._now(stored)

    def skipped(self, uuid: str) -> list[Skipped]:
        with self._lock:
            stored_reasons = self._stored(uuid).reasons
            reasons = {key: text.replace(key, "ID") for key, text in stored_reasons.items()}
            counts = Counter(reasons.values())
            return sorted(
                (
                    Skipped(reason, count, min(key for key in reasons if reasons[key] == reason))
                    for reason, count in counts.items()
                ),
                key=lambda each: (-each.flows, each.reason),
            )

    def flows(self, uuid: str, limit: int = 1000, start: int = 0) -> list[tuple[str, str | None]]:
        with self._lock:
            stored = self._stored(uuid)
            flows = stored.flows[start : start + limit]
            return [(flow.uuid, stored.reasons.get(flow.uuid)) for flow in flows]

    def has_own_arguments(self, uuid: str) -> bool:
        with self._lock:
            return any(flow.arguments is not None for flow in self._stored(uuid).flows)

    def delete_ended(self, before: float) -> None:
        with self._lock:
            for uuid, stored in list(self._bulks.items()):
                if stored.bulk.ended is not None and stored.bulk.ended < before:
                    del self._bulks[uuid]

    def _now(self, stored: _StoredBulk) -> Bulk:
        is_claimed = stored.until > self._clock.monotonic()
        return stored.bulk if is_claimed else stored.bulk._replace(owner=None)

    def _stored(self, uuid: str) -> _StoredBulk:
        if uuid not in self._bulks:
            raise exceptions.NotFound(f"Unknown operation {uuid!r:.80}")
        return self._bulks[uuid]

"""A simulated message queue."""

from __future__ import annotations

import copy
from typing import Any

from wbengine.testing._worlds.world import World

__all__ = ["QueueWorld"]


class QueueWorld(World):
    """A message queue for `crash_everywhere`. Thread-safe.

    A message cannot be taken back. The same message twice is a finding, unless each has a
    `deduplication_id`: then the queue discards a second message with the same one.

    :param name: its name in reports.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, permanent=True)

    def publish(self, message: Any, *, deduplication_id: str | None = None) -> str:
        """Publish a message, and return its identity; for a duplicate, that of the first one."""
        key = f"publish {message!r}"
        if deduplication_id is not None:
            key += f" ({deduplication_id})"
        return self.effect(key, idempotency_key=deduplication_id, message=copy.deepcopy(message))

    @property
    def messages(self) -> list[Any]:
        """All published messages without discarded ones, in order."""
        with self._lock:
            effects = [each for some in self._contents.active.values() for each in some]
        effects.sort(key=lambda effect: int(effect.id.rpartition("-")[2]))
        return [effect.data["message"] for effect in effects]

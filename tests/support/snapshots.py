"""A backend that records what remains of a flow if its engine dies after any write."""

from __future__ import annotations

from typing import Any

from wbengine.persistence import models
from wbengine.persistence.backends import _memory


class Snapshots(_memory.MemoryBackend):
    """Records a copy of the flow after each write."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[models.FlowDetail] = []

    def get_connection(self) -> _memory.MemoryConnection:
        backend = self

        class Connection(_memory.MemoryConnection):
            def save_changes(self, flow: Any, atoms: Any, **more: Any) -> None:
                super().save_changes(flow, atoms, **more)
                backend.taken.append(backend.flows[flow.uuid].detail.copy())

        return Connection(self)

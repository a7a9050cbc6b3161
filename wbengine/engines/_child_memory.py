"""Child flows of flows without a store."""

from __future__ import annotations

from typing import Any

from wbengine.persistence.backends import _memory

__all__ = ["ChildMemory"]


class ChildMemory(_memory.MemoryBackend):
    """The records of the children of a flow, and of their children, for all runs of its engine.

    :ivar made_flows: the flows by uuid. They need no importable factory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made_flows: dict[str, Any] = {}

"""Child flows of flows without a store."""

from __future__ import annotations

from typing import Any

from wbengine.engines import _loading
from wbengine.persistence import base, models
from wbengine.persistence.backends import _memory

__all__ = ["ChildMemory", "flow_of"]


class ChildMemory(_memory.MemoryBackend):
    """The records of the children of a flow, and of their children, for all runs of its engine.

    :ivar made_flows: the flows by uuid. They need no importable factory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made_flows: dict[str, Any] = {}


def flow_of(detail: models.FlowDetail, store: base.Backend) -> Any:
    """Return the flow of a record of a store.

    :raises Exception: if its factory does.
    """
    if isinstance(store, ChildMemory):
        return store.made_flows[detail.uuid]
    return _loading.flow_from_detail(detail)

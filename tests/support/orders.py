"""Orders: parents of the child flows of `tests.support.child_flows`, in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import child_flows
from tests.support.reading import flow_uuids
from wbengine import engines, operations, testing
from wbengine.persistence import base as persistence


class Orders:
    """A store of orders, and the folder in which their tasks note their effects."""

    def __init__(self, store: persistence.Backend, folder: Path) -> None:
        self.store, self.folder = store, folder

    def submit(self, workflow: Any, *items: str, detached: bool = False, **options: Any) -> Any:
        inputs: dict[str, Any] = {"folder": str(self.folder), "items": list(items)}
        if detached:
            inputs["detached"] = True
        return engines.submit(workflow, inputs=inputs, backend=self.store, **options)

    def start(self, workflow: Any, *items: str, **options: Any) -> Any:
        """Submit an order, and run all flows until they end or wait."""
        handle = self.submit(workflow, *items, **options)
        self.run()
        return handle

    def run(self) -> list[Any]:
        return testing.run_submitted(self.store)

    def request(self, uuid: str, verb: str, **options: Any) -> None:
        operations.request(self.store, uuid, verb, **options)
        self.run()

    def children(self, handle: engines.FlowHandle) -> list[str]:
        return flow_uuids(self.store, parent=handle.id, newest_first=False)

    def let_children_go(self, handle: engines.FlowHandle) -> None:
        for uuid in self.children(handle):
            operations.signal(self.store, uuid, "go")
        self.run()

    def states(self, handle: engines.FlowHandle) -> list[str]:
        """Return the states of an order and of its children."""
        uuids = (handle.id, *self.children(handle))
        return [engines.handle(uuid, backend=self.store).state for uuid in uuids]

    @property
    def effects(self) -> list[str]:
        return child_flows.effects(self.folder)

"""A flow that runs until a test sets `GO`."""

from __future__ import annotations

import threading
from typing import Any

from tests.dashboard import story
from tests.dashboard.site import PATIENCE
from tests.support.workers import until
from wbengine import engines, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import base

__all__ = ["GO", "Running", "Waits"]

GO = threading.Event()


class Waits(task.Task):
    def execute(self) -> None:
        assert GO.wait(PATIENCE)


class Running:
    """A flow that runs in a thread until `GO` is set."""

    def __init__(self) -> None:
        GO.clear()
        self.kept = story.Kept()
        flow = linear_flow.Flow("running").add(story.Fine("a"), Waits("b"), story.Fine("c"))
        self.detail = base.create_flow_detail(flow, backend=self.kept.backend)
        self.engine = engines.load(
            flow, flow_detail=self.detail, backend=self.kept.backend, engine="serial"
        )
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        self.path = f"/flows/{self.detail.uuid}"
        until(lambda: self.state_of("b") == "RUNNING")

    def run(self) -> None:
        try:
            self.engine.run()
        except Exception as error:
            self.error = error

    def end(self) -> None:
        GO.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    def is_told(self) -> bool:
        """Return whether the engine has received the command to suspend or cancel."""
        state = self.engine.storage.get_flow_state()
        return bool(self.engine.is_cancelled or state == states.SUSPENDING)

    def wish(self) -> Any:
        return self.kept.see(lambda each: each.commands([self.detail.uuid])).get(self.detail.uuid)

    def state(self) -> Any:
        return self.kept.see(lambda each: each.get_flow_details(self.detail.uuid, lazy=True)).state

    def state_of(self, name: str) -> Any:
        atoms = self.kept.see(lambda each: list(each.get_atoms_for_flow(self.detail.uuid)))
        return {atom.name: atom.state for atom in atoms}.get(name)

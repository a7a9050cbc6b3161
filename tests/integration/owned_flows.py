"""Flows in a store, and engines that own them one after the other."""

from __future__ import annotations

from typing import Any

from wbengine import engines, states, task
from wbengine._calls import invocation
from wbengine.engines import _local, base
from wbengine.persistence import base as persistence
from wbengine.persistence import models


class Step(task.Task):
    """Task that calls a function in the thread that runs it."""

    def __init__(self, name: str, does: Any = None, **options: Any) -> None:
        super().__init__(name, **options)
        self.does = does
        self.runs = 0

    def execute(self) -> Any:
        self.runs += 1
        return self.does() if self.does is not None else self.name


def reload_engine(engine: base.Engine, flow: Any, backend: Any, **options: Any) -> base.Engine:
    """Load another engine for the stored records of the same flow."""
    with backend.get_connection() as connection:
        detail = connection.get_flow_details(engine.storage.flow_uuid)
    return engines.load(flow, flow_detail=detail, backend=backend, **options)


def stored_flow(engine: base.Engine, backend: Any) -> models.FlowDetail:
    with backend.get_connection() as connection:
        detail: models.FlowDetail = connection.get_flow_details(engine.storage.flow_uuid)
        return detail


def as_left_by_dead_engine(backend: Any, uuid: str) -> models.FlowDetail:
    """Store that all atoms and items of a suspended flow are RUNNING, and return the flow."""
    with backend.get_connection() as connection:
        detail: models.FlowDetail = connection.get_flow_details(uuid)
        detail.state = states.RUNNING
        for atom in detail:
            atom.state = states.RUNNING
            if atom.items is not None:
                atom.items.in_flight = True
        connection.save_changes(detail, list(detail))
    return detail


def stored_atoms(engine: Any) -> dict[str, models.AtomDetail]:
    """Return the stored records of the atoms by name."""
    with engine.storage.backend.get_connection() as connection:
        return {atom.name: atom for atom in connection.get_atoms_for_flow(engine.storage.flow_uuid)}


class RecordingExecutor(invocation.TaskExecutor):
    """Executor that runs tasks immediately and records its calls."""

    survives_engine = True

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.after: Any = None

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        self.log.append(("submit", call.task.name))
        done(call, invocation.invoke(call))
        if self.after is not None:
            self.after()

    def retire(self, calls: Any) -> None:
        self.log.append(("retire", [call.task.name for call in calls]))

    def withdraw(self) -> list[invocation.Invocation]:
        self.log.append("withdraw")
        return []

    def disown(self) -> None:
        self.log.append("disown")

    def finish(self) -> None:
        self.log.append("finish")

    def stop(self) -> None:
        self.log.append("stop")


def load_recording_engine(flow: Any, log: list[Any], backend: Any, **options: Any) -> base.Engine:
    detail = persistence.create_flow_detail(flow, backend=backend)
    executor = {"executor": RecordingExecutor(log)}
    engine = _local.ParallelActionEngine(flow, detail, backend, {**executor, **options})
    engine.compile()
    engine.prepare()
    return engine

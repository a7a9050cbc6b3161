"""Engines that suspend or park their flow, and engines that continue it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from wbengine import engines, states


def suspended(flow: Any, backend: Any, is_due: Callable[[str], object], **options: Any) -> Any:
    """Run a flow, and suspend it when an atom whose name is due succeeds; return the engine."""
    engine = engines.load(flow, backend=backend, **options)

    def suspend(state: str, details: dict[str, Any]) -> None:
        if is_due(details["task_name"]):
            engine.suspend()

    engine.atom_notifier.register(states.SUCCESS, suspend)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    return engine


def parked(engine: Any) -> Any:
    """Run an engine whose flow waits for a signal until the flow is parked; return the engine."""
    engine.park_after = 1.0
    engine.run()
    assert engine.parked is not None
    return engine


def continued(engine: Any, flow: Any, backend: Any, /, **options: Any) -> Any:
    """Return a new engine for the stored flow of another one."""
    with contextlib.closing(backend.get_connection()) as connection:
        detail = connection.get_flow_details(engine.storage.flow_uuid)
    return engines.load(flow, flow_detail=detail, backend=backend, **options)

"""Flows with tasks for Celery workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.celery.conftest import Bed
from tests.celery.peers import NAME
from wbengine._calls import invocation
from wbengine.interop.celery.task import CeleryTask
from wbengine.patterns import linear_flow, unordered_flow

LINE, WIDE = linear_flow.Flow, unordered_flow.Flow


def asks(side: Bed, function: str, name: str | None = None, **options: Any) -> CeleryTask:
    options.setdefault("result_backend", side.backend)
    return CeleryTask(f"{NAME}.{function}", side.url, name or function, **options)


def begun(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def id_of(engine: Any, name: str) -> str:
    """Return the id of the Celery task that the first attempt of an atom sent."""
    return invocation.request_id(engine.storage.record(name).uuid, "execute", 1)

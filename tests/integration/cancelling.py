"""Flows of recording tasks for tests of cancellation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import cancelled_tasks as tasks
from tests.support.workers import worker_in_thread
from wbengine import engines
from wbengine.patterns import linear_flow, unordered_flow

LINE, WIDE = linear_flow.Flow, unordered_flow.Flow


@contextlib.contextmanager
def engine_options(name: str, folder: Path, *more: Any, slots: int = 3) -> Iterator[dict[str, Any]]:
    """Yield options for one kind of engine; its worker offers the tasks of `more` modules."""
    if name == "serial":
        yield {}
    elif name in ("threads", "processes"):
        yield {"engine": "parallel", "executor": name, "max_workers": slots}
    else:
        url = f"memory://{folder.name}" if name == "memory" else f"filesystem://{folder / 'broker'}"
        with worker_in_thread(url, tasks, *more, threads_count=slots):
            yield {"engine": "worker-based", "url": url}


class Log:
    """Events that tasks recorded, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def lines(self) -> list[str]:
        if not self.path.exists():
            return []
        return [line.split()[0] for line in self.path.read_text().splitlines()]


def load(flow: Any, log: Log, kind: dict[str, Any], **more: Any) -> Any:
    return engines.load(
        flow, store={"path": str(log.path), **more.pop("store", {})}, **kind, **more
    )

"""Flows of recording tasks for tests of cancellation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wbengine import engines
from wbengine.patterns import linear_flow, unordered_flow

LINE, WIDE = linear_flow.Flow, unordered_flow.Flow


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

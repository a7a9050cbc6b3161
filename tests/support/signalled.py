"""A flow that waits for a signal, by name: `tests.support.signalled:flow`."""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow


class Use(task.Task):
    def execute(self, approval: Any) -> Any:
        return approval


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("signalled").add(
        task.WaitFor("approved", timeout=3600, provides="approval"), Use("use", provides="found")
    )

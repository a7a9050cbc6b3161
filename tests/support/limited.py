"""Flows with limits of their own, whose tasks wait for signals."""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow


class Begun(task.Task):
    """Does nothing; its end is the sign that the flow has begun."""

    def execute(self) -> None:
        pass


def waiting(concurrency: int | None = 1, rate: str | None = None, cost: float | None = None) -> Any:
    """Flows of one tenant share a limit. A flow that has begun waits for the signal 'go'."""
    flow = linear_flow.Flow("tenant_work")
    flow.add(Begun("begun"), task.WaitFor("go", name="wait"))
    flow.concurrency, flow.rate_limit, flow.cost = concurrency, rate, cost
    flow.concurrency_key = lambda tenant: tenant
    return flow

"""Flows with limits of their own, whose tasks wait for signals."""

from __future__ import annotations

import threading
from typing import Any, Final

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


#: Lets `Held.revert` end.
MAY_END: Final = threading.Event()
REVERTED: Final[list[str]] = []


class Held(task.Task):
    def execute(self, tenant: str) -> None: ...

    def revert(self, tenant: str, **_: Any) -> None:
        MAY_END.wait(60)
        REVERTED.append(tenant)


def held() -> Any:
    """Flows of one tenant share a limit."""
    flow = linear_flow.Flow("tenant_work").add(Held("held"))
    flow.concurrency, flow.concurrency_key = 1, lambda tenant: tenant
    return flow


@task.task(concurrency=1, limit="tool")
def use_tool(item: int = 0) -> None:
    """Share a limit with all flows."""


@task.task(rate_limit="60/m", limit="budget", cost=3)
def spend() -> None:
    """Take three units."""


#: Lets `hold_tool` end.
tool_released = threading.Event()


@task.task(concurrency=1, limit="tool")
def hold_tool() -> None:
    """Use the tool for a while."""
    tool_released.wait(60)


def holding_tool() -> Any:
    """Release the tool, and wait for the signal 'go', also in the process of a test."""
    return linear_flow.Flow("holding_tool").add(
        hold_tool("hold"), task.WaitFor("go", name="wait"), Begun("end")
    )


def using_tool() -> Any:
    return linear_flow.Flow("using_tool").add(Begun("begun"), use_tool("tool"))


def using_tool_for_items() -> Any:
    items = task.Map(use_tool(), over="items", item="item", name="tool")
    return linear_flow.Flow("using_tool").add(items)


@task.workflow
def using_tool_in_steps(steps: Any) -> None:
    steps.run(use_tool, 1)


def using_budget() -> Any:
    return linear_flow.Flow("using_budget").add(Begun("begun"), spend("spend"))

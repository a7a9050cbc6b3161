"""`crash_everywhere` on workflows with child flows."""

from __future__ import annotations

import pytest

from wbengine import task
from wbengine.steps import AsyncSteps, Steps
from wbengine.testing import World, crash_everywhere

SHOP = World("shop")


@task.task
def reserve(item: str, key: str) -> None:
    SHOP.effect(f"reserve {item}", idempotency_key=key)


@reserve.revert(failed=True)
def release(item: str) -> None:
    SHOP.undo(f"reserve {item}", missing_ok=True)


@task.workflow
def deliver(steps: Steps, item: str) -> str:
    steps.run(reserve, item, str(steps.uuid4()))
    return item


@task.workflow
async def order(steps: AsyncSteps, items: list[str]) -> list[str]:
    return await steps.map(deliver, items)


@task.workflow
def refused(steps: Steps, items: list[str]) -> None:
    for item in items:
        steps.child(deliver, deliver.inputs(item))
    raise ValueError("refused")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "worker-based"])
@pytest.mark.parametrize(("flow", "end"), [(order, "SUCCESS"), (refused, "REVERTED")])
def test_right_parent_has_no_findings(flow: type[task.Workflow], end: str, engine: str) -> None:
    inputs = {"items": ["tea", "cup"]}
    report = crash_everywhere(flow, inputs, world=SHOP, end=end, engine=engine, max_runs=40)
    assert not report.findings

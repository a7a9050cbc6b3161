"""Tasks that take several units of a limit, for engines and workers."""

from __future__ import annotations

from typing import Any

from wbengine import task

BUDGET = "budget"
STARTED: list[int] = []


def ten_each(n: int) -> int:
    return 10 * n


@task.task(rate_limit="3600000/h", limit=BUDGET, cost=ten_each)
def spends(self: task.Task, n: int) -> int:
    """Use one unit less than a tenth of the cost, after an earlier report."""
    assert self.request is not None
    self.request.spend(1e6)
    self.request.spend(n - 1)
    return n


@task.task(rate_limit="100/h", limit="small", cost=lambda n: n)
def small(n: int) -> int:
    STARTED.append(n)
    return n


@task.workflow
def spending(steps: Any) -> None:
    steps.run(spends, 5)
    steps.run(spends, 7)


@task.workflow
def too_large(steps: Any) -> None:
    steps.run(small, 101)

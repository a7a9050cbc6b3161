"""Code of a flow changes context variables only for itself."""

from __future__ import annotations

import contextvars
import decimal
from typing import Any

import pytest

from tests.unit.running_tasks import ChangesContext, change_context, tenant
from wbengine import engines, retry, task
from wbengine.patterns import graph_flow, linear_flow

ENGINE = ("engine", 40)


def run(flow: Any, **options: Any) -> Any:
    """Run a flow in a context of its own, and check that the flow does not change it."""

    def run_here() -> Any:
        change_context("engine")
        decimal.getcontext().prec = 40
        values = engines.run(flow, **options)
        assert (tenant.get(), decimal.getcontext().prec) == ENGINE
        return values

    return contextvars.copy_context().run(run_here)


@task.workflow
def plain(steps: Any) -> list[Any]:
    seen = [change_context("workflow"), *steps.run(ChangesContext)]
    return [*seen, change_context("again")]


@task.workflow
async def asynchronous(steps: Any) -> list[Any]:
    seen = [change_context("workflow"), *await steps.run(ChangesContext)]
    return [*seen, change_context("again")]


@pytest.mark.parametrize("engine", ["serial", "parallel"])
@pytest.mark.parametrize("workflow", [plain, asynchronous])
def test_workflow_and_its_steps_have_separate_contexts(workflow: Any, engine: str) -> None:
    seen = run(workflow, engine=engine)["result"]
    assert [tuple(each) for each in seen] == [ENGINE, ENGINE, ("hook", 5), ("workflow", 5)]


def test_retry_controller_changes_only_its_own_context() -> None:
    seen = []

    class Again(retry.Times):
        def execute(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(change_context("execute"))
            return super().execute(*args, **kwargs)

        def on_failure(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(change_context("on_failure"))
            return super().on_failure(*args, **kwargs)

    @task.task
    def fails_once() -> None:
        seen.append(change_context("task"))
        if len(seen) == 2:
            raise LookupError

    run(linear_flow.Flow("f", retry=Again(2)).add(fails_once("t")))
    assert seen == [ENGINE] * 5


def test_decider_changes_only_its_own_context() -> None:
    first, second = ChangesContext("first", provides="a"), ChangesContext("second", provides="b")
    flow = graph_flow.Flow("f").add(first, second)
    flow.link(first, second, decider=lambda history: bool(change_context("decider")))
    assert run(flow)["b"] == [ENGINE, ("hook", 5)]

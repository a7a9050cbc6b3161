"""Order of coroutines, tasks and futures that asyncio keeps in sets, in each run of a workflow."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from typing import Any

import pytest

from tests.support.continued_engines import continued, parked
from wbengine import engines, states, steps, task
from wbengine.persistence import backends

COUNT = 12
SEEDS = itertools.count()


@task.task
def part(number: int) -> int:
    return number


async def nothing() -> None: ...


async def scatter(steps: steps.AsyncSteps) -> None:
    """Free memory in a random order, so that the addresses of new objects have a random order."""
    tasks = [asyncio.ensure_future(nothing()) for _ in range(10 * COUNT)]
    random.Random(next(SEEDS)).shuffle(tasks)
    for each in tasks:
        each.cancel()
    await steps.sleep(0)


async def run_scattered(run: Any, number: int, order: list[int]) -> int:
    order.append(number)
    result: int = await run(part, number)
    return result


@task.workflow
async def completed_steps(steps: steps.AsyncSteps, container: str) -> list[int]:
    await scatter(steps)
    calls: Any = [steps.run(part, number) for number in range(COUNT)]
    if container == "dict":
        calls = dict.fromkeys(calls)
    elif container == "deque":
        calls = deque(calls)
    return [await each for each in asyncio.as_completed(calls)]


@task.workflow
async def completed_coroutines(steps: steps.AsyncSteps) -> list[int]:
    await scatter(steps)
    order: list[int] = []
    calls = [run_scattered(steps.run, number, order) for number in range(COUNT)]
    results = [await each for each in asyncio.as_completed(calls)]
    return [*order, *results]


@task.workflow
async def done_tasks(steps: steps.AsyncSteps) -> list[int]:
    await scatter(steps)
    done, _ = await asyncio.wait(
        [asyncio.ensure_future(steps.run(part, number)) for number in range(COUNT)]
    )
    return [each.result() for each in done]


@task.workflow
async def done_futures(steps: steps.AsyncSteps) -> list[int]:
    await scatter(steps)
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(COUNT)]
    for number, future in enumerate(futures):
        future.set_result(number)
    return [each.result() for each in set(futures)]


@task.workflow
async def cancelled_group(steps: steps.AsyncSteps) -> list[int]:
    await scatter(steps)
    order = []

    async def wait(number: int) -> None:
        try:
            await steps.sleep(3600)
        finally:
            order.append(number)

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(COUNT):
                group.create_task(wait(number))
            await steps.run(part, 0)
            raise LookupError
    except* LookupError:
        pass
    return order


@task.workflow
async def names(steps: steps.AsyncSteps) -> list[str]:
    async def name() -> str:
        current = asyncio.current_task()
        assert current is not None
        return current.get_name()

    return await asyncio.gather(*(name() for _ in range(3)))


@pytest.mark.parametrize(
    "workflow", [completed_coroutines, done_tasks, done_futures, cancelled_group, names]
)
def test_order_is_the_same_in_each_run(workflow: Any) -> None:
    results = [engines.run(workflow)["result"] for _ in range(4)]
    assert results == results[:1] * 4


@pytest.mark.parametrize("container", ["list", "dict", "deque"])
def test_as_completed_begins_coroutines_in_their_order(container: str) -> None:
    result = engines.run(completed_steps, {"container": container})["result"]
    assert result == list(range(COUNT))


def identity(value: Any) -> Any:
    return value


class Wrapped:
    """An awaitable that is no coroutine."""

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine

    def __await__(self) -> Any:
        return self.coroutine.__await__()


@pytest.mark.parametrize(
    ("container", "kind"),
    [
        (set, "set"),
        (lambda calls: map(identity, calls), "map"),
        (lambda calls: [*map(Wrapped, calls)], "list"),
    ],
)
def test_as_completed_refuses_awaitables_without_an_order(container: Any, kind: str) -> None:
    @task.workflow
    async def workflow(steps: steps.AsyncSteps) -> None:
        calls = [steps.run(part, number) for number in range(2)]
        try:
            for each in asyncio.as_completed(container(calls)):
                await each
        finally:
            for call in calls:
                call.close()

    message = f"asyncio.as_completed with this {kind}.* use a list of coroutines or tasks"
    with pytest.raises(RuntimeError, match=message):
        engines.run(workflow)


def test_as_completed_accepts_a_set_of_tasks() -> None:
    @task.workflow
    async def workflow(steps: steps.AsyncSteps) -> list[int]:
        tasks = {asyncio.ensure_future(steps.run(part, number)) for number in range(2)}
        return [await each for each in asyncio.as_completed(tasks)]

    assert engines.run(workflow)["result"] == [0, 1]


@task.workflow
async def suspended_with_sets(steps: steps.AsyncSteps) -> list[int]:
    await scatter(steps)
    results = [
        await each
        for each in asyncio.as_completed(
            [run_scattered(steps.run, number, []) for number in range(COUNT)]
        )
    ]
    await scatter(steps)
    done, _ = await asyncio.wait(
        [asyncio.ensure_future(steps.run(part, number)) for number in range(COUNT)]
    )
    repeated = [await steps.run(part, each.result()) for each in done]
    await steps.wait_for("go")
    return results + repeated


def test_resumed_workflow_repeats_the_order_of_sets() -> None:
    backend = backends.fetch("memory://")
    engine = parked(engines.load(suspended_with_sets, backend=backend))
    assert engine.storage.get_flow_state() == states.SUSPENDED
    for _ in range(3):
        engine = parked(continued(engine, suspended_with_sets, backend))
    engine.signal("go")
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS
    backend.close()

"""The flows whose processes are killed, and their expected results.

The name determines the flow, because a resuming process has only the name.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping
from typing import Any

from tests.crashing import tasks
from wbengine import retry, states, task
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.steps import AsyncSteps, Steps

#: More than the number of kills: each task that is lost with its worker needs one round.
ROUNDS = 9
#: Name of the signal that `main` and `stepped` wait for.
SIGNAL = "approved"


def store(audit: str, nap: float = 0.0) -> dict[str, Any]:
    """Return the inputs of the flows."""
    return {
        "audit": audit,
        "nap": nap,
        "late": 0.5,
        "size": 20_000,
        "numbers": list(range(5)),
    }


def make(name: str) -> Any:
    """Return the flow `main`, `undone`, `slow`, `harmless`, `broad`, `heavy`, `mixed-<number>` or
    `stepped-<number>`.
    """
    kind, _, number = name.partition("-")
    return _MAKERS[kind](name, int(number or 0))


def end_of(name: str) -> str:
    """Return the expected final state."""
    kind, _, number = name.partition("-")
    if kind in _FAILING:
        return states.REVERTED if _FAILING[kind](int(number)) else states.SUCCESS
    return states.REVERTED if name == "undone" else states.SUCCESS


def _main(name: str, number: int) -> Any:
    """Contains all features and succeeds."""
    flow = linear_flow.Flow(name, retry=retry.Times(ROUNDS, "rounds", provides="round"))
    wide = unordered_flow.Flow("wide").add(
        tasks.Step("left", provides="left"),
        tasks.Telling("middle", provides="middle"),
        tasks.Bulky("right", provides="right"),
    )
    again = linear_flow.Flow(
        "again", retry=retry.ForEach(range(1, ROUNDS + 1), "waves", provides="wave")
    )
    again.add(
        tasks.Wave("before", provides="before"),
        tasks.Shaky("shaky", provides="shaky"),
        task.Map(
            tasks.EachWave("each"),
            over="numbers",
            item="number",
            provides="each",
            max_in_flight=2,
        ),
    )
    parts = ["begin", "left", "middle", "right", "asked", "before", "shaky", "each"]
    return flow.add(
        tasks.Step("begin", provides="begin"),
        _waits(),
        wide,
        _branches(),
        again,
        _sum("sum", parts),
    )


def _waits() -> Any:
    """Return tasks that wait: for the end of a pause, for a signal, and for a permit."""
    flow = unordered_flow.Flow("waits")
    limited = [tasks.Limited(f"limited-{number}") for number in range(2)]
    return flow.add(tasks.Paused("paused"), task.WaitFor(SIGNAL, name="signalled"), *limited)


def _branches() -> Any:
    flow = graph_flow.Flow("branches")
    asked, taken = tasks.Step("asked", provides="asked"), tasks.Step("taken")
    skipped, after = tasks.Step("skipped"), tasks.Step("after")
    flow.add(asked, taken, skipped, after)
    flow.link(asked, taken, decider=_yes)
    flow.link(asked, skipped, decider=_no, decider_depth="flow")
    flow.link(skipped, after)
    return flow


def _undone(name: str, number: int) -> Any:
    """Fails twice and is reverted."""
    flow = linear_flow.Flow(name, retry=retry.Times(2, "rounds", provides="round"))
    return flow.add(
        tasks.Step("first"),
        unordered_flow.Flow("wide").add(tasks.Step("left"), tasks.Telling("right")),
        _each(),
        tasks.Break("break"),
    )


def _slow(name: str, number: int) -> Any:
    """Contains one slow task."""
    flow = linear_flow.Flow(name, retry=retry.Times(ROUNDS, "rounds", provides="round"))
    return flow.add(tasks.Step("first"), tasks.Late("late"), tasks.Step("last"))


def _mixed(name: str, number: int) -> Any:
    """Contains twenty tasks in a shape that the number determines; some of these flows fail at the
    end.
    """
    chance = random.Random(number)
    flow = linear_flow.Flow(name, retry=retry.Times(2, "rounds", provides="round"))
    left, count = 16, 0
    parts = []
    while left:
        size = min(left, chance.randint(1, 5))
        shape = chance.choice([linear_flow, unordered_flow, graph_flow])
        members = [
            tasks.Step(f"t{count + index}", provides=f"t{count + index}") for index in range(size)
        ]
        part: Any = shape.Flow(f"part-{count}").add(*members)
        if shape is graph_flow:
            for before, after in itertools.pairwise(members):
                if chance.random() < 0.6:
                    part.link(before, after)
        flow.add(part)
        parts += [member.name for member in members]
        left -= size
        count += size
    again = linear_flow.Flow("again", retry=retry.ForEach([1, 2, 3], "waves", provides="wave"))
    flow.add(again.add(tasks.Wave("before"), tasks.Shaky("shaky")), _each())
    return flow.add(tasks.Break("break") if _fails(number) else _sum("sum", parts))


def _harmless(name: str, number: int) -> Any:
    """Contains an idempotent task."""
    flow = linear_flow.Flow(name, retry=retry.Times(ROUNDS, "rounds", provides="round"))
    return flow.add(tasks.Step("first"), tasks.Harmless("harmless"), tasks.Step("last"))


def _broad(name: str, number: int) -> Any:
    """Contains more idempotent tasks than a worker claims at once."""
    flow = linear_flow.Flow(name, retry=retry.Times(ROUNDS, "rounds", provides="round"))
    members = [tasks.Harmless(f"harmless-{index}") for index in range(20)]
    return flow.add(tasks.Step("first"), unordered_flow.Flow("members").add(*members))


def _heavy(name: str, number: int) -> Any:
    """Stores a few megabytes."""
    flow = linear_flow.Flow(name, retry=retry.Times(ROUNDS, "rounds", provides="round"))
    parts = [f"t{index}" for index in range(20)]
    flow.add(*(tasks.Bulky(part, provides=part, inject={"size": 100_000}) for part in parts))
    return flow.add(_sum("sum", parts))


def _stepped(name: str, number: int) -> Any:
    """Contains a workflow, which is a coroutine if the number is odd; some of these fail at the
    end, twice.
    """
    flow = linear_flow.Flow(name, retry=retry.Times(2, "rounds", provides="round"))
    workflow = _async_workflow if number % 2 else _workflow
    return flow.add(workflow(inject={"fails": _workflow_fails(number)}))


@task.workflow(name="workflow", provides="result")
def _workflow(
    steps: Steps, audit: str, nap: float, round: int, numbers: list[int], fails: bool
) -> Any:
    common = {"audit": audit, "nap": nap, "round": round}
    parts = []
    for _ in numbers[:2]:
        parts.append(steps.run(tasks.Step, **common))
        steps.sleep(0)
    try:
        with steps.scope():
            steps.run(tasks.Step, **common)
            steps.run(tasks.Step, **common)
            steps.run(tasks.Break, **common)
    except ValueError:
        parts += steps.map(tasks.EachStep, numbers, max_in_flight=2, **common)
    parts.append(steps.wait_for(SIGNAL))
    result = steps.run(tasks.Sum, parts=parts, **common)
    if fails:
        steps.run(tasks.Break, **common)
    return result


@task.workflow(name="workflow", provides="result")
async def _async_workflow(
    steps: AsyncSteps, audit: str, nap: float, round: int, numbers: list[int], fails: bool
) -> Any:
    common = {"audit": audit, "nap": nap, "round": round}
    parts = []
    for _ in numbers[:2]:
        chains = (steps.run(tasks.Step, **common) for _ in numbers[:2])
        parts += await asyncio.gather(*chains, steps.sleep(0))
    try:
        async with steps.scope():
            await asyncio.gather(*(steps.run(tasks.Step, **common) for _ in numbers[:2]))
            await steps.run(tasks.Break, **common)
    except ValueError:
        parts += await steps.map(tasks.EachStep, numbers, max_in_flight=2, **common)
    parts.append(await steps.wait_for(SIGNAL))
    result = await steps.run(tasks.Sum, parts=parts, **common)
    if fails:
        await steps.run(tasks.Break, **common)
    return result


def _fails(number: int) -> bool:
    return number % 4 == 3


def _workflow_fails(number: int) -> bool:
    return number % 4 >= 2


def _each() -> Any:
    return task.Map(
        tasks.Each("each"), over="numbers", item="number", provides="each", max_in_flight=2
    )


class _Parts(task.Task):
    """Collects the results of several tasks in one list. It runs in the engine's process."""

    def execute(self, **parts: Any) -> list[Any]:
        return [parts[name] for name in sorted(parts)]


def _sum(name: str, parts: list[str]) -> Any:
    gather = _Parts(f"{name}-parts", requires=parts, provides="parts", auto_extract=False)
    gather.local = True
    return linear_flow.Flow(name).add(gather, tasks.Sum(name, provides=name))


def _yes(history: Mapping[str, Any]) -> bool:
    return True


def _no(history: Mapping[str, Any]) -> bool:
    return False


#: Whether the flow with a number fails, by kind.
_FAILING: Mapping[str, Any] = {"mixed": _fails, "stepped": _workflow_fails}

_MAKERS: Mapping[str, Any] = {
    "main": _main,
    "undone": _undone,
    "slow": _slow,
    "harmless": _harmless,
    "broad": _broad,
    "heavy": _heavy,
    "mixed": _mixed,
    "stepped": _stepped,
}

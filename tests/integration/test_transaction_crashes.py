"""Processes that die between the effect of a task with a transaction and its result."""

from __future__ import annotations

import collections
import functools
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tests.support import shop
from tests.support.amounts import amount
from wbengine._calls import invocation as calls
from wbengine._concurrency import crash_points
from wbengine.types import failure as ft

POINTS = (
    *("step.before-row", "step.after-row", "step.after-function"),
    *("step.before-commit", "step.after-commit"),
)

#: Longest time until a process is killed at any moment.
KILL_SECONDS = 0.03


def invoke(order: int, attempt: int, action: calls.Action, result: Any) -> Any:
    """Make one call of the task of an order, as an executor does."""
    call = calls.Invocation(
        shop.charge(), action, f"order-{order}", attempt, {"order": order}, result=result
    )
    value = calls.invoke(call).value
    if isinstance(value, ft.Failure):
        value.reraise()
    return value


def child(work: Callable[[], object], point: str | None) -> NoReturn:
    """Do the work in a forked process, which ends at the point."""
    code = 1
    try:
        crash_points.install(lambda name: os._exit(9) if name == point else None)
        work()
        code = 0
    finally:
        os._exit(code)


def forked(work: Callable[[], object], point: str | None, delay: float | None) -> str:
    """Do the work in a forked process that ends at a point, or is killed after a delay."""
    pid = os.fork()
    if not pid:
        child(work, point)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return "killed"
    return {9: "died", 0: "finished"}[os.WEXITSTATUS(status)]


def crash(here: shop.Shop, count: int, *, kills: bool, chance: random.Random) -> None:
    """Let one process die with each order, and another one repeat or revert its call."""
    ends: collections.Counter[str] = collections.Counter()
    expected = []
    for order in range(1, count + 1):
        point = None if kills else chance.choice(POINTS)
        delay = chance.uniform(0, KILL_SECONDS) if kills else None
        reverts, attempt, result = order % 2 == 0, 1, None
        if reverts:
            result, attempt = invoke(order, 1, "execute", None), 2
        action: calls.Action = "revert" if reverts else "execute"
        call = functools.partial(invoke, order, attempt, action, result)
        ends[forked(call, point, delay)] += 1
        # The process that continues is the same for a copy of the request, or has a new attempt.
        value = invoke(order, attempt + order % 3 % 2, action, result)
        assert value == ("refunded" if reverts else ("paid", order))
        expected.append(-order if reverts else order)
    effects = collections.Counter(here.effects())
    twice = sum(number > 1 for number in effects.values())
    lost = len(set(expected) - set(effects))
    print(f"\n{here.dialect}: {count:,} calls, {dict(ends)}: {twice} twice, {lost} lost")
    assert (twice, lost, len(effects)) == (0, 0, count)
    assert ends["died"] == count if not kills else ends["killed"] > count / 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_effects_happen_once_if_forked_processes_die_at_points(here: shop.Shop) -> None:
    crash(here, amount(200, 2000, "WBENGINE_CRASHES"), kills=False, chance=random.Random(1))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_effects_happen_once_if_processes_are_killed_at_any_time(here: shop.Shop) -> None:
    crash(here, amount(50, 500, "WBENGINE_KILLS"), kills=True, chance=random.Random(2))

"""Due times and waits of a run."""

from __future__ import annotations

import math
import random

import pytest

from wbengine._runtime.deadlines import Timers


def test_no_timers_are_never_due() -> None:
    timers = Timers()
    assert timers.wait(0) is None
    assert timers.wait(0, 5) == 5
    assert timers.pop(1e9) == []
    assert not timers.passed(1e9)


def test_run_deadline_limits_the_wait() -> None:
    timers = Timers()
    timers.set_deadline(10)
    timers.set(1, 20)
    assert timers.wait(4) == 6
    assert not timers.passed(9)
    assert timers.passed(10)
    assert timers.pop(10) == []
    timers.set_deadline(math.inf)
    assert timers.wait(10) == 10


def test_wait_is_not_negative_and_within_the_lock_limit() -> None:
    timers = Timers()
    timers.set(1, 5)
    assert timers.wait(9) == 0
    timers.pop(9)
    timers.set(1, 1e300)
    found = timers.wait(0)
    assert found is not None and 3600 < found < 1e6


@pytest.mark.parametrize("seed", range(20))
def test_timers_match_a_model_that_sorts_each_time(seed: int) -> None:
    chance = random.Random(seed)
    timers, model, now = Timers(), {}, 0
    for number in range(300):
        if chance.random() < 0.6:
            node, due = chance.randrange(30), now + chance.randrange(10)
            timers.set(node, due)
            model[node] = due, number
        else:
            now += chance.randrange(5)
            expected = [node for node in sorted(model, key=model.get) if model[node][0] <= now]
            assert timers.passed(now) or not expected
            assert timers.pop(now) == expected
            for node in expected:
                del model[node]
        if model and not timers.passed(now):
            wait = timers.wait(now)
            assert wait is not None and wait <= min(model.values())[0] - now + 1e-9

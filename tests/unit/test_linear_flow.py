"""Building long linear flows."""

from __future__ import annotations

import time

from wbengine import task
from wbengine.patterns import linear_flow


class T(task.Task):
    def execute(self, **kwargs): ...


def test_a_long_flow_is_built_and_asked_in_linear_time():
    flow = linear_flow.Flow("long")
    started = time.process_time()
    for number in range(20_000):
        flow.add(T(str(number), requires=[f"s{number - 1}"], provides=[f"s{number}"]))
    assert flow.requires == {"s-1"}
    assert len(flow.provides) == 20_000
    assert sum(1 for _ in flow.iter_links()) == 19_999
    assert time.process_time() - started < 2

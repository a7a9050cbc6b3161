"""Building wide unordered flows."""

from __future__ import annotations

import time

from wbengine import task
from wbengine.patterns import unordered_flow


class T(task.Task):
    def execute(self, **kwargs): ...


def test_a_wide_flow_is_built_and_asked_in_linear_time():
    flow = unordered_flow.Flow("wide")
    started = time.process_time()
    for number in range(20_000):
        flow.add(T(str(number), requires=["in"], provides=[f"s{number}"]))
    assert flow.requires == {"in"}
    assert len(flow.provides) == 20_000
    assert time.process_time() - started < 2

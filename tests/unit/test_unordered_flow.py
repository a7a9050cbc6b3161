"""Building wide unordered flows."""

from __future__ import annotations

from tests.unit import stepping
from wbengine import task
from wbengine.patterns import unordered_flow


class T(task.Task):
    def execute(self, **kwargs): ...


def built_and_asked(count):
    flow = unordered_flow.Flow("wide")
    for number in range(count):
        flow.add(T(str(number), requires=["in"], provides=[f"s{number}"]))
    assert flow.requires == {"in"}
    assert len(flow.provides) == count


def test_a_wide_flow_is_built_and_asked_in_linear_time():
    assert stepping.growth(lambda count: lambda: built_and_asked(count)) < 1.5
    built_and_asked(20_000)

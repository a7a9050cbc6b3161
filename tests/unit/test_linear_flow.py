"""Building long linear flows."""

from __future__ import annotations

from tests.unit import stepping
from wbengine import task
from wbengine.patterns import linear_flow


class T(task.Task):
    def execute(self, **kwargs): ...


def built_and_asked(count):
    flow = linear_flow.Flow("long")
    for number in range(count):
        flow.add(T(str(number), requires=[f"s{number - 1}"], provides=[f"s{number}"]))
    assert flow.requires == {"s-1"}
    assert len(flow.provides) == count
    assert sum(1 for _ in flow.iter_links()) == count - 1


def test_a_long_flow_is_built_and_asked_in_linear_time():
    assert stepping.growth(lambda count: lambda: built_and_asked(count)) < 1.5
    built_and_asked(20_000)

"""Cost of a request and of a heartbeat in fleets of different sizes.

The tests count operations, not seconds: function calls and visited worker records.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from tests.seams import tracker
from tests.simulation import growth, meters, scaling

#: Costs that must not grow with the fleet, and the tolerance.
STEADY = ("request_us", "beat_us", "join_us", "loss_us", "round_us", "messages", "calls", "bytes")
TENTH = 1.1


class Operations:
    """Number of calls into the package and of visited elements of a `Seen`."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and "/wbengine/" in frame.f_code.co_filename:
            self.count += 1


class Seen(dict[Any, Any]):
    """A dict that counts the elements visited by iteration."""

    operations: Operations

    def _count(self, found: Any) -> Iterator[Any]:
        for each in found:
            self.operations.count += 1
            yield each

    def __iter__(self) -> Iterator[Any]:
        return self._count(super().__iter__())

    def values(self) -> Any:
        return self._count(super().values())

    def items(self) -> Any:
        return self._count(super().items())


def counted(workers: int, requests: int) -> dict[str, float]:
    operations = Operations()

    class Watched(Seen):
        pass

    Watched.operations = operations
    fleet = scaling.Fleet(scaling.Plan(workers, requests, lost=0.05))
    fleet.meter = meters.Meter(lambda: operations.count * 1e-6)
    fleet.tracker.count_lookups(Watched)
    before = sys.getprofile()
    sys.setprofile(operations)
    try:
        return growth.measured(fleet)
    finally:
        sys.setprofile(before)


def grown(few: dict[str, float], many: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return the costs that grew by more than a tenth on the larger fleet."""
    return {
        what: (few[what], many[what]) for what in STEADY if many[what] > TENTH * few[what] + 0.01
    }


@pytest.fixture(autouse=True)
def _short_fronts() -> Iterator[None]:
    """Shorten the queue fronts: small fleets then have the long queues of large ones."""
    with tracker.limited_front_rows(8):
        yield


@pytest.mark.slow
def test_costs_do_not_grow_with_the_fleet() -> None:
    few, many = counted(48, 800), counted(120, 1600)
    assert few["lost"] and many["lost"] and few["beats"] and many["beats"]
    assert grown(few, many) == {}

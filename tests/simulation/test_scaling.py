"""Cost of a request and of a heartbeat in fleets of different sizes.

The tests count operations, not seconds: function calls and visited worker records.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.seams import tracker
from tests.simulation import defects, growth, meters, prices, scaling
from tests.support import tools

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


def test_costs_do_not_grow_with_the_fleet() -> None:
    few, many = counted(48, 800), counted(120, 1600)
    assert few["lost"] and many["lost"] and few["beats"] and many["beats"]
    assert grown(few, many) == {}


def test_planted_growth_of_cost_is_found() -> None:
    with defects.put_in(tracker.DEFECTS["beats-cost-all"]):
        few, many = counted(48, 800), counted(120, 1600)
    assert list(grown(few, many)) == ["beat_us"]


def test_limits_of_larger_fleets_are_extrapolated() -> None:
    row = dict.fromkeys(growth.COSTS, 10.0) | {"messages": 3.0, "calls": 4.0}
    known = prices.Prices(engine_us=300, worker_us=200, broker_us=125, source="here")
    costs = growth.costs_of(row, known)
    assert costs.broker_ops == pytest.approx((2 * 3 + 4) / 125e-6)
    assert growth.costs_of(row, known, 5).broker_ops == 5
    # Heartbeats of 10 workers, two messages for each reply to a query, and an echo.
    assert growth.beats(1, 10, 4) == pytest.approx(2 + 2 * 10 / 30 + 0.2)
    assert growth.beats(1, 100_000, 4) > 20_000
    limits = growth.shortest(costs, 1, 10)
    assert growth.first(limits) == "an engine's CPU"
    assert limits["an engine's CPU"] == pytest.approx(40 * 300e-6, rel=0.01)
    assert growth.shortest(costs, 10, 10)["an engine's CPU"] < limits["an engine's CPU"]
    rows = [{"workers": float(n), "x": 3.0 * n**0.5} for n in (10, 100, 1000)]
    assert growth.exponent(rows, "x") == pytest.approx(0.5)


def _figures(place: Path, *systems: str) -> Path:
    """Write figures in the format of `tools/bench`."""
    cells = [
        {"case": "wide", "medium": "redis", "system": system, "caller_us": 100.0 + number,
         "workers_us": 200.0, "broker_us": 50.0}
        for number, system in enumerate(systems)
    ]  # fmt: skip
    told = {"facts": {"when": "now"}, "cells": [*cells, {"case": "wide", "medium": "amqp"}]}
    place.write_text(json.dumps(told), encoding="utf-8")
    return place


def test_prices_are_read_from_bench_figures(tmp_path: Path) -> None:
    place = tmp_path / "bench.json"
    with pytest.raises(prices.Unpriced, match="No such file"):
        prices.found(place)
    with pytest.raises(prices.Unpriced, match="no figures of wide over redis: run tools/bench"):
        prices.read(_figures(place, "huey"))
    assert prices.read(_figures(place, "wbengine")).engine_us == 100
    price_list = prices.found(_figures(place, "wbengine", "wbengine-shared"))
    assert (price_list.engine_us, price_list.worker_us, price_list.broker_us) == (101, 200, 50)
    assert price_list.source == "wide over redis, wbengine-shared, now"
    changed = price_list.changed(engine_us=7, worker_us=None)
    assert (changed.engine_us, changed.worker_us) == (7, 200)
    assert changed.source.endswith("; given: engine_us")


def test_simulate_scale_reports_costs_and_limits(tmp_path: Path) -> None:
    place, out = _figures(tmp_path / "bench.json", "wbengine"), tmp_path / "new" / "scale.json"
    small = ("--scale", "--workers", "12", "--requests", "200", "--figures", str(place))
    ended = tools.run("simulate", *small, "--worker-us", 300, "--json", out)
    assert "with 100 µs of an engine and 300 µs of a worker" in ended.stdout
    assert "cost of a task: wide over redis, wbengine, now; given: worker_us" in ended.stdout
    data = json.loads(out.read_text(encoding="utf-8"))
    assert [row["workers"] for row in data["rows"]] == [10, 12]
    assert data["costs"]["engine_us"] == 100
    assert {one["workers"] for one in data["limits"]} == {*growth.FLEETS}
    assert ended.stdout.startswith("200 requests on 12 workers (4 slots each)")
    for text in ("exponent", *growth.COSTS.values(), "100,000 workers", "what is full first"):
        assert text in ended.stdout
    assert "12 workers, 200 requests" in ended.stderr

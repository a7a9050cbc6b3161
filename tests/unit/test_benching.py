"""Measurements, targets and reports of `tools/bench`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from docutils import core

from tests.benchmarks import records
from tests.simulation import growth, prices
from tests.support import tools as commands
from tools.benching import (
    checks,
    figures,
    growing,
    idling,
    profiling,
    result_file,
    rst,
    systems,
    tables,
    timeline,
)
from tools.benching.checks import Measured


def _cell(table: figures.Table, where: str, rate: float, tasks: int = 2000) -> None:
    """Add one run with this rate; `where` is 'case medium system'."""
    case, medium, system = where.split()
    table.cell(case, medium, system, tasks).seconds.append(tasks / rate)


#: Rates that just meet their targets.
KEPT = {
    "wide redis huey": 3000.0, "wide redis wbengine": 4500.0, "wide redis taskflow": 225.0,
    "chain redis huey": 600.0, "chain redis wbengine": 720.0, "chain redis taskflow": 36.0,
    "wide amqp celery-threads": 800.0, "wide amqp celery-prefork": 700.0, "wide amqp kombu": 4800.0,
    "wide amqp wbengine": 2400.0, "wide amqp taskflow": 120.0,
    "chain amqp celery-threads": 300.0, "chain amqp kombu": 2000.0, "chain amqp wbengine": 600.0,
    "chain amqp taskflow": 30.0,
    "wide filesystem wbengine": 3000.0, "wide filesystem taskflow": 150.0,
    "chain filesystem wbengine": 700.0, "chain filesystem taskflow": 35.0,
    "wide serial wbengine": 75_000.0, "wide serial taskflow": 3000.0,
    "linear serial wbengine": 72_000.0, "linear serial taskflow": 120.0,
    "wide parallel wbengine": 20_000.0, "wide parallel taskflow": 800.0,
    # Rates without a target.
    "wide redis kombu": 9999.0, "linear parallel wbengine": 1.0, "linear parallel taskflow": 100.0,
    "diamond redis wbengine": 1.0, "diamond redis huey": 100.0,
    "pipeline redis huey": 900.0, "chain redis huey-notify": 1440.0, "pipeline redis rq": 1.0,
    "chain redis wbengine-shared": 960.0,
}  # fmt: skip

#: Rates that miss two targets of one case.
SLOW_CHAIN = {**KEPT, "chain redis wbengine": 700.0}


def _table(rates: dict[str, float]) -> figures.Table:
    table = figures.Table()
    for where, rate in rates.items():
        _cell(table, where, rate)
    return table


def _all(**changes: Any) -> Measured:
    grown = [
        growing.Grown(shape, tasks, 0.9, 3.0, 299.0, 1.1)
        for shape in growing.SHAPES
        for tasks in (10_000, 100_000)
    ]
    measured = Measured(
        _table(KEPT), grown, {"import": 0.24, "load serial": 9.0},
        {("redis", "wbengine"): 0.99, ("redis", "celery-prefork"): 2.0},
        [idling.Idle("redis", "wbengine", 0.9, 49.0, 40.0, 1),
         idling.Idle("redis", "rq", 9.0, 490.0, 40.0, 5)],
    )  # fmt: skip
    for name, value in changes.items():
        setattr(measured, name, value)
    return measured


def test_rates_that_meet_all_targets_pass() -> None:
    judged = [one for one in checks.judge(_all()) if one.promised]
    assert [one.text for one in judged if one.kept is not True] == []
    assert len(judged) == 6 + 2 + 9 + 6 + 2 + 2


def test_missing_own_rate_fails_target_and_missing_peer_rate_skips_it() -> None:
    table = _table(KEPT)
    for where in ("wide redis wbengine", "chain redis taskflow"):
        cell = table.get(*where.split())
        assert cell is not None
        cell.seconds.clear()
    judged = checks.judge(_all(table=table))
    by_text = {one.text: one.kept for one in judged}
    assert by_text["wide over redis, against the fastest peer"] is False
    assert by_text["wide over redis, against TaskFlow"] is False
    assert by_text["chain over redis, against TaskFlow"] is None
    assert by_text["chain over redis, against the fastest peer"] is True


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "doc" / "source" / "reference" / "performance.rst"
PLACES = {
    "run", "rates", "targets", "local", "large", "beginning", "defaults", "costs", "limits",
}  # fmt: skip


def bench() -> dict[str, Any]:
    """Return a report as `tools/bench` writes it."""
    looked = [profiling.Profile("wide", side, 100, {"JSON": 0.25}) for side in ("engine", "worker")]
    parts = {"engine": {"encode": 2.0}, "worker": {"task": 1.0}}
    hop = timeline.Timeline("redis", 199, 3.0, 4.0, 0.01, 1.0, parts)
    measured = _all(table=_table(SLOW_CHAIN), profiles=looked, timelines=[hop])
    late = measured.table.cell("wide", "redis", "rq", 2000)
    late.undone = 100.0
    measured.table.cell("chain", "redis", "rq", 200)
    chosen = systems.matching_systems(systems.NAMES)
    facts = {
        "when": "2026-11-20T19:40:40+00:00", "wbengine": "0.1.0", "python": "3.11.7",
        "machine": "2 cores", "processor": "fast", "load at the start": 0.1, "repeat": 3,
        "brokers": {"redis": "7.0"},
    }  # fmt: skip
    versions = {"huey": {"huey": "3.5"}, "wbengine": {"wbengine": "0.1.0"}}
    told = result_file.document(facts, measured, chosen, versions, checks.judge(measured))
    found: dict[str, Any] = json.loads(json.dumps(told))
    return found


def scale() -> dict[str, Any]:
    """Return a report as `tools/simulate scale --json` writes it."""
    row = dict.fromkeys(growth.COSTS, 10.0) | {
        "workers": 10, "requests": 1000, "wall": 1.0, "simulated": 9.0, "peak_mb": 90.0,
        "lost": 1, "worker_us": 20.0,
    }  # fmt: skip
    costs = growth.costs_of(row, prices.Prices(100.0, 200.0, 50.0, "a run"))
    told = growth.told(
        [row, row | {"workers": 100}], {"worker_bytes": 1, "request_bytes": 2}, costs
    )
    facts = {"facts": {"when": "2026-11-20T19:40:40+00:00", "prices": "a run"}}
    found: dict[str, Any] = json.loads(json.dumps(facts | told))
    return found


def test_page_has_a_place_for_each_table() -> None:
    assert {*rst.places(PAGE.read_text(encoding="utf-8"))} == PLACES


def test_all_tables_are_valid_rst() -> None:
    made = tables.texts(bench(), scale(), records.read())
    assert {*made} == PLACES | tables.PRINTED_ONLY
    for name, text in made.items():
        tree = core.publish_doctree(text, settings_overrides={"halt_level": 2, "report_level": 5})
        tabled = tree.astext() if name == "run" else next(iter(tree.findall(_is_table))).astext()
        assert tabled


def _is_table(node: Any) -> bool:
    return bool(node.tagname == "table")


def headers(text: str) -> list[list[str]]:
    """Return the cells of the header of each simple table."""
    found = re.findall(r"(?:^|\n)==.*\n(.*)\n==", text)
    return [re.split(" {2,}", line.strip()) for line in found]


def test_tables_of_page_have_the_columns_of_the_tool() -> None:
    written = rst.places(PAGE.read_text(encoding="utf-8"))
    made = tables.texts(bench(), scale(), records.read())
    for name in PLACES - {"run", "rates", "defaults"}:
        there = headers(written[name])
        assert len(there) == len(headers(made[name])), name
        for shown, columns in zip(there, headers(made[name]), strict=True):
            assert {*columns} <= {*shown}, name


def test_page_describes_systems_as_the_tool_does() -> None:
    written = rst.places(PAGE.read_text(encoding="utf-8"))["defaults"]
    rows = tables.texts(bench(), None, None)["defaults"].split("\n   * ")
    assert [row for row in written.split("\n   * ") if row not in rows] == []


def test_targets_are_counted_and_missed_ones_are_listed() -> None:
    text = "\n".join(tables.targets(bench()))
    assert text.startswith("25 of 27 targets of ``tools/bench`` are met.")
    assert headers(text) == [["missed target", "target", "measured"]]
    assert "chain over redis, against the fastest peer  1.2 " in text
    assert "wide over redis" not in text


def test_processor_time_shows_shared_executor_in_parentheses() -> None:
    table = figures.Table()
    for name, seconds in ("wbengine", 0.2), ("wbengine-shared", 0.1), ("huey", 0.4):
        cell = table.cell("wide", "redis", name, 1000)
        cell.seconds.append(1.0)
        cell.caller.append(seconds)
        cell.workers.append(2 * seconds)
    cells = [one.to_dict() for one in table]
    titles = [{"name": one.name, "title": one.title} for one in systems.SYSTEMS]
    by_process, sums = tables.costs({"cells": cells, "systems": titles})
    assert by_process.rows == [["wide, Redis", "200 (100)", "400 (200)", "0 (0)", "600 (300)"]]
    assert sums.rows == [
        ["wbengine", "600"], ["wbengine, shared executor", "300"], ["Huey", "1,200"],
    ]  # fmt: skip


def test_start_and_idle_workers_share_one_table() -> None:
    _, workers = tables.beginning(bench())
    assert workers.head == ("worker", "processes", "Redis: s", "Redis: %", "Redis: MB")
    assert [*workers.rows] == [
        ["wbengine", "1", "0.99", "0.90", "49"],
        ["Celery, prefork", "", "2.00", "", ""],
        ["RQ", "5", "", "9.00", "490"],
    ]


def test_tool_writes_its_tables_into_a_page(tmp_path: Path) -> None:
    page, figures_of, scaled = (
        tmp_path / name for name in ("page.rst", "bench.json", "scale.json")
    )
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    figures_of.write_text(json.dumps(bench()), encoding="utf-8")
    scaled.write_text(json.dumps(scale()), encoding="utf-8")
    commands.run("bench", "--page", page, "--json", figures_of, "--scale", scaled)
    made = tables.texts(bench(), scale(), records.read())
    expected = {name: text for name, text in made.items() if name in PLACES}
    assert rst.places(page.read_text(encoding="utf-8")) == expected

"""How `tools/bench` counts, judges and tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import core

from tests.benchmarks import records
from tests.simulation import growth, prices
from tools.benching import (
    checks,
    figures,
    growing,
    idling,
    profiling,
    rst,
    systems,
    tables,
    telling,
)
from tools.benching.checks import Measured


def _cell(table: figures.Table, where: str, rate: float, tasks: int = 2000) -> None:
    """One run at a rate; `where` is 'case medium system'."""
    case, medium, system = where.split()
    table.cell(case, medium, system, tasks).seconds.append(tasks / rate)


#: Each just kept.
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
    # Nothing is promised of these.
    "wide redis kombu": 9999.0, "linear parallel wbengine": 1.0, "linear parallel taskflow": 100.0,
    "diamond redis wbengine": 1.0, "diamond redis huey": 100.0,
    "pipeline redis huey": 900.0, "chain redis huey-notify": 1440.0, "pipeline redis rq": 1.0,
    "chain redis wbengine-shared": 960.0,
}  # fmt: skip


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


def test_what_is_kept_passes() -> None:
    judged = [one for one in checks.judge(_all()) if one.promised]
    assert [one.text for one in judged if one.kept is not True] == []
    assert len(judged) == 6 + 2 + 9 + 6 + 2 + 2


def test_our_own_failure_is_a_miss_and_a_peers_is_none() -> None:
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
PAGE = ROOT / "doc" / "source" / "user" / "performance.rst"
PLACES = {
    "run", "rates", "promises", "local", "large", "beginning", "defaults", "costs", "stages",
    "counts", "messages", "growth", "beats", "limits", "profile",
}  # fmt: skip


def bench() -> dict[str, Any]:
    """As `tools/bench` writes it."""
    looked = [profiling.Profile("wide", side, 100, {"JSON": 0.25}) for side in ("engine", "worker")]
    measured = _all(table=_table(KEPT), profiles=looked)
    late = measured.table.cell("wide", "redis", "rq", 2000)
    late.undone = 100.0
    measured.table.cell("chain", "redis", "rq", 200)
    chosen = systems.of(systems.NAMES)
    facts = {
        "when": "2026-11-20T19:40:40+00:00", "wbengine": "0.1.0", "python": "3.11.7",
        "machine": "2 cores", "processor": "fast", "load at the start": 0.1, "repeat": 3,
        "brokers": {"redis": "7.0"},
    }  # fmt: skip
    versions = {"huey": {"huey": "3.5"}, "wbengine": {"wbengine": "0.1.0"}}
    told = telling.told(facts, measured, chosen, versions, checks.judge(measured))
    found: dict[str, Any] = json.loads(json.dumps(told))
    return found


def scale() -> dict[str, Any]:
    """As `tools/simulate scale --json` writes it."""
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


def test_the_page_has_a_place_for_each_and_counts_what_is_recorded() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert {*rst.places(text)} == PLACES
    recorded = records.read()
    shown = rst.places(text)["counts"].splitlines()
    assert [*map(_first, shown)] == [*map(_first, tables.counts(recorded))], "tools/bench --page"


def _first(line: str) -> str:
    return line.partition("  ")[0].strip("=")


def test_all_tables_are_made_and_are_what_they_are_taken_for() -> None:
    made = tables.texts(bench(), scale(), records.read())
    assert {*made} == PLACES
    for name, text in made.items():
        tree = core.publish_doctree(text, settings_overrides={"halt_level": 2, "report_level": 5})
        tabled = tree.astext() if name == "run" else next(iter(tree.findall(_is_table))).astext()
        assert tabled


def _is_table(node: Any) -> bool:
    return bool(node.tagname == "table")

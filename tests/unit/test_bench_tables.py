"""The tables of the page on performance, and that every driver knows its cases."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from docutils import core

from tests.benchmarks import records
from tests.simulation import growth, prices
from tests.unit.test_benching import KEPT, _all, _table
from tools.benching import (
    cases,
    checks,
    driving,
    places,
    profiling,
    rst,
    systems,
    tables,
    telling,
)

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


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    assert [*rst.table(("a", "long"), [["wide", "1"], ["", "2"]])] == [
        "====  ====",
        "a     long",
        "====  ====",
        "wide  1",
        "--    2",
        "====  ====",
    ]


def test_places_are_filled_and_all_else_stays() -> None:
    page = "a\n\n.. begin figures: x\n\nold\n\n.. end figures: x\n\nb\n\n"
    page += ".. begin figures: y\n\n.. end figures: y\n"
    assert rst.places(page) == {"x": "old", "y": ""}
    made = rst.written(page, {"y": "new\nlines"})
    assert rst.places(made) == {"x": "old", "y": "new\nlines"}
    assert made.startswith("a\n\n.. begin") and "\n\nb\n\n" in made
    assert rst.written(made, {"y": "new\nlines"}) == made
    with pytest.raises(KeyError, match="no place for z"):
        rst.written(page, {"z": "?"})


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


def test_what_is_not_there_is_left_out() -> None:
    assert {*tables.texts(None, None, records.read())} == {"counts", "messages"}
    without = {*PLACES} - {"stages", "growth", "beats", "limits"}
    assert {*tables.texts(bench(), None, records.read())} == without


def test_rates_are_told_with_how_many_times_ours_is() -> None:
    first = [*tables.rates(bench())]
    rows = {line.split("  ")[0]: line.split() for line in first[: first.index("", 2)]}
    assert rows["Huey"][1:] == ["3,000", "(1.5)", "600", "(1.2)", "100", "(0.0)", "900", "(0.8)"]
    assert rows["wbengine"][1:3] == ["4,500", "720"]
    assert rows["RQ"][1:] == ["<", "20", "(>", "225.0)", "failed", "--", "1", "(720.0)"]


def test_what_is_left_of_a_task_is_the_difference() -> None:
    found = bench()
    cell = next(
        one for one in found["cells"]
        if (one["case"], one["medium"], one["system"]) == ("wide", "redis", "wbengine")
    )  # fmt: skip
    cell |= {"caller_us": 165.0, "workers_us": 210.0, "broker_us": 100.0}
    micros = [line.split()[-1] for line in tables.stages(found, scale())][3:-1]
    # The serial engine does 75,000 tasks a second, which is 13 of the engine's 165.
    assert micros == ["13", "10", "142", "20", "190", "100"]


def test_infinity_survives_the_file() -> None:
    row = dict.fromkeys(growth.COSTS, 10.0) | {"workers": 10}
    costs = growth.costs_of(row, prices.Prices(100.0, 200.0, 50.0, "a run"), ops=1000)
    told = json.dumps(growth.told([row], {}, costs), allow_nan=False)
    assert None in [one["seconds"]["the broker"] for one in json.loads(told)["limits"]]


def _methods(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("system", systems.SYSTEMS, ids=lambda one: one.name)
def test_every_driver_knows_its_cases(system: systems.System) -> None:
    known = _methods(driving.DRIVERS / f"on_{system.driver}.py")
    if "__getattr__" in known:
        known |= _methods(driving.DRIVERS / "flows.py")
    for medium in system.media:
        for case in cases.of([*cases.RUN], medium):
            assert not case.suits(system.driver) or case.name in known, case.name


def test_lines_of_logs_are_counted(tmp_path: Path) -> None:
    assert places.lines(str(tmp_path)) == 0
    (tmp_path / "worker.log").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "driver.log").write_text("three\n", encoding="utf-8")
    (tmp_path / "else.txt").write_text("four\n", encoding="utf-8")
    assert places.lines(str(tmp_path)) == 3


@pytest.mark.parametrize(
    ("stack", "part"),
    [
        ("thread (1): a;run (threading.py:1);go (wbengine/engines/worker_based/executor.py:2)",
         "request book, worker's decisions, their shells"),
        ("f (wbengine/engines/worker_based/ledger/redis.py:3)", "connections, queues, ledger"),
        ("f (wbengine/engines/worker_based/connections/outbox.py:2);send (redis/connection.py:1)",
         "connections, queues, ledger"),
        ("f (wbengine/engines/worker_based/messages/envelope.py:2)", "JSON"),
        ("f (wbengine/_core/machine.py:3);wait (threading.py:320)", "threads: locks, wake-ups"),
        ("f (wbengine/_core/machine.py:3);sorted (somewhere.py:320)", "schedule and records"),
        ("main (drive.py:3)", profiling.OTHER),
        ("thread (2)", profiling.OTHER),
    ],
)  # fmt: skip
def test_samples_belong_to_the_innermost_part_that_is_known(stack: str, part: str) -> None:
    assert profiling.part(stack) == part
    assert profiling.shares(f"{stack} 3\nmain (drive.py:3) 1\n")[0] == 4
    assert profiling.shares(f"{stack} 3\n{stack} 2\n") == (5, {part: 1.0})
    assert profiling.shares("") == (0, {})

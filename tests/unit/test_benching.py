"""How `tools/bench` counts, judges and tells."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tools.benching import cases, charts, checks, figures, growing, idling, page, systems, telling
from tools.benching.checks import Measured
from tools.benching.telling import DASH

X = checks.TIMES

# Figures. -----------------------------------------------------------------------------------------


def _cell(table: figures.Table, where: str, rate: float, tasks: int = 2000) -> None:
    """One run at a rate; `where` is 'case medium system'."""
    case, medium, system = where.split()
    table.cell(case, medium, system, tasks).seconds.append(tasks / rate)


def test_rates_are_medians_and_spreads_go_from_end_to_end() -> None:
    cell = figures.Cell("wide", "redis", "huey", 100, [1.0, 2.0, 4.0], [0.1, 0.4, 0.2], [1.0])
    assert cell.rate == 50
    assert cell.spread == (100 - 25) / 50
    assert cell.costs == {"caller_us": 1e6 * 0.2 / 100, "workers_us": 10_000, "broker_us": 0}
    assert cell.told()["rate"] == 50 and cell.told()["workers_us"] == 10_000


def test_growth_is_the_exponent() -> None:
    assert figures.growth((1000, 2.0), (10_000, 200.0)) == pytest.approx(2.0)
    assert figures.growth((1000, 2.0), (10_000, 20.0)) == pytest.approx(1.0)


def test_medians_of_several_figures() -> None:
    assert figures.middle([{"a": 1.0}, {"a": 9.0}, {"a": 2.0}]) == {"a": 2.0}


def test_a_cell_without_runs_has_no_rate_and_one_with_some_keeps_them() -> None:
    table = figures.Table()
    cell = table.cell("wide", "redis", "huey", 10)
    assert table.rate("wide", "redis", "huey") is None
    cell.problems.append("lost")
    assert cell.hopeless
    cell.seconds.append(1.0)
    assert not cell.hopeless
    assert table.rate("wide", "redis", "huey") == 10
    cell.problems.append("lost again")
    assert cell.hopeless
    assert table.best("wide", "redis", ["huey", "rq"]) == ("huey", 10, True)
    assert table.best("wide", "amqp", ["huey", "rq"]) is None


def test_of_who_did_not_come_to_an_end_a_limit_is_known() -> None:
    table = figures.Table()
    late = table.cell("wide", "redis", "rq", 600)
    late.problems.append("not done after 120 s")
    assert (late.limit, late.told().get("limit")) == (None, None)  # it did not even begin
    late.undone = 120.0
    assert late.limit == late.told()["limit"] == 5
    assert table.best("wide", "redis", ["huey", "rq"]) == ("rq", 5, False)
    _cell(table, "wide redis huey", 1)
    assert table.best("wide", "redis", ["huey", "rq"]) == ("huey", 1, True)
    late.seconds.append(60.0)
    assert late.limit is None and "limit" not in late.told()


# What is chosen. ----------------------------------------------------------------------------------


def test_a_driver_means_all_its_ways_and_a_name_one() -> None:
    names = [one.name for one in systems.of(["celery", "wbengine", "taskiq-list"])]
    assert names == ["wbengine", "celery-prefork", "celery-threads", "taskiq-list"]


def test_what_cannot_be_installed_is_left_out_and_each_is_asked_for_once() -> None:
    asked = []

    def ensure(name: str, *requirements: str) -> str | None:
        asked.append((name, *requirements))
        return None if name == "huey" else f"/{name}"

    chosen = systems.of(["wbengine", "celery", "huey"])
    assert systems.pythons(chosen, "own", ensure) == {
        "wbengine": "own",
        "celery-prefork": "/celery",
        "celery-threads": "/celery",
    }
    assert [name for name, *_ in asked] == ["celery", "huey"]


def test_cases_of_a_medium_and_smaller_ones() -> None:
    assert [one.name for one in cases.of(["wide", "local", "idle"], "redis")] == ["wide"]
    assert [one.name for one in cases.of(["wide", "local"], "serial")] == ["wide", "linear"]
    chain, pipeline = cases.of(["chain"], "redis", divide=2)
    assert chain.suits("rq") and pipeline.suits("huey") and not pipeline.suits("wbengine")
    (small,) = cases.of(["payload"], "amqp", divide=50)
    assert small.sizes == {"tasks": 4, "size": 100_000}
    (diamond,) = cases.of(["diamond"], "amqp")
    assert (diamond.tasks, diamond.smaller(10).tasks) == (2000, 200)


# Promises. ----------------------------------------------------------------------------------------

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


def _missed(measured: Measured) -> list[str]:
    return [one.text for one in checks.missed(checks.judge(measured))]


def test_what_is_kept_passes() -> None:
    judged = [one for one in checks.judge(_all()) if one.promised]
    assert [one.text for one in judged if one.kept is not True] == []
    assert len(judged) == 6 + 2 + 9 + 6 + 2 + 2


def test_what_is_told_beside_is_not_judged() -> None:
    told = {one.text: one for one in checks.judge(_all()) if not one.promised}
    assert {text: one.kept for text, one in told.items()} == {
        "chain over redis, beside Huey, told to notify": None,
        "chain over redis, beside Huey's pipeline": None,
    }
    assert told["chain over redis, beside Huey's pipeline"].found == (
        f"0.80 {X}, executor kept 1.07 {X} (720/s, executor kept 960/s, huey 900/s)"
    )


def test_the_ratio_is_told_of_both_ways_and_one_is_judged() -> None:
    slow = _all(table=_table({**KEPT, "chain redis wbengine": 719.0}))
    fastest = next(one for one in checks.judge(slow) if one.text.startswith("chain over redis"))
    assert fastest.kept is False
    assert fastest.found == (
        f"1.20 {X}, executor kept 1.60 {X} (719/s, executor kept 960/s, huey 600/s)"
    )


@pytest.mark.parametrize(
    ("seconds", "kept", "found"),
    # 2,000 tasks at 4,500/s: 20 times less than that is 225/s, which takes 8.9 s.
    [(9.0, True, "more than 20.25 "), (8.0, None, "more than 18.00 "), (0.1, None, "0.23 ")],
)
def test_who_did_not_come_to_an_end_was_slower_than_that(
    seconds: float, kept: bool | None, found: str
) -> None:
    table = _table(KEPT)
    late = table.get("wide", "redis", "taskflow")
    assert late is not None
    late.seconds.clear()
    late.undone = seconds
    (check,) = (
        one
        for one in checks.judge(_all(table=table))
        if one.text == "wide over redis, against TaskFlow"
    )
    assert check.kept is kept
    assert found in check.found and "taskflow at most " in check.found


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("wide redis wbengine", 2), ("chain redis wbengine", 2), ("wide amqp wbengine", 3),
        ("chain amqp wbengine", 3), ("wide filesystem wbengine", 2),
        ("chain filesystem wbengine", 2), ("wide serial wbengine", 1),
        ("linear serial wbengine", 1), ("wide parallel wbengine", 1),
    ],
)  # fmt: skip
def test_who_is_slower_misses(where: str, count: int) -> None:
    missed = _missed(_all(table=_table({**KEPT, where: KEPT[where] * 0.99})))
    assert len(missed) == count
    case, medium, _ = where.split()
    assert all(text.startswith(case) and medium in text for text in missed)


@pytest.mark.parametrize(
    "where", ["wide redis rq", "wide redis dramatiq", "wide amqp celery-prefork", "wide amqp kombu"]
)
def test_the_better_one_counts(where: str) -> None:
    """Whoever it is that is faster now."""
    assert len(_missed(_all(table=_table({**KEPT, where: 4900.0})))) == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"grown": [growing.Grown("linear", 100_000, 1.1, 3.0, 9.0, 1.0)]}, "seconds"),
        ({"grown": [growing.Grown("linear", 100_000, 1.0, 1.0, 301.0, 1.0)]}, "memory"),
        ({"grown": [growing.Grown("unordered", 100_000, 1.0, 1.0, 9.0, 1.11)]}, "growth"),
        ({"started": {"import": 0.26}}, "import"),
        ({"ready": {("amqp", "wbengine"): 1.01}}, "a new worker"),
        ({"idle": [idling.Idle("amqp", "wbengine", 1.1, 9.0, 9.0, 1)]}, "processor"),
        ({"idle": [idling.Idle("amqp", "wbengine", 0.1, 51.0, 9.0, 1)]}, "memory"),
    ],
)
def test_who_is_too_large_or_too_late_misses(changes: dict[str, Any], text: str) -> None:
    (missed,) = _missed(_all(**changes))
    assert text in missed


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


def test_what_was_not_asked_for_is_not_judged() -> None:
    assert checks.judge(Measured()) == []
    assert checks.judge(Measured(_table({"wide redis huey": 1.0}))) == []
    # The seconds come along with every case.
    assert checks.judge(Measured(ready={("redis", "wbengine"): 9.0})) == []


# What is told. ------------------------------------------------------------------------------------


class _Reader(HTMLParser):
    """What is open is closed, in its order, but for those that never are."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.outside += [v or "" for name, v in attrs if name in ("src", "href")]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _told() -> tuple[dict[str, Any], list[str]]:
    measured = _all()
    broken = measured.table.cell("wide", "redis", "rq", 2000)
    broken.problems.append("<lost> & gone")
    broken.undone = 100.0
    chosen, versions = systems.of(systems.NAMES), {"huey": {"huey": "3.5"}}
    judged = checks.judge(measured)
    told = telling.told({"cores": "<2>"}, measured, chosen, versions, judged)
    return told, [*telling.lines(measured, chosen, versions, judged)]


def test_the_table_has_medians_ratios_dashes_and_problems() -> None:
    text = "\n".join(_told()[1])
    assert re.search(r"wide, redis: 2,000 tasks\n", text)
    assert re.search(r"\n  Huey +3,000 +0% +0 +0 +0 +1\.50x\n", text)
    assert re.search(r"\n  Huey +600 +0% +0 +0 +0 +1\.20x +1\.60x\n", text)
    assert "pipeline, redis: 2,000 tasks; wbengine's are those of chain\n" in text
    assert re.search(rf"\n  Dramatiq +{DASH}\n", text)
    assert re.search(r"\n  RQ +<20  \(<lost> & gone\)\n", text)
    assert "    log: lines for each task; told: warnings only\n" in text
    assert re.search(
        rf"\n{DASH} chain over redis, beside Huey's pipeline: .+\), not judged\n", text
    )
    ratio = f"1.50 {checks.TIMES} (4,500/s, huey 3,000/s)"
    assert f"\n✔ wide over redis, against the fastest peer: {ratio}" in text
    assert "(huey 3.5; 4 threads)" in text
    assert "✘" not in text


def test_a_miss_is_marked() -> None:
    judged = checks.judge(Measured(started={"import": 0.5}))
    assert [*telling.judged(judged)][1:] == [
        "✘ import wbengine.engines, with its names: 0.500 s (under 0.25 s)",
    ]


def test_the_file_can_be_read_again_and_the_page_stands_alone() -> None:
    told = json.loads(json.dumps(_told()[0]))
    assert {one["name"] for one in told["systems"]} == {*systems.NAMES}
    text = page.render(told)
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    assert {"svg", "table", "rect", "path"} <= reader.seen
    assert reader.outside == ["data:,"]
    assert "&lt;lost&gt; &amp; gone" in text and "<lost>" not in text and "<2>" not in text


def test_a_page_of_little_or_nothing() -> None:
    for measured in (Measured(), Measured(_table({"wide redis huey": 1.0}))):
        told = telling.told({}, measured, systems.of(["huey"]), {}, [])
        assert "</html>" in page.render(told)


def test_bars_are_as_long_as_their_values() -> None:
    rows = [charts.Bar("a", 100.0, low=50.0, high=200.0), charts.Bar("b", 50.0, "ours")]
    drawn = charts.bars(rows, "x")
    first, second = (float(one) for one in re.findall(r'<rect[^>]* width="([\d.]+)"', drawn))
    assert first == pytest.approx(2 * second, abs=0.1)
    assert 2 * first == pytest.approx(charts.WIDTH - charts.LEFT - charts.RIGHT, abs=0.1)
    assert "a: 100, 50 to 200" in drawn


def test_curves_of_powers_are_straight() -> None:
    line = charts.Curve("c", [(10, 1.0), (100, 10.0), (1000, 100.0)])
    drawn = charts.curves([line], "x", "tasks", "s")
    match = re.search(r'class="curve s0" d="M([^"]+)"', drawn)
    assert match
    (ax, ay), (bx, by), (cx, cy) = (map(float, one.split()) for one in match[1].split("L"))
    assert bx - ax == pytest.approx(cx - bx, abs=0.2)
    assert by - ay == pytest.approx(cy - by, abs=0.2)

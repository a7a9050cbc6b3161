"""Grafana dashboard and Prometheus alerts: existing metrics and valid structure."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from wbengine.telemetry import _metric_definitions

FOLDER = importlib.resources.files("wbengine.telemetry") / "files"

#: Functions of Prometheus that the files use.
FUNCTIONS = {
    *("sum", "min", "max", "count", "topk", "time", "vector", "rate", "increase", "deriv"),
    *("min_over_time", "histogram_quantile"),
}
WORDS = {*FUNCTIONS, "by", "on", "or", "and", "unless", "offset"}

DASHBOARD = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))


def queries() -> Iterator[tuple[str, str, str]]:
    """Yield title, query and displayed text of each panel and alert."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]
    for rule in rules():
        yield rule["alert"], rule["expr"], rule["annotations"]["summary"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def problems(query: str, text: str = "") -> list[str]:
    """Return the errors of a query: unknown names, unknown labels, unbalanced brackets."""
    found = []
    bare = re.sub(r'"[^"]*"', '""', query)
    for one, other in ("()", "{}", "[]"):
        if bare.count(one) != bare.count(other):
            found.append(f"{one} and {other}")
    used = re.findall(r"wbengine_\w+", bare)
    metrics = [metric for metric in map(metric_of, used) if metric is not None]
    if len(metrics) != len(used) or not used:
        found.append(f"metrics: {used}")
    known = {"le", *(label for metric in metrics for label in metric.labels)}
    labels = {name for inside in re.findall(r"\{([^}]*)\}", bare) for name in _matched(inside)}
    for inside in re.findall(r"\b(?:by|on) \(([^)]*)\)", bare):
        labels |= set(re.findall(r"\w+", inside))
    labels |= set(re.findall(r"\{\{\s*(?:\$labels\.)?([a-z]\w*)\s*\}\}", text))
    found += [f"label {name}" for name in labels - known]
    rest = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b[0-9]+m\b|\b(?:by|on) \([^)]*\)|wbengine_\w+", " ", bare)
    found += [f"word {word}" for word in re.findall(r"[a-z_]\w*", rest) if word not in WORDS]
    return found


def _matched(inside: str) -> list[str]:
    return re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)


def metric_of(name: str) -> _metric_definitions.Metric | None:
    found = _metric_definitions.METRICS.get(name)
    if found is not None:
        return None if found.kind == "histogram" else found
    base, _, part = name.rpartition("_")
    metric = _metric_definitions.METRICS.get(base)
    return metric if metric and metric.kind == "histogram" and part in SERIES else None


SERIES = {"bucket", "sum", "count"}


@pytest.mark.parametrize(("where", "query", "text"), list(queries()))
def test_query_uses_only_existing_metrics_and_labels(where: str, query: str, text: str) -> None:
    assert problems(query, text) == [], where
    if "_bucket" in query:
        assert "histogram_quantile" in query and re.search(r"by \(le", query)
    if re.search(r"_total\b|_(sum|count)\b", query):
        assert re.search(r"\b(rate|increase)\(", query), "a counter is shown as it is"


def test_every_metric_is_used_in_dashboard_or_alerts() -> None:
    told = " ".join(query for _, query, _ in queries())
    assert {name for name in _metric_definitions.METRICS if name not in told} == set()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("sum(rate(wbengine_tasks_total[5m])", ["( and )"]),
        ("wbengine_tasks", ["metrics: ['wbengine_tasks']"]),
        ("wbengine_task_duration_seconds", ["metrics: ['wbengine_task_duration_seconds']"]),
        ("wbengine_flows_running_bucket", ["metrics: ['wbengine_flows_running_bucket']"]),
        ('wbengine_flows_running{task="x"}', ["label task"]),
        ("sum by (topic) (wbengine_flows_running)", ["label topic"]),
        ("summ(wbengine_flows_running)", ["word summ"]),
    ],
)
def test_invalid_query_is_detected(query: str, found: list[str]) -> None:
    assert problems(query) == found


def test_unknown_label_in_a_text_is_detected() -> None:
    assert problems("wbengine_flows_running", "{{ $labels.topic }}") == ["label topic"]


def test_alerts_have_all_required_fields() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules()) > 5
    for rule in rules():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"[0-9]+m", rule.get("for", "1m"))


def test_panels_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert 0 <= at["x"] <= 24 - at["w"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}" and panel["description"]
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource"]

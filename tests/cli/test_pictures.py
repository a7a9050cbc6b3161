"""Trees on a terminal: what matters is shown, however large the flow."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from wbengine.cli import pictures
from wbengine.persistence.models import FlowDetail, TaskDetail
from wbengine.types import failure as ft
from wbengine.types.outline import FLOW, TASK, Outline, OutlineNode
from wbengine.views import flow as flows


def view(sizes: list[int], states: dict[str, str]) -> flows.FlowView:
    """A flow of flows of so many tasks, called '3.7' and so on; in SUCCESS but for `states`."""
    nodes = [OutlineNode("all", FLOW, None)]
    detail = FlowDetail("all")
    detail.state = "RUNNING"
    for number, size in enumerate(sizes):
        nodes.append(OutlineNode(f"flow-{number}", FLOW, 0))
        parent = len(nodes) - 1
        for inner in range(size):
            name = f"{number}.{inner}"
            nodes.append(OutlineNode(name, TASK, parent))
            record = TaskDetail(name)
            record.state = states.get(name, "SUCCESS")
            if record.state == "FAILURE":
                record.failure = ft.Failure.from_exception(ValueError("no"))
            detail.add(record)
    return flows.view(detail, Outline(tuple(nodes), ()), None, now=0.0)


def drawn(found: flows.FlowView, rows: int | None = None, encoding: str = "utf-8") -> list[str]:
    into = io.BytesIO()
    file = io.TextIOWrapper(into, encoding=encoding)
    console = Console(file=file, width=80, color_system=None)
    console.print(pictures.tree(found, console, rows))
    file.flush()
    return into.getvalue().decode(encoding).splitlines()


def test_all_of_a_flow_is_drawn() -> None:
    lines = drawn(view([2, 3], {"1.2": "PENDING"}))
    assert len(lines) == 1 + 2 + 5
    assert "4 of 5 tasks done" in lines[0]
    assert lines[1].endswith("flow-0  2/2")
    assert lines[4].endswith("flow-1  2/3")


@pytest.mark.parametrize("rows", [4, 10, 30])
def test_what_failed_and_what_runs_comes_first(rows: int) -> None:
    found = view([500, 500, 3], {"1.400": "FAILURE", "0.7": "RUNNING"})
    lines = drawn(found, rows)
    assert len(lines) <= rows + 5
    assert any("1.400  failure  ValueError: no" in line for line in lines)
    assert rows == 4 or any("▶ 0.7" in line for line in lines)
    assert any("... 499 more tasks" in line for line in lines)


def test_a_flow_of_one_size_fits_another() -> None:
    assert len(drawn(view([5] * 40, {}), 20)) <= 22


def test_there_are_terminals_without_our_icons() -> None:
    lines = drawn(view([1], {}), encoding="ascii")
    assert "S 0.0" in lines[-1]

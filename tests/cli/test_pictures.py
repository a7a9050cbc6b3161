"""Trees on a terminal: the important atoms are shown, even of large flows."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from rich.console import Console

from wbengine import engines, task
from wbengine.drawing import _terminal_tree as trees
from wbengine.listeners.progress import ProgressListener
from wbengine.patterns import linear_flow
from wbengine.persistence.models import FlowDetail, TaskDetail
from wbengine.types import failure as ft
from wbengine.types._outline import FLOW, TASK, Outline, OutlineNode
from wbengine.views import flow_status as flows


def view(sizes: list[int], states: dict[str, str], name: str = "all") -> flows.FlowView:
    """Return a flow with nested flows of these sizes; tasks have names such as '3.7' and are in
    SUCCESS unless listed in `states`.
    """
    nodes = [OutlineNode(name, FLOW, None)]
    detail = FlowDetail(name)
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


def drawn(flow_view: flows.FlowView, rows: int | None = None, encoding: str = "utf-8") -> list[str]:
    into = io.BytesIO()
    file = io.TextIOWrapper(into, encoding=encoding)
    console = Console(file=file, width=80, color_system=None)
    console.print(trees.flow_tree(flow_view, console, rows))
    file.flush()
    return into.getvalue().decode(encoding).splitlines()


def test_all_atoms_of_a_small_flow_are_drawn() -> None:
    lines = drawn(view([2, 3], {"1.2": "PENDING"}))
    assert len(lines) == 1 + 2 + 5
    assert "4 of 5 tasks done" in lines[0]
    assert lines[1].endswith("flow-0  2/2")
    assert lines[4].endswith("flow-1  2/3")


@pytest.mark.parametrize(
    ("width", "start"),
    [
        (80, f"order-shipment  INTERRUPTED  {'━' * 13}  "),
        (64, f"order-shipment  INTERRUPTED  {'━' * 9}  "),
        (59, f"order-shipment  INTERRUPTED  {'━' * 4}  "),
        (56, f"order-ship…  INTERRUPTED  {'━' * 4}  "),
    ],
)
def test_narrow_terminal_makes_bar_shorter_before_name(width: int, start: str) -> None:
    shown = dataclasses.replace(view([3], {}, "order-shipment"), duration=0.00996)
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with console.capture() as capture:
        console.print(trees.flow_tree(shown, console))
    headline = capture.get().splitlines()[0]
    assert headline.startswith(start)
    assert headline.endswith("3 of 3 tasks done  10 ms")


@pytest.mark.parametrize("rows", [4, 10, 30])
def test_failed_and_running_tasks_are_drawn_first(rows: int) -> None:
    found = view([500, 500, 3], {"1.400": "FAILURE", "0.7": "RUNNING"})
    lines = drawn(found, rows)
    assert len(lines) <= rows + 5
    assert any("1.400  failure  ValueError: no" in line for line in lines)
    assert rows == 4 or any("▶ 0.7" in line for line in lines)
    for flow in ("0", "1"):
        (inside,) = (
            found
            for found in re.split(r"^[├└]── ", "\n".join(lines), flags=re.MULTILINE)
            if f"flow-{flow}" in found
        )
        (more,) = re.findall(r"── \.\.\. (\d+) more tasks: \1 success", inside)
        assert len(re.findall(rf"── . {flow}\.", inside)) + int(more) == 500
    assert rows == 4 or len(lines) > rows


def test_running_and_stored_flow_are_drawn_alike() -> None:
    def fails() -> None:
        raise ValueError("no")

    nodes = [task.FunctorTask(print, name="done"), task.FunctorTask(fails, name="bad")]
    root = linear_flow.Flow("outer").add(linear_flow.Flow("inner").add(*nodes))
    engine = engines.load(root.add(task.FunctorTask(print, name="last")), never_resolve=True)
    live = io.StringIO()
    with (
        pytest.raises(ValueError, match="no"),
        ProgressListener(engine, Console(file=live), live=True),
    ):
        engine.run()
    outline = engine.compilation.outline
    stored = drawn(flows.view(engine.storage.flow_detail, outline, None, now=0.0))
    rows = [line for line in live.getvalue().splitlines() if "── " in line][-4:]
    lines = [re.sub(r"  (< )?[\d.]+ m?s|  on local", "", line.rstrip()) for line in stored[1:]]
    assert rows == [
        "├── ✘ inner  1/2",
        "│   ├── ✔ done",
        "│   └── ✘ bad  failure  ValueError: no",
        "└── ○ last",
    ]
    assert lines == rows


def test_enclosing_flows_of_a_deep_flow_are_summarized() -> None:
    nodes = [OutlineNode(f"level-{n}", FLOW, n - 1 if n else None) for n in range(100)]
    nodes.append(OutlineNode("bad", TASK, 99))
    detail, record = FlowDetail("level-0"), TaskDetail("bad")
    record.state = "FAILURE"
    detail.add(record)
    lines = drawn(flows.view(detail, Outline(tuple(nodes), ()), None, now=0.0), 10)
    assert [line.split()[-1] for line in lines[1:3]] == ["0/1", "0/1"]
    assert lines[3].endswith("... 94 enclosing flows")
    assert len(lines) == 8 and lines[-1].endswith("── ✘ bad  failure")


def test_tree_of_equal_flows_fits_the_rows() -> None:
    assert len(drawn(view([5] * 40, {}), 20)) <= 22


def test_terminal_without_unicode_gets_ascii_icons() -> None:
    lines = drawn(view([1], {}), encoding="ascii")
    assert "+ 0.0" in lines[-1]

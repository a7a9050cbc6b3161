"""The flow of the census: folder -> groups (map) -> modules (reduce) -> total -> report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine import task
from wbengine.examples.census import tasks
from wbengine.examples.census.sources import Group, Tree
from wbengine.patterns import graph_flow

#: Stages, in the order of the graph's depth; a task is named `<stage> <what>`.
FOLDER: Final = "folder"
MEASURE: Final = "measure"
ADD_UP: Final = "add up"
TOTAL: Final = "total"
REPORT: Final = "report"


@dataclass(frozen=True, slots=True)
class Step:
    """A task of the flow, as progress and page speak of it."""

    name: str
    stage: str
    label: str
    module: str = ""


def steps(groups: Sequence[Group]) -> list[Step]:
    """All tasks of the flow, in the order of the graph's depth."""
    modules = dict.fromkeys(group.module for group in groups)
    return [
        Step("make folder", FOLDER, "folder"),
        *(Step(f"measure {group.name}", MEASURE, group.name, group.module) for group in groups),
        *(Step(f"add up {module}", ADD_UP, module, module) for module in modules),
        Step("add up everything", TOTAL, "total"),
        Step("write report", REPORT, "report"),
    ]


def build(groups: Sequence[Group], fail: str | None = None) -> graph_flow.Flow:
    """The flow that measures `groups`; it takes the arguments of `store`.

    The first group of the module `fail` raises.  The biggest groups are the first to start.
    """
    flow = graph_flow.Flow("census")
    parts: dict[str, list[str]] = {}
    nodes: list[task.Task] = [tasks.MakeFolder("make folder", provides="folder")]
    for group in groups:
        measured = f"counts of group {group.name}"
        inject: dict[str, Any] = {"group": group.name, "files": list(group.files)}
        if group.module == fail and fail not in parts:
            inject["fail"] = True
        node = tasks.MeasureGroup(f"measure {group.name}", provides=measured, inject=inject)
        node.priority = group.size
        parts.setdefault(group.module, []).append(measured)
        nodes.append(node)
    modules = {module: f"counts of {module}" for module in parts}
    for module, measured_parts in parts.items():
        nodes.append(
            tasks.AddUp(f"add up {module}", provides=modules[module], requires=measured_parts)
        )
    nodes.append(
        tasks.AddUp("add up everything", provides="total", requires=list(modules.values()))
    )
    nodes.append(
        tasks.WriteReport(
            "write report",
            provides="report",
            requires=list(modules.values()),
            revert_requires=["folder"],
            inject={"groups": [group.name for group in groups], "modules": modules},
        )
    )
    return flow.add(*nodes)


def store(tree: Tree, out: str) -> dict[str, Any]:
    """The flow's arguments: what is measured, and the folder that gets the report."""
    return {"root": str(tree.root), "title": tree.title, "out": out}

"""census.html: the report of the run and the census."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from examples.census.measuring import NUMBERS
from wbengine import report
from wbengine.report import Cell, Section
from wbengine.views.flow_status import FlowView

#: The columns of the table, and their sort order.
_COLUMNS = (
    ("module", "text"),
    *((name, "number") for name in NUMBERS),
    ("nesting", "number"),
    ("longest", "number"),
    ("longest function", "text"),
)


def render(view: FlowView, census: dict[str, Any], engine_line: str) -> str:
    """Return the page as text, to be written as UTF-8. `engine_line` describes the engine."""
    total = census["total"]
    tiles = [("modules", len(census["modules"])), *((name, total[name]) for name in NUMBERS)]
    notes = f'<dl class="notes"><div><dt>Engine</dt><dd>{escape(engine_line)}</dd></div></dl>'
    return report.html(
        view,
        title=f"Census of {census['source']}",
        header=report.tiles((name, f"{number:,}") for name, number in tiles) + notes,
        sections=[_modules(census)],
    )


def _modules(census: dict[str, Any]) -> Section:
    modules = sorted(census["modules"], key=lambda module: (-module["lines"], module["name"]))
    max_lines = max((module["lines"] for module in modules), default=0)
    table = report.table(
        "modules",
        "Press a column's name to sort by it.",
        _COLUMNS,
        (("", module["name"], list(_cells(module, max_lines))) for module in modules),
        sorted_by="lines",
        finds=True,
    )
    unparsed = "".join(
        f"<li><code>{escape(item['path'])}</code> {escape(item['why'])}</li>"
        for item in census["total"]["unparsed"]
    )
    if unparsed:
        table += f"<details><summary>Could not be parsed</summary><ul>{unparsed}</ul></details>"
    note = "Code lines are neither blank nor begin with #; nesting counts the blocks around."
    return Section("modules", "Modules", table, note)


def _cells(module: dict[str, Any], max_lines: int) -> Iterator[Cell]:
    for name in NUMBERS:
        share = module[name] / max_lines if name == "lines" and max_lines else None
        yield Cell(f"{module[name]:,}", str(module[name]), "n", share)
    deepest = module["deepest"] or {"depth": 0, "at": ""}
    longest = module["longest"] or {"lines": 0, "name": "", "at": ""}
    for number, at in ((deepest["depth"], deepest["at"]), (longest["lines"], longest["at"])):
        yield Cell(f'<span title="{escape(at)}">{number:,}</span>', str(number), "n")
    yield Cell(f'<span class="dim">{escape(longest["name"])}</span>', longest["name"])

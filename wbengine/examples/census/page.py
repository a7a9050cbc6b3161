"""census.html: the report of the run, and the census that it took."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any, Final

from wbengine import report
from wbengine.examples.census.record import Record
from wbengine.report import Cell, Section
from wbengine.views import formatting

_NUMBERS: Final = (
    ("files", "files"),
    ("lines", "lines"),
    ("code", "code lines"),
    ("functions", "functions"),
    ("classes", "classes"),
    ("imports", "imports"),
)

#: The table's columns, and how they are sorted.
_COLUMNS: Final = (
    ("module", "text"),
    *((says, "number") for _, says in _NUMBERS),
    ("nesting", "number"),
    ("longest", "number"),
    ("longest function", "text"),
)


def render(record: Record) -> str:
    """The whole page as text, to be written as UTF-8."""
    return report.html(
        record.view,
        title=f"Census of {record.census['source']}",
        header=_header(record),
        sections=[_modules(record.census)],
    )


def _header(record: Record) -> str:
    census = record.census
    total = census["total"]
    counts = [("modules", len(census["modules"])), *((says, total[key]) for key, says in _NUMBERS)]
    notes = [("Engine", f"{escape(record.engine)}, {record.seconds:.2f} s")]
    if (longest := total["longest"]) is not None:
        what = f"{_code(longest['name'])}, {longest['lines']:,} lines"
        notes.append(("Longest function", f"{what} {_place(longest['at'])}"))
    if (deepest := total["deepest"]) is not None:
        notes.append(("Deepest nesting", f"{deepest['depth']} blocks {_place(deepest['at'])}"))
    listed = "".join(f"<div><dt>{name}</dt><dd>{what}</dd></div>" for name, what in notes)
    shown = report.tiles((says, f"{number:,}") for says, number in counts)
    return f'{shown}\n<dl class="notes">{listed}</dl>'


def _modules(census: dict[str, Any]) -> Section:
    modules = sorted(census["modules"], key=lambda module: (-module["lines"], module["name"]))
    most = max((module["lines"] for module in modules), default=0)
    table = report.table(
        "modules",
        "Press a column's name to sort by it.",
        _COLUMNS,
        (("", module["name"], list(_cells(module, most))) for module in modules),
        sorted_by="lines",
        finds=True,
    )
    note = "Code lines are neither blank nor begin with #; nesting counts the blocks around."
    return Section("modules", "Modules", table + _unparsed(census["total"]["unparsed"]), note)


def _cells(module: dict[str, Any], most: int) -> Iterator[Cell]:
    for key, _ in _NUMBERS:
        share = module[key] / most if key == "lines" and most else None
        yield Cell(f"{module[key]:,}", str(module[key]), "n", share)
    deepest = module["deepest"] or {"depth": 0, "at": ""}
    yield _located(deepest["depth"], deepest["at"])
    longest = module["longest"] or {"lines": 0, "name": "", "at": ""}
    yield _located(longest["lines"], longest["at"])
    yield Cell(f'<span class="dim">{escape(longest["name"])}</span>', longest["name"])


def _located(number: int, at: str) -> Cell:
    """A number that says where it was found when it is pointed at."""
    return Cell(f'<span title="{escape(at)}">{number:,}</span>', str(number), "n")


def _unparsed(items: list[dict[str, str]]) -> str:
    if not items:
        return '\n<p class="dim">Every file could be parsed.</p>'
    listed = "\n".join(
        f'<li>{_code(item["path"])} <span class="dim">{escape(item["why"])}</span></li>'
        for item in items
    )
    return (
        f"\n<details><summary>{formatting.count(len(items), 'file')} could not be parsed, and only"
        f" counted as a file</summary><ul>\n{listed}\n</ul></details>"
    )


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _place(at: str) -> str:
    return f'<span class="dim">in {_code(at)}</span>'

"""The HTML page of a report."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeVar

from wbengine.drawing._box_text import escaped
from wbengine.report import Cell as TableCell
from wbengine.report import Section, _pages, table, tiles
from wbengine.testing._crashing.matrix import Cell, Matrix
from wbengine.testing._crashing.schedules import Action, SignalFault

__all__ = ["save"]

_Fault = TypeVar("_Fault", bound=StrEnum)

#: Findings whose timelines are open at first.
_MAX_OPEN: Final = 3

#: Begin of the name of a reversion.
_REVERT: Final = "revert of "

#: Headings of the columns.
_FAULTS: Final = {
    Action.KILL: "engine killed",
    Action.LATER: "killed for a day",
    Action.KILL_BOTH: "engine and worker killed",
    Action.LOSE: "worker killed",
    Action.RESEND: "worker killed, step repeated",
    Action.FAIL: "exception",
    Action.BUSY: "HTTP 503",
    Action.COPY: "request twice",
    Action.UNREACHABLE: "store unreachable",
    Action.LOST_ANSWER: "store without answer",
    Action.CANCEL: "cancelled",
    Action.DEADLINE: "deadline",
}
_SIGNAL_FAULTS: Final = {
    SignalFault.EARLY: "early",
    SignalFault.LATE: "late",
    SignalFault.TWICE: "twice",
    SignalFault.MISSING: "missing",
}

_STYLE: Final = """
:root{--good:#1a6b34}
@media (prefers-color-scheme:dark){:root{--good:#7ddc97}}
.kept{color:var(--good)}
.broken,h1 .broken{color:var(--bad);font-weight:600}
h1 .kept,h1 .broken{font-size:17px;letter-spacing:0;white-space:nowrap;margin-left:8px}
thead th{vertical-align:bottom}
thead button{white-space:normal}
tbody th{position:sticky;left:0;background:var(--card);white-space:normal;overflow-wrap:anywhere}
@media (max-width:600px){main{padding:20px 12px 40px}section{padding:14px}tbody th{min-width:34vw}}
"""


def save(
    path: str | os.PathLike[str],
    title: str,
    figures: Iterable[tuple[str, str]],
    findings: Sequence[tuple[str, str]],
    matrix: Matrix,
    seed: int,
) -> None:
    """Write the page to a file, atomically.

    :param figures: names and figures below the title.
    :param findings: of each finding, the broken promise and its text with a timeline.
    :raises OSError: if the file cannot be written.
    """
    count = len(findings)
    mark = '<span class="kept">✓ no promise broken</span>'
    if findings:
        text = f"✗ {count:,} {'finding' if count == 1 else 'findings'}"
        mark = f'<span class="broken">{text}</span>'
    footer = f"Pairs were chosen with seed {seed};"
    sections = list(_sections(findings, matrix))
    page = _pages.page(title, mark, tiles(figures), sections, footer, style=_STYLE)
    _pages.save(path, page)


def _sections(findings: Sequence[tuple[str, str]], matrix: Matrix) -> Iterator[Section]:
    if findings:
        yield Section(
            "findings",
            "Findings",
            "\n".join(_details(findings)),
            "Each is the first run that broke the promise. !! marks a fault, -> a call of a"
            " system outside, and => the call that broke the promise.",
        )
    if matrix.steps:
        yield Section(
            "steps",
            "Faults by step",
            _table("steps", "step", matrix.steps, _FAULTS),
            "The number of runs in which the fault occurred during or after the step, alone or with"
            " another fault. ✗: some of them broke a promise.",
        )
    if matrix.signals:
        cells = _table("signals", "signal", matrix.signals, _SIGNAL_FAULTS)
        yield Section("signals", "Signals", cells)


def _details(findings: Sequence[tuple[str, str]]) -> Iterator[str]:
    for number, (promise, text) in enumerate(findings, 1):
        yield (
            f'<details class="failure" id="finding-{number}"'
            f"{' open' if number <= _MAX_OPEN else ''}>"
            f"<summary>{number}. {escaped(promise)}</summary>"
            f'<pre tabindex="0" role="group" aria-label="Timeline of finding {number}">'
            f"{escaped(text)}</pre></details>"
        )


def _table(
    name: str,
    row: str,
    rows: Mapping[str, Mapping[_Fault, Cell]],
    titles: Mapping[_Fault, str],
) -> str:
    workflows = {step.rpartition("/")[0].removeprefix(_REVERT) for step in rows if "/" in step}
    common = f"{workflows.pop()}/" if len(workflows) == 1 else ""
    faults = [fault for fault in titles if any(fault in cells for cells in rows.values())]
    return table(
        name,
        f"Runs by {row} and fault",
        [(row, "text"), *((titles[fault], "number") for fault in faults)],
        (
            ("", step.replace(common, "", 1), [_cell(cells.get(fault, _EMPTY)) for fault in faults])
            for step, cells in rows.items()
        ),
    )


_EMPTY: Final = Cell()


def _cell(cell: Cell) -> TableCell:
    value = str(cell.broken * 1_000_000 + cell.runs)
    if not cell.runs:
        return TableCell('<span class="dim">-</span>', value, "n")
    if not cell.broken:
        return TableCell(f'<span class="kept">✓</span> {cell.runs:,}', value, "n")
    number = min(cell.findings) + 1
    text = f"✗ {cell.broken:,} of {cell.runs:,}"
    link = f'<a class="broken" href="#finding-{number}" title="Finding {number}">{text}</a>'
    return TableCell(link, value, "n")

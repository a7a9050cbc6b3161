"""The sections of a report, each as HTML; whatever somebody named is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wbengine import drawing
from wbengine.drawing import labels, styles
from wbengine.drawing.labels import escaped
from wbengine.views import critical, formatting
from wbengine.views.atoms import AtomView, FailureView
from wbengine.views.flow import FlowView
from wbengine.views.timeline import Timeline

__all__ = ["Section", "of_flow", "pill", "table", "tiles"]

#: So many rows of atoms, and so many failures, are in a report.
ROWS: Final = 2000
_FAILURES: Final = 50
_OPEN: Final = 3
_SLOWEST: Final = 15
_PATH: Final = 100
_DESCENDING: Final = ' aria-sort="descending"'


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page; `html` is taken as it is, all else is escaped."""

    id: str
    title: str
    html: str
    note: str = ""

    def render(self) -> str:
        note = f'<p class="dim">{escaped(self.note)}</p>\n' if self.note else ""
        return (
            f'<section id="{escaped(self.id)}" aria-labelledby="{escaped(self.id)}-title">\n'
            f'<h2 id="{escaped(self.id)}-title">{escaped(self.title)}</h2>\n{note}{self.html}\n'
            "</section>"
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: `html`, and what it is sorted by."""

    html: str
    value: str | None = None
    kind: str = "t"
    share: float | None = None

    def render(self) -> str:
        value = "" if self.value is None else f' data-value="{escaped(self.value)}"'
        if self.share is None:
            return f'<td class="{self.kind}"{value}>{self.html}</td>'
        part = f' style="--part:{self.share:.1%}"'
        return f'<td class="{self.kind} share"{value}{part}>{self.html}</td>'


#: Of a table: an id ('' for none), the name in its first column, and the other cells.
Row = tuple[str, str, Sequence[Cell]]


def pill(state: str) -> str:
    """A state as people see it: icon, word, colour."""
    known = state if state in styles.STATES else "PENDING"
    said = f"{styles.icon(state)} {escaped(styles.word(state))}"
    return f'<span class="wbe-pill state-{known}">{said}</span>'


def tiles(shown: Iterable[tuple[str, str]]) -> str:
    """Figures with what they are."""
    inside = "".join(
        f"<div><dt>{escaped(what)}</dt><dd>{escaped(figure)}</dd></div>" for what, figure in shown
    )
    return f'<dl class="tiles">{inside}</dl>'


def table(
    name: str,
    caption: str,
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Row],
    *,
    sorted_by: str | None = None,
    finds: bool = False,
) -> str:
    """A table that can be sorted.

    `columns` are names and kinds ('text', 'number').
    """
    heads = "".join(
        f'<th scope="col" class="{"n" if kind == "number" else "t"}" data-sort="{kind}"'
        f"{_DESCENDING if says == sorted_by else ''}><button>{escaped(says)}</button></th>"
        for says, kind in columns
    )
    body = "\n".join(
        f"<tr{f' id={chr(34)}{escaped(key)}{chr(34)}' if key else ''}>"
        f'<th scope="row" title="{escaped(first)}">{escaped(first)}</th>'
        f"{''.join(cell.render() for cell in cells)}</tr>"
        for key, first, cells in rows
    )
    find = (
        f'<input class="find" type="search" hidden data-finds="{name}-table"'
        f' placeholder="Find" aria-label="Find in {escaped(name)}">\n'
        if finds
        else ""
    )
    return (
        f'{find}<div class="scroll table" tabindex="0" role="group"'
        f' aria-label="{escaped(caption)}">\n<table id="{name}-table">\n'
        f"<caption>{escaped(caption)}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def of_flow(view: FlowView, timeline: Timeline) -> list[Section]:
    """All sections that a run has something to tell for."""
    found = [_graph(view)]
    if view.failures:
        found.append(_failures(view.failures))
    if timeline.lanes:
        found.append(_timeline(view, timeline))
    path = critical.path(view)
    if len(path) > 1:
        found.append(_critical(view, path))
    slowest = critical.slowest(view, _SLOWEST)
    if len(slowest) > 1:
        found.append(_slowest(slowest))
    if view.revert_path:
        found.append(_undone(view))
    if view.history:
        found.append(_history(view))
    found.append(_atoms(view))
    return found


def _anchor(atom: AtomView) -> str:
    return f"#atom-{atom.node}"


def _graph(view: FlowView) -> Section:
    linked = len(view.atoms) <= ROWS
    picture = drawing.html(view.outline, view, link=_anchor if linked else None)
    around = '<div class="scroll graph" tabindex="0" role="group" aria-label="Graph">'
    inside = f"{around}\n{picture}\n</div>"
    note = "What comes after what. Point at a box for its times"
    note += ", press it for its row in the table below." if linked else "."
    return Section("graph", "The flow", inside, note)


def _failures(failures: Sequence[FailureView]) -> Section:
    inside = "\n".join(
        _failure(failure, number < _OPEN) for number, failure in enumerate(failures[:_FAILURES])
    )
    more = len(failures) - _FAILURES
    if more > 0:
        inside += f'\n<p class="dim">… and {more:,} more.</p>'
    return Section("failures", "Failures", inside, "The earliest first.")


def _failure(failure: FailureView, opened: bool) -> str:
    where = [f"attempt {formatting.nth(failure)}" if failure.attempt else ""]
    where += [f"on {failure.worker}" if failure.worker not in (None, "local") else ""]
    where += [f"at {formatting.clock(failure.at)} UTC" if failure.at is not None else ""]
    said = ", ".join(each for each in where if each)
    doing = ", while it was reverted" if failure.action == "revert" else ""
    return (
        f'<details class="failure"{" open" if opened else ""}>'
        f"<summary>{escaped(failure.atom or '')}{doing}: {escaped(failure.line)}"
        f' <span class="dim">{escaped(said)}</span></summary>'
        f"<pre>{escaped(failure.text)}</pre></details>"
    )


def _timeline(view: FlowView, timeline: Timeline) -> Section:
    linked = len(view.atoms) <= ROWS
    svg = drawing.chart(timeline, link=(lambda bar: f"#atom-{bar.node}") if linked else None)
    inside = f'<div class="scroll" tabindex="0" role="group" aria-label="Timeline">\n{svg}\n</div>'
    note = "A lane for each worker, a bar for each attempt; dashed ones undo."
    return Section("timeline", "Who ran what when", inside, note)


def _critical(view: FlowView, path: Sequence[AtomView]) -> Section:
    begin = view.started if view.started is not None else (path[0].started or 0.0)
    longest = max((atom.runtime or 0.0 for atom in path), default=0.0) or 1.0
    spent = sum(atom.runtime or 0.0 for atom in path)

    def rows() -> Iterator[Row]:
        ended = begin
        for atom in path[-_PATH:]:
            started = atom.started if atom.started is not None else ended
            waited = max(0.0, started - ended)
            ended = atom.ended or ended
            took = _seconds(atom.runtime, (atom.runtime or 0.0) / longest)
            began = _seconds(max(0.0, started - begin))
            yield _row(atom.name, began, _seconds(waited), took, _text(atom.worker))

    columns = [("atom", "text"), ("began at", "number"), ("waited", "number")]
    columns += [("took", "number"), ("worker", "text")]
    total = view.duration or 0.0
    note = f"Each of these {len(path):,} waited for the one before it."
    if total:
        note += f" They worked for {formatting.seconds(spent)} of {formatting.seconds(total)}; "
        note += (
            "the faster they are, the faster the flow is."
            if spent > total / 2
            else "most of the time there was no worker for the next one."
        )
    shown = table("critical", "The critical path, from its beginning", columns, rows())
    return Section("critical", "Critical path", shown, note)


def _slowest(atoms: Sequence[AtomView]) -> Section:
    longest = atoms[0].runtime or 1.0
    rows = (
        _row(
            atom.name,
            _seconds(atom.runtime, (atom.runtime or 0.0) / longest),
            _state(atom.state),
            _text(atom.worker),
        )
        for atom in atoms
    )
    columns = [("atom", "text"), ("took", "number"), ("state", "text"), ("worker", "text")]
    shown = table("slowest", "Latest attempts that took longest", columns, rows, sorted_by="took")
    return Section("slowest", "Slowest atoms", shown)


def _undone(view: FlowView) -> Section:
    rows = (
        _row(
            undone.atom,
            _state(undone.state),
            _seconds(undone.attempt.runtime),
            _text(undone.attempt.worker),
            _text(undone.attempt.error, "wrap"),
        )
        for undone in view.revert_path[:ROWS]
    )
    columns = [("atom", "text"), ("state", "text"), ("took", "number"), ("worker", "text")]
    shown = table(
        "undone", "In the order in which it happened", [*columns, ("error", "text")], rows
    )
    return Section("undone", "What was undone", shown)


def _history(view: FlowView) -> Section:
    rows = (
        _row(f"{formatting.clock(change.at)} UTC", _state(change.state), _text(change.why, "wrap"))
        for change in view.history
    )
    columns = [("when", "text"), ("state", "text"), ("why", "text")]
    shown = table("history", "Its states", columns, rows)
    return Section("history", "What became of the flow", shown)


def _atoms(view: FlowView) -> Section:
    longest = max((atom.runtime or 0.0 for atom in view.atoms), default=0.0) or 1.0
    columns = [("atom", "text"), ("state", "text"), ("took", "number"), ("executions", "number")]
    columns += [("worker", "text"), ("in", "text"), ("remarks", "text")]
    rows = (_atom(atom, longest) for atom in view.atoms[:ROWS])
    more = len(view.atoms) - ROWS
    caption = "Press a column's name to sort by it."
    if more > 0:
        caption += f" These are the first {ROWS:,}; {more:,} more are not listed."
    shown = table("atoms", caption, columns, rows, finds=True)
    return Section("atoms", "All atoms", shown)


def _atom(atom: AtomView, longest: float) -> Row:
    failure = atom.revert_failure or atom.failure
    remarks = [labels.shortened(failure.line, 200)] if failure is not None else []
    remarks += [atom.waiting] if atom.waiting else []
    remarks += [labels.counted(atom.items)] if atom.items else []
    return _row(
        atom.name,
        _state(atom.state),
        _seconds(atom.runtime, (atom.runtime or 0.0) / longest),
        Cell(f"{atom.executions:,}", str(atom.executions), "n"),
        _text(atom.worker),
        _text(" / ".join(atom.path[1:])),
        _text("; ".join(remarks), "wrap"),
        id=f"atom-{atom.node}",
    )


def _row(name: str, *cells: Cell, id: str = "") -> Row:
    return id, name, cells


def _text(text: str | None, kind: str = "t") -> Cell:
    return Cell(escaped(text or ""), kind=kind)


def _state(state: str) -> Cell:
    return Cell(pill(state), state)


def _seconds(duration: float | None, share: float | None = None) -> Cell:
    if duration is None:
        return Cell("", "", "n")
    return Cell(formatting.seconds(duration), f"{duration:.6f}", "n", share or None)


def counted(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Tiles for the states that atoms are in."""
    return [
        (styles.word(state), f"{counts[state]:,}") for state in styles.STATES if counts.get(state)
    ]

"""Sections of a report as HTML. All names are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wbengine import drawing
from wbengine.drawing import _box_text, _styles
from wbengine.drawing._box_text import escaped
from wbengine.views import _critical as critical
from wbengine.views import _formatting
from wbengine.views._atoms import AtomView, FailureView, StepView
from wbengine.views._timeline import Timeline
from wbengine.views.flow_status import FlowView

__all__ = ["Section", "of_flow", "pill", "table", "tiles"]

#: Maximum number of rows of a table of atoms, and of failures.
MAX_ROWS: Final = 2000
_MAX_FAILURES: Final = 50
_MAX_OPEN_FAILURES: Final = 3
_MAX_SLOWEST: Final = 15
_MAX_PATH: Final = 100
_DESCENDING: Final = ' aria-sort="descending"'


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page. `html` is not escaped, all else is."""

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
    """A cell of a table: `html`, which is not escaped, and the value by which it is sorted."""

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


#: A row of a table: its id ('' if it has none), its first column, and the other cells.
Row = tuple[str, str, Sequence[Cell]]


def pill(state: str) -> str:
    """Return a state with icon, word and colour."""
    css_state = state if state in _styles.STATES else "PENDING"
    text = f"{_styles.icon(state)} {escaped(_styles.word(state))}"
    return f'<span class="wbe-pill state-{css_state}">{text}</span>'


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """Return figures with their names as HTML. `figures`: pairs of name and figure."""
    html = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(figure)}</dd></div>" for name, figure in figures
    )
    return f'<dl class="tiles">{html}</dl>'


def table(
    name: str,
    caption: str,
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Row],
    *,
    sorted_by: str | None = None,
    finds: bool = False,
) -> str:
    """Return a table that can be sorted.

    :param columns: names and kinds ('text', 'number').
    :param sorted_by: column by which the rows are sorted in descending order.
    :param finds: whether the table has a search field.
    """
    heads = "".join(
        f'<th scope="col" class="{"n" if kind == "number" else "t"}" data-sort="{kind}"'
        f"{_DESCENDING if title == sorted_by else ''}><button>{escaped(title)}</button></th>"
        for title, kind in columns
    )
    body = "\n".join(
        f"<tr{f' id={chr(34)}{escaped(key)}{chr(34)}' if key else ''}>"
        f'<th scope="row" title="{escaped(first)}">{escaped(first)}</th>'
        f"{''.join(cell.render() for cell in cells)}</tr>"
        for key, first, cells in rows
    )
    search_field = (
        f'<input class="find" type="search" hidden data-finds="{name}-table"'
        f' placeholder="Find" aria-label="Find in {escaped(name)}">\n'
        if finds
        else ""
    )
    return (
        f'{search_field}<div class="scroll table" tabindex="0" role="group"'
        f' aria-label="{escaped(caption)}">\n<table id="{name}-table">\n'
        f"<caption>{escaped(caption)}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def of_flow(view: FlowView, timeline: Timeline) -> list[Section]:
    """Return all sections that apply to a flow."""
    sections = [_graph(view)]
    if view.failures:
        sections.append(_failures(view.failures))
    if timeline.lanes:
        sections.append(_timeline(view, timeline))
    path = critical.path(view)
    if len(path) > 1:
        sections.append(_critical(view, path))
    slowest = critical.slowest(view, _MAX_SLOWEST)
    if len(slowest) > 1:
        sections.append(_slowest(slowest))
    if view.revert_path:
        sections.append(_undone(view))
    if view.history:
        sections.append(_history(view))
    sections.append(_atoms(view))
    if any(atom.steps is not None for atom in view.atoms):
        sections.append(_steps(view))
    return sections


def _anchor(atom: AtomView) -> str:
    return f"#atom-{atom.node}"


def _graph(view: FlowView) -> Section:
    linked = len(view.atoms) <= MAX_ROWS
    picture = drawing.html(view.outline, view, link=_anchor if linked else None)
    wrapper = '<div class="scroll graph" tabindex="0" role="group" aria-label="Graph">'
    html = f"{wrapper}\n{picture}\n</div>"
    note = "The order of the atoms. Point at a box to see its times"
    note += "; press it to open its row in the table." if linked else "."
    return Section("graph", "Graph", html, note)


def _failures(failures: Sequence[FailureView]) -> Section:
    html = "\n".join(
        _failure(failure, number < _MAX_OPEN_FAILURES)
        for number, failure in enumerate(failures[:_MAX_FAILURES])
    )
    omitted = len(failures) - _MAX_FAILURES
    if omitted > 0:
        html += f'\n<p class="dim">… and {omitted:,} more.</p>'
    return Section("failures", "Failures", html, "Earliest first.")


def _failure(failure: FailureView, is_open: bool) -> str:
    details = [f"attempt {_formatting.nth(failure)}" if failure.attempt else ""]
    details += [f"on {failure.worker}" if failure.worker not in (None, "local") else ""]
    details += [f"at {_formatting.clock(failure.at)} UTC" if failure.at is not None else ""]
    detail_text = ", ".join(each for each in details if each)
    phase = ", during reversion" if failure.action == "revert" else ""
    return (
        f'<details class="failure"{" open" if is_open else ""}>'
        f"<summary>{escaped(failure.atom or '')}{phase}: {escaped(failure.line)}"
        f' <span class="dim">{escaped(detail_text)}</span></summary>'
        f"<pre>{escaped(failure.text)}</pre></details>"
    )


def _timeline(view: FlowView, timeline: Timeline) -> Section:
    linked = len(view.atoms) <= MAX_ROWS
    svg = drawing.chart(timeline, link=(lambda bar: f"#atom-{bar.node}") if linked else None)
    html = f'<div class="scroll" tabindex="0" role="group" aria-label="Timeline">\n{svg}\n</div>'
    note = "A lane for each worker, a bar for each attempt. Dashed bars are reversions."
    return Section("timeline", "Timeline", html, note)


def _critical(view: FlowView, path: Sequence[AtomView]) -> Section:
    begin = view.started if view.started is not None else (path[0].started or 0.0)
    longest = max((atom.runtime or 0.0 for atom in path), default=0.0) or 1.0
    spent = sum(atom.runtime or 0.0 for atom in path)

    def rows() -> Iterator[Row]:
        ended = begin
        for atom in path[-_MAX_PATH:]:
            started = atom.started if atom.started is not None else ended
            waited = max(0.0, started - ended)
            ended = atom.ended or ended
            took = _seconds(atom.runtime, (atom.runtime or 0.0) / longest)
            began = _seconds(max(0.0, started - begin))
            yield _row(atom.name, began, _seconds(waited), took, _text(atom.worker))

    columns = [("atom", "text"), ("started at", "number"), ("waited", "number")]
    columns += [("took", "number"), ("worker", "text")]
    total = view.duration or 0.0
    note = f"Each of these {len(path):,} atoms waited for the previous one."
    if total:
        note += f" They ran for {_formatting.seconds(spent)} of {_formatting.seconds(total)}; "
        note += (
            "faster atoms make the flow faster."
            if spent > total / 2
            else "most of the time, the next atom waited for a worker."
        )
    html = table("critical", "Atoms of the critical path, in order", columns, rows())
    return Section("critical", "Critical path", html, note)


def _slowest(atoms: Sequence[AtomView]) -> Section:
    longest = atoms[0].runtime or 1.0
    rows = (
        _row(
            atom.name,
            _seconds(atom.runtime, (atom.runtime or 0.0) / longest),
            _state(atom.shown_state),
            _text(atom.worker),
        )
        for atom in atoms
    )
    columns = [("atom", "text"), ("took", "number"), ("state", "text"), ("worker", "text")]
    html = table(
        "slowest", "Atoms with the longest latest attempt", columns, rows, sorted_by="took"
    )
    return Section("slowest", "Slowest atoms", html)


def _undone(view: FlowView) -> Section:
    rows = (
        _row(
            undone.atom,
            _state(undone.state),
            _seconds(undone.attempt.runtime),
            _text(undone.attempt.worker),
            _text(undone.attempt.error, "wrap"),
        )
        for undone in view.revert_path[:MAX_ROWS]
    )
    columns = [("atom", "text"), ("state", "text"), ("took", "number"), ("worker", "text")]
    html = table(
        "undone", "Reverted atoms, in order of reversion", [*columns, ("error", "text")], rows
    )
    return Section("undone", "Reverted atoms", html)


def _history(view: FlowView) -> Section:
    rows = (
        _row(f"{_formatting.clock(change.at)} UTC", _state(change.state), _text(change.why, "wrap"))
        for change in view.history
    )
    columns = [("when", "text"), ("state", "text"), ("reason", "text")]
    html = table("history", "States of the flow", columns, rows)
    return Section("history", "History", html)


def _atoms(view: FlowView) -> Section:
    longest = max((atom.execution_runtime or 0.0 for atom in view.atoms), default=0.0) or 1.0
    columns = [("atom", "text"), ("state", "text"), ("took", "number"), ("executions", "number")]
    columns += [("worker", "text"), ("in", "text"), ("remarks", "text")]
    rows = (_atom(atom, longest) for atom in view.atoms[:MAX_ROWS])
    omitted = len(view.atoms) - MAX_ROWS
    caption = "Press the name of a column to sort by it."
    if omitted > 0:
        caption += (
            f" The table contains the first {MAX_ROWS:,} atoms; {omitted:,} more are not listed."
        )
    html = table("atoms", caption, columns, rows, finds=True)
    return Section("atoms", "All atoms", html)


def _steps(view: FlowView) -> Section:
    steps = [(atom, atom.steps) for atom in view.atoms if atom.steps is not None]
    shown = [(atom.name, step) for atom, each in steps for step in each.shown]
    columns = [("step", "text"), ("state", "text"), ("took", "number"), ("executions", "number")]
    columns += [("iterations", "number"), ("worker", "text"), ("remarks", "text")]
    total = _formatting.count(sum(sum(each.counts.values()) for _, each in steps), "step")
    caption = f"{total} of {_formatting.count(len(steps), 'workflow')}."
    caption += " Of a loop, the table contains the latest iteration."
    if len(shown) > MAX_ROWS:
        caption += f" Only the first {MAX_ROWS:,} rows are listed."
    html = table("steps", caption, columns, (_step(*each) for each in shown[:MAX_ROWS]))
    return Section("steps", "Steps of workflows", html)


def _step(workflow: str, step: StepView) -> Row:
    remarks = [] if step.error is None else [_box_text.shortened(step.error, 200)]
    remarks += [step.waiting] if step.waiting else []
    return _row(
        f"{workflow} / {step.position} {step.name}",
        _state(step.shown_state),
        _took(step),
        Cell(f"{step.executions:,}", str(step.executions), "n"),
        Cell(f"{step.repeated:,}", str(step.repeated), "n"),
        _text(step.worker),
        _text("; ".join(remarks), "wrap"),
    )


def _atom(atom: AtomView, longest: float) -> Row:
    failure = atom.revert_failure or atom.failure
    remarks = [_box_text.shortened(failure.line, 200)] if failure is not None else []
    remarks += [atom.waiting] if atom.waiting else []
    remarks += [_box_text.counted(atom.items)] if atom.items else []
    return _row(
        atom.name,
        _state(atom.shown_state),
        _took(atom, (atom.execution_runtime or 0.0) / longest),
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
    return Cell(_formatting.seconds(duration), f"{duration:.6f}", "n", share or None)


def _took(each: AtomView | StepView, share: float | None = None) -> Cell:
    """Return the durations of the execution and the reversion, sorted by that of the execution."""
    text = _formatting.took(each.execution_runtime, each.reversion_runtime)
    return Cell(text, f"{each.execution_runtime or 0.0:.6f}" if text else "", "n", share or None)


def state_counts(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return figures with the number of atoms by state."""
    return [
        (_styles.word(state), f"{counts[state]:,}") for state in _styles.STATES if counts.get(state)
    ]

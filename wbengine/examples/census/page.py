"""census.html: the census and how it was taken, in one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any, Final

from wbengine.examples.census import graph, style, timeline
from wbengine.examples.census.record import Record

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
_SORTED: Final = ' aria-sort="descending"'


def render(record: Record) -> str:
    """The whole page as text, to be written as UTF-8."""
    source = record.census["source"]
    title = escape(f"Census of {source}")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style.CSS}</style>
</head>
<body>
<main>
<header>
<h1>{title}</h1>
{_lead(record)}
{_tiles(record.census)}
</header>
{_graph(record)}
{_timeline(record)}
{_table(record.census)}
<footer>Taken by <code>python -m wbengine.examples.census</code>. Code lines are neither blank nor
begin with #; nesting counts the blocks around a statement.</footer>
</main>
<script>{style.SCRIPT}</script>
</body>
</html>
"""


def _lead(record: Record) -> str:
    tasks = len(record.ran)
    worked = sum(record.busy(worker) for worker in range(len(record.workers)))
    workers = _count(len(record.workers), "worker")
    return (
        f'<p class="lead">A flow of <b>{tasks}</b> tasks ran in <b>{record.seconds:.2f} s</b> '
        f"on the <b>{escape(record.engine)}</b> engine with <b>{workers}</b>, "
        f"which put <b>{worked:.2f} s</b> of work into it.</p>"
    )


def _tiles(census: dict[str, Any]) -> str:
    total = census["total"]
    tiles = [("modules", len(census["modules"])), *((says, total[key]) for key, says in _NUMBERS)]
    shown = "".join(f"<div><dt>{says}</dt><dd>{value:,}</dd></div>" for says, value in tiles)
    notes = []
    if (longest := total["longest"]) is not None:
        notes.append(
            ("Longest function", f"{_code(longest['name'])}, {longest['lines']:,} lines", longest)
        )
    if (deepest := total["deepest"]) is not None:
        notes.append(("Deepest nesting", f"{deepest['depth']} blocks", deepest))
    listed = "".join(
        f"<div><dt>{name}</dt><dd>{what} "
        f'<span class="dim">in {_code(found["at"])}</span></dd></div>'
        for name, what, found in notes
    )
    return f'<dl class="tiles">{shown}</dl>\n<dl class="notes">{listed}</dl>'


def _graph(record: Record) -> str:
    return f"""<section aria-labelledby="graph">
<h2 id="graph">The flow</h2>
<p class="dim">One mark per task. On the outer ring, groups of at most 50 files are measured: the
bigger the mark, the longer it took. On the inner ring each module is added up, in the middle
everything is, and the report is written. The dashed ring is the first task: all groups wait for its
folder. Shape and colour tell the worker; point at a mark for its times.</p>
{_legend(record)}
<div class="scroll" tabindex="0" role="group" aria-label="Graph of the flow">
{graph.draw(record)}
</div>
</section>"""


def _timeline(record: Record) -> str:
    return f"""<section aria-labelledby="timeline">
<h2 id="timeline">Who ran what when</h2>
<p class="dim">Biggest groups first, so that the workers finish together; sums of modules, paler, as
soon as their groups are there.</p>
<div class="scroll" tabindex="0" role="group" aria-label="Timeline">
{timeline.draw(record)}
</div>
</section>"""


def _legend(record: Record) -> str:
    items = []
    for worker, identity in enumerate(record.workers):
        tasks = sum(ran.worker == worker for ran in record.ran)
        items.append(
            '<li><svg aria-hidden="true" viewBox="-7 -7 14 14">'
            f'<path class="{graph.colour(worker)}" d="{graph.shape(worker, 0, 0, 5.5)}"/></svg>'
            f"<b>{escape(record.name(worker))}</b> "
            f'<span class="dim">{_count(tasks, "task")}, {record.busy(worker):.2f} s, '
            f"{_code(identity)}</span></li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _table(census: dict[str, Any]) -> str:
    modules = sorted(census["modules"], key=lambda module: (-module["lines"], module["name"]))
    most = max((module["lines"] for module in modules), default=0)
    columns = "".join(
        f'<th scope="col" class="{"n" if kind == "number" else "t"}" data-sort="{kind}"'
        f"{_SORTED if says == 'lines' else ''}><button>{says}</button></th>"
        for says, kind in _COLUMNS
    )
    rows = "\n".join(_row(module, most) for module in modules)
    return f"""<section aria-labelledby="modules">
<h2 id="modules">Modules</h2>
<div class="scroll table" tabindex="0" role="group" aria-label="Table of modules">
<table>
<caption>Press a column's name to sort by it.</caption>
<thead><tr>{columns}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
{_unparsed(census["total"]["unparsed"])}
</section>"""


def _row(module: dict[str, Any], most: int) -> str:
    cells = "".join(_cells(module, most))
    name = escape(module["name"])
    return f'<tr><th scope="row" title="{name}">{name}</th>{cells}</tr>'


def _cells(module: dict[str, Any], most: int) -> Iterator[str]:
    for key, _ in _NUMBERS:
        share = ""
        if key == "lines" and most:
            share = f' share" style="--part:{module[key] / most:.1%}'
        yield f'<td class="n{share}" data-value="{module[key]}">{module[key]:,}</td>'
    deepest = module["deepest"] or {"depth": 0, "at": ""}
    yield _located(deepest["depth"], deepest["at"])
    longest = module["longest"] or {"lines": 0, "name": "", "at": ""}
    yield _located(longest["lines"], longest["at"])
    name = escape(longest["name"])
    yield f'<td class="t dim" data-value="{name}" title="{name}">{name}</td>'


def _located(number: int, at: str) -> str:
    """A number that says where it was found when it is pointed at."""
    return f'<td class="n" data-value="{number}" title="{escape(at)}">{number:,}</td>'


def _unparsed(items: list[dict[str, str]]) -> str:
    if not items:
        return '<p class="dim">Every file could be parsed.</p>'
    listed = "\n".join(
        f'<li>{_code(item["path"])} <span class="dim">{escape(item["why"])}</span></li>'
        for item in items
    )
    return (
        f"<details><summary>{_count(len(items), 'file')} could not be parsed, and only counted as "
        f"a file</summary><ul>\n{listed}\n</ul></details>"
    )


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"

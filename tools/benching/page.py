"""bench.html: a self-contained page with the figures of bench.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from tools.benching import charts, style, tables
from tools.benching.result_file import DASH
from tools.benching.systems import LOCALS

KINDS = {
    "wbengine": "ours",
    "wbengine-shared": "kept",
    "wbengine-ledger": "ours",
    "wbengine-transient": "ours",
    "wbengine-keys": "ours",
    "wbengine-roles": "ours",
    "kombu": "floor",
}
CASES = {
    "wide": "tasks that do nothing, all at once, results gathered",
    "chain": "a chain of tasks, where the caller receives each result before it starts the next"
    " task",
    "pipeline": "a chain of tasks, where the worker starts the next task; to be compared with"
    " chain",
    "diamond": "layers of 40 tasks; each layer starts when the last has ended",
    "payload": "tasks that receive 100 KB and return them",
    "latency": "tasks that start on an idle worker, one after the other",
    "linear": "tasks that do nothing, one after the other",
    "map": "a Map whose items do nothing",
    "parked": "flows on sqlite, parked until a signal arrives; flows a second",
}


def render(document: Mapping[str, Any]) -> str:
    """Return the page as text, to be written as UTF-8."""
    titles = {entry["name"]: entry["title"] for entry in document["systems"]}
    facts = document["facts"]
    grids = [grid for make_grids in tables.GRIDS.values() for grid in make_grids(document)]
    parts = [
        *_rates(document["cells"], titles),
        _scale(document["scale"]),
        _ready(document["ready"], titles),
        *(_section(entry.title, "", _grid(entry.head, entry.rows, entry.texts)) for entry in grids),
        _table(document["cells"], titles),
    ]
    body = "\n".join(part for part in parts if part)
    conditions = (f"{escape(str(key))}: {escape(_plain(value))}" for key, value in facts.items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>wbengine, measured</title>
<link rel="icon" href="data:,">
<style>{style.CSS}</style>
</head>
<body>
<main>
<header>
<h1>wbengine, measured beside its peers</h1>
<p class="dim">{"; ".join(conditions)}</p>
</header>
{body}
<footer><p class="dim">Made by <code>tools/bench</code>. Rates are medians; whiskers go from the
slowest run to the fastest.</p></footer>
</main>
</body>
</html>
"""


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _section(title: str, text: str, body: str) -> str:
    paragraph = f'<p class="dim">{text}</p>\n' if text else ""
    return f"<section>\n<h2>{title}</h2>\n{paragraph}{body}\n</section>"


def _rates(cells: list[Mapping[str, Any]], titles: Mapping[str, str]) -> Iterator[str]:
    """Yield a section for each case with a chart for each medium; those without workers last."""
    groups: dict[tuple[bool, str], list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["medium"] in LOCALS, cell["case"]), []).append(cell)
    for (local, case), group in sorted(groups.items(), key=lambda entry: entry[0][0]):
        figures = [
            _figure(medium, [entry for entry in group if entry["medium"] == medium], titles)
            for medium in dict.fromkeys(entry["medium"] for entry in group)
        ]
        text = f"{group[0]['tasks']:,} tasks per run, {CASES.get(case, '')}. Tasks per second."
        yield _section(
            f"{case.capitalize()}{', without workers' if local else ''}", text,
            f'{"" if local else _LEGEND}<div class="charts">{"".join(figures)}</div>',
        )  # fmt: skip


_LEGEND = (
    '<ul class="legend"><li><i style="background:var(--ours)"></i>wbengine</li>'
    '<li><i style="background:var(--kept)"></i>wbengine, shared executor</li>'
    '<li><i style="background:var(--peer)"></i>peers</li>'
    '<li><i style="background:var(--floor)"></i>kombu alone: the transport</li></ul>'
)


def _figure(medium: str, cells: list[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    cells = sorted(cells, key=lambda entry: -entry.get("rate", 0))
    rows = [_bar(cell, titles[cell["system"]]) for cell in cells]
    chart = charts.bars(rows, f"tasks per second, {medium}")
    return f"<figure><h3>{escape(medium)}</h3>{chart}</figure>"


def _bar(cell: Mapping[str, Any], title: str) -> charts.Bar:
    kind, note = KINDS.get(cell["system"], ""), "; ".join(cell.get("problems", ()))
    if "rate" not in cell:
        return charts.Bar(title, None, kind, note=note or "no runs")
    rates = [cell["tasks"] / seconds for seconds in cell["seconds"]]
    return charts.Bar(title, cell["rate"], kind, min(rates), max(rates), note)


def _scale(rows: list[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    shapes = dict.fromkeys(row["shape"] for row in rows)

    def curves(key: str) -> list[charts.Curve]:
        return [
            charts.Curve(
                tables.SHAPES.get(shape, shape),
                [(row["tasks"], row[key]) for row in rows if row["shape"] == shape],
            )
            for shape in shapes
        ]

    figures = [
        charts.curves(curves("all"), "seconds by tasks", "tasks", "seconds"),
        charts.curves(curves("peak_mb"), "peak memory by tasks", "tasks", "peak MB"),
    ]
    drawn = "".join(f"<figure>{figure}</figure>" for figure in figures)
    text = "One flow without workers, from the construction of its tasks to its end."
    return _section("Scale", text, f'<div class="charts">{drawn}</div>')


def _ready(ready: list[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    figures = []
    for medium in dict.fromkeys(row["medium"] for row in ready):
        rows = [
            charts.Bar(titles[row["system"]], row["seconds"], KINDS.get(row["system"], ""))
            for row in sorted(ready, key=lambda row: row["seconds"])
            if row["medium"] == medium
        ]
        chart = charts.bars(rows, f"seconds, {medium}", 2)
        figures.append(f"<figure><h3>{escape(medium)}</h3>{chart}</figure>")
    if not figures:
        return ""
    text = "Seconds from the start of a worker's process to the end of its first task."
    return _section("Start-up", text, f'<div class="charts">{"".join(figures)}</div>')


def _table(cells: list[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    if not cells:
        return ""
    cost = "\N{MICRO SIGN}s/task: caller"
    head = ("case", "on", "system", "tasks", "tasks/s", "spread", cost, "workers", "broker",
            "runs, s")  # fmt: skip
    body = []
    for cell in cells:
        limit = f"<{cell['limit']:,.0f}" if "limit" in cell else DASH
        figures = (limit, *(DASH,) * 4)
        if "rate" in cell:
            figures = (f"{cell['rate']:,.0f}", f"{100 * cell['spread']:.0f} %",
                       *(f"{cell[name]:,.0f}" for name in tables.COSTS))  # fmt: skip
        runs = " ".join(f"{took:.3f}" for took in cell["seconds"])
        details = "; ".join(filter(None, [runs, *cell.get("problems", ())]))
        body.append(
            (
                cell["case"],
                cell["medium"],
                titles[cell["system"]],
                f"{cell['tasks']:,}",
                *figures,
                details,
            )
        )
    table = _grid(head, body, texts=3)
    return _section("All figures", "", f"<details><summary>show</summary>{table}</details>")


def _grid(head: Sequence[str], body: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Return a table. Columns after the first `texts` columns contain figures."""

    def row(cells: Sequence[str], tag: str) -> str:
        cells_html = (
            f"<{tag}{'' if number < texts else ' class=n'}>{escape(cell)}</{tag}>"
            for number, cell in enumerate(cells)
        )
        return f"<tr>{''.join(cells_html)}</tr>"

    rows = "".join(row(cells, "td") for cells in body)
    return f'<div class="scroll"><table>{row(head, "th")}{rows}</table></div>'

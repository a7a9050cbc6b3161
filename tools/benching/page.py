"""bench.html: the figures as a page that needs nothing else, made of what is in bench.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from tools.benching import charts, style, tables
from tools.benching.systems import LOCALS
from tools.benching.telling import DASH

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
    "chain": "each task is fed by the last, whose result the caller has got",
    "pipeline": "each task is fed by the last, sent on by the worker; to be compared with chain",
    "diamond": "layers of 40 tasks, each begins when the last has ended",
    "payload": "each task is given 100 KB and gives them back",
    "linear": "tasks that do nothing, one after the other",
}
COSTS = ("caller_us", "workers_us", "broker_us")


def render(found: Mapping[str, Any]) -> str:
    """The whole page as text, to be written as UTF-8."""
    titles = {one["name"]: one["title"] for one in found["systems"]}
    facts = found["facts"]
    grids = [grid for made in tables.GRIDS.values() for grid in made(found)]
    parts = [
        *_rates(found["cells"], titles),
        _scale(found["scale"]),
        _ready(found["ready"], titles),
        *(_section(one.title, "", _grid(one.head, one.rows, one.texts)) for one in grids),
        _table(found["cells"], titles),
    ]
    body = "\n".join(part for part in parts if part)
    known = (f"{escape(str(key))}: {escape(_plain(value))}" for key, value in facts.items())
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
<p class="dim">{"; ".join(known)}</p>
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
        return ", ".join(f"{key} {one}" for key, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _section(title: str, text: str, body: str) -> str:
    said = f'<p class="dim">{text}</p>\n' if text else ""
    return f"<section>\n<h2>{title}</h2>\n{said}{body}\n</section>"


def _rates(cells: list[Mapping[str, Any]], titles: Mapping[str, str]) -> Iterator[str]:
    """A section for each case, a chart for each medium; those without workers come last."""
    groups: dict[tuple[bool, str], list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["medium"] in LOCALS, cell["case"]), []).append(cell)
    for (local, case), of in sorted(groups.items(), key=lambda one: one[0][0]):
        figures = [
            _figure(medium, [one for one in of if one["medium"] == medium], titles)
            for medium in dict.fromkeys(one["medium"] for one in of)
        ]
        text = f"{of[0]['tasks']:,} tasks per run, {CASES.get(case, '')}. Tasks per second."
        yield _section(
            f"{case.capitalize()}{', without workers' if local else ''}", text,
            f'{"" if local else _LEGEND}<div class="charts">{"".join(figures)}</div>',
        )  # fmt: skip


_LEGEND = (
    '<ul class="legend"><li><i style="background:var(--ours)"></i>wbengine</li>'
    '<li><i style="background:var(--kept)"></i>wbengine, executor kept</li>'
    '<li><i style="background:var(--peer)"></i>peers</li>'
    '<li><i style="background:var(--floor)"></i>kombu alone: the transport</li></ul>'
)


def _figure(medium: str, cells: list[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    cells = sorted(cells, key=lambda one: -one.get("rate", 0))
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
    drawn = "".join(f"<figure>{one}</figure>" for one in figures)
    text = "One flow, without workers, from the construction of its tasks to its end."
    return _section("Scale", text, f'<div class="charts">{drawn}</div>')


def _ready(ready: list[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    figures = []
    for medium in dict.fromkeys(one["medium"] for one in ready):
        rows = [
            charts.Bar(titles[one["system"]], one["seconds"], KINDS.get(one["system"], ""))
            for one in sorted(ready, key=lambda one: one["seconds"])
            if one["medium"] == medium
        ]
        chart = charts.bars(rows, f"seconds, {medium}", 2)
        figures.append(f"<figure><h3>{escape(medium)}</h3>{chart}</figure>")
    if not figures:
        return ""
    text = "Seconds from the start of a worker's process until it has done its first task."
    return _section("Start-up", text, f'<div class="charts">{"".join(figures)}</div>')


def _table(cells: list[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    if not cells:
        return ""
    cost = "\N{MICRO SIGN}s/task: caller"
    head = ("case", "on", "system", "tasks", "tasks/s", "spread", cost, "workers", "broker",
            "runs, s")  # fmt: skip
    body = []
    for one in cells:
        limit = f"<{one['limit']:,.0f}" if "limit" in one else DASH
        figures = (limit, *(DASH,) * 4)
        if "rate" in one:
            figures = (f"{one['rate']:,.0f}", f"{100 * one['spread']:.0f} %",
                       *(f"{one[name]:,.0f}" for name in COSTS))  # fmt: skip
        runs = " ".join(f"{took:.3f}" for took in one["seconds"])
        told = "; ".join(filter(None, [runs, *one.get("problems", ())]))
        body.append(
            (one["case"], one["medium"], titles[one["system"]], f"{one['tasks']:,}", *figures, told)
        )
    table = _grid(head, body, texts=3)
    return _section("All figures", "", f"<details><summary>show</summary>{table}</details>")


def _grid(head: Sequence[str], body: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A table; columns after the first are figures."""

    def row(cells: Sequence[str], tag: str) -> str:
        made = (
            f"<{tag}{'' if number < texts else ' class=n'}>{escape(cell)}</{tag}>"
            for number, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    rows = "".join(row(cells, "td") for cells in body)
    return f'<div class="scroll"><table>{row(head, "th")}{rows}</table></div>'

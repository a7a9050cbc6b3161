"""The report of one run: a page in one file that needs nothing else, to be kept or sent around.

It has the flow's graph, who ran what when, the critical path, the slowest atoms, failures with
their tracebacks, what was undone, and a table of all atoms.  Only what the view shows is in it:
secrets are masked there.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
from collections.abc import Sequence
from typing import Final

from wbengine import version
from wbengine.drawing import STYLESHEET
from wbengine.drawing.labels import escaped
from wbengine.report import parts, style
from wbengine.report.parts import Cell, Section, pill, table, tiles
from wbengine.views import formatting
from wbengine.views import timeline as timelines
from wbengine.views.flow import FlowView

__all__ = ["Cell", "Section", "html", "pill", "table", "tiles", "write"]

_HASH: Final = base64.b64encode(hashlib.sha256(style.SCRIPT.encode()).digest()).decode()
#: Nothing is fetched, whatever may have found its way into the page.
_POLICY: Final = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; img-src data:;"
    " base-uri 'none'; form-action 'none'"
)


def html(
    view: FlowView,
    *,
    title: str | None = None,
    sections: Sequence[Section] = (),
    header: str = "",
) -> str:
    """The page as text, to be written as UTF-8.

    :param title: instead of the flow's name.
    :param sections: of somebody's own, put first.
    :param header: HTML that is put below the figures, taken as it is.
    """
    timeline = timelines.timeline(view)
    shown = [*sections, *parts.of_flow(view, timeline)]
    name = escaped(title if title is not None else view.name)
    links = "".join(f'<a href="#{escaped(each.id)}">{escaped(each.title)}</a>' for each in shown)
    waiting = f'<p class="waiting">{escaped(view.waiting)}</p>\n' if view.waiting else ""
    body = "\n".join(each.render() for each in shown)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<link rel="icon" href="data:,">
<style>{style.CSS}{STYLESHEET}</style>
</head>
<body>
<main>
<header>
<h1>{name} {pill(view.state)}</h1>
<p class="lead">{_lead(view, timeline)}</p>
{tiles(_figures(view, timeline))}
{waiting}{header}
</header>
<nav aria-label="Sections">{links}</nav>
{body}
<footer>Flow {escaped(view.uuid)}, as it was {formatting.clock(view.now)} UTC; written by wbengine
{escaped(version.version_string())}.</footer>
</main>
<script>{style.SCRIPT}</script>
</body>
</html>
"""


def write(
    path: str | os.PathLike[str],
    view: FlowView,
    *,
    title: str | None = None,
    sections: Sequence[Section] = (),
    header: str = "",
) -> None:
    """Write the page (see `html`) to a file, whole or not at all.

    :raises OSError: it cannot be written.
    """
    place = pathlib.Path(path)
    text = html(view, title=title, sections=sections, header=header)
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)


def _lead(view: FlowView, timeline: timelines.Timeline) -> str:
    total = len(view.atoms)
    atoms = f"A flow of <b>{total:,}</b> {'atom' if total == 1 else 'atoms'}"
    if view.duration is None:
        return f"{atoms} that nobody has run yet."
    verb = "ran in" if view.ended is not None else "has been running for"
    workers = formatting.count(len(timeline.lanes), "worker")
    worked = sum(lane.busy for lane in timeline.lanes)
    by = (
        f" on <b>{escaped(workers)}</b>,"
        f" which put <b>{formatting.seconds(worked)}</b> of work into it"
        if timeline.lanes
        else ""
    )
    return f"{atoms} {verb} <b>{formatting.seconds(view.duration)}</b>{by}."


def _figures(view: FlowView, timeline: timelines.Timeline) -> list[tuple[str, str]]:
    found = [("took", formatting.seconds(view.duration)), ("done", f"{view.progress:.0%}")]
    found += parts.counted(view.shown_counts)
    attempts = sum(len(lane.bars) for lane in timeline.lanes)
    if attempts > len(view.atoms):
        found.append(("attempts", f"{attempts:,}"))
    worked = sum(lane.busy for lane in timeline.lanes)
    if view.duration and worked:
        found.append(("atoms at once", f"{worked / view.duration:.1f}"))
    return found

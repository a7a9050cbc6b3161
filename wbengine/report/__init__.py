"""The report of a run: one self-contained HTML page.

It contains the graph of the flow, the timeline, the critical path, the slowest atoms, failures with
tracebacks, reverted atoms, and a table of all atoms. It contains only data of the view, in which
secrets are masked.
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
from wbengine.drawing._box_text import escaped
from wbengine.report import _parts, _style
from wbengine.report._parts import Cell, Section, pill, table, tiles
from wbengine.views import _formatting
from wbengine.views import _timeline as timelines
from wbengine.views.flow_status import FlowView

__all__ = ["Cell", "Section", "html", "pill", "table", "tiles", "write"]

_HASH: Final = base64.b64encode(hashlib.sha256(_style.SCRIPT.encode()).digest()).decode()
#: The page loads nothing, whatever its content is.
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
    """Return the page as text, to be encoded as UTF-8.

    :param title: title instead of the name of the flow.
    :param sections: additional sections, which come first.
    :param header: unescaped HTML below the figures.
    """
    timeline = timelines.timeline(view)
    all_sections = [*sections, *_parts.of_flow(view, timeline)]
    name = escaped(title if title is not None else view.name)
    links = "".join(
        f'<a href="#{escaped(section.id)}">{escaped(section.title)}</a>' for section in all_sections
    )
    waiting = f'<p class="waiting">{escaped(view.waiting)}</p>\n' if view.waiting else ""
    if view.cancel_reason:
        waiting += f'<p class="waiting">Cancelled: {escaped(view.cancel_reason)}</p>\n'
    body = "\n".join(section.render() for section in all_sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<link rel="icon" href="data:,">
<style>{_style.CSS}{STYLESHEET}</style>
</head>
<body>
<main>
<header>
<h1>{name} {pill(view.shown_state)}</h1>
<p class="lead">{_lead(view, timeline)}</p>
{tiles(_figures(view, timeline))}
{waiting}{header}
</header>
<nav aria-label="Sections">{links}</nav>
{body}
<footer>Flow {escaped(view.uuid)}, as it was {_formatting.clock(view.now)} UTC; written by wbengine
{escaped(version.version_string())}.</footer>
</main>
<script>{_style.SCRIPT}</script>
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
    """Write the page (see `html`) to a file, atomically.

    :raises OSError: if the file cannot be written.
    """
    target = pathlib.Path(path)
    text = html(view, title=title, sections=sections, header=header)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _lead(view: FlowView, timeline: timelines.Timeline) -> str:
    total = len(view.atoms)
    atoms = f"A flow of <b>{total:,}</b> {'atom' if total == 1 else 'atoms'}"
    if view.duration is None:
        return f"{atoms}. No engine has run it yet."
    verb = "ran for" if view.ended is not None else "has been running for"
    workers = _formatting.count(len(timeline.lanes), "worker")
    busy_seconds = sum(lane.busy for lane in timeline.lanes)
    worker_text = (
        f" on <b>{escaped(workers)}</b>, with <b>{_formatting.seconds(busy_seconds)}</b>"
        " of execution time"
        if timeline.lanes
        else ""
    )
    return f"{atoms} {verb} <b>{_formatting.seconds(view.duration)}</b>{worker_text}."


def _figures(view: FlowView, timeline: timelines.Timeline) -> list[tuple[str, str]]:
    figures = [("took", _formatting.seconds(view.duration)), ("done", f"{view.progress:.0%}")]
    figures += _parts.state_counts(view.shown_counts)
    attempts = sum(lane.attempts for lane in timeline.lanes)
    if attempts > len(view.atoms):
        figures.append(("attempts", f"{attempts:,}"))
    busy_seconds = sum(lane.busy for lane in timeline.lanes)
    if view.duration and busy_seconds:
        figures.append(("average concurrency", f"{busy_seconds / view.duration:.1f}"))
    return figures

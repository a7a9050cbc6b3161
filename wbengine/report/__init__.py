"""The report of a run: one self-contained HTML page.

It contains the graph of the flow, the timeline, the critical path, the slowest atoms, failures with
tracebacks, reverted atoms, and a table of all atoms. It contains only data of the view, in which
secrets are masked.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from wbengine.drawing._box_text import escaped
from wbengine.report import _pages, _parts
from wbengine.report._parts import Cell, Section, pill, table, tiles
from wbengine.views import _formatting
from wbengine.views import _timeline as timelines
from wbengine.views.flow_status import FlowView

__all__ = ["Cell", "Section", "html", "pill", "table", "tiles", "write"]


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
    waiting = f'<p class="waiting">{escaped(view.waiting)}</p>\n' if view.waiting else ""
    if view.cancel_reason:
        waiting += f'<p class="waiting">Cancelled: {escaped(view.cancel_reason)}</p>\n'
    return _pages.page(
        title if title is not None else view.name,
        pill(view.shown_state),
        f"""<p class="lead">{_lead(view, timeline)}</p>
{tiles(_figures(view, timeline))}
{waiting}{header}""",
        all_sections,
        f"Flow {escaped(view.uuid)}, as it was {_formatting.clock(view.now)} UTC;",
    )


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
    _pages.save(path, html(view, title=title, sections=sections, header=header))


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

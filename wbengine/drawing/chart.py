"""Who ran what when, as SVG: a lane for each worker, a bar for each attempt.

By classes only, as the graphs: colours are in the style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from wbengine.drawing import labels, styles
from wbengine.drawing.labels import escaped
from wbengine.views import formatting
from wbengine.views.timeline import Bar, Lane, Timeline

__all__ = ["render"]

_WIDTH: Final = 1080.0
_LEFT: Final = 150.0
_ROW: Final = 22.0
_BAR: Final = 18.0
_BETWEEN: Final = 8.0
_AXIS: Final = 26.0
_LETTER: Final = 6.4
#: Lanes, and rows of one lane, beyond so many are only counted.
_LANES: Final = 64
_ROWS: Final = 32
#: Bars narrower than this, and next to each other, are drawn as one.
_NARROW: Final = 1.5
_VERY_MANY: Final = 5000
_LESS_NARROW: Final = 8.0
_STEPS: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600,
    1200, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800,
)  # fmt: skip


def render(timeline: Timeline, *, link: Callable[[Bar], str] | None = None) -> str:
    """The picture; each bar tells its atom when it is pointed at, wide ones always."""
    seconds = max(timeline.seconds, 1e-6)
    scale = (_WIDTH - _LEFT - 8) / seconds
    body: list[str] = []
    many = sum(len(row) for lane in timeline.lanes for row in lane.rows) > _VERY_MANY
    narrow = _LESS_NARROW if many else _NARROW
    y = 4.0
    for lane in timeline.lanes[:_LANES]:
        rows = lane.rows[:_ROWS]
        height = len(rows) * _ROW
        body += _head(lane, y, height, seconds)
        for number, row in enumerate(rows):
            for bars in _together(row, scale, narrow):
                body.append(_bar(bars, timeline.begin, y + number * _ROW, scale, link))
        y += height + _BETWEEN
        y = _more(body, len(lane.rows) - len(rows), "row", y)
    y = _more(body, len(timeline.lanes) - _LANES, "worker", y)
    total = y + _AXIS
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="wbe-chart" role="group"'
        f' aria-label="{escaped(_summary(timeline))}" viewBox="0 0 {_WIDTH:.0f} {total:.0f}"'
        f' width="{_WIDTH:.0f}" height="{total:.0f}">'
        f"<title>{escaped(_summary(timeline))}</title>\n"
        + "\n".join([*_ticks(seconds, scale, y), *body])
        + "</svg>"
    )


def _more(body: list[str], more: int, what: str, y: float) -> float:
    """Say how much is not shown; returns where to go on."""
    if more <= 0:
        return y
    line = f"… {formatting.count(more, what)} more"
    body.append(f'<text class="dim" x="{_LEFT}" y="{y + 10:.1f}">{line}</text>')
    return y + 18


def _summary(timeline: Timeline) -> str:
    lanes = timeline.lanes[:20]
    said = "; ".join(
        f"{_name(lane)}: {formatting.count(len(lane.bars), 'attempt')},"
        f" {formatting.seconds(lane.busy)}"
        for lane in lanes
    )
    return f"Timeline of {formatting.seconds(timeline.seconds)}. {said}"


def _name(lane: Lane) -> str:
    return "not known" if lane.worker is None else lane.worker


def _head(lane: Lane, y: float, height: float, seconds: float) -> Iterator[str]:
    busy = lane.busy / (seconds * len(lane.rows))
    middle = y + height / 2
    yield (
        f'<rect class="lane" x="{_LEFT}" y="{y - 2:.1f}" width="{_WIDTH - _LEFT:.1f}"'
        f' height="{height:.1f}" rx="5"/>'
    )
    name, low = escaped(labels.shortened(_name(lane), 21)), middle + 4
    if height > 2 * _ROW:
        low = middle - 3
        many = formatting.count(len(lane.bars), "attempt")
        yield f'<text class="dim" x="4" y="{middle + 12:.1f}">{many}, {busy:.0%} busy</text>'
    yield (
        f'<text class="lane-name" x="4" y="{low:.1f}">{name}'
        f"<title>{escaped(_name(lane))}: {formatting.count(len(lane.bars), 'attempt')},"
        f" {busy:.0%} busy</title></text>"
    )


def _together(row: Sequence[Bar], scale: float, least: float) -> Iterator[Sequence[Bar]]:
    """The bars of a row; those too narrow to be told apart, as one."""
    held: list[Bar] = []
    for bar in row:
        narrow = bar.seconds * scale < least
        near = held and (bar.started - held[-1].ended) * scale < least
        near = near and bar.state == held[-1].state
        if held and not (narrow and near):
            yield held
            held = []
        if narrow:
            held.append(bar)
        else:
            yield [bar]
    if held:
        yield held


def _bar(
    bars: Sequence[Bar],
    begin: float,
    y: float,
    scale: float,
    link: Callable[[Bar], str] | None,
) -> str:
    first, last = bars[0], bars[-1]
    x = _LEFT + (first.started - begin) * scale
    width = max(1.0, (last.ended - first.started) * scale)
    title = "\n".join(_tell(first, begin)) if len(bars) == 1 else _many(bars)
    state = first.state if first.state in styles.STATES else "PENDING"
    shown = (
        f'<g class="attempt {first.action if first.action == "revert" else "execute"}'
        f' state-{state}"><title>{escaped(title)}</title>'
        f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BAR}" rx="3"/>'
    )
    room = int((width - 8) / _LETTER)
    if len(bars) == 1 and room > 3:
        name = escaped(labels.shortened(first.name, room))
        shown += f'<text class="on" x="{x + 5:.1f}" y="{y + 13:.1f}">{name}</text>'
    shown += "</g>"
    if link is None or len(bars) > 1:
        return shown
    return f'<a href="{escaped(link(first))}" tabindex="-1">{shown}</a>'


def _tell(bar: Bar, begin: float) -> Iterator[str]:
    yield bar.name
    verb = "reverted" if bar.action == "revert" else "executed"
    yield f"attempt {formatting.nth(bar)}, {verb}: {styles.word(bar.state)}"
    if bar.queued:
        yield f"queued for {formatting.seconds(bar.queued)} before it began"
    yield f"{formatting.seconds(bar.seconds)}, from {formatting.seconds(bar.started - begin)} on"
    if bar.error:
        yield bar.error


def _many(bars: Sequence[Bar]) -> str:
    names = ", ".join(labels.shortened(bar.name, 40) for bar in bars[:5])
    return f"{formatting.count(len(bars), 'attempt')}: {names}{', …' if len(bars) > 5 else ''}"


def _ticks(seconds: float, scale: float, bottom: float) -> Iterator[str]:
    step = next((each for each in _STEPS if seconds / each <= 10), seconds / 8)
    for number in range(math.floor(seconds / step) + 1):
        x = _LEFT + number * step * scale
        yield f'<path class="grid" d="M{x:.1f} 0V{bottom:.1f}"/>'
        label = "0" if not number else formatting.seconds(number * step)
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 16:.1f}">{label}</text>'

"""Timelines as SVG: a lane for each worker, a bar for each attempt.

Elements have only classes; the style sheet contains the colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from wbengine.drawing import _box_text, _styles
from wbengine.drawing._box_text import escaped
from wbengine.views import _formatting
from wbengine.views._timeline import Bar, Lane, Timeline

__all__ = ["chart"]

_WIDTH: Final = 1080.0
_LEFT: Final = 150.0
_ROW_HEIGHT: Final = 22.0
_BAR_HEIGHT: Final = 18.0
_LANE_GAP: Final = 8.0
_AXIS_HEIGHT: Final = 26.0
_LETTER_WIDTH: Final = 6.4
#: Maximum number of lanes, and of rows of a lane. Further ones are only counted.
_MAX_LANES: Final = 64
_MAX_ROWS: Final = 32
#: Adjacent bars that are narrower than this are drawn as one.
_MIN_BAR_WIDTH: Final = 1.5
_MANY_BARS: Final = 5000
_MIN_BAR_WIDTH_OF_MANY: Final = 8.0
_TICK_SECONDS: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600,
    1200, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800,
)  # fmt: skip


def chart(timeline: Timeline, *, link: Callable[[Bar], str] | None = None) -> str:
    """Return the SVG. Each bar has a tooltip with its atom; wide bars contain the name."""
    seconds = max(timeline.seconds, 1e-6)
    scale = (_WIDTH - _LEFT - 8) / seconds
    body: list[str] = []
    has_many_bars = sum(len(row) for lane in timeline.lanes for row in lane.rows) > _MANY_BARS
    min_width = _MIN_BAR_WIDTH_OF_MANY if has_many_bars else _MIN_BAR_WIDTH
    y = 4.0
    for lane in timeline.lanes[:_MAX_LANES]:
        rows = lane.rows[:_MAX_ROWS]
        height = len(rows) * _ROW_HEIGHT
        body += _lane_head(lane, y, height, seconds)
        for number, row in enumerate(rows):
            for bars in _merged(row, scale, min_width):
                body.append(_bar(bars, timeline.begin, y + number * _ROW_HEIGHT, scale, link))
        y += height + _LANE_GAP
        y = _add_omitted(body, len(lane.rows) - len(rows), "row", y)
    y = _add_omitted(body, len(timeline.lanes) - _MAX_LANES, "worker", y)
    total = y + _AXIS_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="wbe-chart" role="group"'
        f' aria-label="{escaped(_summary(timeline))}" viewBox="0 0 {_WIDTH:.0f} {total:.0f}"'
        f' width="{_WIDTH:.0f}" height="{total:.0f}">'
        f"<title>{escaped(_summary(timeline))}</title>\n"
        + "\n".join([*_ticks(seconds, scale, y), *body])
        + "</svg>"
    )


def _add_omitted(body: list[str], omitted: int, noun: str, y: float) -> float:
    """Add the number of omitted rows or lanes; return the next vertical position."""
    if omitted <= 0:
        return y
    line = f"… {_formatting.count(omitted, noun)} more"
    body.append(f'<text class="dim" x="{_LEFT}" y="{y + 10:.1f}">{line}</text>')
    return y + 18


def _summary(timeline: Timeline) -> str:
    lanes = timeline.lanes[:20]
    lane_texts = "; ".join(
        f"{_name(lane)}: {_formatting.count(len(lane.bars), 'attempt')},"
        f" {_formatting.seconds(lane.busy)}"
        for lane in lanes
    )
    return f"Timeline of {_formatting.seconds(timeline.seconds)}. {lane_texts}"


def _name(lane: Lane) -> str:
    return "unknown" if lane.worker is None else lane.worker


def _lane_head(lane: Lane, y: float, height: float, seconds: float) -> Iterator[str]:
    busy = lane.busy / (seconds * len(lane.rows))
    middle = y + height / 2
    yield (
        f'<rect class="lane" x="{_LEFT}" y="{y - 2:.1f}" width="{_WIDTH - _LEFT:.1f}"'
        f' height="{height:.1f}" rx="5"/>'
    )
    name, baseline = escaped(_box_text.shortened(_name(lane), 21)), middle + 4
    if height > 2 * _ROW_HEIGHT:
        baseline = middle - 3
        attempts = _formatting.count(len(lane.bars), "attempt")
        yield f'<text class="dim" x="4" y="{middle + 12:.1f}">{attempts}, {busy:.0%} busy</text>'
    yield (
        f'<text class="lane-name" x="4" y="{baseline:.1f}">{name}'
        f"<title>{escaped(_name(lane))}: {_formatting.count(len(lane.bars), 'attempt')},"
        f" {busy:.0%} busy</title></text>"
    )


def _merged(row: Sequence[Bar], scale: float, min_width: float) -> Iterator[Sequence[Bar]]:
    """Yield the bars of a row; adjacent narrow bars of the same state together."""
    pending: list[Bar] = []
    for bar in row:
        is_narrow = bar.seconds * scale < min_width
        is_near = pending and (bar.started - pending[-1].ended) * scale < min_width
        is_near = is_near and bar.state == pending[-1].state
        if pending and not (is_narrow and is_near):
            yield pending
            pending = []
        if is_narrow:
            pending.append(bar)
        else:
            yield [bar]
    if pending:
        yield pending


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
    title = "\n".join(_tooltip(first, begin)) if len(bars) == 1 else _merged_tooltip(bars)
    state = first.state if first.state in _styles.STATES else "PENDING"
    svg = (
        f'<g class="attempt {first.action if first.action == "revert" else "execute"}'
        f' state-{state}"><title>{escaped(title)}</title>'
        f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}"'
        f' height="{_BAR_HEIGHT}" rx="3"/>'
    )
    room = int((width - 8) / _LETTER_WIDTH)
    if len(bars) == 1 and room > 3:
        name = escaped(_box_text.shortened(first.name, room))
        svg += f'<text class="on" x="{x + 5:.1f}" y="{y + 13:.1f}">{name}</text>'
    svg += "</g>"
    if link is None or len(bars) > 1:
        return svg
    return f'<a href="{escaped(link(first))}" tabindex="-1">{svg}</a>'


def _tooltip(bar: Bar, begin: float) -> Iterator[str]:
    yield bar.name
    verb = "reverted" if bar.action == "revert" else "executed"
    yield f"attempt {_formatting.nth(bar)}, {verb}: {_styles.word(bar.state)}"
    if bar.queued:
        yield f"queued for {_formatting.seconds(bar.queued)} before it began"
    yield f"{_formatting.seconds(bar.seconds)}, from {_formatting.seconds(bar.started - begin)} on"
    if bar.error:
        yield bar.error


def _merged_tooltip(bars: Sequence[Bar]) -> str:
    names = ", ".join(_box_text.shortened(bar.name, 40) for bar in bars[:5])
    return f"{_formatting.count(len(bars), 'attempt')}: {names}{', …' if len(bars) > 5 else ''}"


def _ticks(seconds: float, scale: float, bottom: float) -> Iterator[str]:
    step = next((each for each in _TICK_SECONDS if seconds / each <= 10), seconds / 8)
    for number in range(math.floor(seconds / step) + 1):
        x = _LEFT + number * step * scale
        yield f'<path class="grid" d="M{x:.1f} 0V{bottom:.1f}"/>'
        label = "0" if not number else _formatting.seconds(number * step)
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 16:.1f}">{label}</text>'

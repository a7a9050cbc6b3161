"""SVG charts that use the colours of the page: bars with whiskers, and curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, ROW, LEFT, RIGHT = 400, 24, 168, 62


@dataclass(frozen=True)
class Bar:
    """One row of a chart. Without a value it is a dash, and `note` contains the reason."""

    label: str
    value: float | None
    #: 'ours', 'kept', 'floor' or empty.
    kind: str = ""
    low: float = 0.0
    high: float = 0.0
    note: str = ""


def bars(rows: Sequence[Bar], title: str, digits: int = 0) -> str:
    """Draw rows on a common scale that starts at 0; whiskers show minimum and maximum."""
    maximum = (
        max((max(row.value, row.high) for row in rows if row.value is not None), default=0) or 1
    )
    height = ROW * len(rows) + 4
    drawn = "\n".join(_row(row, number, maximum, digits) for number, row in enumerate(rows))
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, True)}">\n'
        f"{drawn}\n</svg>"
    )


def _row(row: Bar, number: int, maximum: float, digits: int) -> str:
    y = ROW * number + 2
    middle, room = y + ROW / 2 + 4, WIDTH - LEFT - RIGHT
    ours = " ours" if row.kind == "ours" else ""
    label = f'<text class="end{ours}" x="{LEFT - 8}" y="{middle:.1f}">{escape(row.label)}</text>'
    if row.value is None:
        dash = f'<text class="dim" x="{LEFT + 2}" y="{middle:.1f}">\N{EN DASH}</text>'
        return f"<g>{label}{dash}<title>{escape(row.note)}</title></g>"
    width = max(room * row.value / maximum, 1)
    place = f'x="{LEFT}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}"'
    parts = [label, f'<rect class="bar {row.kind}" {place} rx="2"/>']
    end = LEFT + width
    if row.high > row.low:
        low, high = (LEFT + room * bound / maximum for bound in (row.low, row.high))
        centre = y + ROW / 2
        parts.append(
            f'<path class="whisker" d="M{low:.1f} {centre}H{high:.1f}'
            f'M{low:.1f} {centre - 4}v8M{high:.1f} {centre - 4}v8"/>'
        )
        end = max(end, high)
    number_text = f"{row.value:,.{digits}f}"
    parts.append(f'<text class="{ours}" x="{end + 6:.1f}" y="{middle:.1f}">{number_text}</text>')
    between = f", {row.low:,.{digits}f} to {row.high:,.{digits}f}" if row.high > row.low else ""
    note = f"; {row.note}" if row.note else ""
    tooltip = escape(f"{row.label}: {number_text}{between}{note}")
    return f"<g>{''.join(parts)}<title>{tooltip}</title></g>"


@dataclass(frozen=True)
class Curve:
    label: str
    points: Sequence[tuple[float, float]]


def curves(lines: Sequence[Curve], title: str, x: str, y: str) -> str:
    """Draw curves on logarithmic axes: a line is a power function, its slope the exponent."""
    width, height, left, right, top, bottom = 520, 300, 56, 92, 22, 36
    shown = [point for line in lines for point in line.points]
    across = _decades([point[0] for point in shown])
    up = _decades([point[1] for point in shown])

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return (
            left + (width - left - right) * _part(point[0], across),
            height - bottom - (height - top - bottom) * _part(point[1], up),
        )

    parts = [*_grid(across, up, at)]
    labels: list[float] = []
    for number, line in enumerate(lines):
        places = [at(point) for point in line.points]
        path = "L".join(f"{px:.1f} {py:.1f}" for px, py in places)
        parts.append(f'<path class="curve s{number}" d="M{path}"/>')
        parts += [
            f'<circle class="dot s{number}" cx="{px:.1f}" cy="{py:.1f}" r="3.5">'
            f"<title>{escape(line.label)}, {data_x:,.0f}: {data_y:,.4g}</title></circle>"
            for (px, py), (data_x, data_y) in zip(places, line.points, strict=True)
        ]
        end, level = places[-1]
        while any(abs(level - other) < 14 for other in labels):
            level -= 14
        labels.append(level)
        parts.append(
            f'<text class="s{number}" x="{end + 8:.1f}" y="{level + 4:.1f}">'
            f"{escape(line.label)}</text>"
        )
    parts.append(f'<text class="dim" x="6" y="13">{escape(y)}</text>')
    parts.append(f'<text class="dim end" x="{width - right}" y="{height - 3}">{escape(x)}</text>')
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, True)}">\n'
        f"{body}\n</svg>"
    )


def _grid(across: tuple[int, int], up: tuple[int, int], at: object) -> Iterator[str]:
    assert callable(at)
    for power in range(across[0], across[1] + 1):
        (px, bottom), (_, top) = (at((10.0**power, 10.0**edge)) for edge in up)
        yield f'<path class="grid" d="M{px:.1f} {bottom:.1f}V{top:.1f}"/>'
        yield f'<text class="tick middle" x="{px:.1f}" y="{bottom + 16:.1f}">{_power(power)}</text>'
    for power in range(up[0], up[1] + 1):
        (left, py), (right, _) = (at((10.0**edge, 10.0**power)) for edge in across)
        yield f'<path class="grid" d="M{left:.1f} {py:.1f}H{right:.1f}"/>'
        yield f'<text class="tick end" x="{left - 6:.1f}" y="{py + 4:.1f}">{_power(power)}</text>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(values)) + 1e-9)
    return low, max(math.ceil(math.log10(max(values)) - 1e-9), low + 1)


def _part(value: float, decades: tuple[int, int]) -> float:
    return (math.log10(value) - decades[0]) / (decades[1] - decades[0])


def _power(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:.{-power}f}"

"""Which worker ran what when, as SVG: a lane per worker, a bar per task."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from wbengine.examples.census import graph
from wbengine.examples.census.record import Ran, Record

_WIDTH: Final = 1080.0
_LEFT: Final = 104.0
_BAR: Final = 26.0
_STEP: Final = 30.0
_BETWEEN: Final = 10.0
_AXIS: Final = 28.0
_LETTER: Final = 6.2  # width of a letter of a bar's label
_STEPS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60)


def draw(record: Record) -> str:
    """The SVG; every bar has a tooltip, and wide ones a label."""
    end = max((ran.ended for ran in record.ran), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - 8) / end
    body: list[str] = []
    y = 4.0
    for worker in range(len(record.workers)):
        lanes = _lanes([ran for ran in record.ran if ran.worker == worker])
        busy = record.busy(worker) / (end * max(1, len(lanes)))
        height = len(lanes) * _STEP
        middle = y + height / 2
        body.append(
            f'<rect class="lane" x="{_LEFT}" y="{y - 2:.1f}" width="{_WIDTH - _LEFT:.1f}" '
            f'height="{height:.1f}" rx="4"/>'
            f'<path class="node {graph.colour(worker)}" '
            f'd="{graph.shape(worker, 8, middle - 6, 5)}"/>'
            f'<text class="name" x="20" y="{middle - 2:.1f}">{escape(record.name(worker))}</text>'
            f'<text class="dim" x="20" y="{middle + 12:.1f}">{busy:.0%} busy</text>'
        )
        for number, lane in enumerate(lanes):
            body.extend(_bar(record, ran, y + number * _STEP, scale) for ran in lane)
        y += height + _BETWEEN
    total = y + _AXIS
    ticks = "\n".join(_ticks(end, scale, y))
    return (
        f'<svg class="timeline" role="img" aria-labelledby="timeline-title timeline-text" '
        f'viewBox="0 0 {_WIDTH:.0f} {total:.0f}" width="{_WIDTH:.0f}" height="{total:.0f}">'
        '<title id="timeline-title">Which worker ran what when</title>'
        f'<desc id="timeline-text">{escape(_summary(record))}</desc>\n'
        f"{ticks}\n" + "\n".join(body) + "</svg>"
    )


def _summary(record: Record) -> str:
    """The timeline in words, for those who do not see it."""
    workers = range(len(record.workers))
    said = (
        f"{record.name(worker)} ran {sum(ran.worker == worker for ran in record.ran)} tasks "
        f"in {record.busy(worker):.2f} s"
        for worker in workers
    )
    return "; ".join(said) + "."


def _lanes(runs: list[Ran]) -> list[list[Ran]]:
    """Spread what overlaps over as few lanes as it takes."""
    lanes: list[list[Ran]] = []
    for ran in sorted(runs, key=lambda ran: ran.started):
        for lane in lanes:
            if lane[-1].ended <= ran.started + 0.0005:
                lane.append(ran)
                break
        else:
            lanes.append([ran])
    return lanes


def _bar(record: Record, ran: Ran, y: float, scale: float) -> str:
    x = _LEFT + ran.started * scale
    width = max(1.0, ran.seconds * scale - 0.6)
    stage = ran.step.stage.replace(" ", "-")
    label = ""
    if len(ran.step.label) * _LETTER + 6 < width:
        label = (
            f'<text class="on" x="{x + width / 2:.1f}" y="{y + _BAR / 2 + 4 - 2:.1f}">'
            f"{escape(ran.step.label)}</text>"
        )
    return (
        f'<g><title>{escape(graph.tooltip(record, ran))}</title><rect class="bar '
        f'{graph.colour(ran.worker)} {stage}" x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" '
        f'height="{_BAR}" rx="{min(3.0, width / 3):.1f}"/>{label}</g>'
    )


def _ticks(end: float, scale: float, bottom: float) -> Iterator[str]:
    step = next((step for step in _STEPS if end / step <= 12), end / 10)
    for number in range(int(end / step) + 1):
        x = _LEFT + number * step * scale
        yield f'<path class="grid" d="M{x:.1f} 0V{bottom:.1f}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 16:.1f}">{number * step:g} s</text>'

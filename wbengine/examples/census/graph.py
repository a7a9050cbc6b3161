"""The flow's graph as SVG: rings around the total, one ring per depth.

Outside the groups (the map), inside them the modules (the reduce), in the middle the total and the
report.  A module sits on the same spoke as its groups, so no two lines of different modules cross.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Final

from wbengine.examples.census import flow
from wbengine.examples.census.record import Ran, Record

_SPACING: Final = 10.5  # between two groups, along their ring
_GAP: Final = math.radians(7)  # left free at the top, for the first task
_INNER: Final = 0.7  # radius of the modules' ring, as part of the groups' ring
_SMALLEST: Final = 150.0
_LABELS: Final = 112.0
_LONGEST_LABEL: Final = 20
_SHAPES: Final = 4


def draw(record: Record) -> str:
    """The SVG of the flow that `record` tells about, with a tooltip for every task."""
    by_stage: dict[str, list[Ran]] = {}
    for ran in record.ran:
        by_stage.setdefault(ran.step.stage, []).append(ran)
    measured: dict[str, list[Ran]] = {}
    for ran in sorted(by_stage.get(flow.MEASURE, ()), key=lambda ran: ran.step.label):
        measured.setdefault(ran.step.module, []).append(ran)
    slots = sum(len(group) for group in measured.values())
    outer = max(_SMALLEST, slots * _SPACING / (2 * math.pi - _GAP))
    half = outer + _LABELS
    side = f"{2 * half:.0f}"
    box = f'width="{side}" height="{side}" viewBox="{-half:.0f} {-half:.0f} {side} {side}"'
    text = (
        f"{slots} tasks on the outer ring measure groups of files; {len(measured)} tasks on the "
        "inner ring add up modules; in the middle one task adds up everything and one writes the "
        "report. The table below holds the same modules."
    )
    parts = [
        f'<svg class="graph" role="img" aria-labelledby="graph-title graph-text" {box}>',
        '<title id="graph-title">The flow, task by task</title>',
        f'<desc id="graph-text">{text}</desc>',
        f'<circle class="ring dashed" r="{outer + 9:.1f}"/>',
        f'<circle class="ring" r="{outer:.1f}"/>',
        f'<circle class="ring" r="{outer * _INNER:.1f}"/>',
    ]
    added = {ran.step.module: ran for ran in by_stage.get(flow.ADD_UP, ())}
    longest = max((ran.seconds for ran in by_stage.get(flow.MEASURE, ())), default=0.0)
    turn = (2 * math.pi - _GAP) / max(1, slots)
    slot = 0
    for module in sorted(measured):
        group = measured[module]
        angles = [_GAP / 2 + (slot + number + 0.5) * turn for number in range(len(group))]
        slot += len(group)
        parts.extend(_spoke(record, module, group, added.get(module), angles, outer, longest))
    parts.extend(_middle(record, by_stage, outer))
    parts.append("</svg>")
    return "\n".join(parts)


def _spoke(
    record: Record,
    module: str,
    group: list[Ran],
    added: Ran | None,
    angles: list[float],
    outer: float,
    longest: float,
) -> Iterator[str]:
    """A module: its groups, its own node, the lines between them, its label."""
    middle = sum(angles) / len(angles)
    inner = outer * _INNER
    x, y = _at(middle, inner)
    yield '<g class="spoke">'
    tx, ty = _at(middle, 24)
    yield f'<path class="edge far" d="M{x:.1f} {y:.1f}L{tx:.1f} {ty:.1f}"/>'
    for angle in angles:
        gx, gy = _at(angle, outer)
        cx, cy = _at(angle, (outer + inner) / 2)
        dx, dy = _at(middle, (outer + inner) / 2)
        yield (
            f'<path class="edge" d="M{gx:.1f} {gy:.1f}'
            f'C{cx:.1f} {cy:.1f} {dx:.1f} {dy:.1f} {x:.1f} {y:.1f}"/>'
        )
    for ran, angle in zip(group, angles, strict=True):
        share = math.sqrt(ran.seconds / longest) if longest else 0.0
        yield _node(record, ran, *_at(angle, outer), 2.2 + 2.9 * share)
    if added is not None:
        yield _node(record, added, x, y, 2.6 + 1.2 * math.log2(len(group)))
    lx, ly = _at(middle, outer + 15)
    turned = math.degrees(middle) - 90
    flipped = middle > math.pi
    yield (
        f'<text class="{"end" if flipped else "start"}" transform="translate({lx:.1f} {ly:.1f}) '
        f'rotate({turned - 180 if flipped else turned:.1f})" dy=".32em">'
        f"{escape(_short(module))}</text></g>"
    )


def _middle(record: Record, by_stage: dict[str, list[Ran]], outer: float) -> Iterator[str]:
    for ran in by_stage.get(flow.FOLDER, ()):
        x, y = _at(0.0, outer + 9)
        yield _node(record, ran, x, y, 6)
        yield f'<text class="middle" x="{x:.1f}" y="{y - 12:.1f}">folder</text>'
    drop = 62.0
    yield '<path class="edge strong" d="M0 12L0 50"/><path class="tip" d="M-4 46L0 53L4 46Z"/>'
    for ran in by_stage.get(flow.TOTAL, ()):
        yield _node(record, ran, 0, 0, 12)
        yield '<text class="middle halo" y="-20">total</text>'
    for ran in by_stage.get(flow.REPORT, ()):
        yield _node(record, ran, 0, drop, 8)
        yield f'<text class="middle halo" y="{drop + 22:.0f}">report</text>'


def _node(record: Record, ran: Ran, x: float, y: float, radius: float) -> str:
    return (
        f'<path class="node {colour(ran.worker)}" d="{shape(ran.worker, x, y, radius)}">'
        f"<title>{escape(tooltip(record, ran))}</title></path>"
    )


def tooltip(record: Record, ran: Ran) -> str:
    """What the pictures say about a task when it is pointed at."""
    return (
        f"{ran.step.name}\n{record.name(ran.worker)} ({record.workers[ran.worker]})\n"
        f"{ran.seconds * 1000:.1f} ms, from {ran.started:.3f} s"
    )


def colour(worker: int) -> str:
    """The CSS class that colours what `worker` ran."""
    return f"w{worker % 8}"


def shape(worker: int, x: float, y: float, r: float) -> str:
    """A path for a node: workers differ by shape as well as by colour."""
    kind = worker % _SHAPES
    if kind == 0:
        arc = f"a{r:.1f} {r:.1f} 0 1 0"
        return f"M{x - r:.1f} {y:.1f}{arc} {2 * r:.1f} 0{arc} {-2 * r:.1f} 0Z"
    if kind == 1:
        r *= 0.9
        return f"M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}Z"
    r *= 1.25
    if kind == 2:
        return f"M{x:.1f} {y - r:.1f}l{r:.1f} {1.7 * r:.1f}h{-2 * r:.1f}Z"
    return f"M{x:.1f} {y - r:.1f}l{r:.1f} {r:.1f}l{-r:.1f} {r:.1f}l{-r:.1f} {-r:.1f}Z"


def _at(angle: float, radius: float) -> tuple[float, float]:
    """A point by its angle from the top, clockwise."""
    return radius * math.sin(angle), -radius * math.cos(angle)


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"

"""SVG of a scene whose layout is known.

States are told by icon, word and colour; colours and fonts are in classes only, so that it can be
part of a page that allows no inline styles.  Whatever somebody named is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from wbengine.drawing import captions, marks
from wbengine.drawing.escaping import text as escaped
from wbengine.drawing.layout import Layout, Place, Point
from wbengine.drawing.scene import Box, Frame, Scene
from wbengine.drawing.stylesheet import STYLESHEET
from wbengine.types import outline as outlines
from wbengine.views.atoms import AtomView

__all__ = ["Link", "render"]

#: Says where an atom leads to when it is clicked on.
Link = Callable[[AtomView], str]

_NAME: Final = 20
_TIP: Final = 7.0


def render(
    scene: Scene, layout: Layout, *, standalone: bool = True, link: Link | None = None
) -> str:
    """The picture as text; `standalone` has its own style sheet."""
    return "\n".join(_lines(scene, layout, standalone, link))


def _lines(scene: Scene, layout: Layout, standalone: bool, link: Link | None) -> Iterator[str]:
    size = f'width="{layout.width:.0f}" height="{layout.height:.0f}"'
    box = f'viewBox="0 0 {layout.width:.0f} {layout.height:.0f}"'
    name = escaped(f"Graph of flow {scene.name}")
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="wbe-graph" role="group"'
        f' aria-label="{name}" {size} {box}>'
    )
    yield f"<title>{name}</title>"
    if standalone:
        yield f"<style>{STYLESHEET}</style>"
    depth: dict[int, int] = {}
    for node, frame in scene.frames.items():
        depth[node] = depth.get(frame.parent, 0) + 1
        yield _frame(frame, layout.frames[node], depth[node])
    retries = {frame.retry for frame in scene.frames.values()}
    yield '<g class="edges" aria-hidden="true">'
    for arrow in scene.arrows:
        way = layout.ways.get(arrow)
        if way is not None and len(way) > 1:
            yield _arrow(way, "edge retries" if arrow[0] in retries else "edge")
    yield "</g>"
    for node, each in scene.boxes.items():
        yield _box(each, layout.boxes[node], link)
    yield "</svg>"


def _frame(frame: Frame, place: Place, depth: int) -> str:
    classes = f"flow state-{_word(frame.state)}{' even' if depth % 2 == 0 else ''}"
    room = max(6, int((place.width - 40) / 6.6))
    name = escaped(captions.shortened(frame.name, room))
    return (
        f'<g class="{classes}" data-node="{frame.node}">{_title(captions.tell(frame))}'
        f'<rect class="frame" {_rect(place)} rx="10"/>'
        f'<text class="icon" x="{place.x + 12:.1f}" y="{place.y + 18:.1f}">'
        f"{marks.icon(frame.state)}</text>"
        f'<text class="flow-name" x="{place.x + 27:.1f}" y="{place.y + 18:.1f}">{name}</text></g>'
    )


def _arrow(way: Sequence[Point], classes: str) -> str:
    (x, y), (x0, y0) = way[-1], _last_other(way)
    length = math.hypot(x - x0, y - y0) or 1.0
    dx, dy = (x - x0) / length, (y - y0) / length
    end = (x - dx * _TIP * 0.8, y - dy * _TIP * 0.8)
    points = [*way[:-1], end]
    if len(points) % 3 == 1 and len(points) > 3:
        path = f"M{_at(points[0])}C" + " ".join(_at(point) for point in points[1:])
    else:
        path = f"M{_at(points[0])}L" + " ".join(_at(point) for point in points[1:])
    left = (x - dx * _TIP - dy * _TIP * 0.5, y - dy * _TIP + dx * _TIP * 0.5)
    right = (x - dx * _TIP + dy * _TIP * 0.5, y - dy * _TIP - dx * _TIP * 0.5)
    return (
        f'<path class="{classes}" d="{path}"/>'
        f'<path class="tip" d="M{_at((x, y))}L{_at(left)} {_at(right)}Z"/>'
    )


def _last_other(way: Sequence[Point]) -> Point:
    return next((point for point in reversed(way) if point != way[-1]), way[0])


def _at(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


def _box(box: Box, place: Place, link: Link | None) -> str:
    told = captions.tell(box)
    kind = box.kind + (" collapsed" if box.collapsed else "")
    uuid = box.atom.uuid if box.atom is not None else None
    label = escaped(f"{box.name}, {captions.line(box) or marks.word(box.state)}")
    where = link(box.atom) if link is not None and box.atom is not None and uuid else None
    focus = "" if where is not None else ' tabindex="0" role="img"'
    parts = [
        f'<g class="atom kind-{kind} state-{_word(box.state)}" data-node="{box.node}"'
        + (f' data-uuid="{escaped(uuid)}"' if uuid else "")
        + f'{focus} aria-label="{label}">{_title(told)}',
        *_inside(box, place),
        "</g>",
    ]
    shown = "".join(parts)
    return (
        shown if where is None else f'<a href="{escaped(where)}" aria-label="{label}">{shown}</a>'
    )


def _inside(box: Box, place: Place) -> Iterator[str]:
    x, y = place.x, place.y
    if box.collapsed:
        for shift in (6, 3):
            behind = Place(x + shift, y + shift, place.width, place.height)
            yield f'<rect class="stack" {_rect(behind)} rx="8"/>'
    radius = place.height / 2 if box.kind == outlines.RETRY else 8
    yield f'<rect class="box" {_rect(place)} rx="{radius:g}"/>'
    middle = y + place.height / 2
    yield f'<text class="icon" x="{x + 18:.1f}" y="{middle + 5:.1f}">{marks.icon(box.state)}</text>'
    line, name = captions.line(box), escaped(captions.shortened(box.name, _NAME))
    if box.kind == outlines.MAP:
        name += " ⋮"
    up = 0 if not line else 5
    yield f'<text class="name" x="{x + 34:.1f}" y="{middle + 4.5 - up:.1f}">{name}</text>'
    if line:
        yield f'<text class="state" x="{x + 34:.1f}" y="{middle + 13:.1f}">{escaped(line)}</text>'
    if box.collapsed:
        yield from _shares(box, place)
    elif box.atom is not None and box.atom.state == "RUNNING":
        width = (place.width - 44) * (box.atom.progress or 0.0)
        yield (
            f'<rect class="progress" x="{x + 34:.1f}" y="{y + place.height - 5:.1f}"'
            f' width="{width:.1f}" height="2.5" rx="1"/>'
        )


def _shares(box: Box, place: Place) -> Iterator[str]:
    """How many are in which state, as a bar."""
    total, x = sum(box.counts.values()), place.x + 34
    if not total or set(box.counts) == {"PENDING"}:
        return
    for state in marks.MARKS:
        width = (place.width - 44) * box.counts.get(state, 0) / total
        if width:
            yield (
                f'<g class="state-{state}"><rect class="share" x="{x:.1f}"'
                f' y="{place.y + place.height - 6:.1f}" width="{width:.1f}" height="3.5"/></g>'
            )
            x += width


def _rect(place: Place) -> str:
    return (
        f'x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" height="{place.height:.1f}"'
    )


def _title(lines: Sequence[str]) -> str:
    return f"<title>{escaped(chr(10).join(lines))}</title>"


def _word(state: str) -> str:
    """A state as a class: those of records are words, whatever somebody wrote into a store."""
    return state if state in marks.MARKS else "PENDING"

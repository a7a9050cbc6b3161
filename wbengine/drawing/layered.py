"""Our own layout: each flow is rows of what comes one after another, inner flows as blocks in them.

It needs nothing but Python, and costs O(boxes + arrows).  Graphviz finds nicer ways for arrows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from wbengine.drawing.layout import (
    BOX_HEIGHT,
    BOX_WIDTH,
    HEADER,
    Layout,
    Place,
    Point,
    frames_inside_first,
)
from wbengine.drawing.rows import Links, Row, clean, rows_of
from wbengine.drawing.scene import Scene

__all__ = ["arrange", "direction_of", "suits"]

#: Between two members of a row, and between two rows; around what is in a frame.
_BESIDE: Final = 14.0
_BETWEEN: Final = 40.0
_AROUND: Final = 16.0
_MARGIN: Final = 8.0
#: A row of more members, none of which is before another, is folded.
_FOLDED: Final = 8

#: What is seen of a picture at once.
_WINDOW: Final = (1100.0, 1300.0)

_Size = tuple[float, float]


def direction_of(scene: Scene, wanted: str) -> str:
    """'TB' or 'LR': with 'auto' the one in which more of the picture is seen at once."""
    if wanted != "auto":
        return wanted
    down, across = _size(scene, "TB"), _size(scene, "LR")
    return "LR" if 1.2 * _windows(across) < _windows(down) else "TB"


def _windows(size: _Size) -> float:
    return max(size[0] / _WINDOW[0], size[1] / _WINDOW[1])


def _size(scene: Scene, direction: str) -> _Size:
    return _Packing(scene, direction == "LR").sizes[scene.root]


def arrange(scene: Scene, direction: str) -> Layout:
    """Find places for everything in `scene`; rows run across `direction` ('TB' or 'LR')."""
    if not scene.frames:
        only = next(iter(scene.boxes))
        place = Place(_MARGIN, _MARGIN, BOX_WIDTH, BOX_HEIGHT)
        around = 2 * _MARGIN
        return Layout(BOX_WIDTH + around, BOX_HEIGHT + around, {only: place}, {}, {})
    across = direction == "LR"
    packed = _Packing(scene, across)
    boxes, frames = _placed(scene, packed.sizes, packed.offsets)
    width, height = packed.sizes[scene.root]
    ways = {
        arrow: _way(_at(arrow[0], boxes, frames), _at(arrow[1], boxes, frames), across)
        for arrow in scene.arrows
        if arrow[0] not in packed.inner_ends and arrow[1] not in packed.inner_starts
    }
    return Layout(width + 2 * _MARGIN, height + 2 * _MARGIN, boxes, frames, ways)


def _at(node: int, boxes: Mapping[int, Place], frames: Mapping[int, Place]) -> Place:
    return boxes[node] if node in boxes else frames[node]


def suits(scene: Scene) -> bool:
    """Whether no arrow crosses another or passes a row: then this is as good as any layout, keeps
    the order of members, and needs no other process.
    """
    links = Links(scene)
    return not links.others and all(clean(frame, links) for frame in scene.frames.values())


class _Packing:
    """The size of everything, and where members are, from the corner of their frame."""

    def __init__(self, scene: Scene, across: bool) -> None:
        self._across = across
        self.sizes: dict[int, _Size] = dict.fromkeys(scene.boxes, (BOX_WIDTH, BOX_HEIGHT))
        self.offsets: dict[int, Point] = {}
        #: Members of a folded row that have others of it before them, and after them.
        self.inner_starts: set[int] = set()
        self.inner_ends: set[int] = set()
        self._links = Links(scene)
        for frame in frames_inside_first(scene):
            self.sizes[frame.node] = self._pack(rows_of(frame, self._links))

    def _pack(self, rows: Sequence[Row]) -> _Size:
        """Put the members of a frame into rows; returns its size."""
        across = self._across
        at = HEADER + _AROUND / 2 if not across else _AROUND
        # Where the middles of members are along their row, from some point; and across.
        middles: dict[int, float] = {}
        offsets: list[tuple[int, float]] = []
        for row in rows:
            parts = self._folded(row, len(rows))
            gap = _BESIDE if len(parts) > 1 else _BETWEEN
            if len(parts) == 1:
                self._line_up(row.members, middles)
            else:
                self._fold_up(parts, self._middle(row.members, middles), middles)
            for part in parts:
                depth = max(self._depth(each) for each in part)
                offsets += [(each, at + (depth - self._depth(each)) / 2) for each in part]
                at += depth + gap
            at += _BETWEEN - gap
        low = min(middle - self._breadth(each) / 2 for each, middle in middles.items())
        high = max(middle + self._breadth(each) / 2 for each, middle in middles.items())
        beside = (_AROUND if not across else HEADER + _AROUND / 2) - low
        for each, own in offsets:
            along = middles[each] - self._breadth(each) / 2 + beside
            self.offsets[each] = (own, along) if across else (along, own)
        at += _AROUND - _BETWEEN
        if across:
            return at, high - low + HEADER + 1.5 * _AROUND
        return high - low + 2 * _AROUND, at

    def _line_up(self, row: Sequence[int], middles: dict[int, float]) -> None:
        """Put each as near to the middle of what is before it as the others let it."""
        free, moved = -math.inf, 0.0
        for each in row:
            half, wanted = self._breadth(each) / 2, self._middle((each,), middles)
            middles[each] = max(wanted, free + half)
            free = middles[each] + half + _BESIDE
            moved += middles[each] - wanted
        for each in row:
            middles[each] -= moved / len(row)

    def _fold_up(
        self, parts: Sequence[Sequence[int]], centre: float, middles: dict[int, float]
    ) -> None:
        """Put the parts of a row one above the other, around a centre."""
        room = max(sum(self._breadth(each) + _BESIDE for each in part) for part in parts)
        for part in parts:
            at = centre - (room - _BESIDE) / 2
            for each in part:
                middles[each] = at + self._breadth(each) / 2
                at += self._breadth(each) + _BESIDE

    def _middle(self, members: Sequence[int], middles: Mapping[int, float]) -> float:
        """The middle of what is before these."""
        before = self._links.before
        found = [middles[other] for each in members for other in before.get(each, ())]
        return (min(found) + max(found)) / 2 if found else 0.0

    def _folded(self, row: Row, rows: int) -> list[Sequence[int]]:
        """A row that is long, and longer than rows are many, in several: boxes in a square."""
        members = row.members
        most = _FOLDED if self._across else _FOLDED // 2
        if len(members) <= max(most, rows) or not row.alike:
            return [members]
        length = max(most, round(math.sqrt(len(members)) * (1.6 if self._across else 0.6)))
        parts = [members[start : start + length] for start in range(0, len(members), length)]
        for part in parts[1:]:
            self.inner_starts.update(part)
        for part in parts[:-1]:
            self.inner_ends.update(part)
        return parts

    def _breadth(self, node: int) -> float:
        return self.sizes[node][1 if self._across else 0]

    def _depth(self, node: int) -> float:
        return self.sizes[node][0 if self._across else 1]


def _placed(
    scene: Scene, sizes: Mapping[int, _Size], offsets: Mapping[int, Point]
) -> tuple[dict[int, Place], dict[int, Place]]:
    boxes: dict[int, Place] = {}
    frames: dict[int, Place] = {}
    for node in sorted(scene.frames):
        frame = scene.frames[node]
        if node not in frames:
            frames[node] = Place(_MARGIN, _MARGIN, *sizes[node])
        corner = frames[node]
        for member in frame.members:
            x, y = offsets[member]
            place = Place(corner.x + x, corner.y + y, *sizes[member])
            (boxes if member in scene.boxes else frames)[member] = place
    return boxes, frames


def _way(source: Place, target: Place, across: bool) -> tuple[Point, ...]:
    """One curve from the end of a place to the beginning of another."""
    if across:
        x1, y1 = source.x + source.width, source.y + source.height / 2
        x2, y2 = target.x, target.y + target.height / 2
        bend = max(14.0, abs(x2 - x1) / 2)
        return (x1, y1), (x1 + bend, y1), (x2 - bend, y2), (x2, y2)
    x1, y1 = source.x + source.width / 2, source.y + source.height
    x2, y2 = target.x + target.width / 2, target.y
    bend = max(14.0, abs(y2 - y1) / 2)
    return (x1, y1), (x1, y1 + bend), (x2, y2 - bend), (x2, y2)

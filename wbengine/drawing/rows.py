"""The members of a frame in rows: each row comes after the one before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wbengine.drawing.scene import Frame, Scene

__all__ = ["Links", "Row", "clean", "levels_of", "rows_of"]


class Links:
    """The arrows between members of one frame."""

    def __init__(self, scene: Scene) -> None:
        self.before: dict[int, list[int]] = {}
        self.after: dict[int, list[int]] = {}
        #: Whether there are others, which lead out of a frame.
        self.others = False
        for source, target in scene.arrows:
            if scene.item(source).parent == scene.item(target).parent:
                self.before.setdefault(target, []).append(source)
                self.after.setdefault(source, []).append(target)
            else:
                self.others = True


@dataclass(frozen=True, slots=True)
class Row:
    """Members that are not before each other, in the order in which arrows cross least.

    `alike`: the same comes before all of them, and the same after all of them.
    """

    members: Sequence[int]
    alike: bool


def levels_of(frame: Frame, links: Links) -> dict[int, int]:
    """Member -> how many rows are before it."""
    level: dict[int, int] = {}
    for member in frame.members:
        others = links.before.get(member, ())
        level[member] = max((level.get(other, -1) + 1 for other in others), default=0)
    return level


def rows_of(frame: Frame, links: Links) -> list[Row]:
    """Each member is in the row after the last of what is before it; O(members + arrows)."""
    rows: list[list[int]] = []
    for member, level in levels_of(frame, links).items():
        while level >= len(rows):
            rows.append([])
        rows[level].append(member)
    place: dict[int, float] = {}
    for row in rows:
        for number, member in enumerate(row):
            known = [place[other] for other in links.before.get(member, ()) if other in place]
            place[member] = sum(known) / len(known) if known else number
        row.sort(key=place.__getitem__)
        place.update((member, number) for number, member in enumerate(row))
    return [Row(row, _alike(row, links)) for row in rows]


def _alike(row: Sequence[int], links: Links) -> bool:
    if len(row) < 2:
        return True
    none: list[int] = []
    return all(
        ends.get(member, none) == ends.get(row[0], none)
        for ends in (links.before, links.after)
        for member in row
    )


def clean(frame: Frame, links: Links) -> bool:
    """Whether all arrows lead to the next row, and none crosses another."""
    rows = rows_of(frame, links)
    where: Mapping[int, tuple[int, int]] = {
        member: (level, number)
        for level, row in enumerate(rows)
        for number, member in enumerate(row.members)
    }
    for row in rows:
        last = -1
        for member in row.members:
            ends = sorted(where[target] for target in links.after.get(member, ()))
            if not ends:
                continue
            if ends[0][0] != ends[-1][0] or ends[0][0] != where[member][0] + 1:
                return False
            # All of a row that is alike lead to the same: as one bundle, which nothing crosses.
            if ends[0][1] < last and not row.alike:
                return False
            last = ends[-1][1]
    return True

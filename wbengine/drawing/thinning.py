"""Leaves out arrows that say nothing: where a longer way leads from one to the other as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from wbengine.drawing.rows import Links, levels_of
from wbengine.drawing.scene import Scene

__all__ = ["thin"]

#: So many arrows are followed at most, for one picture.
_MOST: Final = 300_000


def thin(scene: Scene) -> None:
    """Take such arrows out of `scene`, as far as that does not take too long."""
    links, room = Links(scene), _MOST
    idle: set[tuple[int, int]] = set()
    for frame in scene.frames.values():
        level = levels_of(frame, links)
        for target in frame.members:
            sources = links.before.get(target, ())
            if len(sources) < 2:
                continue
            lowest = min(level[source] for source in sources)
            if lowest == level[target] - 1:
                continue  # all of them come right before it
            implied, steps = _behind(sources, links, level, lowest)
            idle.update((source, target) for source in sources if source in implied)
            room -= steps
            if room < 0:
                break
    scene.arrows = [arrow for arrow in scene.arrows if arrow not in idle]


def _behind(
    sources: Sequence[int], links: Links, level: Mapping[int, int], lowest: int
) -> tuple[set[int], int]:
    """What comes before one of `sources`, down to a level; and how much was looked at."""
    found: set[int] = set()
    pending, steps = list(sources), 0
    while pending:
        for other in links.before.get(pending.pop(), ()):
            steps += 1
            if other not in found and level[other] >= lowest:
                found.add(other)
                pending.append(other)
    return found, steps

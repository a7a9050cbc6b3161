"""Where everything is in a picture, whoever finds that out."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from wbengine.drawing.scene import Frame, Scene

__all__ = [
    "BOX_HEIGHT",
    "BOX_WIDTH",
    "HEADER",
    "Layout",
    "Place",
    "cached",
    "frames_inside_first",
    "key_of",
]

#: Sizes are in pixels.
BOX_WIDTH: Final = 196.0
BOX_HEIGHT: Final = 44.0
#: What is kept free for the name of a flow above what is in it.
HEADER: Final = 28.0

_KEPT: Final = 64

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Place:
    """A rectangle, by its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of boxes and frames by their node, and the way of each arrow of the scene.

    A way is its first point, then three for each curve (as in a path of SVG); `straight` ones have
    points to be connected by lines.
    """

    width: float
    height: float
    boxes: Mapping[int, Place]
    frames: Mapping[int, Place]
    ways: Mapping[tuple[int, int], tuple[Point, ...]]
    straight: bool = False


def key_of(scene: Scene, *more: object) -> str:
    """The same for scenes of the same structure, whatever the names and states in them."""
    made = hashlib.sha256(repr(more).encode())
    for part in (
        [(box.node, box.parent) for box in scene.boxes.values()],
        [(frame.node, frame.parent) for frame in scene.frames.values()],
        scene.arrows,
    ):
        made.update(repr(part).encode())
    return made.hexdigest()


_lock: Final = threading.Lock()
_layouts: OrderedDict[str, Layout] = OrderedDict()


def cached(key: str, find: Callable[[], Layout]) -> Layout:
    """The layout that was found for a structure before, or what `find` finds now."""
    with _lock:
        known = _layouts.get(key)
        if known is not None:
            _layouts.move_to_end(key)
            return known
    made = find()
    with _lock:
        _layouts[key] = made
        while len(_layouts) > _KEPT:
            _layouts.popitem(last=False)
    return made


def frames_inside_first(scene: Scene) -> list[Frame]:
    """What is inside before what is around it."""
    return [scene.frames[node] for node in sorted(scene.frames, reverse=True)]

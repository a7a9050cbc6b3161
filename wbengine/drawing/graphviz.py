"""Layouts, and PNG files, by Graphviz; in a child that may neither crash nor hold us."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from wbengine import exceptions
from wbengine.drawing.layout import BOX_HEIGHT, BOX_WIDTH, HEADER, Layout, Place, Point
from wbengine.drawing.scene import Box, Scene

__all__ = ["DrawingFailed", "LIMIT", "arrange", "available", "ends", "run"]

#: Seconds that Graphviz has for one picture.
LIMIT: Final = 20.0

_CHILD: Final = pathlib.Path(__file__).with_name("_graphviz_child.py")
_MISSING: Final = 3
_INCH: Final = 72.0
#: Pictures of more boxes are laid out with less care.
_MANY: Final = 400
_HINT: Final = "install it with: pip install 'wbengine[graph]'"

#: So many at a time: each takes a processor.
_places: Final = threading.BoundedSemaphore(2)


class DrawingFailed(exceptions.WbengineException):
    """A picture could not be made: Graphviz is missing, crashed, or took too long."""


def available() -> bool:
    """Whether pygraphviz is installed."""
    return importlib.util.find_spec("pygraphviz") is not None


def run(dot: str, format: str, limit: float = LIMIT) -> bytes:
    """What Graphviz makes of a graph.

    :raises DrawingFailed: it is missing, crashed, took more than `limit` seconds, or refused.
    """
    command = [sys.executable, "-I", str(_CHILD), format]
    with _places:
        try:
            # Its own folder, no file of ours: it is given all it needs.
            done = subprocess.run(
                command, input=dot.encode(), capture_output=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise DrawingFailed(
                f"Graphviz did not finish in {limit:g} s and was ended; layout='layered' does"
                " without it"
            ) from None
        except OSError as error:
            raise DrawingFailed(f"Graphviz could not be started: {error}", error) from error
    if done.returncode == _MISSING:
        raise DrawingFailed(f"Graphviz is needed for this; {_HINT}")
    if done.returncode < 0:
        raise DrawingFailed(f"Graphviz crashed (signal {-done.returncode})")
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no reason"]
        raise DrawingFailed(f"Graphviz failed: {said[0][:300]}")
    return done.stdout


def arrange(scene: Scene, direction: str, limit: float = LIMIT) -> Layout:
    """Find places for everything in `scene`.

    Graphviz is told numbers only, and nothing that anybody named.

    :raises DrawingFailed: see `run`.
    """
    told = run("\n".join(_dot(scene, direction)), "json0", limit)
    try:
        return _read(scene, json.loads(told))
    except (ValueError, LookupError, TypeError) as error:
        raise DrawingFailed(f"Graphviz answered something else: {error}", error) from error


def _dot(scene: Scene, direction: str) -> Iterator[str]:
    yield "digraph g {"
    yield f'rankdir={direction}; compound=true; nodesep="0.2"; ranksep="0.45"; margin="0.12,0.12";'
    if len(scene.boxes) > _MANY:
        yield 'mclimit="0.1"; nslimit="0.1"; nslimit1="0.5"; splines="line";'
    yield f'node [shape=box, label="", fixedsize=true, width="{BOX_WIDTH / _INCH:.3f}",'
    yield f'height="{BOX_HEIGHT / _INCH:.3f}"]; edge [arrowhead=none];'
    for _, item in scene.walk():
        if item is None:
            yield "}"
        elif isinstance(item, Box):
            yield f"n{item.node};"
        else:
            # A label of its own keeps the place free where the name goes.
            size = HEADER - 10
            yield f'subgraph cluster_{item.node} {{ margin="12"; label="x"; fontsize="{size:g}";'
    first, last = ends(scene)
    for number, (source, target) in enumerate(scene.arrows):
        said = [f'id="{number}"']
        if source in scene.frames or target in scene.frames:
            said.append("minlen=2")  # borders take of the way
        if source in scene.frames:
            said.append(f"ltail=cluster_{source}")
        if target in scene.frames:
            said.append(f"lhead=cluster_{target}")
        yield f"n{last.get(source, source)} -> n{first.get(target, target)} [{','.join(said)}];"
    yield "}"


def ends(scene: Scene) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Frame -> a box at its beginning, and one at its end, that stand for it."""
    before: dict[int, list[int]] = {}
    for source, target in scene.arrows:
        before.setdefault(target, []).append(source)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    depth: dict[int, int] = {}
    for node in sorted(scene.frames, reverse=True):
        frame = scene.frames[node]
        for member in frame.members:
            own = max((depth.get(other, 0) for other in before.get(member, ())), default=0)
            depth[member] = own + 1
        starts = [member for member in frame.members if not before.get(member)] or frame.members
        start = starts[len(starts) // 2]
        deepest = max(depth[member] for member in frame.members)
        ends = [member for member in frame.members if depth[member] == deepest]
        end = ends[len(ends) // 2]
        first[node], last[node] = first.get(start, start), last.get(end, end)
    return first, last


def _read(scene: Scene, told: Mapping[str, Any]) -> Layout:
    left, low, right, high = map(float, told["bb"].split(","))

    def point(text: str) -> Point:
        x, y = text.split(",")
        return round(float(x) - left, 1), round(high - float(y), 1)

    boxes: dict[int, Place] = {}
    frames: dict[int, Place] = {}
    for each in told.get("objects", ()):
        name: str = each["name"]
        if name.startswith("cluster_"):
            x1, y1, x2, y2 = map(float, each["bb"].split(","))
            frames[int(name[8:])] = Place(
                round(x1 - left, 1), round(high - y2, 1), round(x2 - x1, 1), round(y2 - y1, 1)
            )
        elif name.startswith("n"):
            x, y = point(each["pos"])
            boxes[int(name[1:])] = Place(
                x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2, BOX_WIDTH, BOX_HEIGHT
            )
    ways = {}
    for each in told.get("edges", ()):
        ways[scene.arrows[int(each["id"])]] = tuple(
            point(text) for text in each["pos"].split() if text[0] not in "es"
        )
    if set(boxes) != set(scene.boxes) or set(frames) != set(scene.frames):
        raise ValueError("something was left out")
    return Layout(right - left, high - low, boxes, frames, ways)

"""Pictures of flows: a tree for terminals, Mermaid, DOT, JSON, SVG, PNG.

`draw` makes them of an outline, and of a view of the flow when its states are to be seen.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from wbengine import _names
from wbengine._terminal import escaped_json
from wbengine.drawing import (
    dot,
    graphviz,
    layered,
    mermaid,
    text,
)
from wbengine.drawing import (
    layout as layouts,
)
from wbengine.drawing import (
    scene as scenes,
)
from wbengine.drawing import (
    svg as svg_module,
)
from wbengine.drawing.chart import render as chart
from wbengine.drawing.graphviz import DrawingFailed
from wbengine.drawing.scene import MOST
from wbengine.drawing.stylesheet import STYLESHEET
from wbengine.drawing.svg import Link
from wbengine.drawing.thinning import thin
from wbengine.types import outline as outlines
from wbengine.views.flow import FlowView

__all__ = [
    "DIRECTIONS",
    "FORMATS",
    "LAYOUTS",
    "MOST",
    "STYLESHEET",
    "DrawingFailed",
    "chart",
    "draw",
    "png",
]

LOG: Final = logging.getLogger(__name__)

#: Seconds that Graphviz has where the picture can be drawn without it: somebody waits for it.
PATIENCE: Final = 4.0

FORMATS: Final = ("text", "mermaid", "dot", "json", "svg", "png")
DIRECTIONS: Final = ("auto", "LR", "TB")
LAYOUTS: Final = ("auto", "graphviz", "layered")
SCHEMA: Final = "wbengine/graph/1"


def draw(
    outline: outlines.Outline,
    view: FlowView | None = None,
    *,
    format: str = "text",
    direction: str = "auto",
    root: int = 0,
    most: int = MOST,
    standalone: bool = True,
    layout: str = "auto",
    link: Link | None = None,
) -> str:
    """A picture of a flow, as text.

    :param view: its states; then `outline` has to be that of the view.
    :param format: 'text', 'mermaid', 'dot', 'json' or 'svg'; for PNG see `png`.
    :param direction: 'LR' (from left to right), 'TB' (from the top down), or what fits ('auto').
    :param root: the flow to be drawn, by its position in the outline.
    :param most: of more atoms, parts are collapsed, with counts in place of what is in them.
    :param standalone: an SVG has its own style sheet; else `STYLESHEET` is to be served beside it.
    :param layout: of an SVG: 'graphviz', 'layered' (our own), or ('auto') the latter where it is as
        good, or the former is not installed or does not work.
    :param link: of an SVG: where an atom leads to.
    :raises ValueError: there is no such format, direction, layout or root.
    :raises DrawingFailed: with layout='graphviz': it is not installed, crashed, or took too long.
    """
    _check("format", format, FORMATS)
    _check("direction", direction, DIRECTIONS)
    _check("layout", layout, LAYOUTS)
    if not 0 <= root < len(outline.nodes):
        raise ValueError(f"root={root!r}: the outline has nodes 0 to {len(outline.nodes) - 1}")
    if format == "png":
        raise ValueError("A PNG is no text: see wbengine.drawing.png")
    if format == "text":
        return text.render(outline, view, root=root, most=most)
    scene = scenes.make(outline, view, root=root, most=most)
    if format == "json":
        return escaped_json(json.dumps(_told(scene, view), ensure_ascii=False, indent=2)) + "\n"
    thin(scene)
    direction = layered.direction_of(scene, direction)
    if format == "mermaid":
        return mermaid.render(scene, direction, states=view is not None)
    if format == "dot":
        return dot.render(scene, direction, states=view is not None)
    found = _arranged(scene, direction, layout)
    return svg_module.render(scene, found, standalone=standalone, link=link)


def png(
    outline: outlines.Outline,
    view: FlowView | None = None,
    *,
    direction: str = "auto",
    root: int = 0,
    most: int = MOST,
) -> bytes:
    """A picture of a flow as a PNG file, made by Graphviz.

    :raises DrawingFailed: Graphviz is not installed, crashed, or took too long.
    """
    return graphviz.run(
        draw(outline, view, format="dot", direction=direction, root=root, most=most), "png"
    )


def _arranged(scene: scenes.Scene, direction: str, layout: str) -> layouts.Layout:
    def find() -> layouts.Layout:
        if layout == "layered" or not scene.frames:
            return layered.arrange(scene, direction)
        if layout == "auto" and (not graphviz.available() or layered.suits(scene)):
            return layered.arrange(scene, direction)
        try:
            limit = PATIENCE if layout == "auto" else graphviz.LIMIT
            return graphviz.arrange(scene, direction, limit)
        except DrawingFailed as error:
            if layout == "graphviz":
                raise
            # Kept as what was found: Graphviz would not do better the next time.
            LOG.warning("%s: the graph is drawn without it", error)
            return layered.arrange(scene, direction)

    return layouts.cached(layouts.key_of(scene, direction, layout), find)


def _told(scene: scenes.Scene, view: FlowView | None) -> dict[str, Any]:
    def told(item: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"id": item.node, "name": item.name}
        found["kind"] = item.kind if isinstance(item, scenes.Box) else outlines.FLOW
        found["parent"] = item.parent if item.parent >= 0 else None
        if isinstance(item, scenes.Box):
            found.update(task=item.task, collapsed=item.collapsed, size=item.size)
        found["notes"] = item.notes
        if view is not None:
            found.update(state=item.state, counts=dict(item.counts))
            atom = getattr(item, "atom", None)
            found["uuid"] = None if atom is None else atom.uuid
        return found

    items = sorted([*scene.boxes, *scene.frames])
    return {
        "schema": SCHEMA,
        "name": scene.name,
        "collapsed": scene.collapsed,
        "nodes": [told(scene.item(node)) for node in items],
        "edges": [list(arrow) for arrow in scene.arrows],
    }


def _check(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        near = _names.hint(value, known) if isinstance(value, str) else ""
        raise ValueError(f"{what}={value!r}{near}; known: {', '.join(known)}")

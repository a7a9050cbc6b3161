"""Drawings of flows: text, Mermaid, DOT, JSON, SVG and PNG.

`draw` creates them from an outline and, for states, the view of a flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine import _lazily

if TYPE_CHECKING:
    from wbengine.drawing.formats import DIRECTIONS, FORMATS, Folding, draw, html, png
    from wbengine.drawing.graphviz import DrawingFailed
    from wbengine.drawing.scene import MAX_ATOMS
    from wbengine.drawing.styles import STYLESHEET
    from wbengine.drawing.timeline_chart import chart

__all__ = [
    "DIRECTIONS",
    "FORMATS",
    "MAX_ATOMS",
    "STYLESHEET",
    "DrawingFailed",
    "Folding",
    "chart",
    "draw",
    "html",
    "png",
]

__getattr__, __dir__ = _lazily.lazy_attributes(
    __name__,
    {
        ".formats": ("DIRECTIONS", "FORMATS", "Folding", "draw", "html", "png"),
        ".graphviz": ("DrawingFailed",),
        ".scene": ("MAX_ATOMS",),
        ".styles": ("STYLESHEET",),
        ".timeline_chart": ("chart",),
    },
)

"""Drawings of flows: text, Mermaid, DOT, JSON, SVG and PNG.

`draw` creates them from an outline and, for states, the view of a flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine._imports import lazily

if TYPE_CHECKING:
    from wbengine.drawing._formats import DIRECTIONS, FORMATS, Folding, draw, html, png
    from wbengine.drawing._graphviz import DrawingFailed
    from wbengine.drawing._scene import MAX_ATOMS
    from wbengine.drawing._styles import STYLESHEET
    from wbengine.drawing._timeline_chart import chart

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

__getattr__, __dir__ = lazily.lazy_attributes(
    __name__,
    {
        "._formats": ("DIRECTIONS", "FORMATS", "Folding", "draw", "html", "png"),
        "._graphviz": ("DrawingFailed",),
        "._scene": ("MAX_ATOMS",),
        "._styles": ("STYLESHEET",),
        "._timeline_chart": ("chart",),
    },
)

"""Mermaid: text that many sites draw as a picture."""

from __future__ import annotations

from collections.abc import Iterator

from wbengine.drawing import captions, marks, nesting
from wbengine.drawing.scene import Box, Frame, Scene
from wbengine.types import outline as outlines

__all__ = ["render"]

_SHAPES = {outlines.RETRY: ("([", "])"), outlines.MAP: ("[[", "]]")}


def render(scene: Scene, direction: str, *, states: bool) -> str:
    """The scene as a flow chart; with `states`, coloured by them."""
    return "\n".join(_lines(scene, direction, states)) + "\n"


def _lines(scene: Scene, direction: str, states: bool) -> Iterator[str]:
    yield f"flowchart {direction}"

    def opened(frame: Frame) -> str:
        icon = f"{marks.icon(frame.state)} " if states else ""
        return f'subgraph n{frame.node}["{icon}{_text(frame.name)}"]'

    yield from nesting.lines(scene, lambda box: _box(box, states), opened, "end")
    for source, target in scene.arrows:
        yield f"  n{source} --> n{target}"
    if states:
        used = {box.state for box in scene.boxes.values()}
        for state, mark in marks.MARKS.items():
            if state in used:
                yield (f"  classDef {state} fill:{mark.fill},stroke:{mark.colour},color:#1d2127")


def _box(box: Box, states: bool) -> str:
    first, last = _SHAPES.get(box.kind, ("[", "]"))
    name = _text(captions.shortened(box.name, 60))
    if box.collapsed:
        first, last = "[[", "]]"
        name += f"<br>{_text(captions.line(box))}"
    if not states:
        return f'n{box.node}{first}"{name}"{last}'
    line = "" if box.collapsed else captions.line(box)
    told = f"{marks.icon(box.state)} {name}" + (f"<br>{_text(line)}" if line else "")
    known = f":::{box.state}" if box.state in marks.MARKS else ""
    return f'n{box.node}{first}"{told}"{last}{known}'


def _text(text: str) -> str:
    """Nothing that Mermaid, Markdown or HTML would take for a sign of its own."""
    return "".join(
        mark if mark.isalnum() or mark in " _.,:+/…·-" else f"#{ord(mark)};" for mark in text
    )

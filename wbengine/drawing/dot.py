"""The language of Graphviz, with all names in it: for other programs, and for PNG files."""

from __future__ import annotations

from collections.abc import Iterator

from wbengine.drawing import captions, graphviz, marks, nesting
from wbengine.drawing.scene import Box, Frame, Scene
from wbengine.types import outline as outlines

__all__ = ["render"]

_SHAPES = {outlines.RETRY: "ellipse", outlines.MAP: "box3d", outlines.FLOW: "folder"}


def render(scene: Scene, direction: str, *, states: bool) -> str:
    """The scene as a digraph; with `states`, coloured by them."""
    return "\n".join(_lines(scene, direction, states)) + "\n"


def _lines(scene: Scene, direction: str, states: bool) -> Iterator[str]:
    yield "digraph {"
    yield f"  graph [rankdir={direction}, compound=true, nodesep=0.2, ranksep=0.45,"
    yield '    fontname="Helvetica", fontsize=11, labeljust=l, style=rounded, color="#c3c9d1"];'
    yield '  node [shape=box, style="rounded,filled", fillcolor="#f4f5f7", color="#6b7480",'
    yield '    fontname="Helvetica", fontsize=11, margin="0.15,0.06"];'
    yield '  edge [color="#8a94a1", arrowsize=0.7];'

    def opened(frame: Frame) -> str:
        icon = f"{marks.icon(frame.state)} " if states else ""
        return f"subgraph cluster_{frame.node} {{ label={_quoted(icon + frame.name)};"

    yield from nesting.lines(scene, lambda box: _box(box, states), opened, "}")
    first, last = graphviz.ends(scene)
    for source, target in scene.arrows:
        said = [f"ltail=cluster_{source}"] if source in scene.frames else []
        said += [f"lhead=cluster_{target}"] if target in scene.frames else []
        told = f" [{', '.join(said)}]" if said else ""
        yield f"  n{last.get(source, source)} -> n{first.get(target, target)}{told};"
    yield "}"


def _box(box: Box, states: bool) -> str:
    label = captions.shortened(box.name, 60)
    if box.collapsed:
        label += f"\n{captions.line(box)}"
    said = [f"shape={_SHAPES[box.kind]}"] if box.kind in _SHAPES else []
    if states:
        mark = marks.mark(box.state)
        line = "" if box.collapsed else captions.line(box)
        label = f"{mark.icon} {label}" + (f"\n{line}" if line else "")
        said += [f'fillcolor="{mark.fill}"', f'color="{mark.colour}"']
    return f"n{box.node} [{', '.join([f'label={_quoted(label)}', *said])}];"


def _quoted(text: str) -> str:
    """A string of DOT: no escape of a label in it, no entity, nothing that ends it."""
    shown = "".join(mark if mark.isprintable() or mark == "\n" else "\ufffd" for mark in text)
    for mark, escaped in (("\\", "\\\\"), ('"', '\\"'), ("&", "&amp;"), ("\n", "\\n")):
        shown = shown.replace(mark, escaped)
    return f'"{shown}"'

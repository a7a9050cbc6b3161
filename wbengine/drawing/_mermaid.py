"""Flows as Mermaid flow charts."""

from __future__ import annotations

from collections.abc import Iterator

from wbengine.drawing import _box_text, _styles
from wbengine.drawing._scene import Scene
from wbengine.types import _outline as outlines
from wbengine.views._structure import NodeView

__all__ = ["render"]

_SHAPES = {outlines.RETRY: ("([", "])"), outlines.MAP: ("[[", "]]")}


def render(scene: Scene, direction: str, *, states: bool) -> str:
    """Return the scene as a flow chart; with `states`, coloured by them."""
    return "\n".join(_lines(scene, direction, states)) + "\n"


def _lines(scene: Scene, direction: str, states: bool) -> Iterator[str]:
    yield f"flowchart {direction}"

    for depth, item in scene.walk():
        margin = "  " * (depth + 1)
        if item is None:
            yield f"{margin}end"
        elif item.node not in scene.members:
            yield margin + _box(item, states)
        else:
            icon = f"{_styles.icon(item.state)} " if states else ""
            yield f'{margin}subgraph n{item.node}["{icon}{_text(item.name)}"]'
    for source, target in scene.arrows:
        yield f"  n{source} --> n{target}"
    if states:
        used = {item.state for node, item in scene.items.items() if node not in scene.members}
        for state, style in _styles.STATES.items():
            if state in used:
                yield (f"  classDef {state} fill:{style.fill},stroke:{style.colour},color:#1d2127")


def _box(box: NodeView, states: bool) -> str:
    first, last = _SHAPES.get(box.kind, ("[", "]"))
    name = _text(_box_text.shortened(box.name, 60))
    if not box.is_atom:
        first, last = "[[", "]]"
    line = _box_text.line(box) if states or not box.is_atom else ""
    name += f"<br>{_text(line)}" if line else ""
    if not states:
        return f'n{box.node}{first}"{name}"{last}'
    class_suffix = f":::{box.state}" if box.state in _styles.STATES else ""
    return f'n{box.node}{first}"{_styles.icon(box.state)} {name}"{last}{class_suffix}'


def _text(text: str) -> str:
    return "".join(
        mark if mark.isalnum() or mark in " _.,:+/…·-" else f"#{ord(mark)};" for mark in text
    )

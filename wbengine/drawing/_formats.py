"""Drawings of flows in all formats."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from wbengine._introspection import object_names
from wbengine._text.terminal_text import escaped_json
from wbengine.drawing import _box_text, _graphviz, _mermaid, _terminal_tree
from wbengine.drawing import _scene as scenes
from wbengine.drawing._graphviz import DrawingFailed, Link, Toggle
from wbengine.drawing._scene import MAX_ATOMS
from wbengine.types import _outline as outlines
from wbengine.views._structure import NodeView
from wbengine.views.flow_status import FlowView

__all__ = [
    "DIRECTIONS",
    "FORMATS",
    "Folding",
    "draw",
    "html",
    "png",
]

FORMATS: Final = ("text", "mermaid", "dot", "json", "svg", "png")
DIRECTIONS: Final = ("auto", "LR", "TB")
SCHEMA: Final = "wbengine/graph/1"
#: Number of boxes of a drawing whose flows can be opened and closed.
_MAX_FOLDING_BOXES: Final = 120


def draw(
    outline: outlines.Outline,
    view: FlowView | None = None,
    *,
    format: str = "text",
    direction: str = "auto",
    root: int = 0,
    max_atoms: int = MAX_ATOMS,
    standalone: bool = True,
    link: Link | None = None,
) -> str:
    """Return a drawing of a flow as text.

    :param view: the states; `outline` must be that of the view.
    :param format: 'text', 'mermaid', 'dot', 'json' or 'svg'. For PNG, see `png`.
    :param direction: 'LR' (left to right), 'TB' (top to bottom), or 'auto' (by the shape).
    :param root: position in the outline of the flow to draw.
    :param max_atoms: if the flow has more atoms, parts are collapsed and show counts.
    :param standalone: whether an SVG contains its style sheet; otherwise the page must provide
        `STYLESHEET`.
    :param link: returns the address that an atom of an SVG links to.
    :raises ValueError: if the format, the direction or the root is invalid.
    :raises DrawingFailed: for an SVG, if Graphviz is not installed, crashed, or took too long.
    """
    _check_choice("format", format, FORMATS)
    _check_choice("direction", direction, DIRECTIONS)
    _check_root(outline, root)
    if format == "png":
        raise ValueError("format must be a text format, got 'png'; use wbengine.drawing.png")
    if format == "text":
        return _terminal_tree.text(outline, view, root=root, max_atoms=max_atoms)
    scene = scenes.make(outline, view, root=root, max_atoms=max_atoms)
    if format == "json":
        return escaped_json(json.dumps(_as_json(scene, view), ensure_ascii=False, indent=2)) + "\n"
    scene.remove_redundant_arrows()
    direction = scene.direction() if direction == "auto" else direction
    states = view is not None
    if format == "mermaid":
        return _mermaid.render(scene, direction, states=states)
    if format == "dot":
        return _graphviz.dot(scene, direction, states=states)
    return _graphviz.svg(scene, direction, states=states, standalone=standalone, link=link)


def png(
    outline: outlines.Outline,
    view: FlowView | None = None,
    *,
    direction: str = "auto",
    root: int = 0,
    max_atoms: int = MAX_ATOMS,
) -> bytes:
    """Return a drawing of a flow as a PNG file. For the arguments, see `draw`.

    :raises ValueError: if the direction or the root is invalid.
    :raises DrawingFailed: if Graphviz is not installed, crashed, or took too long.
    """
    return _graphviz.run(
        draw(outline, view, format="dot", direction=direction, root=root, max_atoms=max_atoms),
        "png",
        "-Gbgcolor=white",
    )


class Folding(NamedTuple):
    """Flows that the user opened and closed in a drawing, by their positions in the outline.

    A group of members is opened by the position of its first member.

    :ivar toggle: returns the address that opens or closes a flow.
    """

    opened: Collection[int]
    closed: Collection[int]
    toggle: Toggle


def html(
    outline: outlines.Outline,
    view: FlowView,
    *,
    root: int = 0,
    link: Link | None = None,
    folding: Folding | None = None,
) -> str:
    """Return an SVG for a page that provides `STYLESHEET`.

    If Graphviz fails, the result is the reason and a tree as text. With `folding`, a drawing of
    more than about 120 boxes has collapsed flows that can be opened.
    """
    _check_root(outline, root)
    try:
        if folding is None:
            return draw(outline, view, format="svg", root=root, standalone=False, link=link)
        scene = scenes.make(
            outline,
            view,
            root=root,
            max_atoms=_MAX_FOLDING_BOXES,
            boxes=_MAX_FOLDING_BOXES,
            opened=folding.opened,
            closed=folding.closed,
        )
        scene.remove_redundant_arrows()
        return _graphviz.svg(
            scene,
            scene.direction(),
            states=True,
            standalone=False,
            link=link,
            toggle=folding.toggle,
        )
    except DrawingFailed as error:
        tree_text = _box_text.escaped(draw(outline, view, root=root))
        message = _box_text.escaped(str(error))
        return f'<p class="dim">{message}.</p>\n<pre class="tree">{tree_text}</pre>'


def _as_json(scene: scenes.Scene, view: FlowView | None) -> dict[str, Any]:
    parents = scene.parents()

    def node(item: NodeView) -> dict[str, Any]:
        fields: dict[str, Any] = {"id": item.node, "name": item.name, "kind": item.kind}
        fields["parent"] = parents.get(item.node)
        if item.node not in scene.members:
            fields.update(task=item.task, collapsed=not item.is_atom, size=item.size)
        fields["notes"] = item.notes
        if view is not None:
            uuid = None if item.atom is None else item.atom.uuid
            fields.update(state=item.state, counts=dict(item.atom_counts), uuid=uuid)
        return fields

    return {
        "schema": SCHEMA,
        "name": scene.name,
        "collapsed": scene.collapsed,
        "nodes": [node(item) for item in scene.items.values()],
        "edges": [list(arrow) for arrow in scene.arrows],
    }


def _check_root(outline: outlines.Outline, root: int) -> None:
    if not 0 <= root < len(outline.nodes):
        raise ValueError(f"root must be a node from 0 to {len(outline.nodes) - 1}, got {root!r}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        hint = object_names.hint(value, choices) if isinstance(value, str) else ""
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")

"""Pictures of flows: a tree for terminals, Mermaid, DOT, JSON, SVG, PNG.

`draw` makes them of an outline, and of a view of the flow when its states are to be seen.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from wbengine import _names
from wbengine._terminal import escaped_json
from wbengine.drawing import graphviz, labels, mermaid, tree
from wbengine.drawing import scene as scenes
from wbengine.drawing.chart import render as chart
from wbengine.drawing.graphviz import DrawingFailed, Link, Toggle
from wbengine.drawing.scene import MAX_ATOMS
from wbengine.drawing.styles import STYLESHEET
from wbengine.types import outline as outlines
from wbengine.views.flow import FlowView
from wbengine.views.structure import NodeView

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

FORMATS: Final = ("text", "mermaid", "dot", "json", "svg", "png")
DIRECTIONS: Final = ("auto", "LR", "TB")
SCHEMA: Final = "wbengine/graph/1"
#: So many boxes are seen at once, where flows can be opened and closed.
_FOLDED: Final = 120


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
    """A picture of a flow, as text.

    :param view: its states; then `outline` has to be that of the view.
    :param format: 'text', 'mermaid', 'dot', 'json' or 'svg'; for PNG see `png`.
    :param direction: 'LR' (from left to right), 'TB' (from the top down), or what fits ('auto').
    :param root: the flow to be drawn, by its position in the outline.
    :param max_atoms: of more atoms, parts are collapsed, with counts in place of what is in them.
    :param standalone: an SVG has its own style sheet; else `STYLESHEET` is to be served beside it.
    :param link: of an SVG: where an atom leads to.
    :raises ValueError: there is no such format, direction or root.
    :raises DrawingFailed: of an SVG: Graphviz is not installed, crashed, or took too long.
    """
    _check("format", format, FORMATS)
    _check("direction", direction, DIRECTIONS)
    _check_root(outline, root)
    if format == "png":
        raise ValueError("A PNG is no text: see wbengine.drawing.png")
    if format == "text":
        return tree.text(outline, view, root=root, max_atoms=max_atoms)
    scene = scenes.make(outline, view, root=root, max_atoms=max_atoms)
    if format == "json":
        return escaped_json(json.dumps(_as_json(scene, view), ensure_ascii=False, indent=2)) + "\n"
    scene.thin()
    direction = scene.direction() if direction == "auto" else direction
    states = view is not None
    if format == "mermaid":
        return mermaid.render(scene, direction, states=states)
    if format == "dot":
        return graphviz.dot(scene, direction, states=states)
    return graphviz.svg(scene, direction, states=states, standalone=standalone, link=link)


def png(
    outline: outlines.Outline,
    view: FlowView | None = None,
    *,
    direction: str = "auto",
    root: int = 0,
    max_atoms: int = MAX_ATOMS,
) -> bytes:
    """A picture of a flow as a PNG file; the arguments are those of `draw`.

    :raises ValueError: there is no such direction or root.
    :raises DrawingFailed: Graphviz is not installed, crashed, or took too long.
    """
    return graphviz.run(
        draw(outline, view, format="dot", direction=direction, root=root, max_atoms=max_atoms),
        "png",
        "-Gbgcolor=white",
    )


class Folding(NamedTuple):
    """The flows of a picture that its reader `opened` and `closed`, by their positions in the
    outline; `toggle` makes the address under which one of them is opened, or closed.  What stands
    for a part of a long row of members is opened by the position of the first of them.
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
    """A picture for a page that has `STYLESHEET`: an SVG; where Graphviz cannot make it, the reason
    in one sentence, and the tree.

    With `folding`, of more than about 120 boxes whole flows are collapsed, and can be opened.
    """
    _check_root(outline, root)
    try:
        if folding is None:
            return draw(outline, view, format="svg", root=root, standalone=False, link=link)
        scene = scenes.make(
            outline,
            view,
            root=root,
            max_atoms=_FOLDED,
            boxes=_FOLDED,
            opened=folding.opened,
            closed=folding.closed,
        )
        scene.thin()
        return graphviz.svg(
            scene,
            scene.direction(),
            states=True,
            standalone=False,
            link=link,
            toggle=folding.toggle,
        )
    except DrawingFailed as error:
        shown = labels.escaped(draw(outline, view, root=root))
        return f'<p class="dim">{labels.escaped(str(error))}.</p>\n<pre class="tree">{shown}</pre>'


def _as_json(scene: scenes.Scene, view: FlowView | None) -> dict[str, Any]:
    parents = scene.parents()

    def node(item: NodeView) -> dict[str, Any]:
        found: dict[str, Any] = {"id": item.node, "name": item.name, "kind": item.kind}
        found["parent"] = parents.get(item.node)
        if item.node not in scene.members:
            found.update(task=item.task, collapsed=not item.is_atom, size=item.size)
        found["notes"] = item.notes
        if view is not None:
            uuid = None if item.atom is None else item.atom.uuid
            found.update(state=item.state, counts=dict(item.atom_counts), uuid=uuid)
        return found

    return {
        "schema": SCHEMA,
        "name": scene.name,
        "collapsed": scene.collapsed,
        "nodes": [node(item) for item in scene.items.values()],
        "edges": [list(arrow) for arrow in scene.arrows],
    }


def _check_root(outline: outlines.Outline, root: int) -> None:
    if not 0 <= root < len(outline.nodes):
        raise ValueError(f"root={root!r}: the outline has nodes 0 to {len(outline.nodes) - 1}")


def _check(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        near = _names.hint(value, known) if isinstance(value, str) else ""
        raise ValueError(f"{what}={value!r}{near}; known: {', '.join(known)}")

"""Graphviz: its program `dot` finds a place for everything in a picture, and makes SVG and PNG."""

from __future__ import annotations

import functools
import math
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from xml.etree import ElementTree as ET

from wbengine import exceptions
from wbengine.drawing import labels, styles
from wbengine.drawing.scene import Scene
from wbengine.types import outline as outlines
from wbengine.views.atoms import AtomView
from wbengine.views.structure import NodeView

__all__ = ["INSTALL", "DrawingFailed", "Link", "Toggle", "available", "dot", "run", "svg"]

#: Seconds that Graphviz has for one picture.
LIMIT: Final = 10.0
#: Pictures of more boxes are laid out with less care.
_MANY: Final = 400
_LESS_CARE: Final = ("-Gmclimit=0.1", "-Gnslimit=0.1", "-Gnslimit1=0.5", "-Gsplines=line")
_KEPT: Final = 64
INSTALL: Final = "install it with `apt-get install graphviz` or `brew install graphviz`"

#: The address that an atom leads to when it is clicked on.
Link = Callable[[AtomView], str]

#: The address under which the flow at a node is opened (True), or is one box (False).
Toggle = Callable[[int, bool], str]

_SVG: Final = "http://www.w3.org/2000/svg"
#: A picture has these.
_MARKS: Final = {"svg": b"<svg", "png": b"\x89PNG\r\n\x1a\n"}
_SHAPES: Final = {outlines.RETRY: "ellipse", outlines.MAP: "box3d", outlines.FLOW: "folder"}
_NUMBER: Final = re.compile(r"-?[\d.]+")
#: Letters of a name that fit into a box of the SVG, and into the corner of a frame.
_NAME: Final = 24
_FRAME_NAME: Final = 28

#: So many at a time: each takes a processor.
_places: Final = threading.BoundedSemaphore(2)


class DrawingFailed(exceptions.WbengineException):
    """A picture could not be made: Graphviz is missing, crashed, took too long, or made none."""


def available() -> bool:
    """Whether Graphviz is installed."""
    return shutil.which("dot") is not None


def _program() -> str:
    found = shutil.which("dot")
    if found is None:
        raise DrawingFailed(f"SVG and PNG need Graphviz, whose program dot is missing: {INSTALL}")
    return found


def run(text: str, format: str, *options: str) -> bytes:
    """The picture ('svg' or 'png') of a graph, which is given in the language of Graphviz.

    :raises DrawingFailed: Graphviz is missing, crashed, took too long, refused, or made none.
    """
    program = _program()
    with _places:
        try:
            done = subprocess.run(
                [program, f"-T{format}", *options],
                input=text.encode(),
                capture_output=True,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DrawingFailed(f"Graphviz did not finish in {LIMIT:g} s and was ended") from None
        except OSError as error:
            raise DrawingFailed(f"Graphviz could not be started: {error}", error) from error
    if done.returncode < 0:
        raise DrawingFailed(f"Graphviz crashed (signal {-done.returncode})")
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no reason"]
        raise DrawingFailed(f"Graphviz failed: {said[0][:300]}")
    if _MARKS[format] not in done.stdout:
        raise DrawingFailed(f"Graphviz ended well, and what it made is no {format.upper()}")
    return done.stdout


# -- the language of Graphviz ---------------------------------------------------------------------


def dot(scene: Scene, direction: str, *, states: bool) -> str:
    """The scene as a digraph with all names; with `states`, coloured by them."""

    def box(box: NodeView) -> str:
        label = labels.shortened(box.name, 60)
        line = labels.line(box) if states or not box.is_atom else ""
        said = [f"shape={_SHAPES[box.kind]}"] if box.kind in _SHAPES else []
        if states:
            style = styles.style_of(box.state)
            label = f"{style.icon} {label}"
            failed = box.atom is not None and box.atom.failed_before
            border = styles.STATES["FAILURE"].colour if failed else style.colour
            said += [f'fillcolor="{style.fill}"', f'color="{border}"']
        return ", ".join([f"label={_quoted(label + (line and chr(10) + line))}", *said])

    def frame(frame: NodeView) -> str:
        return _quoted((f"{styles.icon(frame.state)} " if states else "") + frame.name)

    return _digraph(scene, direction, box, frame)


def _digraph(
    scene: Scene, direction: str, box: Callable[[NodeView], str], frame: Callable[[NodeView], str]
) -> str:
    lines = [
        "digraph {",
        f"  graph [rankdir={direction}, compound=true, nodesep=0.2, ranksep=0.45, labeljust=l,",
        '    fontname="Helvetica", fontsize=11, style=rounded, color="#c3c9d1",',
        '    bgcolor="transparent"];',
        '  node [shape=box, style="rounded,filled", fillcolor="#f4f5f7", color="#6b7480",',
        '    fontname="Helvetica", fontsize=11, margin="0.15,0.06"];',
        '  edge [color="#8a94a1", arrowsize=0.7];',
    ]
    for depth, item in scene.walk():
        margin = "  " * (min(depth, 40) + 1)
        if item is None:
            lines.append(f"{margin}}}")
        elif item.node not in scene.members:
            lines.append(f"{margin}n{item.node} [{box(item)}];")
        else:
            lines.append(f"{margin}subgraph cluster_{item.node} {{ label={frame(item)};")
    folds = list(_folds(scene))
    first, last = _ends(scene, folds)
    retries = set(scene.retries.values())
    for source, target in scene.arrows:
        said = [f"ltail=cluster_{source}"] if source in scene.members else []
        said += [f"lhead=cluster_{target}"] if target in scene.members else []
        said += ["minlen=2"] if target in scene.members else []  # its border takes of the way
        said += ['class="retries"'] if source in retries else []
        attributes = f" [{', '.join(said)}]" if said else ""
        lines.append(f"  n{last.get(source, source)} -> n{first.get(target, target)}{attributes};")
    lines += [f"  n{a} -> n{b} [style=invis];" for a, b in folds]
    return "\n".join([*lines, "}\n"])


def _ends(
    scene: Scene, folds: Sequence[tuple[int, int]]
) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Frame -> a box at its beginning, and one at its end, that stand for it."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    ahead, behind = {a for a, _ in folds}, {b for _, b in folds}
    levels = scene.levels()
    for node, members in reversed(scene.members.items()):
        deepest = max(levels[member] for member in members)
        starts = [each for each in members if not levels[each] and each not in behind]
        ends = [each for each in members if levels[each] == deepest and each not in ahead]
        start, end = starts[len(starts) // 2], ends[len(ends) // 2]
        first[node], last[node] = first.get(start, start), last.get(end, end)
    return first, last


def _folds(scene: Scene) -> Iterator[tuple[int, int]]:
    """Pairs of boxes that are put one after the other, so that a long row becomes a square."""
    busy = {node for arrow in scene.arrows for node in arrow}
    for members in scene.members.values():
        loose = [each for each in members if each not in scene.members and each not in busy]
        if len(loose) > 8:
            length = max(4, round(math.sqrt(len(loose)) * 0.6))
            yield from zip(loose, loose[length:], strict=False)


def _quoted(text: str) -> str:
    """A string of DOT: no escape of a label in it, no entity, nothing that ends it."""
    shown = labels.clean(text).replace("\t", " ")
    for mark, escaped in (("\\", "\\\\"), ('"', '\\"'), ("&", "&amp;"), ("\n", "\\n")):
        shown = shown.replace(mark, escaped)
    return f'"{labels.by_number(shown)}"'


# -- SVG ------------------------------------------------------------------------------------------


def svg(
    scene: Scene,
    direction: str,
    *,
    states: bool,
    standalone: bool = True,
    link: Link | None = None,
    toggle: Toggle | None = None,
) -> str:
    """The picture as text; `standalone` has its own style sheet.

    Graphviz is told numbers only, so that its answer serves all flows of the same structure.  What
    the boxes are named, and how they are, is filled in here: by classes, without inline styles.

    :raises DrawingFailed: see `run`.
    """

    def box(box: NodeView) -> str:
        shape = f"shape={_SHAPES[box.kind]}, " if box.kind in _SHAPES else ""
        label = r"x\nx" if states or not box.is_atom else "x"
        return f'{shape}label="{label}", fixedsize=true, width=2.7, height=0.62, fontsize=13'

    _program()  # without it nothing is drawn, not even what was drawn before
    many = len(scene.items) - len(scene.members) > _MANY
    root = ET.fromstring(_arranged(_digraph(scene, direction, box, lambda frame: '"x"'), many))
    width, height = (root.get("viewBox") or "0 0 0 0").split()[2:]
    name = f"Graph of flow {scene.name}"
    root.attrib.update({"class": "wbe-graph", "role": "group", "aria-label": labels.clean(name)})
    root.attrib.update(width=f"{float(width):.0f}", height=f"{float(height):.0f}")
    for group in [*root.iter(f"{{{_SVG}}}g")]:
        group.attrib.pop("id", None)
        title = group.find(f"{{{_SVG}}}title")
        if title is None or title.text is None:
            continue
        kind, node = (group.get("class") or "").partition(" ")[0], title.text.rpartition("_")[2]
        if kind == "node":
            shown = scene.items[int(node[1:])]
            _fill_box(group, title, shown, _address(shown, link, toggle))
        elif kind == "cluster":
            frame = scene.items[int(node)]
            is_root = frame.node == scene.root
            closing = None if toggle is None or is_root else toggle(frame.node, False)
            _fill_frame(group, title, frame, closing)
        else:
            group.remove(title)
            if kind == "edge":
                group.set("aria-hidden", "true")
    title = ET.Element(f"{{{_SVG}}}title")
    title.text = labels.clean(name)
    root.insert(0, title)
    if standalone:
        style = ET.Element(f"{{{_SVG}}}style")
        style.text = styles.STYLESHEET
        root.insert(1, style)
    ET.register_namespace("", _SVG)
    return labels.by_number(ET.tostring(root, encoding="unicode"))


@functools.lru_cache(_KEPT)
def _arranged(text: str, many: bool) -> bytes:
    """The SVG of a graph without names; it is found once for a structure."""
    return run(text, "svg", *(_LESS_CARE if many else ()))


def _address(box: NodeView, link: Link | None, toggle: Toggle | None) -> str | None:
    if box.atom is not None and box.atom.uuid and link is not None:
        return link(box.atom)
    if not box.is_atom and box.size and toggle is not None:
        return toggle(box.node, True)
    return None


def _fill_box(group: ET.Element, title: ET.Element, box: NodeView, address: str | None) -> None:
    atom, line = box.atom, labels.line(box)
    uuid = None if atom is None else atom.uuid
    title.text = labels.clean("\n".join(labels.tell(box)))
    _shape(group)
    texts = group.findall(f"{{{_SVG}}}text")
    for text, field in zip(texts, ("name", "state"), strict=False):
        text.attrib.pop("font-family", None)
        text.attrib.pop("font-size", None)
        text.set("class", field)
    icon = ET.SubElement(texts[0], f"{{{_SVG}}}tspan", {"class": "icon", "data-field": "icon"})
    texts[0].text, icon.text = None, styles.icon(box.state)
    icon.tail = " " + labels.clean(labels.shortened(box.name, _NAME))
    if len(texts) > 1:
        texts[1].text = labels.clean(labels.shortened(line, _NAME + 8))
    kind = box.kind if box.is_atom else f"{box.kind} collapsed"
    kind += " failed" if atom is not None and atom.failed_before else ""
    label = labels.clean(f"{box.name}, {line or styles.word(box.state)}")
    group.attrib.update({"class": f"atom kind-{kind} {_class_of(box.state)}", "aria-label": label})
    group.attrib["data-node"] = str(box.node)
    if uuid:
        group.attrib["data-uuid"] = labels.clean(uuid)
    if address is None:
        group.attrib.update(tabindex="0", role="img")
        return
    # A link around the group: what is in it moves into a group of its own.
    inner = ET.Element(group.tag, dict(group.attrib))
    inner.extend(list(group))
    tail = group.tail
    group.clear()
    group.tag, group.tail = f"{{{_SVG}}}a", tail
    label = label if box.is_atom else f"Open {label}"
    group.attrib.update({"href": labels.clean(address), "aria-label": label})
    group.append(inner)


def _fill_frame(group: ET.Element, title: ET.Element, frame: NodeView, closing: str | None) -> None:
    said = [f"flow {frame.name}", labels.counted(frame.atom_counts)]
    title.text = labels.clean("\n".join([*said, *([frame.notes] if frame.notes else [])]))
    shape, text = _shape(group), group.find(f"{{{_SVG}}}text")
    if text is not None:
        text.attrib.pop("font-family", None)
        left = min(float(each) for each in _NUMBER.findall(shape.get("d") or "0")[::2])
        text.set("x", f"{left + 10:.1f}")
        icon = ET.SubElement(text, f"{{{_SVG}}}tspan", {"class": "icon"})
        text.text, icon.text = None, styles.icon(frame.state)
        icon.tail = " " + labels.clean(labels.shortened(frame.name, _FRAME_NAME))
        if closing is not None:
            label = labels.clean(f"Close {frame.name}")
            around = ET.Element(
                f"{{{_SVG}}}a", {"href": labels.clean(closing), "aria-label": label}
            )
            group.insert(list(group).index(text), around)
            group.remove(text)
            around.append(text)
    group.attrib["class"] = f"flow {_class_of(frame.state)}"
    group.attrib["data-node"] = str(frame.node)


def _shape(group: ET.Element) -> ET.Element:
    """Mark what is the border of a box or a frame, and leave its colours to the style sheet."""
    found = [each for each in group if each.tag.rpartition("}")[2] not in ("title", "text")]
    for each in found:
        each.set("class", "shape")
    return found[0]


def _class_of(state: str) -> str:
    """States are words, whatever somebody wrote into a store."""
    return f"state-{state if state in styles.STATES else 'PENDING'}"

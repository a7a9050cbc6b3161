"""SVG and PNG drawings by Graphviz, whose program `dot` computes the layout."""

from __future__ import annotations

import functools
import itertools
import math
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from xml.etree import ElementTree as ET

from wbengine import exceptions
from wbengine.drawing import _box_text, _styles
from wbengine.drawing._scene import Scene
from wbengine.types import _outline as outlines
from wbengine.views._atoms import AtomView
from wbengine.views._structure import WORKFLOW, NodeView

__all__ = ["INSTALL", "DrawingFailed", "Link", "Toggle", "available", "dot", "run", "svg"]

TIMEOUT_SECONDS: Final = 10.0
#: Drawings with more boxes have a simpler and faster layout.
_MAX_CAREFUL_BOXES: Final = 400
_FAST_OPTIONS: Final = ("-Gmclimit=0.1", "-Gnslimit=0.1", "-Gnslimit1=0.5", "-Gsplines=line")
_MAX_CACHED_LAYOUTS: Final = 64
INSTALL: Final = "install it with `apt-get install graphviz` or `brew install graphviz`"

#: Returns the address that an atom links to.
Link = Callable[[AtomView], str]

#: Returns the address that opens (True) or collapses (False) the flow at a node.
Toggle = Callable[[int, bool], str]

_SVG: Final = "http://www.w3.org/2000/svg"
#: Bytes that each valid output contains.
_EXPECTED_BYTES: Final = {"svg": b"<svg", "png": b"\x89PNG\r\n\x1a\n"}
_SHAPES: Final = {
    outlines.RETRY: "ellipse",
    outlines.MAP: "box3d",
    outlines.FLOW: "folder",
    WORKFLOW: "folder",
}
_NUMBER: Final = re.compile(r"-?[\d.]+")
#: Maximum length of a name in a box and in the corner of a frame, in characters.
_MAX_NAME_LENGTH: Final = 24
_MAX_FRAME_NAME_LENGTH: Final = 28

# At most two processes run at a time. An interrupt can leave a semaphore acquired, but not a lock.
_process_locks: Final = itertools.cycle((threading.Lock(), threading.Lock()))


class DrawingFailed(exceptions.WbengineException):
    """Graphviz is not installed, crashed, took too long, or produced no drawing."""


def available() -> bool:
    """Return True if Graphviz is installed."""
    return shutil.which("dot") is not None


def _program() -> str:
    path = shutil.which("dot")
    if path is None:
        raise DrawingFailed(f"SVG and PNG need Graphviz, but the program dot is missing; {INSTALL}")
    return path


def run(text: str, format: str, *options: str) -> bytes:
    """Return the drawing ('svg' or 'png') of a graph in the DOT language.

    :raises DrawingFailed: if Graphviz is not installed, crashed, took too long, or failed.
    """
    program = _program()
    with next(_process_locks):
        try:
            process = subprocess.run(
                [program, f"-T{format}", *options],
                input=text.encode(),
                capture_output=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DrawingFailed(
                f"Graphviz did not finish within {TIMEOUT_SECONDS:g} s and was terminated"
            ) from None
        except OSError as error:
            raise DrawingFailed(f"cannot start Graphviz: {error}", error) from error
    if process.returncode < 0:
        raise DrawingFailed(f"Graphviz crashed (signal {-process.returncode})")
    if process.returncode:
        last_lines = process.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [
            "no error message"
        ]
        raise DrawingFailed(f"Graphviz failed: {last_lines[0][:300]}")
    if _EXPECTED_BYTES[format] not in process.stdout:
        raise DrawingFailed(f"Graphviz must write {format.upper()}, got other data")
    return process.stdout


def dot(scene: Scene, direction: str, *, states: bool) -> str:
    """Return the scene in the DOT language. With `states`, boxes are coloured by their states."""

    def box(box: NodeView) -> str:
        label = _box_text.shortened(box.name, 60)
        line = _box_text.line(box) if states or not box.is_atom else ""
        attributes = [f"shape={_SHAPES[box.kind]}"] if box.kind in _SHAPES else []
        if states:
            style = _styles.style_of(box.state)
            label = f"{style.icon} {label}"
            failed = box.atom is not None and box.atom.failed_before
            border = _styles.STATES["FAILURE"].colour if failed else style.colour
            attributes += [f'fillcolor="{style.fill}"', f'color="{border}"']
        return ", ".join([f"label={_quoted(label + (line and chr(10) + line))}", *attributes])

    def frame(frame: NodeView) -> str:
        return _quoted((f"{_styles.icon(frame.state)} " if states else "") + frame.name)

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
    wrapped_pairs = list(_wrapped_pairs(scene))
    first, last = _end_boxes(scene, wrapped_pairs)
    retries = set(scene.retries.values())
    for source, target in scene.arrows:
        options = [f"ltail=cluster_{source}"] if source in scene.members else []
        options += [f"lhead=cluster_{target}"] if target in scene.members else []
        # A longer arrow leaves space for the border of the frame.
        options += ["minlen=2"] if target in scene.members else []
        options += ['class="retries"'] if source in retries else []
        attributes = f" [{', '.join(options)}]" if options else ""
        lines.append(f"  n{last.get(source, source)} -> n{first.get(target, target)}{attributes};")
    lines += [f"  n{a} -> n{b} [style=invis];" for a, b in wrapped_pairs]
    return "\n".join([*lines, "}\n"])


def _end_boxes(
    scene: Scene, wrapped_pairs: Sequence[tuple[int, int]]
) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Return frame -> a box at its beginning, and frame -> a box at its end, for its arrows."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    wrapped_from, wrapped_to = {a for a, _ in wrapped_pairs}, {b for _, b in wrapped_pairs}
    levels = scene.levels()
    for node, members in reversed(scene.members.items()):
        deepest = max(levels[member] for member in members)
        starts = [each for each in members if not levels[each] and each not in wrapped_to]
        ends = [each for each in members if levels[each] == deepest and each not in wrapped_from]
        start, end = starts[len(starts) // 2], ends[len(ends) // 2]
        first[node], last[node] = first.get(start, start), last.get(end, end)
    return first, last


def _wrapped_pairs(scene: Scene) -> Iterator[tuple[int, int]]:
    """Yield pairs of unconnected boxes for invisible arrows that turn a long row into a square."""
    connected = {node for arrow in scene.arrows for node in arrow}
    for members in scene.members.values():
        loose = [each for each in members if each not in scene.members and each not in connected]
        if len(loose) > 8:
            length = max(4, round(math.sqrt(len(loose)) * 0.6))
            yield from zip(loose, loose[length:], strict=False)


def _quoted(text: str) -> str:
    """Return a string of DOT without escape sequences, entities and unescaped quotes."""
    quoted = _box_text.clean(text).replace("\t", " ")
    for mark, escaped in (("\\", "\\\\"), ('"', '\\"'), ("&", "&amp;"), ("\n", "\\n")):
        quoted = quoted.replace(mark, escaped)
    return f'"{_box_text.with_references(quoted)}"'


def svg(
    scene: Scene,
    direction: str,
    *,
    states: bool,
    standalone: bool = True,
    link: Link | None = None,
    toggle: Toggle | None = None,
) -> str:
    """Return the drawing as text; with `standalone`, with its style sheet.

    Graphviz receives numbers instead of names, so that flows of the same structure share its cached
    output. Names and states are inserted afterwards; states as classes, not as inline styles.

    :raises DrawingFailed: see `run`.
    """

    def box(box: NodeView) -> str:
        shape = f"shape={_SHAPES[box.kind]}, " if box.kind in _SHAPES else ""
        label = r"x\nx" if states or not box.is_atom else "x"
        return f'{shape}label="{label}", fixedsize=true, width=2.7, height=0.62, fontsize=13'

    _program()  # Fails without Graphviz, even if the output is cached.
    has_many_boxes = len(scene.items) - len(scene.members) > _MAX_CAREFUL_BOXES
    root = ET.fromstring(
        _layout(_digraph(scene, direction, box, lambda frame: '"x"'), has_many_boxes)
    )
    width, height = (root.get("viewBox") or "0 0 0 0").split()[2:]
    name = f"Graph of flow {scene.name}"
    root.attrib.update({"class": "wbe-graph", "role": "group", "aria-label": _box_text.clean(name)})
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
    title.text = _box_text.clean(name)
    root.insert(0, title)
    if standalone:
        style = ET.Element(f"{{{_SVG}}}style")
        style.text = _styles.STYLESHEET
        root.insert(1, style)
    ET.register_namespace("", _SVG)
    return _box_text.with_references(ET.tostring(root, encoding="unicode"))


@functools.lru_cache(_MAX_CACHED_LAYOUTS)
def _layout(text: str, has_many_boxes: bool) -> bytes:
    """Return the SVG of a graph without names, cached by structure."""
    return run(text, "svg", *(_FAST_OPTIONS if has_many_boxes else ()))


def _address(box: NodeView, link: Link | None, toggle: Toggle | None) -> str | None:
    if box.atom is not None and box.atom.uuid and link is not None:
        return link(box.atom)
    if not box.is_atom and box.size and toggle is not None:
        return toggle(box.node, True)
    return None


def _fill_box(group: ET.Element, title: ET.Element, box: NodeView, address: str | None) -> None:
    atom, line = box.atom, _box_text.line(box)
    uuid = None if atom is None else atom.uuid
    title.text = _box_text.clean("\n".join(_box_text.tooltip(box)))
    _shape(group)
    texts = group.findall(f"{{{_SVG}}}text")
    for text, field in zip(texts, ("name", "state"), strict=False):
        text.attrib.pop("font-family", None)
        text.attrib.pop("font-size", None)
        text.set("class", field)
    icon = ET.SubElement(texts[0], f"{{{_SVG}}}tspan", {"class": "icon", "data-field": "icon"})
    texts[0].text, icon.text = None, _styles.icon(box.state)
    icon.tail = " " + _box_text.clean(_box_text.shortened(box.name, _MAX_NAME_LENGTH))
    if len(texts) > 1:
        texts[1].text = _box_text.clean(_box_text.shortened(line, _MAX_NAME_LENGTH + 8))
    kind = box.kind if box.is_atom else f"{box.kind} collapsed"
    kind += " failed" if atom is not None and atom.failed_before else ""
    label = _box_text.clean(f"{box.name}, {line or _styles.word(box.state)}")
    group.attrib.update({"class": f"atom kind-{kind} {_class_of(box.state)}", "aria-label": label})
    group.attrib["data-node"] = str(box.node)
    if uuid:
        group.attrib["data-uuid"] = _box_text.clean(uuid)
    if address is None:
        group.attrib.update(tabindex="0", role="img")
        return
    # The link encloses the group: its content moves into an inner group.
    inner = ET.Element(group.tag, dict(group.attrib))
    inner.extend(list(group))
    tail = group.tail
    group.clear()
    group.tag, group.tail = f"{{{_SVG}}}a", tail
    label = label if box.is_atom else f"Open {label}"
    group.attrib.update({"href": _box_text.clean(address), "aria-label": label})
    group.append(inner)


def _fill_frame(group: ET.Element, title: ET.Element, frame: NodeView, closing: str | None) -> None:
    lines = [f"{frame.kind} {frame.name}", _box_text.counted(frame.atom_counts)]
    title.text = _box_text.clean("\n".join([*lines, *([frame.notes] if frame.notes else [])]))
    shape, text = _shape(group), group.find(f"{{{_SVG}}}text")
    if text is not None:
        text.attrib.pop("font-family", None)
        left = min(float(each) for each in _NUMBER.findall(shape.get("d") or "0")[::2])
        text.set("x", f"{left + 10:.1f}")
        icon = ET.SubElement(text, f"{{{_SVG}}}tspan", {"class": "icon"})
        text.text, icon.text = None, _styles.icon(frame.state)
        icon.tail = " " + _box_text.clean(_box_text.shortened(frame.name, _MAX_FRAME_NAME_LENGTH))
        if closing is not None:
            label = _box_text.clean(f"Close {frame.name}")
            anchor = ET.Element(
                f"{{{_SVG}}}a", {"href": _box_text.clean(closing), "aria-label": label}
            )
            group.insert(list(group).index(text), anchor)
            group.remove(text)
            anchor.append(text)
    group.attrib["class"] = f"flow {_class_of(frame.state)}"
    group.attrib["data-node"] = str(frame.node)


def _shape(group: ET.Element) -> ET.Element:
    """Mark the border of a box or frame; the style sheet defines its colours."""
    shapes = [shape for shape in group if shape.tag.rpartition("}")[2] not in ("title", "text")]
    for shape in shapes:
        shape.set("class", "shape")
    return shapes[0]


def _class_of(state: str) -> str:
    return f"state-{state if state in _styles.STATES else 'PENDING'}"

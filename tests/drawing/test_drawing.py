"""Drawings of flows: text, Mermaid, DOT, JSON, SVG, PNG and charts; steps of workflows."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import shutil
import subprocess
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.drawing.flow_views import HOSTILE, hostile, view_of
from tests.support import cpu_time, shown_workflows
from tests.views import canaries, records
from wbengine import drawing, engines, states, task
from wbengine.drawing import _styles
from wbengine.patterns import linear_flow
from wbengine.persistence import backends
from wbengine.types._outline import FLOW, TASK, Outline, OutlineNode
from wbengine.views import _timeline as timelines
from wbengine.views import flow_status as flows

CRASH = "kill -SEGV $$"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def dot(tmp_path, monkeypatch):
    """Return a function that replaces Graphviz' dot with a script; None removes dot."""

    def make(script):
        if script is not None:
            program = tmp_path / "dot"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))

    return make


def outline_of(count, edges=()):
    nodes = (OutlineNode(f"{n}", TASK if n else FLOW, 0 if n else None) for n in range(count))
    return Outline(tuple(nodes), tuple(edges))


# -- text -----------------------------------------------------------------------------------------


def test_text_tree_shows_states_times_and_workers():
    view = view_of(records.failed())
    assert (
        drawing.draw(view.outline, view)
        == """\
order  REVERTED  3 of 7 tasks done, 2 reverted, 1 ignored  21 s
├── ✔ check  3/3
│   ├── ✔ read cart  1.0 s  on host-a:1
│   ├── ✔ check stock  2.5 s  on host-b:7
│   └── ⊘ check address  ignored
├── ↶ pay  0/2
│   ├── ✔ pay again  (retry)  0 s
│   ├── ↶ reserve  reverted  attempt 2  400 ms, reverted in 300 ms  on host-a:1
│   └── ↶ capture  failed, reverted  attempt 2  400 ms, reverted in 300 ms  on host-a:1\
  ValueError: card refused
├── ○ notify  (map)
└── ○ archive  after notify, pay  [joins: ANY]
"""
    )


def test_text_tree_without_states_shows_names_only():
    _, outline = records.order()
    assert drawing.draw(outline).splitlines()[:4] == [
        "order  8 atoms", "├── check", "│   ├── read cart", "│   ├── check stock",
    ]  # fmt: skip
    assert drawing.draw(outline, root=5).splitlines() == [
        "pay  3 atoms", "├── pay again  (retry)", "├── reserve", "└── capture",
    ]  # fmt: skip


@pytest.mark.slow
def test_text_tree_of_many_flows_is_shortened():
    view = view_of(records.wide(50_000))
    lines = drawing.draw(view.outline, view).splitlines()
    assert len(lines) < 300
    assert "... " in lines[-1] and "pending" in lines[-1]


def test_text_tree_of_one_large_flow_fills_the_available_rows():
    head, *members, last = drawing.draw(outline_of(10_001)).splitlines()
    assert head == "0  10,000 atoms"
    assert members == [f"├── {number}" for number in range(1, len(members) + 1)]
    assert 150 < len(members) < 200
    assert last == f"└── ... {10_000 - len(members):,} more tasks"


def test_text_tree_of_large_flows_shows_part_of_each():
    nodes = [OutlineNode("root", FLOW, None)]
    for part in "abc":
        around = len(nodes)
        nodes.append(OutlineNode(part, FLOW, 0))
        nodes += [OutlineNode(f"{part}-{number}", TASK, around) for number in range(1_000)]
    text = drawing.draw(Outline(tuple(nodes), ()))
    assert 150 < len(text.splitlines()) <= 202
    for part, more in zip("abc", re.findall(r"\.\.\. (\d+) more tasks", text), strict=True):
        assert 50 < text.count(f"── {part}-") == 1_000 - int(more)


# -- text for other programs ----------------------------------------------------------------------


def test_mermaid_contains_flows_nodes_edges_and_states():
    view = view_of(records.order())
    text = drawing.draw(view.outline, view, format="mermaid", direction="LR")
    assert text.startswith("flowchart LR\n")
    assert '  subgraph n0["▶ order"]\n    subgraph n1["✔ check"]\n' in text
    assert 'n6(["✔ pay again' in text
    assert "n1 --> n5" in text
    assert "n6 --> n7" in text  # from the retry controller to its first atom
    assert "classDef SUCCESS fill:" in text
    assert "classDef" not in drawing.draw(view.outline, format="mermaid")


def test_mermaid_labels_contain_no_markup():
    view = view_of(hostile())
    text = drawing.draw(view.outline, view, format="mermaid")
    labels = re.findall(r'"([^"]*)"', text)
    assert len(labels) == 4
    for label in labels:
        assert not re.search(r"[<>\[\](){}\\`*$%\x00-\x1f]", label.replace("<br>", ""))


def test_dot_is_valid_for_graphviz_and_contains_names():
    view = view_of(hostile())
    text = drawing.draw(view.outline, view, format="dot")
    picture = subprocess.run(["dot", "-Tsvg"], input=text.encode(), capture_output=True, check=True)
    assert "a </text><script>" in "".join(ET.fromstring(picture.stdout).itertext())


def test_json_contains_nodes_edges_and_states():
    view = view_of(records.order())
    graph = json.loads(drawing.draw(view.outline, view, format="json"))
    assert graph["schema"] == "wbengine/graph/1"
    assert [node["name"] for node in graph["nodes"]] == [node.name for node in view.outline.nodes]
    assert graph["nodes"][2]["state"] == "SUCCESS"
    assert graph["nodes"][2]["parent"] == 1
    assert [1, 5] in graph["edges"]
    assert "state" not in json.loads(drawing.draw(view.outline, format="json"))["nodes"][2]


# -- SVG ------------------------------------------------------------------------------------------


def svg(order, **options):
    view = view_of(order)
    return ET.fromstring(drawing.draw(view.outline, view, format="svg", **options))


@pytest.mark.parametrize("direction", ["LR", "TB"])
def test_svg_shows_icon_word_and_class_of_every_atom(direction):
    order = records.order()
    root = svg(order, direction=direction)
    view = view_of(order)
    assert root.get("role") == "group"
    shown = {
        int(g.get("data-node")): g for g in root.iter(f"{SVG}g") if "atom" in g.get("class", "")
    }
    assert set(shown) == {atom.node for atom in view.atoms}
    for atom in view.atoms:
        group = shown[atom.node]
        assert f"state-{atom.state}" in group.get("class").split()
        assert f"kind-{atom.kind}" in group.get("class").split()
        assert group.get("data-uuid") == atom.uuid
        assert group.get("tabindex") == "0"
        assert atom.name in group.get("aria-label")
        texts = {text.get("class"): "".join(text.itertext()) for text in group.iter(f"{SVG}text")}
        assert texts["name"] == f"{_styles.icon(atom.state)} {atom.name}"
        assert texts["state"].startswith(_styles.word(atom.state))
        assert group.find(f"{SVG}title").text.startswith(f"{atom.kind} {atom.name}")
    frames = [g for g in root.iter(f"{SVG}g") if g.get("class", "").startswith("flow")]
    assert [g.get("data-node") for g in frames] == ["0", "1", "5"]
    assert ["".join(g.find(f"{SVG}text").itertext()) for g in frames] == [
        "▶ order", "✔ check", "▶ pay",
    ]  # fmt: skip


@pytest.mark.parametrize("standalone", [True, False])
def test_svg_escapes_hostile_names(standalone):
    view = view_of(hostile())
    text = drawing.draw(
        view.outline, view, format="svg", standalone=standalone,
        link=lambda atom: f"/x?{HOSTILE}",
    )  # fmt: skip
    root = ET.fromstring(text.encode())
    assert not list(root.iter(f"{SVG}script")) + list(root.iter("script"))
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in {
            "svg", "g", "title", "style", "text", "tspan", "path", "polygon", "a",
        }  # fmt: skip
        assert not {name for name in element.attrib if name.startswith("on") or name == "style"}
        assert "<b" not in element.get("class", "")
    assert bool(list(root.iter(f"{SVG}style"))) == standalone
    assert "a </text><script>" in "".join(root.itertext())


@pytest.mark.parametrize("format", ["svg", "mermaid", "dot", "text"])
def test_pictures_mark_atom_that_failed_before_its_revert(format):
    view = view_of(records.failed())
    text = drawing.draw(view.outline, view, format=format)
    assert text.count("failed, reverted") >= 1
    around = text[: text.index("failed, reverted")].rpartition("reserve")[2]
    assert "capture" in around
    if format == "svg":
        failed = [g for g in ET.fromstring(text).iter() if "failed" in g.get("class", "").split()]
        assert [g.get("data-node") for g in failed] == ["8"]


def test_svg_loads_no_external_resource():
    view = view_of(records.order())
    text = drawing.draw(view.outline, view, format="svg")
    assert not re.search(r"url\(|@import|href|(?<!xmlns=\")https?://", text)


def test_svg_nodes_link_to_given_targets():
    root = svg(records.order(), link=lambda atom: f"#{atom.node}")
    assert [a.get("href") for a in root.iter(f"{SVG}a")][:2] == ["#2", "#3"]


SPACED = "क्\u200cष 👩\u200d🔧 a\u00a0b 全\u3000角"


@pytest.mark.parametrize("format", ["svg", "dot"])
def test_joiners_and_wide_spaces_of_names_are_preserved(format):
    outline = Outline((OutlineNode("f", FLOW, None), OutlineNode(SPACED, TASK, 0)), ())
    text = drawing.draw(outline, format=format)
    assert "\ufffd" not in text
    assert "क्\u200cष" in text and "👩\u200d🔧" in text
    if format == "svg":
        (atom,) = (g for g in ET.fromstring(text).iter() if "atom" in g.get("class", ""))
        assert atom.get("aria-label").startswith(SPACED)


@pytest.mark.parametrize("format", ["svg", "dot"])
def test_control_characters_of_names_are_replaced(format):
    name = "a\x1b[31m\x9b\x7f\x00\ufffe\ud800 b\u202ec\u2066\u200f"
    outline = Outline((OutlineNode("f", FLOW, None), OutlineNode(name, TASK, 0)), ())
    text = drawing.draw(outline, format=format)
    orders = "\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\ud800\u200f\u2028-\u202e\u2066-\u2069"
    assert not re.search(f"[{orders}]", text)
    picture = subprocess.run(["dot", "-Tsvg"], input=text.encode(), capture_output=True).stdout
    shown = "".join(ET.fromstring(text if format == "svg" else picture).itertext())
    assert "\ufffd[31m" in shown and " b\u202ec\u2066\u200f" in shown


# -- large flows -----------------------------------------------------------------------------------


def test_graph_of_1000_atoms_is_drawn_within_a_second():
    view = view_of(records.wide(1000))
    draw = lambda: drawing.draw(view.outline, view, format="svg")  # noqa: E731
    assert cpu_time.seconds(draw) < 3  # with Graphviz's process
    root = ET.fromstring(draw())
    assert len([g for g in root.iter(f"{SVG}g") if g.get("class", "").startswith("atom")]) == 1000
    assert cpu_time.minimum_seconds(draw) < 0.5


@functools.cache
def huge():
    return view_of(records.wide(20_000))


@pytest.mark.slow
def test_graph_of_20000_atoms_is_collapsed_to_its_flows():
    view = huge()
    graph = json.loads(drawing.draw(view.outline, view, format="json"))
    boxes = [node for node in graph["nodes"] if node.get("collapsed")]
    assert graph["collapsed"] and len(boxes) == 200 and len(graph["edges"]) == 199
    assert {box["kind"] for box in boxes} == {FLOW}
    assert (boxes[0]["size"], boxes[0]["counts"]) == (100, {"SUCCESS": 100})
    assert boxes[0]["state"] == "SUCCESS"
    text = drawing.draw(view.outline, view, format="svg")
    assert len(text) < 300_000
    assert "100 atoms" in text


def test_large_flat_flow_is_collapsed_to_groups():
    view = view_of(records.flat(1_000))
    graph = json.loads(drawing.draw(view.outline, view, format="json", max_atoms=900))
    boxes = [node for node in graph["nodes"] if "size" in node]
    assert len(boxes) < 60
    assert sum(box["size"] for box in boxes) == 1_000
    assert {box["kind"] for box in boxes} == {"group"}
    assert boxes[0]["counts"] == {"SUCCESS": 11, "PENDING": 10}
    assert boxes[0]["name"] == "task-0 … task-20"


def test_part_of_a_flow_is_drawn_alone():
    view = huge()
    part = json.loads(drawing.draw(view.outline, view, format="json", root=1))
    assert part["name"] == "part-0"
    assert len(part["nodes"]) == 101
    one = drawing.draw(view.outline, view, format="svg", root=2)
    assert "task-0" in one


@pytest.mark.slow
def test_deep_flow_is_drawn_without_recursion():
    nodes = [OutlineNode("f0", FLOW, None)]
    nodes += [OutlineNode(f"f{depth}", FLOW, depth - 1) for depth in range(1, 1500)]
    nodes.append(OutlineNode("last", TASK, 1499))
    outline = Outline(tuple(nodes), ())
    for format in ("text", "mermaid", "dot", "json"):
        assert "last" in drawing.draw(outline, format=format)


# -- Graphviz -------------------------------------------------------------------------------------


def test_layout_is_computed_once_per_structure(dot, tmp_path):
    calls = tmp_path / "calls"
    dot(f'echo x >> {calls}; exec {shutil.which("dot")} "$@"')
    outline = outline_of(7, ((1, 3), (2, 4), (1, 4), (3, 6), (2, 5)))
    named = Outline(tuple(n._replace(name=f"x{n.name}") for n in outline.nodes), outline.edges)
    other = Outline(outline.nodes, outline.edges[:-1])
    for each in (outline, named, outline, other):
        assert each.nodes[1].name in drawing.draw(each, format="svg", direction="LR")
    assert calls.read_text() == "x\nx\n"


def test_redundant_edges_are_omitted():
    nodes = [OutlineNode(f"{n}", TASK if n else FLOW, 0 if n else None) for n in range(6)]
    edges = ((1, 2), (2, 3), (1, 3), (3, 4), (1, 4), (5, 4), (1, 5))
    outline = Outline(tuple(nodes), edges)
    text = drawing.draw(outline, format="mermaid")
    assert sorted(re.findall(r"n(\d) --> n(\d)", text)) == [
        ("1", "2"), ("1", "5"), ("2", "3"), ("3", "4"), ("5", "4"),
    ]  # fmt: skip
    assert len(json.loads(drawing.draw(outline, format="json"))["edges"]) == len(edges)


def test_unordered_flow_is_laid_out_as_a_square():
    root = ET.fromstring(drawing.draw(outline_of(101), format="svg", direction="TB"))
    assert float(root.get("width")) < 2000
    assert float(root.get("height")) < 2000


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("exec sleep 60", "did not finish within 0.5 s and was terminated"),
        (CRASH, "crashed (signal 11)"),
        ("echo no memory >&2; exit 1", "Graphviz failed: no memory"),
        ("cat > /dev/null", "Graphviz must write "),
        ("cat > /dev/null; echo rubbish", "Graphviz must write "),
        ("cat > /dev/null; echo '<html/>'", "Graphviz must write "),
        (None, "but the program dot is missing; install it with `apt-get install graphviz`"),
    ],
)
def test_page_shows_tree_and_reason_if_graphviz_fails(program, words, dot, monkeypatch):
    if program and "sleep" in program:
        monkeypatch.setattr("wbengine.drawing._graphviz.TIMEOUT_SECONDS", 0.5)
    dot(program)
    view = view_of(records.flat(len(words)))  # unique, because layouts are cached
    for make in (drawing.png, functools.partial(drawing.draw, format="svg")):
        with pytest.raises(drawing.DrawingFailed, match=re.escape(words)):
            make(view.outline, view, direction="LR")
    page = drawing.html(view.outline, view)
    assert words in page
    assert "└──" in page


def test_tree_of_page_escapes_hostile_names(dot):
    dot(None)
    view = view_of(hostile())
    page = drawing.html(view.outline, view)
    assert "a &lt;/text&gt;&lt;script&gt;" in page
    assert "<script" not in page


@pytest.mark.parametrize("fails", ["exit 1", "echo rubbish", CRASH])
def test_failure_of_graphviz_is_not_cached(fails, dot, tmp_path):
    outline = outline_of(9 + len(fails), ((1, 2), (3, 5), (4, 8)))  # not cached yet
    good = tmp_path / "good"
    dot(f'[ -e {good} ] || {{ {fails}; exit; }}; exec {shutil.which("dot")} "$@"')
    draw = functools.partial(drawing.draw, outline, format="svg")
    with pytest.raises(drawing.DrawingFailed):
        draw()
    good.touch()
    assert "<svg" in draw()


def test_picture_is_drawn_after_graphviz_is_installed(dot, monkeypatch):
    outline = outline_of(6, ((1, 2), (3, 5)))
    here = shutil.which("dot")
    dot(None)
    with pytest.raises(drawing.DrawingFailed, match="missing"):
        drawing.draw(outline, format="svg")
    dot(f'exec {here} "$@"')
    assert "<svg" in drawing.draw(outline, format="svg")


def test_graphviz_receives_no_names(dot, tmp_path):
    dot(f"cat > {tmp_path}/told; exit 1")
    view = view_of(hostile())
    with pytest.raises(drawing.DrawingFailed):
        drawing.draw(view.outline, view, format="svg", direction="TB", root=1)
    received = (tmp_path / "told").read_text()
    assert "digraph" in received
    assert "script" not in received


def test_png_has_the_png_signature():
    view = view_of(hostile())
    image = drawing.png(view.outline, view)
    assert image.startswith(b"\x89PNG")
    assert len(image) > 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "svgg"}, "got 'svgg' (did you mean 'svg'?)"),
        ({"direction": "RL"}, "direction must be one of auto, LR, TB, got 'RL'"),
        ({"root": 99}, "root must be a node from 0 to 10, got 99"),
        ({"format": "png"}, "use wbengine.drawing.png"),
    ],
)
def test_invalid_options_are_refused(options, words):
    _, outline = records.order()
    with pytest.raises(ValueError, match=re.escape(words)):
        drawing.draw(outline, **options)


# -- the chart, and secrets -----------------------------------------------------------------------


def test_chart_shows_every_attempt():
    view = view_of(records.failed())
    root = ET.fromstring(drawing.chart(timelines.timeline(view), link=lambda bar: f"#{bar.node}"))
    bars = [g for g in root.iter(f"{SVG}g") if g.get("class", "").startswith("attempt")]
    assert len(bars) == 7
    assert sum("revert" in g.get("class").split() for g in bars) == 2
    assert any("ValueError: card refused" in (g.find(f"{SVG}title").text or "") for g in bars)
    assert root.get("role") == "group"


def test_chart_of_many_attempts_is_small():
    view = huge()
    assert len(drawing.chart(timelines.timeline(view))) < 500_000


def test_chart_escapes_hostile_names():
    ET.fromstring(drawing.chart(timelines.timeline(view_of(hostile()))).encode("utf-8", "replace"))


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("state", _styles.STATES)
def test_colors_of_a_state_have_readable_contrast(state, scheme):
    """The contrast that WCAG requires for text."""
    colours = [
        re.findall(rf"--{name}-{state}:(#[0-9a-f]{{6}})", drawing.STYLESHEET)[scheme]
        for name in ("c", "f")
    ]
    dark, bright = sorted(map(luminance, colours))
    assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_every_state_has_its_own_icon_and_word():
    assert set(_styles.STATES) == {
        *(*states.FLOW_STATES, *states.ATOM_STATES),
        *("INTERRUPTED", "QUEUED", "WAITING", "BLOCKED", "REQUESTED", "CANCELLING", "CANCELLED"),
    }  # fmt: skip
    assert len({style.icon for style in _styles.STATES.values()}) == len(_styles.STATES)
    assert len({style.plain for style in _styles.STATES.values()}) == len(_styles.STATES)
    assert len({style.word for style in _styles.STATES.values()}) == len(_styles.STATES)


def test_no_picture_contains_a_secret():
    backend = backends.fetch({"connection": "memory"})
    engine = canaries.run(backend=backend)
    with backend.get_connection() as connection:
        view = flows.read(connection, engine.storage.flow_uuid)
    texts = [drawing.draw(view.outline, view, format=f) for f in drawing.FORMATS if f != "png"]
    texts.append(drawing.chart(timelines.timeline(view)))
    for text in texts:
        assert "c4n4ry" not in text
        assert "fail with ***" in text or "fail with #42;#42;#42;" in text or "chart" in text


def test_edge_to_folded_flow_ends_at_its_first_row():
    first = (("all", FLOW, None), ("begin", TASK, 0), ("wide", FLOW, 0))
    nodes = [OutlineNode(*each) for each in first]
    nodes += [OutlineNode(f"t{number}", TASK, 2) for number in range(25)]
    text = drawing.draw(Outline(tuple(nodes), ((1, 2),)), format="dot", direction="LR")
    hidden = re.findall(r"n(\d+) -> n(\d+) \[style=invis\]", text)
    assert len(hidden) == 21
    (target,) = re.findall(r"n1 -> n(\d+) \[lhead=cluster_2", text)
    assert target not in {behind for _, behind in hidden}


@task.task
def quote(number: int) -> int:
    return number


@task.task
def pay(number: int) -> int:
    return number


@task.task
def mail(number: int) -> int:
    return number


@task.workflow(name="offers")
async def offers(steps: Any) -> None:
    await steps.run(quote, 1)
    await asyncio.gather(steps.run(pay, 2), steps.run(mail, 3))
    await steps.run(quote, 4)


def view_of_run(flow: Any) -> flows.FlowView:
    with backends.backend("memory://") as backend:
        engine = engines.load(flow, backend=backend)
        with contextlib.suppress(ConnectionError):
            engine.run()
        with contextlib.closing(backend.get_connection()) as connection:
            return flows.read(connection, engine.storage.flow_uuid)


def graph(view: flows.FlowView) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the names of the boxes and frames, and the arrows between them."""
    data = json.loads(drawing.draw(view.outline, view, format="json"))
    names = {node["id"]: node["name"] for node in data["nodes"]}
    return list(names.values()), [(names[start], names[end]) for start, end in data["edges"]]


def test_parallel_steps_are_drawn_side_by_side() -> None:
    names, arrows = graph(view_of_run(offers))
    assert names == ["offers", "0 quote", "1 pay", "2 mail", "3 quote"]
    assert arrows == [
        ("0 quote", "1 pay"), ("0 quote", "2 mail"), ("1 pay", "3 quote"), ("2 mail", "3 quote"),
    ]  # fmt: skip


def test_workflow_of_a_flow_is_a_frame_between_its_neighbors() -> None:
    flow = linear_flow.Flow("night").add(
        quote(name="before", inject={"number": 1}),
        offers(),
        pay(name="after", inject={"number": 1}),
    )
    names, arrows = graph(view_of_run(flow))
    assert names[:4] == ["night", "before", "offers", "after"] and "3 quote" in names
    assert ("before", "offers") in arrows and ("offers", "after") in arrows


def test_loop_is_one_box_and_earlier_steps_are_omitted() -> None:
    assert graph(view_of_run(shown_workflows.looped))[0] == ["looped", "9 poll x 10"]
    names, _ = graph(view_of_run(shown_workflows.various))
    assert names[1].endswith(" more steps") and len(names) == 42


def test_boxes_of_steps_have_states_and_links() -> None:
    view = view_of_run(shown_workflows.undone)
    svg = drawing.draw(view.outline, view, format="svg", link=lambda atom: f"/atoms/{atom.uuid}")
    (atom,) = view.atoms
    assert atom.steps is not None
    for step in atom.steps.shown:
        assert f'href="/atoms/{step.uuid}"' in svg and f'data-uuid="{step.uuid}"' in svg
    assert "failed, reverted" in svg and "<img" not in svg
    text = drawing.draw(view.outline, view, format="mermaid")
    assert "0 book" in text

"""Pictures show every atom, trust no name, stay small, and need nobody's help."""

from __future__ import annotations

import functools
import json
import re
from xml.etree import ElementTree as ET

import pytest

from tests.drawing.looking import HOSTILE, hostile, look
from tests.support import spent
from tests.views import canaries, records
from wbengine import drawing, states
from wbengine.drawing import graphviz, layered, marks, scene
from wbengine.persistence import backends
from wbengine.types.outline import FLOW, TASK, Outline, OutlineNode
from wbengine.views import flow as flows
from wbengine.views import timeline as timelines

CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Puts another program into the place of the one that runs Graphviz."""

    def make(text):
        path = tmp_path / "child.py"
        path.write_text(text)
        monkeypatch.setattr(graphviz, "_CHILD", path)

    return make


# -- text -----------------------------------------------------------------------------------------


def test_a_tree_for_terminals():
    view = look(records.failed())
    assert (
        drawing.draw(view.outline, view)
        == """\
↶ order  reverted, 4/8
├─ ✔ check  success, 3/3
│  ├─ ✔ read cart  1.0 s, on host-a:1
│  ├─ ✔ check stock  2.5 s, on host-b:7
│  └─ ⊘ check address  left out
├─ ↶ pay  reverted, 1/3
│  ├─ ✔ pay again (retry)  0 s
│  ├─ ↶ reserve  reverted, 300 ms, attempt 2, on host-a:1
│  └─ ↶ capture  reverted, 300 ms, attempt 2, on host-a:1, ValueError: card refused
├─ ○ notify (map)
└─ ○ archive  after notify, pay  [joins: ANY]
"""
    )


def test_a_tree_without_states():
    _, outline = records.order()
    assert drawing.draw(outline).splitlines()[:4] == [
        "order  8 atoms", "├─ check:", "│  ├─ read cart", "│  ├─ check stock",
    ]  # fmt: skip


def test_a_tree_of_many_shows_some_of_each_flow():
    view = look(records.wide(5000))
    lines = drawing.draw(view.outline, view).splitlines()
    assert len(lines) < 200
    assert "… 88 more: 88 success" in "\n".join(lines)
    assert lines[-1] == "└─ … 38 more, 3,800 atoms: 2,000 pending, 1,800 success"


# -- text for other programs ----------------------------------------------------------------------


def test_mermaid_has_flows_boxes_arrows_and_states():
    view = look(records.order())
    told = drawing.draw(view.outline, view, format="mermaid", direction="LR")
    assert told.startswith("flowchart LR\n")
    assert '  subgraph n0["▶ order"]\n    subgraph n1["✔ check"]\n' in told
    assert 'n6(["✔ pay again' in told
    assert "n1 --> n5" in told
    assert "n6 --> n7" in told  # from the retry to what it retries
    assert "classDef SUCCESS fill:" in told
    assert "classDef" not in drawing.draw(view.outline, format="mermaid")


def test_mermaid_is_told_no_sign_of_its_own():
    view = look(hostile())
    told = drawing.draw(view.outline, view, format="mermaid")
    labels = re.findall(r'"([^"]*)"', told)
    assert len(labels) == 4
    for label in labels:
        assert not re.search(r"[<>\[\](){}\\`*$%\x00-\x1f]", label.replace("<br>", ""))


def test_dot_is_read_by_graphviz_and_has_every_name():
    view = look(hostile())
    told = drawing.draw(view.outline, view, format="dot")
    read = json.loads(graphviz.run(told, "json0"))
    labels = [each["label"] for each in read["objects"] if each["name"].startswith("n")]
    assert any("a </text><script>" in label for label in labels)


def test_json_says_it_all():
    view = look(records.order())
    told = json.loads(drawing.draw(view.outline, view, format="json"))
    assert told["schema"] == "wbengine/graph/1"
    assert [node["name"] for node in told["nodes"]] == [node.name for node in view.outline.nodes]
    assert told["nodes"][2]["state"] == "SUCCESS"
    assert told["nodes"][2]["parent"] == 1
    assert [1, 5] in told["edges"]
    assert "state" not in json.loads(drawing.draw(view.outline, format="json"))["nodes"][2]


# -- SVG ------------------------------------------------------------------------------------------


def svg(made, **options):
    view = look(made)
    return ET.fromstring(drawing.draw(view.outline, view, format="svg", **options))


@pytest.mark.parametrize("direction", ["LR", "TB"])
@pytest.mark.parametrize("layout", ["layered", "graphviz"])
def test_svg_shows_every_atom_with_icon_word_and_colour(layout, direction):
    made = records.order()
    root = svg(made, layout=layout, direction=direction)
    view = look(made)
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
        texts = {text.get("class"): text.text for text in group.iter(f"{SVG}text")}
        assert texts["icon"] == marks.icon(atom.state)
        assert texts["name"].startswith(atom.name)
        assert texts["state"].startswith(marks.word(atom.state))
        assert group.find(f"{SVG}title").text.startswith(f"{atom.kind} {atom.name}")
    frames = [g for g in root.iter(f"{SVG}g") if g.get("class", "").startswith("flow")]
    assert [g.get("data-node") for g in frames] == ["0", "1", "5"]


@pytest.mark.parametrize("layout", ["layered", "graphviz"])
def test_nothing_lies_over_anything_else(layout):
    view = look(records.failed())
    found = scene.make(view.outline, view)
    for direction in ("LR", "TB"):
        arrange = layered.arrange if layout == "layered" else graphviz.arrange
        made = arrange(found, direction)
        places = list(made.boxes.values())
        for number, one in enumerate(places):
            assert one.x >= 0
            assert one.x + one.width <= made.width
            assert one.y + one.height <= made.height
            for other in places[number + 1 :]:
                assert (
                    one.x + one.width <= other.x
                    or other.x + other.width <= one.x
                    or one.y + one.height <= other.y
                    or other.y + other.height <= one.y
                )
        for node, box in made.boxes.items():
            around = made.frames[found.boxes[node].parent]
            assert around.x <= box.x and box.x + box.width <= around.x + around.width
            assert around.y < box.y and box.y + box.height <= around.y + around.height
        assert set(made.ways) == set(found.arrows)


@pytest.mark.parametrize("standalone", [True, False])
@pytest.mark.parametrize("layout", ["layered", "graphviz"])
def test_svg_trusts_no_name(standalone, layout):
    view = look(hostile())
    text = drawing.draw(
        view.outline, view, format="svg", standalone=standalone, layout=layout,
        link=lambda atom: f"/x?{HOSTILE}",
    )  # fmt: skip
    root = ET.fromstring(text.encode())
    assert not list(root.iter(f"{SVG}script")) + list(root.iter("script"))
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in {
            "svg", "g", "title", "style", "rect", "text", "path", "a",
        }  # fmt: skip
        assert not {name for name in element.attrib if name.startswith("on") or name == "style"}
        assert "<b" not in element.get("class", "")
    assert bool(list(root.iter(f"{SVG}style"))) == standalone
    assert "a </text><script>" in "".join(root.itertext())


def test_svg_fetches_nothing():
    view = look(records.order())
    text = drawing.draw(view.outline, view, format="svg")
    assert not re.search(r"url\(|@import|href|(?<!xmlns=\")https?://", text)


def test_links_lead_where_they_are_told_to():
    root = svg(records.order(), link=lambda atom: f"#{atom.node}")
    assert [a.get("href") for a in root.iter(f"{SVG}a")][:2] == ["#2", "#3"]


# -- many -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["layered", "graphviz"])
def test_a_thousand_atoms_are_drawn_in_a_second(layout):
    view = look(records.wide(1000))
    draw = lambda: drawing.draw(view.outline, view, format="svg", layout=layout)  # noqa: E731
    assert spent.seconds(draw) < 3  # with Graphviz's process
    root = ET.fromstring(draw())
    assert len([g for g in root.iter(f"{SVG}g") if g.get("class", "").startswith("atom")]) == 1000
    assert spent.least(draw) < 0.3


@functools.cache
def huge():
    return look(records.wide(20_000))


def test_many_atoms_are_collapsed_to_their_flows():
    view = huge()
    found = scene.make(view.outline, view)
    assert found.collapsed
    assert len(found.boxes) == 200
    assert {box.kind for box in found.boxes.values()} == {FLOW}
    first = found.boxes[1]
    assert (first.size, dict(first.counts), first.state) == (100, {"SUCCESS": 100}, "SUCCESS")
    assert len(found.arrows) == 199
    text = drawing.draw(view.outline, view, format="svg")
    assert len(text) < 300_000
    assert "100 atoms" in text


def test_one_giant_flow_is_collapsed_to_counts():
    view = look(records.flat(20_000))
    found = scene.make(view.outline, view)
    assert len(found.boxes) < 60
    assert sum(box.size for box in found.boxes.values()) == 20_000
    assert {box.kind for box in found.boxes.values()} == {"group"}
    assert dict(next(iter(found.boxes.values())).counts) == {"SUCCESS": 209, "PENDING": 208}
    assert "task-0 … task-416" in drawing.draw(view.outline, view, format="json")


def test_a_part_is_drawn_on_its_own():
    view = huge()
    part = json.loads(drawing.draw(view.outline, view, format="json", root=1))
    assert part["name"] == "part-0"
    assert len(part["nodes"]) == 101
    one = drawing.draw(view.outline, view, format="svg", root=2)
    assert "task-0" in one


def test_a_deep_flow_is_drawn_without_recursion():
    nodes = [OutlineNode("f0", FLOW, None)]
    nodes += [OutlineNode(f"f{depth}", FLOW, depth - 1) for depth in range(1, 1500)]
    nodes.append(OutlineNode("last", TASK, 1499))
    outline = Outline(tuple(nodes), ())
    for format in ("text", "mermaid", "dot", "json"):
        assert "last" in drawing.draw(outline, format=format)
    assert "last" in drawing.draw(outline, format="svg", layout="layered")


# -- layouts --------------------------------------------------------------------------------------


def test_a_layout_is_found_once_for_a_structure(child, tmp_path):
    calls, real = tmp_path / "calls", graphviz._CHILD
    child(
        f"import runpy\nopen({str(calls)!r}, 'a').write('x')\n"
        f"runpy.run_path({str(real)!r}, run_name='__main__')"
    )
    outline = Outline(
        tuple(OutlineNode(f"{n}", TASK if n else FLOW, 0 if n else None) for n in range(7)),
        ((1, 3), (2, 4), (1, 4), (3, 6), (2, 5)),
    )
    named = Outline(tuple(n._replace(name=f"x{n.name}") for n in outline.nodes), outline.edges)
    other = Outline(outline.nodes, outline.edges[:-1])
    for each in (outline, named, outline, other):
        drawing.draw(each, format="svg", layout="graphviz", direction="LR")
    assert calls.read_text() == "xx"


def test_our_own_layout_is_taken_where_it_is_as_good():
    assert layered.suits(scene.make(records.wide(300)[1]))
    crossing = Outline(
        tuple(OutlineNode(f"{n}", TASK if n else FLOW, 0 if n else None) for n in range(5)),
        ((1, 4), (2, 3)),
    )
    assert layered.suits(scene.make(crossing))  # in another order they do not
    passing = Outline(crossing.nodes, ((1, 2), (2, 3), (1, 3)))
    assert not layered.suits(scene.make(passing))
    bundle = Outline(crossing.nodes, ((1, 3), (1, 4), (2, 3), (2, 4)))
    assert layered.suits(scene.make(bundle))


def test_arrows_that_say_nothing_are_left_out():
    nodes = [OutlineNode(f"{n}", TASK if n else FLOW, 0 if n else None) for n in range(6)]
    edges = ((1, 2), (2, 3), (1, 3), (3, 4), (1, 4), (5, 4), (1, 5))
    outline = Outline(tuple(nodes), edges)
    told = drawing.draw(outline, format="mermaid")
    assert sorted(re.findall(r"n(\d) --> n(\d)", told)) == [
        ("1", "2"), ("1", "5"), ("2", "3"), ("3", "4"), ("5", "4"),
    ]  # fmt: skip
    assert len(json.loads(drawing.draw(outline, format="json"))["edges"]) == len(edges)


def test_a_long_row_is_folded_and_led_to_once():
    nodes = [OutlineNode(f"{n}", TASK if n else FLOW, 0 if n else None) for n in range(43)]
    middle = range(2, 42)
    edges = [(1, n) for n in middle] + [(n, 42) for n in middle]
    found = scene.make(Outline(tuple(nodes), tuple(edges)))
    made = layered.arrange(found, "TB")
    assert made.width < 1200
    rows = sorted({made.boxes[n].y for n in middle})
    assert len(rows) == 10
    assert {n for a, n in made.ways if a == 1} == {n for n in middle if made.boxes[n].y == rows[0]}
    assert {n for n, b in made.ways if b == 42} == {
        n for n in middle if made.boxes[n].y == rows[-1]
    }


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import time; time.sleep(60)", "did not finish in 0.5 s and was ended"),
        (CRASH, "crashed (signal 11)"),
        ("import sys; sys.exit('no memory')", "Graphviz failed: no memory"),
        ("import sys; sys.exit(3)", "pip install 'wbengine[graph]'"),
    ],
)
def test_graphviz_may_crash_or_hang(program, words, child):
    limit = 0.5 if "sleep" in program else 30
    child(program)
    with pytest.raises(drawing.DrawingFailed, match=re.escape(words)):
        graphviz.run("digraph {}", "json0", limit)


def test_what_graphviz_cannot_draw_is_drawn_without_it(child, caplog, monkeypatch):
    monkeypatch.setattr(drawing, "PATIENCE", 30)
    child(CRASH)
    outline = Outline(
        tuple(OutlineNode(f"{n}", TASK if n else FLOW, 0 if n else None) for n in range(9)),
        ((1, 2), (2, 3), (3, 5), (1, 4), (4, 5)),
    )
    assert "<svg" in drawing.draw(outline, format="svg")
    assert "crashed" in caplog.text
    with pytest.raises(drawing.DrawingFailed, match="crashed"):
        drawing.draw(outline, format="svg", layout="graphviz", direction="TB")


def test_graphviz_is_not_waited_for_long_where_one_can_do_without(child, caplog, monkeypatch):
    child("import time; time.sleep(60)")
    monkeypatch.setattr(drawing, "PATIENCE", 0.3)
    # As no other test draws it: what was found is kept.
    arrows = ((1, 2), (2, 3), (3, 5), (1, 4), (4, 5))
    nodes = (OutlineNode(f"{n}", TASK if n else FLOW, 0 if n else None) for n in range(12))
    assert "<svg" in drawing.draw(Outline(tuple(nodes), arrows), format="svg")
    assert "did not finish in 0.3 s" in caplog.text


def test_graphviz_is_told_no_names():
    view = look(hostile())
    told = "\n".join(graphviz._dot(scene.make(view.outline, view), "LR"))
    assert "script" not in told
    assert "root" not in told


def test_png_is_one():
    view = look(hostile())
    made = drawing.png(view.outline, view)
    assert made.startswith(b"\x89PNG")
    assert len(made) > 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "svgg"}, "format='svgg' (did you mean 'svg'?); known: text,"),
        ({"direction": "RL"}, "direction='RL'"),
        ({"format": "svg", "layout": "dot"}, "layout='dot'"),
        ({"root": 99}, "root=99: the outline has nodes 0 to 10"),
        ({"format": "png"}, "see wbengine.drawing.png"),
    ],
)
def test_wrong_options_are_named(options, words):
    _, outline = records.order()
    with pytest.raises(ValueError, match=re.escape(words)):
        drawing.draw(outline, **options)


# -- the chart, and secrets -----------------------------------------------------------------------


def test_the_chart_shows_every_attempt():
    view = look(records.failed())
    root = ET.fromstring(drawing.chart(timelines.timeline(view), link=lambda bar: f"#{bar.node}"))
    bars = [g for g in root.iter(f"{SVG}g") if g.get("class", "").startswith("attempt")]
    assert len(bars) == 7
    assert sum("revert" in g.get("class").split() for g in bars) == 2
    assert any("ValueError: card refused" in (g.find(f"{SVG}title").text or "") for g in bars)
    assert root.get("role") == "group"


def test_a_chart_of_many_attempts_stays_small():
    view = huge()
    assert len(drawing.chart(timelines.timeline(view))) < 500_000


def test_the_chart_trusts_no_name():
    ET.fromstring(drawing.chart(timelines.timeline(look(hostile()))).encode("utf-8", "replace"))


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("state", marks.MARKS)
def test_the_colours_of_a_state_can_be_told_apart(state, scheme):
    """As much contrast as WCAG wants of text."""
    colours = [
        re.findall(rf"--{name}-{state}:(#[0-9a-f]{{6}})", drawing.STYLESHEET)[scheme]
        for name in ("c", "f")
    ]
    dark, bright = sorted(map(luminance, colours))
    assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_every_state_has_an_icon_and_a_word_of_its_own():
    assert set(marks.MARKS) == {*states.FLOW_STATES, *states.ATOM_STATES}
    assert len({mark.icon for mark in marks.MARKS.values()}) == len(marks.MARKS)
    assert len({mark.plain for mark in marks.MARKS.values()}) == len(marks.MARKS)
    assert len({mark.word for mark in marks.MARKS.values()}) == len(marks.MARKS)


def test_no_secret_is_in_any_picture():
    backend = backends.fetch({"connection": "memory"})
    engine = canaries.run(backend=backend)
    with backend.get_connection() as connection:
        view = flows.read(connection, engine.storage.flow_uuid)
    told = [drawing.draw(view.outline, view, format=f) for f in drawing.FORMATS if f != "png"]
    told.append(drawing.chart(timelines.timeline(view)))
    for text in told:
        assert "c4n4ry" not in text
        assert "fail with ***" in text or "fail with #42;#42;#42;" in text or "chart" in text

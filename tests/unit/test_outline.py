"""Outlines of flows: content and serialization."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine import engines, exceptions, retry, task
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.types._outline import Outline, OutlineNode


class Step(task.Task):
    def execute(self) -> None:
        """Do nothing."""


class Each(task.Task):
    def execute(self, item: Any) -> None:
        """Do nothing."""


def function() -> None:
    """Do nothing."""


def yes(history: Any) -> bool:
    return True


def outline_of(flow: Any) -> Outline:
    engine = engines.load(flow)
    engine.compile()
    found: Outline = engine.compilation.outline  # type: ignore[attr-defined]
    return found


def named(outline: Outline) -> set[tuple[str, str]]:
    return {(outline.nodes[a].name, outline.nodes[b].name) for a, b in outline.edges}


def test_outline_contains_nesting_and_links() -> None:
    """A link to or from a nested flow refers to the flow, not to its tasks."""
    inner = linear_flow.Flow("inner", retry.Times(3, "again")).add(Step("x"), Step("y"))
    graph = graph_flow.Flow("graph")
    a, b = Step("a"), Step("b")
    graph.add(a, b, inner)
    graph.link(a, inner, decider=yes, decider_depth="flow")
    graph.link(inner, b)
    beside = unordered_flow.Flow("beside").add(Step("p"), Step("q"))
    whole = linear_flow.Flow("whole").add(task.FunctorTask(function, name="fn"), graph, beside)
    found = outline_of(whole.add(linear_flow.Flow("empty"), Step("z")))
    nodes = {node.name: node for node in found.nodes}
    assert found.nodes[0] == OutlineNode("whole", "flow", None)
    inside = {
        node.name: found.nodes[node.parent].name
        for node in found.nodes[1:]
        if node.parent is not None
    }
    assert inside == {
        "fn": "whole", "graph": "whole", "beside": "whole", "empty": "whole", "z": "whole",
        "a": "graph", "b": "graph", "inner": "graph", "again": "inner", "x": "inner", "y": "inner",
        "p": "beside", "q": "beside",
    }  # fmt: skip
    assert {name for name, node in nodes.items() if node.kind == "flow"} == {
        "whole", "graph", "inner", "beside", "empty",
    }  # fmt: skip
    assert (nodes["again"].kind, nodes["x"].kind) == ("retry", "task")
    assert nodes["fn"].task == f"{__name__}.function"
    assert nodes["x"].task == f"{__name__}.Step"
    assert nodes["again"].task == "wbengine.retry.Times"
    assert nodes["inner"].notes == "after 'a' if yes, depth FLOW"
    assert named(found) == {
        ("fn", "graph"), ("graph", "beside"), ("beside", "empty"), ("empty", "z"),
        ("a", "inner"), ("inner", "b"), ("x", "y"),
    }  # fmt: skip


def test_outline_contains_maps_and_join_rules() -> None:
    graph = graph_flow.Flow("g")
    a, b = Step("a"), Step("b")
    each = task.Map(Each("each"))
    graph.add(a, b, each)
    graph.link(a, b, decider=yes)
    graph.link(each, b)
    graph.join(b, "any")
    found = {node.name: node for node in outline_of(graph).nodes}
    assert found["each"].kind == "map"
    assert found["b"].notes == "join ANY; after 'a' if yes"


names = st.text(max_size=8)


@st.composite
def outlines(draw: Any) -> Outline:
    nodes = [OutlineNode(draw(names), "flow", None)]
    for _ in range(draw(st.integers(0, 12))):
        flows = [number for number, node in enumerate(nodes) if node.kind == "flow"]
        nodes.append(
            OutlineNode(
                draw(names),
                draw(st.sampled_from(["flow", "task", "retry", "map"])),
                draw(st.sampled_from(flows)),
                draw(st.none() | names),
                draw(st.none() | st.text(min_size=1, max_size=9)),
            )
        )
    places = st.integers(0, len(nodes) - 1)
    return Outline(tuple(nodes), tuple(draw(st.lists(st.tuples(places, places), max_size=9))))


@given(outlines(), outlines())
def test_outline_survives_byte_round_trip_and_has_unique_digest(
    one: Outline, other: Outline
) -> None:
    again = Outline.from_bytes(one.to_bytes())
    assert again == one and again.digest == one.digest
    assert (one.digest == other.digest) == (one == other)


def test_serialized_outline_is_small() -> None:
    flow = linear_flow.Flow("f").add(*[Step(f"task number {n}") for n in range(2000)])
    found = outline_of(flow)
    assert len(found.nodes) == 2001 and len(found.edges) == 1999
    assert len(found.to_bytes()) < 2000 * 30


GOOD = {
    "version": 1, "names": ["f", "t"], "kinds": "ft", "parents": [-1, 1], "tasks": [None],
    "task": [0, 0], "notes": {}, "from": [1], "length": [-1],
}  # fmt: skip


def packed(**changes: Any) -> bytes:
    return zlib.compress(json.dumps({**GOOD, **changes}).encode())


def test_invalid_outline_bytes_are_rejected() -> None:
    """The error message has one line."""
    assert len(Outline.from_bytes(packed()).nodes) == 2
    for data in (
        b"", b"x", packed()[:-9], zlib.compress(b"[]"), packed(kinds="f"), packed(kinds="fz"),
        packed(names=["f", 7]), packed(parents=[0, 0]), packed(parents=[-1, 0]), packed(names=[]),
        packed(parents=[-1, 2]), packed(length=[5]), packed(task=[0, 3]),
    ):  # fmt: skip
        with pytest.raises(exceptions.InvalidFormat, match="invalid outline of a flow") as caught:
            Outline.from_bytes(data)
        assert "\n" not in str(caught.value)
    for version in (0, 2, "x"):
        with pytest.raises(exceptions.InvalidFormat, match=f"has outline format {version}, and"):
            Outline.from_bytes(packed(version=version))


def test_task_with_retries_is_one_node_with_its_links() -> None:
    a, b, c = Step("a"), Step("b"), Step("c")
    b.retries, c.retries = 3, 1
    graph = graph_flow.Flow("graph").add(a, b, c)
    graph.link(a, b)
    graph.link(b, c, decider=yes)
    found = outline_of(graph)
    assert [(node.name, node.kind, node.parent, node.notes) for node in found.nodes] == [
        ("graph", "flow", None, None),
        ("a", "task", 0, None),
        ("b", "task", 0, "3 retries"),
        ("c", "task", 0, "after 'b' if yes; 1 retry"),
    ]
    assert named(found) == {("a", "b"), ("b", "c")}
    assert found.nodes[2].task is not None and found.nodes[2].task.endswith("Step")


def test_outline_of_single_task_with_retries_is_one_node() -> None:
    alone = Step("alone")
    alone.retries = 2
    found = outline_of(alone)
    assert found == Outline(
        (OutlineNode("alone", "task", None, found.nodes[0].task, "2 retries"),), ()
    )

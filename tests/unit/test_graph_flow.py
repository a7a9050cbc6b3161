"""Graph flows: links, cycles, targets and cost of growth."""

from __future__ import annotations

import itertools
import pickle
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit import line_counts
from wbengine import exceptions, retry, task
from wbengine.deciders import Depth, Join
from wbengine.patterns import graph_flow as gf
from wbengine.patterns import linear_flow


class T(task.Task):
    def execute(self, **kwargs): ...


def task_of(name, requires=(), provides=()):
    return T(name, requires=list(requires), provides=list(provides))


def links(flow):
    return {(u.name, v.name): meta for u, v, meta in flow.iter_links()}


def snapshot(flow):
    return (
        [node.name for node in flow], links(flow), flow.requires, flow.provides, len(flow),
        {name: [p.name for p in several] for name, several in flow._providers.items()},
        {name: {w.name for w in several.values()} for name, several in flow._unmet_members.items()},
        set(flow._symbols), set(flow._nodes),
    )  # fmt: skip


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_members_are_linked_by_name_in_any_order(together, order):
    tasks = [task_of("a", "", "xy"), task_of("b", "xy", "z"), task_of("c", "z")]
    flow, chosen = gf.Flow("test"), [tasks[place] for place in order]
    if together:
        flow.add(*chosen)
    else:
        for one in chosen:
            flow.add(one)
    assert list(flow) == tasks
    assert links(flow) == {("a", "b"): {"reasons": {"x", "y"}}, ("b", "c"): {"reasons": {"z"}}}
    assert flow.requires == set() and flow.provides == set("xyz")


def test_several_providers_are_ambiguous_only_if_required():
    flow = gf.Flow("test").add(task_of("a", "", "xy"), task_of("b", "", "xz"))
    assert flow.provides == set("xyz")
    flow.add(task_of("wants", "w"))
    before = snapshot(flow)
    with pytest.raises(exceptions.AmbiguousDependency, match=r"'c' requires 'x'.*'a', 'b'"):
        flow.add(task_of("d", "", "w"), task_of("c", "wx"))
    assert snapshot(flow) == before


def test_value_provided_by_retry_creates_no_link():
    flow = gf.Flow("test", retry.AlwaysRevert(provides="x"))
    flow.add(task_of("a", "", "x"), task_of("b", "x"))
    assert links(flow) == {} and flow.requires == set()


def test_task_after_a_provider_is_not_linked_to_a_new_provider():
    a, b, c = task_of("a", "", "x"), task_of("b"), task_of("c", "x")
    flow = gf.Flow("test").add(a, b, c, resolve_requires=False)
    flow.link(a, b).link(b, c)
    assert flow.requires == set()
    flow.add(task_of("d", "", "x"))
    assert ("d", "c") not in links(flow)


def test_add_rejects_dependency_cycle_and_leaves_flow_unchanged():
    flow = gf.Flow("test").add(task_of("a", "c", "a"), task_of("b", "a", "b"))
    before = snapshot(flow)
    with pytest.raises(exceptions.DependencyFailure, match=r"c -> a -> b -> c"):
        flow.add(task_of("other", "q", "r"), task_of("c", "b", "c"))
    assert snapshot(flow) == before
    flow.add(task_of("d", "", "c"))
    assert ("d", "a") in links(flow)


def test_link_rejects_cycle_and_leaves_flow_unchanged():
    a, b, c = task_of("a", "", "x"), task_of("b", "x"), task_of("c")
    flow = gf.Flow("test").add(a, b, c).link(b, c)
    before = snapshot(flow)
    with pytest.raises(exceptions.DependencyFailure, match="c -> a -> b -> c"):
        flow.link(c, a)
    with pytest.raises(exceptions.DependencyFailure, match="b -> a -> b"):
        flow.link(b, a)
    with pytest.raises(exceptions.DependencyFailure, match="a -> a"):
        flow.link(a, a)
    assert snapshot(flow) == before


def test_manual_link_stores_reasons_and_decider():
    a, b = task_of("a", "", "x"), task_of("b", "x")
    flow = gf.Flow("test").add(a, b)
    assert flow.link(a, b) is flow
    assert links(flow) == {("a", "b"): {"reasons": {"x"}, "manual": True}}

    def decider(history):
        return True

    flow.link(a, b, decider=decider, decider_depth="flow")
    flow.link(a, b)
    assert links(flow)["a", "b"] == {
        "reasons": {"x"}, "manual": True, "decider": decider, "decider_depth": Depth.FLOW,
    }  # fmt: skip
    flow.link(a, b, decider=decider)
    assert links(flow)["a", "b"]["decider_depth"] is Depth.ALL


def test_join_rules_are_stored_as_node_metadata():
    a, b, nested = task_of("a"), task_of("b"), linear_flow.Flow("nested")
    flow = gf.Flow("test").add(a, b, nested).link(a, b)
    assert flow.join(b, "Any") is flow
    flow.join(nested, Join.NONE_FAILED)
    assert {node: meta for node, meta in flow.iter_nodes() if meta} == {
        b: {"join": Join.ANY},
        nested: {"join": Join.NONE_FAILED},
    }
    flow.join(b, "none_failed").join(nested, "all")
    copied = pickle.loads(pickle.dumps(flow))
    for each in (flow, copied):
        rules = {node.name: meta for node, meta in each.iter_nodes() if meta}
        assert rules == {"b": {"join": Join.NONE_FAILED}}
        assert [meta for node, meta in each.iter_nodes()].count({}) == 2


def test_nested_flows_are_linked_by_provided_and_required_values():
    inner = linear_flow.Flow("inner").add(task_of("p", "w", "x"), task_of("q", "x", "y"))
    flow = gf.Flow("test").add(task_of("a", "y"), inner, task_of("b", "", "w"))
    assert set(links(flow)) == {("b", "inner"), ("inner", "a")}
    assert flow.requires == set()


def test_nested_flow_that_grows_after_add_is_linked_correctly():
    inner, deep = linear_flow.Flow("inner"), gf.Flow("deep")
    flow = gf.Flow("test").add(inner, task_of("wants", "z"))
    inner.add(deep)
    deep.add(task_of("p", "q", "x"))
    flow.add(task_of("a", "x"))
    assert set(links(flow)) == {("inner", "a")}
    flow.add(task_of("b", "", "q"))
    assert ("b", "inner") in links(flow)
    deep.add(task_of("later", "", "y"))
    flow.add(task_of("c", "y"))
    assert ("inner", "c") in links(flow)
    assert flow.requires == {"z"}


def test_iteration_order_follows_links():
    a, b, c, d = (task_of(name) for name in "abcd")
    flow = gf.Flow("test").add(a, b, c, d).link(d, a).link(b, c)
    assert [node.name for node in flow] == ["b", "d", "c", "a"]
    assert list(flow) == list(flow) and [n for n, _ in flow.iter_nodes()] == list(flow)


# Targets.


@pytest.fixture
def targeted():
    tasks = [
        task_of("a", "", "a"),
        task_of("b", "a", "b"),
        task_of("c", "b"),
        task_of("d", "bz", "d"),
    ]
    return gf.TargetedFlow("test").add(*tasks), tasks


def test_target_restricts_flow_to_target_and_its_dependencies(targeted):
    flow, tasks = targeted
    flow.set_target(tasks[2])
    assert list(flow) == tasks[:3] and len(flow) == 3
    assert flow.provides == {"a", "b"} and flow.requires == set()
    assert set(links(flow)) == {("a", "b"), ("b", "c")}
    flow.set_target(tasks[0])
    assert list(flow) == tasks[:1]
    flow.reset_target()
    assert len(flow) == 4 and flow.provides == {"a", "b", "d"} and flow.requires == {"z"}


def test_targeted_flow_includes_dependencies_added_after_set_target(targeted):
    flow, tasks = targeted
    flow.set_target(tasks[3])
    assert len(flow) == 3
    z, other = task_of("z", "", "z"), task_of("other")
    flow.add(z, other)
    assert len(flow) == 4
    flow.link(other, tasks[0])
    assert len(flow) == 5 and list(flow)[-1] is tasks[3]


def test_nested_targeted_flow_provides_only_values_of_its_target():
    inner = gf.TargetedFlow("inner")
    tasks = [task_of("a", "", "x"), task_of("b", "", "y")]
    inner.add(*tasks).set_target(tasks[0])
    flow = gf.Flow("outer").add(inner)
    assert flow.provides == {"x"}
    inner.reset_target()
    flow.add(task_of("c", "y"))
    assert set(links(flow)) == {("inner", "c")}


# Cost of growth.


class Line:
    """Flow and its chain of tasks, which are added one by one."""

    def __init__(self, count, order):
        self.tasks = [task_of(f"t{n}", [f"s{n - 1}"] if n else [], [f"s{n}"]) for n in range(count)]
        self.chosen = list(self.tasks)
        if order == "backward":
            self.chosen.reverse()
        elif order == "shuffled":
            random.Random(7).shuffle(self.chosen)
        self.flow = gf.Flow("test")

    def add(self):
        for one in self.chosen:
            self.flow.add(one)


@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
def test_cost_of_add_does_not_grow_with_flow_size(order):
    assert line_counts.growth(lambda count: Line(count, order).add) < 1.5
    line = Line(2_000, order)
    line.add()
    assert list(line.flow) == line.tasks
    assert line.flow.requires == set()


def test_cost_of_link_does_not_grow_with_flow_size():
    tasks = [task_of(f"t{n}") for n in range(10_000)]

    def linked(count):
        flow = gf.Flow("test").add(*tasks[:count])
        return lambda: [flow.link(u, v) for u, v in itertools.pairwise(tasks[:count])] and flow

    assert line_counts.growth(linked) < 1.5
    flow = linked(10_000)()
    with pytest.raises(exceptions.DependencyFailure):
        flow.link(tasks[-1], tasks[0])


def test_add_reads_symbols_only_of_new_or_changed_members(monkeypatch):
    looked: list[str] = []
    symbols_of = gf.flow.symbols_of
    monkeypatch.setattr(
        gf.flow, "symbols_of", lambda node: looked.append(node.name) or symbols_of(node)
    )
    flow = gf.Flow("test")
    subflows = [linear_flow.Flow(f"f{n}").add(task_of(f"t{n}", "", [f"s{n}"])) for n in range(50)]
    for one in subflows:
        flow.add(one)
    assert looked == [one.name for one in subflows]
    subflows[7].add(task_of("new"))
    flow.add(task_of("last"))
    assert sorted(looked[50:]) == ["f7", "last"]


# Comparison with a reference implementation.

SYMBOLS = st.sets(st.sampled_from("uvwxyz"), max_size=3)
SPECS = st.lists(st.tuples(SYMBOLS, SYMBOLS, st.booleans(), st.booleans()), max_size=8)


class Oracle:
    """Reference implementation of `add`, which checks all members each time."""

    def __init__(self):
        self.nodes, self.edges = [], {}

    def before(self, node, edges):
        predecessors, pending = set(), [node]
        while pending:
            at = pending.pop()
            for u, v in edges:
                if v is at and u not in predecessors:
                    predecessors.add(u)
                    pending.append(u)
        return predecessors

    def add(self, node, resolve_requires, resolve_existing):
        edges = {pair: set(names) for pair, names in self.edges.items()}
        if resolve_requires:
            for name in node.requires:
                providers = [other for other in self.nodes if name in other.provides]
                if len(providers) > 1:
                    raise exceptions.AmbiguousDependency
                for provider in providers:
                    edges.setdefault((provider, node), set()).add(name)
        if resolve_existing:
            for other in self.nodes:
                met = {n for u in self.before(other, self.edges) for n in u.provides}
                for name in other.requires & node.provides - met:
                    edges.setdefault((node, other), set()).add(name)
        nodes = [*self.nodes, node]
        if any(one in self.before(one, edges) for one in nodes):
            raise exceptions.DependencyFailure
        self.nodes, self.edges = nodes, edges

    @property
    def requires(self):
        return {
            name
            for node in self.nodes
            for name in node.requires
            if not any(name in u.provides for u in self.before(node, self.edges))
        }


def attempt(action, *args, **kwargs):
    try:
        action(*args, **kwargs)
    except exceptions.DependencyFailure as error:
        return type(error)
    return None


@example([("", "uv", False, False), ("uv", "", False, False), ("u", "uv", True, True)])
@given(SPECS)
def test_incremental_add_agrees_with_reference_implementation(specs):
    flow, oracle = gf.Flow("test"), Oracle()
    for number, (requires, provides, resolve_requires, resolve_existing) in enumerate(specs):
        one = task_of(str(number), requires, provides)
        ours = attempt(
            flow.add, one, resolve_requires=resolve_requires, resolve_existing=resolve_existing
        )
        theirs = attempt(oracle.add, one, resolve_requires, resolve_existing)
        assert ours is theirs
        assert {(u, v): meta["reasons"] for u, v, meta in flow.iter_links()} == oracle.edges
        assert flow.requires == oracle.requires
        places = {node: place for place, node in enumerate(flow)}
        assert all(places[u] < places[v] for u, v in oracle.edges)

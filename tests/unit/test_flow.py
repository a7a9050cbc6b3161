"""Properties that all flows share."""

from __future__ import annotations

import contextlib
import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit import line_counts
from wbengine import exceptions, retry, task
from wbengine import flow as base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow


class T(task.Task):
    def execute(self, **kwargs): ...


ALL = pytest.mark.parametrize(
    "make",
    [linear_flow.Flow, unordered_flow.Flow, graph_flow.Flow, graph_flow.TargetedFlow],
    ids=lambda make: f"{make.__module__.rpartition('.')[2]}.{make.__name__}",
)
PLAIN = pytest.mark.parametrize(
    "make", [linear_flow.Flow, unordered_flow.Flow], ids=["linear", "unordered"]
)


@ALL
def test_new_flow_is_empty(make):
    flow = make("test")
    assert flow.name == "test" and flow.retry is None
    assert len(flow) == 0 and list(flow) == [] and list(flow.iter_links()) == []
    assert flow.requires == flow.provides == frozenset()
    assert bool(flow)
    label = f"{make.__module__.rpartition('.')[2]}.{make.__name__}: test(len=0)"
    assert (str(flow), repr(flow)) == (f'"{label}"', f"<{label}>")


def test_patterns_have_their_kind():
    assert linear_flow.Flow.kind == "linear"
    assert unordered_flow.Flow.kind == "unordered"
    assert graph_flow.Flow.kind == graph_flow.TargetedFlow.kind == "graph"


@ALL
def test_add_returns_flow_and_ignores_repeated_objects(make):
    flow, one, two = make("test"), T("a"), T("a")
    assert flow.add() is flow
    assert flow.add(one, two, one) is flow
    assert flow.add(one) is flow
    assert list(flow) == [one, two] and len(flow) == 2


@PLAIN
def test_equal_but_distinct_objects_are_both_added(make):
    class Equal(T):
        def __eq__(self, other):
            return True

        __hash__ = T.__hash__

    assert len(make("test").add(Equal("a"), Equal("b"))) == 2


@ALL
def test_iter_nodes_returns_one_level_with_metadata(make):
    inner = make("inner").add(T("deep"))
    flow = make("test").add(T("a"), inner)
    assert [(node.name, meta) for node, meta in flow.iter_nodes()] == [("a", {}), ("inner", {})]
    assert list(flow)[1] is inner


@ALL
def test_flow_name_is_converted_to_str(make):
    assert make(7).name == "7"


@ALL
def test_unnamed_retry_controller_is_named_after_its_flow(make):
    unnamed, named = retry.AlwaysRevert(requires=["a"], provides=["b"]), retry.Times(name="mine")
    flow = make("test", unnamed)
    assert flow.retry is unnamed and unnamed.name == "test_retry"
    assert flow.requires == {"a"} and flow.provides == {"b"}
    assert len(flow) == 0
    assert make("test", retry=named).retry.name == "mine"


@ALL
def test_values_of_retry_controller_are_available_to_all_tasks(make):
    flow = make("test", retry.AlwaysRevert(provides=["x"])).add(T("a", requires=["x", "y"]))
    assert flow.requires == {"y"} and list(flow.iter_links()) == []


@ALL
def test_nested_flows_contribute_requires_and_provides(make):
    inner = make("inner").add(T("deep", requires=["x"], provides=["y"]))
    flow = make("test").add(inner)
    assert flow.requires == {"x"} and flow.provides == {"y"}
    inner.add(T("deeper", requires=["z"], provides=["w"]))
    assert flow.requires == {"x", "z"} and flow.provides == {"y", "w"}


def test_flow_used_twice_is_resolved_in_each_place():
    inner = linear_flow.Flow("inner").add(T("a", requires=["x", "y", "z"]))
    served = linear_flow.Flow("served").add(T("p", provides=["x"]), inner)
    bare = linear_flow.Flow("bare").add(inner)
    for order in ([served, bare], [bare, served]):
        assert unordered_flow.Flow("outer").add(*order).requires == {"x", "y", "z"}


def test_requires_of_flow_containing_itself_raises():
    one, two = linear_flow.Flow("one"), linear_flow.Flow("two")
    one.add(two)
    two.add(one)
    with pytest.raises(ValueError, match="contains itself"):
        _ = one.requires


@PLAIN
def test_requires_of_deep_flow_takes_linear_time(make):
    def nested(count):
        flow = make("0").add(T("0", requires=["s1"], provides=["s0"]))
        for level in range(1, count):
            name = str(level)
            flow = make(name).add(T(name, requires=[f"s{level + 1}"], provides=[f"s{level}"]), flow)
        return flow

    def asked(count):
        flow = nested(count)
        return lambda: (flow.provides, flow.requires)

    assert line_counts.growth(asked) < 1.5
    flow = nested(5_000)
    assert len(flow.provides) == 5_000
    # In a linear flow the task precedes the nested flow, which can use its value.
    assert len(flow.requires) == (1 if make.kind == "linear" else 5_000)
    assert [len(flow), len(list(flow)), len(list(flow.iter_nodes()))] == [2, 2, 2]


@ALL
def test_flows_pickle_and_copy(make):
    inner = make("inner").add(T("p", provides=["x"]))
    flow = make("test", retry.Times(2)).add(inner, T("q", requires=["x"]), T("r", requires=["z"]))
    make("around").add(flow)
    for again in (pickle.loads(pickle.dumps(flow)), copy.deepcopy(flow)):
        assert [node.name for node in again] == [node.name for node in flow]
        assert again.requires == flow.requires and again.provides == flow.provides
        assert again.retry.name == "test_retry"
        assert [(u.name, v.name, meta) for u, v, meta in again.iter_links()] == [
            (u.name, v.name, meta) for u, v, meta in flow.iter_links()
        ]
        node = next(iter(again))
        assert len(again.add(node)) == 3
        node.add(T("later", provides=["z"]))
        assert "z" in again.provides and "z" not in flow.provides
        again.add(T("s", requires=["z"]))
        assert len(again) == 4


# Linear.


def test_linear_links_follow_the_order():
    a, b, c = T("a"), T("b"), T("c")
    flow = linear_flow.Flow("test").add(a).add(b, c)
    assert list(flow) == [a, b, c]
    assert list(flow.iter_links()) == [(a, b, {"invariant": True}), (b, c, {"invariant": True})]
    assert base.LINK_INVARIANT == "invariant"


# Unordered.


def test_unordered_tasks_do_not_satisfy_each_others_requires():
    a, b = T("a", provides=["x"]), T("b", requires=["x"])
    flow = unordered_flow.Flow("test").add(b, a)
    assert list(flow) == [b, a] and list(flow.iter_links()) == []
    assert flow.requires == flow.provides == {"x"}


# Growth.


def built_and_asked(make, count):
    flow = make("long")
    for number in range(count):
        flow.add(T(str(number), requires=[f"s{number - 1}"], provides=[f"s{number}"]))
    wide = make is unordered_flow.Flow
    assert len(flow.requires) == (count if wide else 1) and len(flow.provides) == count
    assert sum(1 for _ in flow.iter_links()) == (0 if wide else count - 1)


@PLAIN
def test_large_flow_is_built_and_inspected_in_linear_time(make):
    assert line_counts.growth(lambda count: lambda: built_and_asked(make, count)) < 1.5
    built_and_asked(make, 5_000)


# Comparison with the definition.


def by_definition(node):
    """Return `(requires, provides)`, computed recursively."""
    if not isinstance(node, base.Flow):
        return set(node.requires), set(node.provides)
    given = set(node.retry.provides) if node.retry else set()
    requires = set(node.retry.requires) if node.retry else set()
    members = {member: by_definition(member) for member in node}
    before: dict = {}
    into = {member: [u for u, v, _ in node.iter_links() if v is member] for member in members}
    for member in node:  # in topological order
        before[member] = set(into[member]).union(*(before[u] for u in into[member]))
    for member, (needed, _) in members.items():
        requires |= needed - given - {n for u in before[member] for n in members[u][1]}
    return requires, given.union(*(provided for _, provided in members.values()))


NAMES = st.sets(st.sampled_from("uvwxyz"), max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("task"), st.integers(0, 9), NAMES, NAMES),
        st.tuples(st.just("flow"), st.integers(0, 9), st.integers(0, 1), NAMES),
        st.tuples(st.just("ask"), st.integers(0, 9), st.none(), st.none()),
    ),
    max_size=25,
)


@given(STEPS)
def test_requires_and_provides_match_definition_after_changes(steps):
    flows = [graph_flow.Flow("root")]
    for number, (what, place, first, second) in enumerate(steps):
        flow = flows[place % len(flows)]
        if what == "task":
            with contextlib.suppress(exceptions.DependencyFailure):
                flow.add(T(str(number), requires=list(first), provides=list(second)))
        elif what == "flow":
            kind = [linear_flow.Flow, graph_flow.Flow][first]
            inner = kind(str(number), retry.Times(provides=list(second)))
            with contextlib.suppress(exceptions.DependencyFailure):
                flow.add(inner)
                flows.append(inner)
        else:
            assert (flow.requires, flow.provides) == by_definition(flow)
    for flow in reversed(flows):
        assert (flow.requires, flow.provides) == by_definition(flow)


@ALL
def test_add_of_invalid_member_adds_nothing(make):
    flow = make("test")
    with pytest.raises(TypeError, match=r"Members of flow 'test' must be tasks or flows, got None"):
        flow.add(T("b"), None)
    assert len(flow) == 0
    flow.add(T("a"))
    assert len(flow) == 1

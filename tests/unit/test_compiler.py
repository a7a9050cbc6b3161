"""Compilation of flows to plans: shapes, refusals, providers and cost."""

from __future__ import annotations

import functools
import itertools
import math
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.line_counts import growth
from wbengine import deciders, exceptions, flow, retry, task
from wbengine._runtime.compiler import compile
from wbengine._runtime.plan import Provider
from wbengine.patterns import graph_flow, linear_flow, unordered_flow


class Step(task.Task):
    def execute(self, **kwargs: Any) -> None: ...


LINEAR, UNORDERED, GRAPH = linear_flow.Flow, unordered_flow.Flow, graph_flow.Flow


def nested(depth: int, kinds: list[Any]) -> flow.Flow:
    inner: flow.Flow = kinds[0]("f0").add(Step("a"))
    for i in range(1, depth):
        inner = kinds[i % len(kinds)](f"f{i}").add(inner)
    return inner


# -- shapes


def test_leaves_of_an_unordered_flow_share_their_edges() -> None:
    plan = compile(UNORDERED("f").add(*(Step(str(i)) for i in range(50))))
    assert len({id(plan.succ[n]) for n in range(1, 51)}) == 1
    assert len({id(plan.pred[n]) for n in range(1, 51)}) == 1
    assert plan.succ[0] is plan.pred[51]


def test_a_link_between_flows_is_one_edge() -> None:
    u = UNORDERED("u").add(Step("a"), Step("b"))
    v = UNORDERED("v").add(Step("c"), Step("d"))
    plan = compile(GRAPH("g").add(v, u).link(u, v))
    names = plan.names
    exit_u, enter_v = names.index("u[$]"), names.index("v")
    assert tuple(plan.succ[exit_u]) == (enter_v,)
    assert tuple(plan.pred[enter_v]) == (exit_u,)


def test_targeted_flow_compiles_only_target_and_ancestors() -> None:
    a, b, c = Step("a", provides="x"), Step("b", requires=["x"]), Step("c", requires=["x"])
    targeted = graph_flow.TargetedFlow("g").add(a, b, c)
    targeted.set_target(b)
    assert set(compile(targeted).by_name) == {"a", "b"}
    targeted.reset_target()
    assert set(compile(targeted).by_name) == {"a", "b", "c"}


def test_targeted_flow_keeps_join_rules_of_compiled_tasks() -> None:
    a, b, c = Step("a"), Step("b"), Step("c")
    targeted = graph_flow.TargetedFlow("g").add(a, b, c).link(a, b).link(a, c)
    targeted.set_target(b)
    assert len(compile(targeted)) == 4
    targeted.join(b, "any").join(c, "none_failed")
    plan = compile(targeted)
    assert plan.joins == {plan.by_name["b"]: deciders.Join.ANY}


def test_compile_is_deterministic() -> None:
    root = nested(5, [LINEAR, UNORDERED, GRAPH])
    one, two = compile(root), compile(root)
    assert list(one.names) == list(two.names)
    assert list(one.succ) == list(two.succ)


def test_plan_is_unaffected_by_later_changes_of_flow() -> None:
    root = GRAPH("g").add(Step("a", provides="x"))
    user = Step("b", requires=["x"])
    root.add(user)
    plan = compile(root)
    before = (list(plan.names), list(plan.succ))
    root.add(Step("c", requires=["x"]))
    assert (list(plan.names), list(plan.succ)) == before


# -- refusals


def test_retry_controller_and_task_of_one_name_are_refused() -> None:
    with pytest.raises(exceptions.Duplicate, match="'same'"):
        compile(LINEAR("f", retry.AlwaysRevert("same")).add(Step("same")))


def test_nested_flows_may_share_a_name() -> None:
    assert len(compile(LINEAR("f").add(LINEAR("f")))) == 4


def test_flow_added_twice_is_refused() -> None:
    inner = LINEAR("inner")
    with pytest.raises(ValueError, match="'inner'"):
        compile(LINEAR("f").add(inner, UNORDERED("g").add(inner)))


def test_flow_containing_itself_is_refused() -> None:
    inner = LINEAR("inner")
    outer = LINEAR("outer").add(inner)
    inner.add(outer)
    with pytest.raises(ValueError, match="'outer'"):
        compile(outer)


@pytest.mark.parametrize("rubbish", [None, 3, "flow", Step], ids=["none", "int", "str", "class"])
def test_compile_rejects_objects_other_than_flows_and_tasks(rubbish: Any) -> None:
    with pytest.raises(exceptions.NotAFlow):
        compile(rubbish)


# -- arguments: tests/property compares their providers with a definition


class Optional(task.Task):
    def execute(self, must: Any, may: Any = None) -> None: ...

    def revert(self, result: Any, flow_failures: Any, undo: Any, perhaps: Any = None) -> None: ...


@pytest.mark.parametrize("name", ["must", "may", "undo", "perhaps"])
def test_providers_of_all_argument_kinds_are_resolved_at_compile(name: str) -> None:
    flow = LINEAR("f").add(Step("p", provides=[name]), Optional("o"))
    plan = compile(flow)
    assert plan.firsts[plan.by_name["o"]][name] == Provider(plan.by_name["p"], 0)
    assert plan.firsts[plan.by_name["o"]].keys() >= {"must", "may", "undo", "perhaps"}


def test_rebound_argument_is_resolved_by_stored_name() -> None:
    rebound = Optional("o", rebind={"must": "stored"})
    flow = LINEAR("f").add(Step("p", provides=["stored"]), rebound)
    plan = compile(flow)
    assert plan.firsts[plan.by_name["o"]]["stored"] == Provider(plan.by_name["p"], 0)


def test_plan_attributes_are_read_only() -> None:
    plan = compile(Step("a"))
    with pytest.raises(AttributeError):
        plan.end = {}  # type: ignore[misc]


# -- cost: counted, not timed


@pytest.mark.parametrize(
    "kinds",
    [[LINEAR], [UNORDERED], [LINEAR, UNORDERED], [GRAPH, LINEAR]],
    ids=["linear", "unordered", "linear-unordered", "graph-linear"],
)
def test_thousands_of_nested_flows_compile(kinds: list[Any]) -> None:
    depth = 10_000 if GRAPH not in kinds else 2_000
    plan = compile(nested(depth, kinds))
    assert len(plan) == 2 * depth + 1


def flat(kind: Any, count: int, **names: Any) -> flow.Flow:
    whole: flow.Flow = kind("f").add(*(Step(f"t{i}", **names) for i in range(count)))
    return whole


def chain(count: int) -> flow.Flow:
    """Return a graph with manual links; only the first task provides the required value."""
    flow_of_links = GRAPH("g")
    steps = [
        Step(f"t{i}", requires=["x"] if i else [], provides=None if i else "x")
        for i in range(count)
    ]
    flow_of_links.add(*steps, resolve_requires=False, resolve_existing=False)
    for u, v in itertools.pairwise(steps):
        flow_of_links.link(u, v)
    return flow_of_links


def burrow(count: int) -> flow.Flow:
    """Return nested unordered flows with a consumer on each level and the provider outside."""
    inner: flow.Flow = UNORDERED("inmost")
    for i in range(count):
        inner = UNORDERED(f"f{i}").add(Step(f"t{i}", requires=["x"]), inner)
    return LINEAR("f").add(Step("p", provides="x"), inner)


def web(count: int) -> flow.Flow:
    rng = random.Random(count)
    graph = GRAPH("g")
    steps = [Step(f"t{i}") for i in range(count)]
    graph.add(*steps)
    for i in range(1, count):
        for j in rng.sample(range(i), min(i, 3)):
            graph.link(steps[j], steps[i])
    return graph


@pytest.mark.parametrize(
    "make",
    [
        lambda n: flat(LINEAR, n),
        lambda n: flat(UNORDERED, n),
        lambda n: flat(LINEAR, n, requires=["x"], provides="x"),
        lambda n: flat(UNORDERED, n, requires=["x"], provides="x"),
        lambda n: nested(n, [LINEAR, UNORDERED]),
        chain,
        burrow,
        web,
    ],
    ids=["linear", "unordered", "linear-x", "unordered-x", "nested", "chain", "burrow", "web"],
)
def test_compile_steps_grow_linearly_with_flow_size(make: Any) -> None:
    assert growth(lambda count: functools.partial(compile, make(count))) < 1.1


@pytest.mark.parametrize(
    "make",
    [
        lambda: flat(UNORDERED, 5_000),
        lambda: flat(LINEAR, 5_000),
        lambda: nested(5_000, [LINEAR]),
    ],
    ids=["unordered", "linear", "nested"],
)
def test_compile_uses_less_than_800_bytes_per_task(make: Any) -> None:
    """The limit corresponds to 80 MB for 100,000 tasks."""
    root = make()
    tracemalloc.start()
    plan = compile(root)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(plan) > 5_000
    assert peak < 5_000 * 800


def test_candidates_are_computed_lazily() -> None:
    count = 3000
    flow = LINEAR("f").add(*(Step(f"p{i}", provides=["x"]) for i in range(count)))
    plan = compile(flow.add(Step("c", requires=["x"])))
    touched = 0

    class Counting(list[int]):
        def __getitem__(self, at: Any) -> Any:
            nonlocal touched
            touched += 1
            return super().__getitem__(at)

        def __iter__(self) -> Iterator[int]:
            raise AssertionError("all of them are looked at")

    plan._suppliers["x"] = Counting(plan._suppliers["x"])  # type: ignore[index]
    providers = plan.candidates(plan.by_name["c"], "x")
    assert [next(providers).node for _ in range(3)] == [count, count - 1, count - 2]
    # One binary search, then two reads for each candidate.
    assert touched <= math.log2(count) + 2 * 3 + 1

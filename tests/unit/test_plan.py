from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from wbengine import retry, task
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.runtime.compiler import compile
from wbengine.runtime.plan import Plan, Provider


class Step(task.Task):
    def execute(self, **kwargs: Any) -> None: ...


class Controller(retry.AlwaysRevert):
    def execute(self, history: Any, **kwargs: Any) -> None: ...


def provider(name: str, *provides: str) -> Step:
    return Step(name, provides=list(provides))


def consumer(name: str, *requires: str) -> Step:
    return Step(name, requires=list(requires))


def seen(plan: Plan, atom: str, name: str) -> list[str]:
    node = plan.by_name[atom]
    found = [plan.names[candidate.node] for candidate in plan.candidates(node, name)]
    first = plan.first(node, name)
    assert (plan.names[first.node] if first else None) == (found[0] if found else None)
    return found


def test_linear_flows_look_backwards() -> None:
    flow = linear_flow.Flow("f").add(
        provider("a", "x"),
        linear_flow.Flow("g").add(provider("b", "x"), consumer("c", "x"), provider("d", "x")),
        consumer("e", "x"),
        provider("later", "x"),
    )
    plan = compile(flow)
    assert seen(plan, "c", "x") == ["b", "a"]
    assert seen(plan, "e", "x") == ["d", "b", "a"]
    assert seen(plan, "a", "x") == []


def test_unordered_siblings_do_not_see_each_other() -> None:
    flow = linear_flow.Flow("f").add(
        provider("a", "x"),
        unordered_flow.Flow("u", Controller("r", provides="x")).add(
            provider("b", "x"),
            linear_flow.Flow("g").add(provider("c", "x"), consumer("d", "x")),
            consumer("e", "x"),
        ),
    )
    plan = compile(flow)
    assert seen(plan, "d", "x") == ["c", "r", "a"]
    assert seen(plan, "e", "x") == ["r", "a"]
    assert seen(plan, "r", "x") == ["a"]


def test_of_two_providers_in_an_unordered_sibling_the_later_added_wins() -> None:
    flow = linear_flow.Flow("f").add(
        unordered_flow.Flow("u").add(provider("a", "x"), provider("b", "x")), consumer("c", "x")
    )
    assert seen(compile(flow), "c", "x") == ["b", "a"]


def test_a_graph_prefers_what_was_linked_for_the_name() -> None:
    near, far, user = provider("near", "y", "x"), provider("far", "x"), consumer("user", "x", "y")
    flow = graph_flow.Flow("g").add(far, user)
    flow.add(near, resolve_requires=False, resolve_existing=False)
    flow.link(far, near)
    flow.link(near, user)
    plan = compile(flow)
    assert seen(plan, "user", "x") == ["far", "near"]
    assert seen(plan, "user", "y") == ["near"]


def test_a_graph_is_searched_among_ancestors_only() -> None:
    a, b, c = provider("a", "x"), Step("b"), consumer("c", "x")
    stranger = provider("stranger", "x")
    flow = graph_flow.Flow("g").add(a, b, c, stranger, resolve_requires=False)
    flow.add(resolve_existing=False)
    flow = graph_flow.Flow("g2").add(stranger, a, b, resolve_requires=False)
    flow.add(c, resolve_requires=False)
    flow.link(a, b)
    flow.link(b, c)
    assert seen(compile(flow), "c", "x") == ["a"]


def test_a_retry_sees_what_its_flow_sees() -> None:
    flow = unordered_flow.Flow("f", Controller("outer", provides="x")).add(
        provider("sibling", "x"),
        linear_flow.Flow("g", Controller("inner", requires=["x"], provides="x")).add(
            consumer("a", "x")
        ),
    )
    plan = compile(flow)
    assert seen(plan, "inner", "x") == ["outer"]
    assert seen(plan, "a", "x") == ["inner", "outer"]


def test_the_index_comes_along() -> None:
    flow = linear_flow.Flow("f").add(
        Step("all", provides="whole"),
        Step("list", provides=["p", "q"]),
        Step("dict", provides={"k"}),
        consumer("c", "whole", "q", "k"),
    )
    plan = compile(flow)
    node = plan.by_name["c"]
    assert plan.first(node, "whole") == Provider(plan.by_name["all"], None)
    assert plan.first(node, "q") == Provider(plan.by_name["list"], 1)
    assert plan.first(node, "k") == Provider(plan.by_name["dict"], "k")
    assert plan.first(node, "nobody's") is None


class Optional(task.Task):
    def execute(self, must: Any, may: Any = None) -> None: ...

    def revert(self, result: Any, flow_failures: Any, undo: Any, perhaps: Any = None) -> None: ...


@pytest.mark.parametrize("name", ["must", "may", "undo", "perhaps"])
def test_every_kind_of_argument_is_looked_up_at_compile(name: str) -> None:
    flow = linear_flow.Flow("f").add(provider("p", name), Optional("o"))
    plan = compile(flow)
    assert plan.firsts[plan.by_name["o"]][name] == Provider(plan.by_name["p"], 0)
    assert plan.firsts[plan.by_name["o"]].keys() >= {"must", "may", "undo", "perhaps"}


def test_rebound_names_are_looked_up_by_their_stored_name() -> None:
    rebound = Optional("o", rebind={"must": "stored"})
    flow = linear_flow.Flow("f").add(provider("p", "stored"), rebound)
    plan = compile(flow)
    assert plan.firsts[plan.by_name["o"]]["stored"] == Provider(plan.by_name["p"], 0)


def test_nothing_can_be_assigned() -> None:
    plan = compile(Step("a"))
    with pytest.raises(AttributeError):
        plan.visits = 3  # type: ignore[misc]


def test_candidates_are_found_as_far_as_they_are_asked_for() -> None:
    count = 3000
    flow = linear_flow.Flow("f").add(*(provider(f"p{i}", "x") for i in range(count)))
    plan = compile(flow.add(consumer("c", "x")))
    touched = 0

    class Counting(list[int]):
        def __getitem__(self, at: Any) -> Any:
            nonlocal touched
            touched += 1
            return super().__getitem__(at)

        def __iter__(self) -> Iterator[int]:
            raise AssertionError("all of them are looked at")

    plan._suppliers["x"] = Counting(plan._suppliers["x"])  # type: ignore[index]
    found = plan.candidates(plan.by_name["c"], "x")
    assert [next(found).node for _ in range(3)] == [count, count - 1, count - 2]
    # To find where to begin, and then twice for each.
    assert touched <= math.log2(count) + 2 * 3 + 1

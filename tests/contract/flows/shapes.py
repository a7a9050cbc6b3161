"""Flows of all patterns and their order."""

from __future__ import annotations

from typing import Any

from tests.contract.flows import tasks
from tests.contract.flows.case import fails, flow
from wbengine import retry
from wbengine.patterns import graph_flow, linear_flow, unordered_flow


@flow("")
def empty_flow() -> Any:
    return linear_flow.Flow("f")


@flow("")
def nested_empty_flows() -> Any:
    return linear_flow.Flow("f").add(
        unordered_flow.Flow("u"), graph_flow.Flow("g").add(linear_flow.Flow("l"))
    )


@flow(">r +r", history={"r": [(1, "")]}, results={"n": 1})
def empty_flow_with_retry() -> Any:
    return unordered_flow.Flow("f", retry.Times(3, "r", provides="n"))


@flow(">a +a", results={"a": "a"})
def single_task() -> Any:
    return tasks.Step("a", provides="a")


@flow(">a !a <a -a", **fails("a"))
def single_task_fails() -> Any:
    return tasks.Boom("a")


@flow(">a +a >b +b >c +c >d +d", results={"a": "a", "d": "a"})
def linear_tasks() -> Any:
    return linear_flow.Flow("f").add(
        tasks.Step("a", provides="a"),
        tasks.Step("b"),
        tasks.Step("c"),
        tasks.Give("d", provides="d", rebind=["a"]),
    )


@flow(">a >b >c +a +b +c", order=[], results={"a": "a", "b": "b", "c": "c"})
def unordered_tasks() -> Any:
    return unordered_flow.Flow("f").add(*(tasks.Step(n, provides=n) for n in "abc"))


@flow(
    ">d >b >a >c +d +b +a +c", order=[], results={"b": "b"},
)  # fmt: skip
def higher_priority_starts_first() -> Any:
    """Equal priorities run in the order of `add`."""
    urgent = tasks.Step("d")
    urgent.priority = 9
    return unordered_flow.Flow("f").add(
        tasks.Step("a"), tasks.Urgent("b", provides="b"), tasks.Step("c"), urgent
    )


@flow(">a >x +a +x >b +b", order=["+a >b"], results={"a": "a", "b": "a"})
def graph_ordered_by_names() -> Any:
    """The order of `add` does not matter."""
    return graph_flow.Flow("f").add(
        tasks.Give("b", provides="b", rebind=["a"]), tasks.Step("a", provides="a"), tasks.Step("x")
    )


@flow(
    ">a +a >b >c +b +c >d +d", order=["+a >b", "+a >c", "+b >d", "+c >d"],
    results={"a": 1, "b": 11, "c": 3, "d": 14},
)  # fmt: skip
def diamond_graph() -> Any:
    return graph_flow.Flow("f").add(
        tasks.Give("a", provides="a", inject={"value": 1}),
        tasks.Add("b", provides="b", rebind={"x": "a"}),
        tasks.Sum("c", provides="c", rebind={"x": "a", "y": "two"}, inject={"two": 2}),
        tasks.Sum("d", provides="d", rebind={"x": "b", "y": "c"}),
    )


@flow(">c +c >b +b >a +a")
def graph_ordered_by_links() -> Any:
    a, b, c = (tasks.Step(name) for name in "abc")
    return graph_flow.Flow("f").add(a, b, c).link(c, b).link(b, a)


@flow(">a +a >b +b", results={"a": "a", "b": "a"})
def targeted_flow_runs_target_and_its_dependencies() -> Any:
    target = tasks.Give("b", provides="b", rebind=["a"])
    root = graph_flow.TargetedFlow("f").add(
        tasks.Step("a", provides="a"),
        target,
        tasks.Give("after", rebind=["b"]),
        tasks.Boom("beside"),
    )
    root.set_target(target)
    return root


@flow(
    ">a +a >b >c +b +c >e >d +e +d >z +z",
    order=["+a >b", "+a >c", "+b >z", "+d >z", "+e >z", "+c >d", "+c >e"],
    results={"a": "a", "c": "c", "e": "c", "z": "c"},
)
def nested_flows_of_all_patterns() -> Any:
    c, d = tasks.Step("c", provides="c"), tasks.Step("d")
    graph = graph_flow.Flow("g").add(tasks.Give("e", provides="e", rebind=["c"]), c, d).link(c, d)
    return linear_flow.Flow("f").add(
        tasks.Step("a", provides="a"),
        unordered_flow.Flow("u").add(tasks.Step("b"), graph),
        tasks.Give("z", provides="z", rebind=["e"]),
    )


@flow(">a +a >b +b", results={"a": "a"})
def forty_nested_flows() -> Any:
    inner: Any = tasks.Step("b")
    for level in range(40):
        pattern = (linear_flow.Flow, unordered_flow.Flow, graph_flow.Flow)[level % 3]
        inner = pattern(f"f{level}").add(inner)
    return linear_flow.Flow("f").add(tasks.Step("a", provides="a"), inner)


@flow(
    # One iteration of the run begins 64 tasks.
    " ".join(f"{sign}t{n}" for part in (range(64), range(64, 120)) for sign in ">+" for n in part),
    order=[], results={f"t{n}": f"t{n}" for n in range(120)},
)  # fmt: skip
def many_unordered_tasks() -> Any:
    root = unordered_flow.Flow("f")
    return root.add(*(tasks.Step(f"t{n}", provides=f"t{n}") for n in range(120)))


@flow(">a !a <a -a", **fails("a"))
def tasks_after_failure_never_start() -> Any:
    return linear_flow.Flow("f").add(tasks.Boom("a"), tasks.Step("b"), tasks.Step("c"))


@flow(">here >there +here +there", order=[], results={"here": "here"})
def local_task_among_others() -> Any:
    return unordered_flow.Flow("f").add(tasks.Local("here", provides="here"), tasks.Step("there"))

"""Flows with deciders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.contract.flows import tasks
from tests.contract.flows.case import flow
from wbengine import retry
from wbengine.patterns import graph_flow, linear_flow

Decider = Callable[..., Any]


def yes(history: dict[str, Any]) -> bool:
    return True


def no(history: dict[str, Any]) -> bool:
    return False


def _branches(decider: Decider, depth: str | None = None) -> Any:
    """a -?-> b -> c -> d -> (x -> y) -> z, and a -> e."""
    a, b, c, d, e, z = (tasks.Step(name, provides=name) for name in "abcdez")
    inner = linear_flow.Flow("in").add(tasks.Step("x"), tasks.Step("y"))
    root = graph_flow.Flow("f").add(a, b, c, d, inner, e, z)
    root.link(a, b, decider=decider, decider_depth=depth)
    return root.link(b, c).link(c, d).link(d, inner).link(inner, z).link(a, e)


def _saw_a(history: dict[str, Any]) -> bool:
    return history == {"a": "a"}


@flow(
    ">a +a >e >b +e +b >c +c >d +d >x +x >y +y >z +z",
    order=["+a >b", "+a >e", "+y >z"],
    results={name: name for name in "abcdez"},
)
def positive_decider_runs_target() -> Any:
    """A decider sees the results of its sources."""
    return _branches(_saw_a)


def _with_retries(depth: str) -> Any:
    """Return `_branches` with a negative decider, where b and c have retries, and others not."""
    root = _branches(no, depth)
    for name in "bc":
        [matching] = [node for node in root if node.name == name]
        matching.retries = 2
    return root


@flow(
    ">a +a >e ~b_retry ~b ~c_retry ~c ~d ~x ~y ~z +e",
    order=["+a >e", "+a ~b"], results={"a": "a", "e": "e"}, history={"b_retry": [], "c_retry": []},
)  # fmt: skip
def depth_all_ignores_tasks_with_retries_and_all_successors() -> Any:
    return _with_retries("all")


@flow(
    ">a +a >e ~b_retry ~b ~c_retry ~c ~d >x +e +x >y +y >z +z",
    order=["+a >e", "~d >x"],
    results={name: name for name in "aez"},
    history={"b_retry": [], "c_retry": []},
)
def depth_flow_ignores_tasks_with_retries_like_tasks() -> Any:
    """Through tasks, but not through flows."""
    return _with_retries("flow")


@flow(
    ">a +a >e ~b_retry ~b ~c_retry ~c >d +e +d >x +x >y +y >z +z",
    order=["+a >e", "~c >d"],
    results={name: name for name in "adez"},
    history={"b_retry": [], "c_retry": []},
)
def depth_neighbors_ignores_tasks_with_retries_like_tasks() -> Any:
    return _with_retries("neighbors")


@flow(
    ">a +a >e ~b_retry ~b >c_retry +c_retry >c +e +c >d +d >x +x >y +y >z +z",
    order=["+a >e", "~b >c"],
    results={name: name for name in "acdez"},
    history={"b_retry": [], "c_retry": [(1, "")]},
)
def depth_atom_ignores_only_task_with_retries() -> Any:
    return _with_retries("atom")


@flow(
    ">a_retry +a_retry >a +a >b +b",
    results={"a": "a"}, history={"a_retry": [(1, "")]},
)  # fmt: skip
def decider_receives_result_of_task_with_retries() -> Any:
    a, b = tasks.Step("a", provides="a"), tasks.Step("b")
    a.retries = 1
    return graph_flow.Flow("f").add(a, b).link(a, b, decider=_saw_a)


def _two(first: Decider, second: Decider, depths: tuple[str, str] = ("all", "all")) -> Any:
    """a -?-> c, b -?-> c, then d and e."""
    a, b, c, d, e = (tasks.Step(name) for name in "abcde")
    root = graph_flow.Flow("f").add(a, b, c, d, e).link(c, d).link(d, e)
    root.link(a, c, decider=first, decider_depth=depths[0])
    return root.link(b, c, decider=second, decider_depth=depths[1])


@flow(">a >b +a +b ~c ~d ~e", order=["+a ~c", "+b ~c"])
def one_negative_decider_of_two_ignores_target() -> Any:
    return _two(yes, no)


def _saw_both(history: dict[str, Any]) -> bool:
    return history == {"a": "a", "b": "b"}


@flow(
    ">a >b +a +b >c +c >d +d >e +e", order=["+a >c", "+b >c", "+c >d", "+d >e"],
)  # fmt: skip
def each_decider_receives_all_sources_with_deciders() -> Any:
    return _two(_saw_both, _saw_both)


@flow(">a >b +a +b ~c ~d >e +e", order=["+a ~c", "+b ~c", "~d >e"])
def widest_depth_of_negative_deciders_is_used() -> Any:
    return _two(no, no, ("atom", "neighbors"))


@flow(">a +a ~b ~d >c +c", results={"a": "a", "c": "c"})
def join_after_ignored_branch_is_ignored() -> Any:
    a, b, c, d = (tasks.Step(name, provides=name) for name in "abcd")
    root = graph_flow.Flow("f").add(a, b, c, d)
    root.link(a, b, decider=no).link(a, c, decider=yes)
    return root.link(b, d).link(c, d)


@flow(">a +a ~b >c +c >d +d", results={"a": "a", "c": "c", "d": "d"})
def join_after_single_ignored_atom_runs() -> Any:
    a, b, c, d = (tasks.Step(name, provides=name) for name in "abcd")
    root = graph_flow.Flow("f").add(a, b, c, d)
    root.link(a, b, decider=no, decider_depth="atom").link(a, c, decider=yes)
    return root.link(b, d).link(c, d)


@flow(">a +a ~b >c +c")
def deciders_of_ignored_sources_are_not_called() -> Any:
    """If all sources are ignored, no decider is called and the target runs."""
    a, b, c = (tasks.Step(name) for name in "abc")
    root = graph_flow.Flow("f").add(a, b, c)
    return root.link(a, b, decider=no, decider_depth="atom").link(b, c, decider=no)


@flow(
    ">a +a ~b >c !c <c -c <a -a",
    results={},
    raises={"c": (Exception, "'b'")},
    told={"a": ["a | c"]},
)
def consumer_of_ignored_value_fails() -> Any:
    a, b = tasks.Step("a"), tasks.Step("b", provides="b")
    c = tasks.Plain("c", rebind=["b"])
    root = graph_flow.Flow("f").add(a, b, c)
    return root.link(a, b, decider=no, decider_depth="atom")


@flow(">a +a >c ~x ~y ~b +c", order=["+a ~x", "+a >c"])
def negative_decider_ignores_whole_flow() -> Any:
    a, b, c = (tasks.Step(name) for name in "abc")
    inner = linear_flow.Flow("in").add(tasks.Step("x"), tasks.Step("y"))
    root = graph_flow.Flow("f").add(a, inner, b, c).link(a, inner, decider=no)
    return root.link(inner, b).link(a, c)


@flow(">x +x >y +y ~b", results={"x": "x", "y": "y"})
def flow_as_source_is_not_in_history() -> Any:
    inner = linear_flow.Flow("in").add(tasks.Step("x", provides="x"), tasks.Step("y", provides="y"))
    b = tasks.Step("b")
    return graph_flow.Flow("f").add(inner, b).link(inner, b, decider=lambda history: bool(history))


def _fails(history: dict[str, Any]) -> bool:
    return bool(history["nobody"])


@flow(
    ">a +a >b !b <b -b <a -a",
    raises={"b": (KeyError, "nobody")},
    told={"a": ["a | b"], "b": ["KeyError('nobody') | b"]},
)
def raising_decider_fails_its_target() -> Any:
    a, b, c = (tasks.Step(name) for name in "abc")
    return graph_flow.Flow("f").add(a, b, c).link(a, b, decider=_fails).link(b, c)


@flow(
    ">r +r >a +a >b !b <b -b <a -a ?r .a .b >r +r >a +a >b +b",
    results={"n": 2},
    told={"a": ["a | b"], "b": ["KeyError('one') | b"]},
    history={"r": [(1, "b:KeyError"), (2, "")]},
)
def raising_decider_is_retried() -> Any:
    tries = ["one"]

    def once(history: dict[str, Any]) -> bool:
        if tries:
            raise KeyError(tries.pop())
        return True

    a, b = tasks.Step("a"), tasks.Step("b")
    root = graph_flow.Flow("f", retry.Times(2, "r", provides="n"))
    return root.add(a, b).link(a, b, decider=once)


@flow(
    ">r +r >a +a ~b >c !c <c -c <a -a ?r .a .b .c >r +r >a +a >b +b >c +c",
    results={"n": 2},
    told={"a": ["1 | c"], "c": ["RuntimeError(c fails in try 1) | c"]},
    history={"r": [(1, "c:RuntimeError"), (2, "")]},
)
def next_attempt_calls_decider_again() -> Any:
    """Ignored atoms are pending again."""
    a = tasks.Give("a", rebind=["n"])
    b = tasks.Step("b")
    c = tasks.Until("c", inject={"until": 2})
    root = graph_flow.Flow("f", retry.Times(2, "r", provides="n")).add(a, b, c)
    root.link(a, b, decider=lambda history: history["a"] > 1, decider_depth="atom")
    return root.link(b, c)


@flow(
    ">r +r >a +a >b ~s ~x +b", order=["+a ~s", "+a >b"],
    history={"r": [(None, "")], "s": []},
)  # fmt: skip
def ignored_retry_provides_nothing() -> Any:
    a, b = tasks.Step("a"), tasks.Step("b")
    inner = linear_flow.Flow("in", retry.Times(2, "s", provides="n")).add(tasks.Step("x"))
    root = graph_flow.Flow("f", retry.AlwaysRevert("r")).add(a, b, inner)
    return root.link(a, inner, decider=no).link(a, b)


@flow(
    ">r +r >a +a >c ~b ~z !c <c -c <a -a ?r .a .b .c .z >r +r >a +a >c >b +c +b >z +z",
    order=["+a >c", "~z -c", ".z >z", "+b >z"],
    results={"n": 2},
    told={"a": ["1 | c"], "c": ["RuntimeError(c fails in try 1) | c"]},
    history={"r": [(1, "c:RuntimeError"), (2, "")]},
)
def next_attempt_resets_ignored_atoms_after_its_flow() -> Any:
    a, b, z = tasks.Give("a", rebind=["n"]), tasks.Step("b"), tasks.Step("z")
    c = tasks.Until("c", inject={"until": 2})
    inner = graph_flow.Flow("in", retry.Times(2, "r", provides="n")).add(a, b, c)
    inner.link(a, b, decider=lambda history: history["a"] > 1).link(a, c)
    return linear_flow.Flow("f").add(inner, z)

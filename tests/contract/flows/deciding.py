"""Flows about deciders: who is asked, and what a no reaches."""

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
    """a -?-> b -> c -> d -> (x -> y) -> z, and beside it: a -> e."""
    a, b, c, d, e, z = (tasks.Step(name, provides=name) for name in "abcdez")
    inner = linear_flow.Flow("in").add(tasks.Step("x"), tasks.Step("y"))
    made = graph_flow.Flow("f").add(a, b, c, d, inner, e, z)
    made.link(a, b, decider=decider, decider_depth=depth)
    return made.link(b, c).link(c, d).link(d, inner).link(inner, z).link(a, e)


def _saw_a(history: dict[str, Any]) -> bool:
    return history == {"a": "a"}


@flow(
    ">a +a >e >b +e +b >c +c >d +d >x +x >y +y >z +z",
    order=["+a >b", "+a >e", "+y >z"],
    results={name: name for name in "abcdez"},
)
def a_yes_runs_the_target() -> Any:
    """A decider sees the results of its sources."""
    return _branches(_saw_a)


@flow(
    ">a +a >e ~b ~c ~d ~x ~y ~z +e", order=["+a >e", "+a ~b"], results={"a": "a", "e": "e"},
)  # fmt: skip
def depth_all_ignores_everything_behind() -> Any:
    return _branches(no)


@flow(
    ">a +a >e ~b ~c ~d >x +e +x >y +y >z +z",
    order=["+a >e", "~b >x", "~d >x", "+y >z"],
    results={name: name for name in "aez"},
)
def depth_flow_ignores_what_follows_in_the_same_flow() -> Any:
    """Through tasks, and not through flows."""
    return _branches(no, "flow")


@flow(
    ">a +a >e ~b ~c >d +e +d >x +x >y +y >z +z",
    order=["+a >e", "~c >d", "+y >z"],
    results={name: name for name in "adez"},
)
def depth_neighbors_ignores_the_tasks_next_to_it() -> Any:
    return _branches(no, "NEIGHBORS")


@flow(
    ">a +a >e ~b >c +e +c >d +d >x +x >y +y >z +z",
    order=["+a >e", "~b >c", "+y >z"],
    results={name: name for name in "acdez"},
)
def depth_atom_ignores_the_target_alone() -> Any:
    return _branches(no, "Atom")


def _with_retries(depth: str) -> Any:
    """`_branches`, with a no, where b and c have retries of their own."""
    made = _branches(no, depth)
    for name in "bc":
        [found] = [node for node in made if node.name == name]
        found.retries = 2
    return made


@flow(
    ">a +a >e ~b_retry ~b ~c_retry ~c ~d ~x ~y ~z +e",
    order=["+a >e", "+a ~b"], results={"a": "a", "e": "e"}, history={"b_retry": [], "c_retry": []},
)  # fmt: skip
def depth_all_ignores_tasks_with_retries_and_everything_behind() -> Any:
    return _with_retries("all")


@flow(
    ">a +a >e ~b_retry ~b ~c_retry ~c ~d >x +e +x >y +y >z +z",
    order=["+a >e", "~d >x"],
    results={name: name for name in "aez"},
    history={"b_retry": [], "c_retry": []},
)
def depth_flow_ignores_tasks_with_retries_like_tasks() -> Any:
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
def depth_atom_ignores_a_task_with_retries_alone() -> Any:
    return _with_retries("atom")


@flow(
    ">a_retry +a_retry >a +a >b +b",
    results={"a": "a"}, history={"a_retry": [(1, "")]},
)  # fmt: skip
def a_decider_sees_the_result_of_a_task_with_retries() -> Any:
    a, b = tasks.Step("a", provides="a"), tasks.Step("b")
    a.retries = 1
    return graph_flow.Flow("f").add(a, b).link(a, b, decider=_saw_a)


def _two(first: Decider, second: Decider, depths: tuple[str, str] = ("all", "all")) -> Any:
    """a -?-> c, b -?-> c, then d and e."""
    a, b, c, d, e = (tasks.Step(name) for name in "abcde")
    made = graph_flow.Flow("f").add(a, b, c, d, e).link(c, d).link(d, e)
    made.link(a, c, decider=first, decider_depth=depths[0])
    return made.link(b, c, decider=second, decider_depth=depths[1])


@flow(">a >b +a +b ~c ~d ~e", order=["+a ~c", "+b ~c"])
def one_no_of_two_is_a_no() -> Any:
    return _two(yes, no)


def _saw_both(history: dict[str, Any]) -> bool:
    return history == {"a": "a", "b": "b"}


@flow(
    ">a >b +a +b >c +c >d +d >e +e", order=["+a >c", "+b >c", "+c >d", "+d >e"],
)  # fmt: skip
def every_decider_sees_all_sources_that_have_one() -> Any:
    return _two(_saw_both, _saw_both)


@flow(">a >b +a +b ~c ~d >e +e", order=["+a ~c", "+b ~c", "~d >e"])
def the_widest_of_two_noes_counts() -> Any:
    return _two(no, no, ("atom", "neighbors"))


@flow(">a +a ~b ~d >c +c", results={"a": "a", "c": "c"})
def a_join_behind_a_branch_not_taken_is_ignored() -> Any:
    a, b, c, d = (tasks.Step(name, provides=name) for name in "abcd")
    made = graph_flow.Flow("f").add(a, b, c, d)
    made.link(a, b, decider=no).link(a, c, decider=yes)
    return made.link(b, d).link(c, d)


@flow(">a +a ~b >c +c >d +d", results={"a": "a", "c": "c", "d": "d"})
def a_join_behind_an_atom_left_out_runs() -> Any:
    a, b, c, d = (tasks.Step(name, provides=name) for name in "abcd")
    made = graph_flow.Flow("f").add(a, b, c, d)
    made.link(a, b, decider=no, decider_depth="atom").link(a, c, decider=yes)
    return made.link(b, d).link(c, d)


@flow(">a +a ~b >c +c")
def votes_of_ignored_sources_do_not_count() -> Any:
    """When all sources are ignored, nobody is asked, and the target runs."""
    a, b, c = (tasks.Step(name) for name in "abc")
    made = graph_flow.Flow("f").add(a, b, c)
    return made.link(a, b, decider=no, decider_depth="atom").link(b, c, decider=no)


@flow(
    ">a +a ~b >c !c <c -c <a -a",
    results={},
    raises={"c": (Exception, "'b'")},
    told={"a": ["a | c"]},
)
def who_needs_an_ignored_value_fails() -> Any:
    a, b = tasks.Step("a"), tasks.Step("b", provides="b")
    c = tasks.Plain("c", rebind=["b"])
    made = graph_flow.Flow("f").add(a, b, c)
    return made.link(a, b, decider=no, decider_depth="atom")


@flow(">a +a >c ~x ~y ~b +c", order=["+a ~x", "+a >c"])
def a_whole_flow_is_ignored() -> Any:
    a, b, c = (tasks.Step(name) for name in "abc")
    inner = linear_flow.Flow("in").add(tasks.Step("x"), tasks.Step("y"))
    made = graph_flow.Flow("f").add(a, inner, b, c).link(a, inner, decider=no)
    return made.link(inner, b).link(a, c)


@flow(">x +x >y +y ~b", results={"x": "x", "y": "y"})
def a_flow_as_a_source_is_not_in_the_history() -> Any:
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
def a_decider_that_raises_fails_its_target() -> Any:
    a, b, c = (tasks.Step(name) for name in "abc")
    return graph_flow.Flow("f").add(a, b, c).link(a, b, decider=_fails).link(b, c)


@flow(
    ">r +r >a +a >b !b <b -b <a -a ?r .a .b >r +r >a +a >b +b",
    results={"n": 2},
    told={"a": ["a | b"], "b": ["KeyError('one') | b"]},
    history={"r": [(1, "b:KeyError"), (2, "")]},
)
def a_decider_that_raises_is_tried_again() -> Any:
    tries = ["one"]

    def once(history: dict[str, Any]) -> bool:
        if tries:
            raise KeyError(tries.pop())
        return True

    a, b = tasks.Step("a"), tasks.Step("b")
    made = graph_flow.Flow("f", retry.Times(2, "r", provides="n"))
    return made.add(a, b).link(a, b, decider=once)


@flow(
    ">r +r >a +a ~b >c !c <c -c <a -a ?r .a .b .c >r +r >a +a >b +b >c +c",
    results={"n": 2},
    told={"a": ["1 | c"], "c": ["RuntimeError(c fails in try 1) | c"]},
    history={"r": [(1, "c:RuntimeError"), (2, "")]},
)
def a_new_try_decides_anew() -> Any:
    """What was ignored is pending again."""
    a = tasks.Give("a", rebind=["n"])
    b = tasks.Step("b")
    c = tasks.Until("c", inject={"until": 2})
    made = graph_flow.Flow("f", retry.Times(2, "r", provides="n")).add(a, b, c)
    made.link(a, b, decider=lambda history: history["a"] > 1, decider_depth="atom")
    return made.link(b, c)


@flow(
    ">r +r >a +a >b ~s ~x +b", order=["+a ~s", "+a >b"],
    history={"r": [(None, "")], "s": []},
)  # fmt: skip
def an_ignored_retry_provides_nothing() -> Any:
    a, b = tasks.Step("a"), tasks.Step("b")
    inner = linear_flow.Flow("in", retry.Times(2, "s", provides="n")).add(tasks.Step("x"))
    made = graph_flow.Flow("f", retry.AlwaysRevert("r")).add(a, b, inner)
    return made.link(a, inner, decider=no).link(a, b)


@flow(
    ">r +r >a +a >c ~b ~z !c <c -c <a -a ?r .a .b .c .z >r +r >a +a >c >b +c +b >z +z",
    order=["+a >c", "~z -c", ".z >z", "+b >z"],
    results={"n": 2},
    told={"a": ["1 | c"], "c": ["RuntimeError(c fails in try 1) | c"]},
    history={"r": [(1, "c:RuntimeError"), (2, "")]},
)
def a_new_try_takes_back_what_was_ignored_behind_its_flow() -> Any:
    a, b, z = tasks.Give("a", rebind=["n"]), tasks.Step("b"), tasks.Step("z")
    c = tasks.Until("c", inject={"until": 2})
    inner = graph_flow.Flow("in", retry.Times(2, "r", provides="n")).add(a, b, c)
    inner.link(a, b, decider=lambda history: history["a"] > 1).link(a, c)
    return linear_flow.Flow("f").add(inner, z)

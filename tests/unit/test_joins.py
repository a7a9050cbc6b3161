"""Join rules: a node after branches of which some, or all, were ignored."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.unit.scheduling import (
    GRAPH,
    LINEAR,
    Depth,
    Run,
    Step,
    branches,
    control,
    decider,
    steps,
)
from wbengine import states
from wbengine.runtime.compiler import compile

SUCCESS, FAILURE = "SUCCESS", "FAILURE"
IGNORE = ("IGNORE", "IGNORE")


def diamond(rule: str, *, inside: bool = False, deciding: str = "") -> Any:
    """a decides upon b and c; after both: d (or the flow d, of d1 and d2), then z."""
    a, b, c, z = steps("a", "b", "c", "z")
    d: Any = LINEAR("d").add(*steps("d1", "d2")) if inside else Step("d")
    flow = GRAPH("f").add(a, b, c, d, z).link(a, b, decider=decider).link(a, c, decider=decider)
    for source in (b, c):
        extra = {"decider": decider} if source.name in deciding else {}
        flow.link(source, d, **extra)
    return flow.link(d, z).join(d, rule)


def begin(flow: Any) -> Run:
    run = Run(flow)
    assert run.take() == "execute: a"
    run.ok("a")
    assert run.take() == "votes: b c"
    return run


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("rule", ["any", "none_failed"])
def test_a_join_runs_after_one_of_its_branches(rule: str, inside: bool) -> None:
    run = begin(diamond(rule, inside=inside))
    assert run.decide("b", "a") == "b"
    assert run.decide("c") == ""
    assert run.take() == "execute: c"
    run.ok("c")
    assert run.take() == ("execute: d1" if inside else "execute: d")


def test_the_rule_of_all_is_that_of_taskflow() -> None:
    run = begin(diamond("all"))
    assert run.decide("b", "a") == "b d z"
    run.decide("c")
    assert run.take() == "execute: c"
    run.ok("c")
    assert run.end() == states.SUCCESS


@pytest.mark.parametrize("inside", [False, True])
def test_any_without_any_is_ignored_with_all_that_follows(inside: bool) -> None:
    run = begin(diamond("any", inside=inside))
    assert run.decide("b", "a") == "b"
    assert run.decide("c", "a") == "c"
    assert run.take() == "votes: d"
    assert run.asked("d") == ""
    assert not run.scheduler.done
    assert run.decide("d") == ("d1 d2 z" if inside else "d z")
    assert run.end() == states.SUCCESS


@pytest.mark.parametrize("inside", [False, True])
def test_none_failed_runs_after_nothing(inside: bool) -> None:
    run = begin(diamond("none_failed", inside=inside))
    run.decide("b", "a")
    run.decide("c", "a")
    assert run.take() == ("execute: d1" if inside else "execute: d")


def test_any_asks_only_when_no_other_link_was_taken() -> None:
    run = begin(diamond("any", deciding="c"))
    run.decide("b")
    run.decide("c")
    assert run.take() == "execute: b c"
    run.ok("b", "c")
    assert run.take() == "execute: d"

    run = begin(diamond("any", deciding="c"))
    run.decide("b", "a")
    run.decide("c")
    run.take()
    run.ok("c")
    assert run.take() == "votes: d"
    assert run.asked("d") == "c"
    assert run.decide("d") == ""
    assert run.take() == "execute: d"


def test_one_yes_is_enough_for_any_and_one_no_for_none_failed() -> None:
    for rule, ignored in (("any", ""), ("none_failed", "d z")):
        run = begin(diamond(rule, deciding="bc"))
        run.decide("b")
        run.decide("c")
        run.take()
        run.ok("b", "c")
        assert run.take() == "votes: d"
        assert run.asked("d") == "b c"
        assert run.decide("d", "b") == ignored


def test_only_deciders_of_sources_that_were_not_ignored_are_asked() -> None:
    run = begin(diamond("none_failed", deciding="bc"))
    run.decide("b", "a")
    run.decide("c")
    run.take()
    run.ok("c")
    assert run.take() == "votes: d"
    assert run.asked("d") == "c"
    assert run.decide("d", "c") == "d z"


def test_any_that_deciders_alone_refuse_is_ignored_as_deep_as_they_say() -> None:
    for ignoring, ignored in (False, "d"), (True, "d z"):
        a, b, d, z = steps("a", "b", "d", "z")
        flow = GRAPH("f").add(a, b, d, z).link(a, b, decider=decider, decider_depth="atom")
        flow.link(a, d, decider=decider, decider_depth="atom").link(d, z).join(d, "any")
        if ignoring:
            flow.link(b, d)
        else:
            flow.link(b, z)
        run = Run(flow)
        run.take()
        run.ok("a")
        assert run.take() == ("votes: b" if ignoring else "votes: b d")
        run.decide("b", "a")
        run.take()
        assert run.decide("d", "a") == ignored


@pytest.mark.parametrize("depth", list(Depth))
def test_a_cascade_of_any_depth_ends_at_a_join(depth: Depth) -> None:
    a, b, c, d, z = steps("a", "b", "c", "d", "z")
    flow = GRAPH("f").add(a, b, c, d, z).link(a, b, decider=decider, decider_depth=depth)
    flow.link(b, d).link(c, d).link(d, z).join(d, "any")
    run = Run(flow)
    assert run.take() == "execute: a c"
    run.ok("a", "c")
    run.take()
    assert run.decide("b", "a") == "b"
    assert run.take() == "execute: d"


def test_joins_behind_joins() -> None:
    a, b, c, d, e = steps("a", "b", "c", "d", "e")
    flow = GRAPH("f").add(a, b, c, d, e).link(a, b, decider=decider)
    flow.link(b, c).link(c, d).link(d, e).join(c, "any").join(d, "any").join(e, "none_failed")
    run = Run(flow)
    run.take()
    run.ok("a")
    run.take()
    assert run.decide("b", "a") == "b"
    assert run.take() == "votes: c"
    assert run.decide("c") == "c"
    assert run.take() == "votes: d"
    assert run.decide("d") == "d"
    assert run.take() == "execute: e"


def test_a_flow_that_is_ignored_as_a_whole_takes_its_joins_along() -> None:
    a, b, j, y = steps("a", "b", "j", "y")
    inner = GRAPH("inner").add(b, j).link(b, j).join(j, "none_failed").join(b, "none_failed")
    outer = GRAPH("outer").add(inner)
    flow = GRAPH("f").add(a, outer, y).link(a, outer, decider=decider).link(outer, y)
    run = Run(flow.join(y, "any"))
    run.take()
    run.ok("a")
    run.take()
    assert run.decide("outer", "a") == "b j"
    assert run.take() == "votes: y"
    assert run.decide("y") == "y"
    assert run.end() == states.SUCCESS


def test_a_cascade_into_a_flow_takes_its_joins_along() -> None:
    a, b, c, j = steps("a", "b", "c", "j")
    nest = LINEAR("nest").add(GRAPH("inner").add(c, j).link(c, j).join(j, "none_failed"))
    flow = GRAPH("f").add(a, b, nest).link(a, b, decider=decider).link(b, nest)
    run = Run(flow)
    run.take()
    run.ok("a")
    run.take()
    assert run.decide("b", "a") == "b c j"
    assert run.end() == states.SUCCESS


def test_a_flow_as_a_source_is_ignored_when_all_its_last_members_are() -> None:
    for gone, then in ("bc", "votes: j"), ("b", "execute: j"):
        a, b, c, j = steps("a", "b", "c", "j")
        inner = GRAPH("inner").add(a, b, c)
        for target in (b, c):
            inner.link(a, target, decider=decider, decider_depth="atom")
        flow = GRAPH("f").add(inner, j).link(inner, j).join(j, "any")
        run = Run(flow)
        run.take()
        run.ok("a")
        run.take()
        for target in "bc":
            run.decide(target, *(["a"] if target in gone else []))
        if gone == "b":
            assert run.take() == "execute: c"
            run.ok("c")
        assert run.take() == then


def test_a_retry_lets_a_join_be_decided_anew() -> None:
    a, b, c, j = steps("a", "b", "c", "j")
    x, y = steps("x", "y")
    inner = GRAPH("inner", control("r")).add(a, b, c, j, x).link(a, b, decider=decider)
    inner.link(b, j).join(j, "any").link(j, c)
    run = Run(GRAPH("f").add(inner, y).link(inner, y).join(y, "any"))
    run.take()
    run.ok("r")
    run.take()
    run.ok("a")
    run.take()
    run.decide("b", "a")
    run.take()
    assert run.decide("j") == "j c"
    run.failed("x")
    run.apply(states.RETRY, "r")
    assert run.take() == "revert: a x"
    run.reverted("a", "x")
    assert run.take() == "retry: r"
    assert run.reset("r") == "a b c j x"
    run.ok("r")
    assert run.take() == "execute: a x"
    run.ok("a", "x")
    assert run.take() == "votes: b"
    run.decide("b")
    for name in ("b", "j", "c", "y"):
        assert run.take() == f"execute: {name}"
        run.ok(name)
    assert run.end() == states.SUCCESS


def test_what_the_last_members_of_a_flow_are_is_looked_up_again() -> None:
    a, b, j = steps("a", "b", "j")
    inner = GRAPH("inner").add(a, b).link(a, b, decider=decider, decider_depth="atom")
    outer = GRAPH("outer", control("r")).add(inner, j, Step("x")).link(inner, j).join(j, "any")
    run = Run(outer)
    for again in (False, True):
        if not again:
            run.take()
        run.ok("r")
        run.take()
        run.ok("a")
        run.take()
        run.decide("b", *([] if again else ["a"]))
        if again:
            run.take()
            run.ok("b")
            assert run.take() == "execute: j"
        else:
            assert run.take() == "votes: j"
            run.decide("j")
            run.failed("x")
            run.apply(states.RETRY, "r")
            run.take()
            run.reverted("a", "x")
            assert run.take() == "retry: r"
            run.reset("r")


# -- going on with what was saved


def test_joins_go_on_where_they_were() -> None:
    plan = compile(diamond("any"))
    done = {"a": (SUCCESS, "EXECUTE")}
    assert Run(plan, {**done, "b": IGNORE, "c": (SUCCESS, "EXECUTE")}).take() == "execute: d"
    run = Run(plan, {**done, "b": IGNORE, "c": IGNORE})
    assert run.take() == "votes: d"
    assert run.decide("d") == "d z"
    assert Run(plan, {**done, **dict.fromkeys("bcdz", IGNORE)}).end() == states.SUCCESS
    ended = {**done, "b": IGNORE, "c": (SUCCESS, "EXECUTE"), "d": (SUCCESS, "EXECUTE")}
    assert Run(plan, ended).take() == "execute: z"


def test_a_flow_that_was_let_in_by_its_rule_is_not_asked_again() -> None:
    plan = compile(diamond("any", inside=True, deciding="bc"))
    done = {"a": (SUCCESS, "EXECUTE"), "b": IGNORE, "c": (SUCCESS, "EXECUTE")}
    assert Run(plan, done).take() == "votes: d"
    assert Run(plan, {**done, "d1": (SUCCESS, "EXECUTE")}).take() == "execute: d2"
    assert Run(plan, {**done, **dict.fromkeys(("d1", "d2", "z"), IGNORE)}).end() == states.SUCCESS


def two_refusers() -> Any:
    """In r's flow a decides upon b; p decides upon q; last comes after both, and c beside a."""
    a, b, c, p, q, last = steps("a", "b", "c", "p", "q", "last")
    inner = GRAPH("inner", control("r")).add(a, b, c).link(a, b, decider=decider)
    flow = GRAPH("f").add(inner, p, q, last).link(p, q, decider=decider)
    return flow.link(inner, last).link(q, last)


@pytest.mark.parametrize(("q", "taken_back"), [(IGNORE, ""), ((SUCCESS, "EXECUTE"), " last")])
def test_what_two_refused_earlier_is_not_taken_back_from_one(q: Any, taken_back: str) -> None:
    done = dict.fromkeys(("r", "a", "p"), (SUCCESS, "EXECUTE"))
    saved = {**done, "b": IGNORE, "q": q, "last": IGNORE, "c": (FAILURE, "EXECUTE")}
    run = Run(two_refusers(), saved)
    run.apply(states.RETRY, "r")
    run.take()
    run.reverted("a", "c")
    run.take()
    assert run.reset("r") == "a b c" + taken_back


def test_who_said_no_earlier_is_told_by_how_much_is_ignored() -> None:
    """b has two deciders of different depth; it was that of only b, or c2 were not done."""
    a, q, y = steps("a", "q", "y")
    inner = GRAPH("inner", control("r")).add(a, q, y).link(a, q, decider=decider)
    p1, p2, b, c, c2 = steps("p1", "p2", "b", "c", "c2")
    flow = GRAPH("f").add(inner, p1, p2, b, c, c2).link(inner, c).link(b, c).link(b, c2)
    flow.link(p1, b, decider=decider).link(p2, b, decider=decider, decider_depth="atom")
    done = dict.fromkeys(("r", "a", "p1", "p2", "c2"), (SUCCESS, "EXECUTE"))
    saved = {**done, **dict.fromkeys("bqc", IGNORE), "y": (FAILURE, "EXECUTE")}
    run = Run(flow, saved)
    run.apply(states.RETRY, "r")
    run.take()
    run.reverted("a", "y")
    run.take()
    assert run.reset("r") == "a c q y"


def test_what_nobody_can_have_refused_stays_ignored() -> None:
    """The flow was another one when its states were saved."""
    done = {"a": IGNORE, "b": IGNORE}
    run = Run(branches(), done)
    assert run.take() == "execute: c"
    run = Run(branches(), {"a": (SUCCESS, "EXECUTE"), "b": IGNORE, "d": IGNORE})
    assert run.take() == "execute: c"


# -- cost: counted, not timed


def finish(run: Run, *, yes: bool) -> None:
    while not run.scheduler.done:
        turn = run.scheduler.take()
        for node in turn.execute:
            run.scheduler.succeeded(node)
        for node in turn.votes:
            run.scheduler.decide(node, [] if yes else run.scheduler.ballot(node))


def edges_of(run: Run) -> int:
    return sum(len(after) for after in run.plan.succ)


@pytest.mark.parametrize("yes", [False, True])
def test_a_line_of_joins_follows_each_edge_a_few_times(yes: bool) -> None:
    line = steps(*(f"s{i}" for i in range(3000)))
    flow = GRAPH("f").add(*line).link(line[0], line[1], decider=decider)
    for u, v in itertools.pairwise(line[1:]):
        flow.link(u, v).join(v, "any")
    run = Run(flow)
    finish(run, yes=yes)
    assert run.end() == states.SUCCESS
    assert run.scheduler.visits <= 2 * edges_of(run)


@pytest.mark.parametrize("rule", ["any", "none_failed"])
def test_many_branches_into_many_joins(rule: str) -> None:
    """All of them were refused, and come to the joins through the end of a flow."""
    first, *branches = steps("first", *(f"b{i}" for i in range(3000)))
    inner = GRAPH("inner").add(first, *branches)
    for branch in branches:
        inner.link(first, branch, decider=decider)
    joins = [LINEAR(f"l{i}").add(Step(f"j{i}")) for i in range(300)]
    flow = GRAPH("f").add(inner, *joins)
    for made in joins:
        flow.link(inner, made).join(made, rule)
    run = Run(flow)
    finish(run, yes=False)
    assert run.end() == states.SUCCESS
    assert run.scheduler.visits <= 3 * edges_of(run)


def test_refusals_with_the_same_consequences_do_not_cost_their_product() -> None:
    """Neither when they are made, nor when they are taken back."""
    first, *branches = steps("first", *(f"b{i}" for i in range(2000)))
    inner = GRAPH("inner", control("r")).add(first, Step("x"), *branches)
    for branch in branches:
        inner.link(first, branch, decider=decider)
    tail = LINEAR("tail").add(*steps(*(f"t{i}" for i in range(1000))))
    run = Run(GRAPH("f").add(inner, tail).link(inner, tail))
    run.take()
    run.ok("r")
    run.take()
    run.ok("first")
    for node in run.scheduler.take().votes:
        run.scheduler.decide(node, run.scheduler.ballot(node))
    run.failed("x")
    run.apply(states.RETRY, "r")
    run.take()
    run.reverted("first", "x")
    assert run.take() == "retry: r"
    assert len(run.reset("r").split()) == 3002
    assert run.scheduler.visits <= 5 * edges_of(run)


def test_a_join_at_the_bottom_of_ten_thousand_flows() -> None:
    bottom = diamond("any", inside=True)
    top = bottom
    for i in range(10_000):
        top = LINEAR(f"l{i}").add(top)
    run = Run(top)
    finish(run, yes=False)
    assert run.end() == states.SUCCESS
    run = Run(top)
    assert run.take() == "execute: a"
    run.failed("a")
    run.apply(states.REVERT)
    assert run.take() == "revert: a"
    run.reverted("a")
    assert run.end() == states.REVERTED


def test_a_join_behind_ten_thousand_flows() -> None:
    """Whether the innermost last member was ignored is found out without recursion."""
    a, b, j = steps("a", "b", "j")
    top: Any = GRAPH("bottom").add(a, b).link(a, b, decider=decider, decider_depth="atom")
    for i in range(10_000):
        top = LINEAR(f"l{i}").add(top)
    run = Run(GRAPH("f").add(top, j).link(top, j).join(j, "any"))
    assert run.take() == "execute: a"
    run.ok("a")
    assert run.take() == "votes: b"
    assert run.decide("b", "a") == "b"
    assert run.take() == "votes: j"
    assert run.decide("j") == "j"
    assert run.end() == states.SUCCESS
    assert run.scheduler.visits <= 2 * edges_of(run)

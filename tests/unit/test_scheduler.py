"""Rejected calls, changed flows, costs and invalid decisions, in addition to `tests/property`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.line_counts import growth
from tests.unit.scheduling import (
    GRAPH,
    LINEAR,
    UNORDERED,
    Run,
    Step,
    branches,
    control,
    decider,
    steps,
    subflows,
)
from wbengine import engines, retry, states
from wbengine._runtime import node_states, retry_decisions, reverting
from wbengine._runtime.compiler import compile
from wbengine._runtime.scheduler import Scheduler

RUNNING, SUCCESS, FAILURE = "RUNNING", "SUCCESS", "FAILURE"
IGNORE = ("IGNORE", "IGNORE")
DEEP = 10_000


def nested(inner: Any) -> Any:
    for i in range(DEEP):
        inner = LINEAR(f"l{i}").add(inner)
    return inner


def finish(run: Run, *, yes: bool = True) -> None:
    """Complete the flow: all atoms succeed, and all deciders return `yes`."""
    while not run.scheduler.done:
        turn = run.scheduler.take()
        for node in turn.execute:
            run.scheduler.succeeded(node)
        for node in turn.votes:
            run.scheduler.decide(node, [] if yes else run.scheduler.ballot(node))
    assert run.end() == states.SUCCESS


def revert_all(run: Run) -> None:
    """Fail the only task, a, and revert the flow."""
    assert run.take() == "execute: a"
    run.failed("a")
    run.apply(states.REVERT)
    assert run.take() == "revert: a"
    run.reverted("a")
    assert run.end() == states.REVERTED


def test_ready_atoms_are_ordered_by_priority_then_position() -> None:
    atoms = steps("a", "b", "c", "d")
    atoms[2].priority = 5
    atoms[3].priority = -1
    run = Run(UNORDERED("f").add(*atoms))
    assert run.take() == "execute: c a b d"
    run.ok("a", "b", "c")
    assert run.failed("d")
    run.apply(states.REVERT)
    assert run.take() == "revert: c a b d"


def test_halted_scheduler_starts_no_atoms() -> None:
    run = Run(UNORDERED("f").add(*steps("a", "b")))
    run.take()
    run.scheduler.undo_begin(run.id["a"])
    run.scheduler.halt()
    assert run.take() == ""
    assert not run.scheduler.done
    run.ok("b")
    assert run.end() == states.SUSPENDED


def test_begun_atom_taken_back_runs_again_before_its_scope_reverts() -> None:
    run = Run(UNORDERED("f").add(*steps("a", "b")))
    run.take()
    assert run.failed("b")
    run.apply(states.REVERT)
    run.scheduler.undo_begin(run.id["a"], has_begun=True)
    assert run.scheduler.in_flight == 0 and not run.scheduler.done
    assert run.take() == "execute: a; revert: b"
    run.reverted("b")
    run.ok("a")
    assert run.take() == "revert: a"
    run.reverted("a")
    assert run.end() == states.REVERTED


def test_outcome_of_an_atom_not_in_flight_raises_value_error() -> None:
    run = Run(LINEAR("f").add(*steps("a", "b")))
    with pytest.raises(ValueError, match="'b'"):
        run.ok("b")
    run.take()
    run.ok("a")
    with pytest.raises(ValueError, match="'a'"):
        run.ok("a")
    with pytest.raises(ValueError, match="'b'"):
        run.reverted("b")


def test_halted_scheduler_with_unresolved_failure_ends_in_failure() -> None:
    run = Run(UNORDERED("f").add(*steps("a", "b")))
    run.take()
    assert run.failed("a")
    run.scheduler.halt()
    run.ok("b")
    assert run.scheduler.unresolved() == [run.id["a"]]
    assert run.end() == states.FAILURE


def test_postpone_accepts_only_a_started_retry() -> None:
    run = Run(LINEAR("f", control("r")).add(*steps("a", "b")))
    for name in ("r", "a"):
        assert run.take() == f"execute: {name}"
        run.ok(name)
    run.take()
    assert run.failed("b")
    run.apply(states.RETRY, "r")
    for name in ("b", "a"):
        assert run.take() == f"revert: {name}"
        run.reverted(name)
    assert run.take() == "retry: r"
    run.scheduler.postpone(run.id["r"])
    for name in "rab":
        with pytest.raises(ValueError, match=f"'{name}' was not started as a retry"):
            run.scheduler.postpone(run.id[name])
        if name != "r":
            run.scheduler.wake(run.id[name])
    assert run.take() == ""


def test_postponed_retry_overridden_by_a_revert_is_reverted() -> None:
    run = Run(UNORDERED("f").add(LINEAR("in", control("r")).add(Step("a")), Step("x")))
    assert run.take() == "execute: r x"
    run.ok("r")
    assert run.take() == "execute: a"
    assert run.failed("a")
    run.apply(states.RETRY, "r")
    assert run.take() == "revert: a"
    run.reverted("a")
    assert run.take() == "retry: r"
    run.failed("x")
    run.apply(states.REVERT)
    run.scheduler.postpone(run.id["r"])
    assert run.scheduler.in_flight == 0
    assert run.take() == "revert: r x"


def test_vote_on_an_atom_of_a_reverting_flow_is_ignored() -> None:
    a, b, x = steps("a", "b", "x")
    run = Run(GRAPH("f").add(a, b, x).link(a, b, decider=decider))
    run.take()
    run.ok("a")
    assert run.take() == "votes: b"
    run.failed("x")
    run.apply(states.REVERT)
    assert not run.failed("b")
    run.scheduler.approve(run.id["b"])
    assert run.take() == "revert: a x"


@pytest.mark.parametrize(
    "retrying", [("RETRYING", "EXECUTE"), (RUNNING, "RETRY")], ids=["retrying", "running"]
)
def test_resumed_retrying_controller_retries_and_resets_its_scope(
    retrying: tuple[str, str],
) -> None:
    saved = {"a": (SUCCESS, "EXECUTE"), "r1": retrying, "b": ("REVERTED", "REVERT")}
    run = Run(subflows(), saved)
    assert run.take() == "execute: x; retry: r1"
    assert run.reset("r1") == "b"


def test_atom_added_before_completed_atoms_runs_on_resume() -> None:
    saved = {"b": (RUNNING, "EXECUTE"), "c": (SUCCESS, "EXECUTE")}
    run = Run(LINEAR("f").add(*steps("new", "b", "c", "d")), saved)
    assert run.take() == "execute: new b"
    run.ok("b")
    assert run.take() == ""
    run.ok("new")
    assert run.take() == "execute: d"


def test_resume_reports_unresolved_failures() -> None:
    saved = {"a": (SUCCESS, "EXECUTE"), "x": (FAILURE, "EXECUTE"), "r1": (FAILURE, "EXECUTE")}
    run = Run(subflows(), saved)
    assert run.scheduler.unresolved() == [run.id["r1"], run.id["x"]]
    assert run.failed("x")
    run.apply(states.REVERT)
    assert not run.failed("r1")
    assert run.scheduler.unresolved() == []
    assert run.take() == "revert: r1 x"


def test_ignored_atoms_that_no_decider_rejected_stay_ignored() -> None:
    """The flow was changed after its states were saved."""
    done = {"a": IGNORE, "b": IGNORE}
    run = Run(branches(), done)
    assert run.take() == "execute: c"
    run = Run(branches(), {"a": (SUCCESS, "EXECUTE"), "b": IGNORE, "d": IGNORE})
    assert run.take() == "execute: c"


def two_refusers() -> Any:
    """Return a flow in which a decides about b (under r) and p about q; last follows both."""
    a, b, c, p, q, last = steps("a", "b", "c", "p", "q", "last")
    inner = GRAPH("inner", control("r")).add(a, b, c).link(a, b, decider=decider)
    flow = GRAPH("f").add(inner, p, q, last).link(p, q, decider=decider)
    return flow.link(inner, last).link(q, last)


@pytest.mark.parametrize(
    ("q", "taken_back"), [(IGNORE, ""), ((SUCCESS, "EXECUTE"), " last")], ids=["ignored", "done"]
)
def test_retry_keeps_atoms_ignored_that_another_decider_rejected(q: Any, taken_back: str) -> None:
    done = dict.fromkeys(("r", "a", "p"), (SUCCESS, "EXECUTE"))
    saved = {**done, "b": IGNORE, "q": q, "last": IGNORE, "c": (FAILURE, "EXECUTE")}
    run = Run(two_refusers(), saved)
    run.apply(states.RETRY, "r")
    run.take()
    run.reverted("a", "c")
    run.take()
    assert run.reset("r") == "a b c" + taken_back


def test_resume_infers_the_rejecting_decider_from_ignored_atoms() -> None:
    """The decider of b with depth `atom` rejected it, because c2 completed."""
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


# Costs, counted in steps.


def many(kind: Any, count: int) -> Any:
    return kind("f").add(*steps(*(f"t{i}" for i in range(count))))


def failing(count: int) -> Callable[[], None]:
    """Return work in which all tasks fail and are reverted because of the first failure."""
    run = Run(LINEAR("f").add(many(UNORDERED, count)))

    def work() -> None:
        nodes = run.scheduler.take().execute
        assert run.scheduler.failed(nodes[0])
        run.apply(states.REVERT)
        assert not any(map(run.scheduler.failed, nodes[1:]))
        for node in run.scheduler.take().revert:
            run.scheduler.reverted(node)
        assert run.end() == states.REVERTED

    return work


def joined(count: int, yes: bool) -> Callable[[], None]:
    """Return work with a chain of joins."""
    line = steps(*(f"s{i}" for i in range(count)))
    flow = GRAPH("f").add(*line).link(line[0], line[1], decider=decider)
    for u, v in itertools.pairwise(line[1:]):
        flow.link(u, v).join(v, "any")
    return functools.partial(finish, Run(flow), yes=yes)


def branches_joined(count: int, rule: str) -> Callable[[], None]:
    """Return work in which many rejected branches lead to many joins after their flow."""
    first, *branches = steps("first", *(f"b{i}" for i in range(count)))
    inner = GRAPH("inner").add(first, *branches)
    for branch in branches:
        inner.link(first, branch, decider=decider)
    joins = [LINEAR(f"l{i}").add(Step(f"j{i}")) for i in range(count // 4)]
    flow = GRAPH("f").add(inner, *joins)
    for join in joins:
        flow.link(inner, join).join(join, rule)
    return functools.partial(finish, Run(flow), yes=False)


def refused(count: int) -> Callable[[], None]:
    """Return work with many rejections that have the same consequences, and their reset."""
    first, *branches = steps("first", *(f"b{i}" for i in range(count)))
    inner = GRAPH("inner", control("r")).add(first, Step("x"), *branches)
    for branch in branches:
        inner.link(first, branch, decider=decider)
    tail = LINEAR("tail").add(*steps(*(f"t{i}" for i in range(count))))
    run = Run(GRAPH("f").add(inner, tail).link(inner, tail))

    def work() -> None:
        for name in ("r", "first"):
            run.take()
            run.ok(name)
        for node in run.scheduler.take().votes:
            run.scheduler.decide(node, run.scheduler.ballot(node))
        run.failed("x")
        run.apply(states.RETRY, "r")
        run.take()
        run.reverted("first", "x")
        assert run.take() == "retry: r"
        assert len(run.reset("r").split()) == 2 * count + 2

    return work


WORK: dict[str, Callable[[int], Callable[[], None]]] = {
    "linear": lambda count: functools.partial(finish, Run(many(LINEAR, count))),
    "unordered": lambda count: functools.partial(finish, Run(many(UNORDERED, count))),
    "failing": failing,
    "joins, yes": lambda count: joined(count, True),
    "joins, no": lambda count: joined(count, False),
    "branches, any": lambda count: branches_joined(count, "any"),
    "branches, none_failed": lambda count: branches_joined(count, "none_failed"),
    "refused": refused,
}


@pytest.mark.parametrize("case", WORK)
def test_scheduler_work_is_linear_in_the_flow_size(case: str) -> None:
    assert growth(WORK[case]) < 1.1


def test_very_deep_flows_settle_and_revert_without_recursion() -> None:
    revert_all(Run(nested(Step("a"))))


def test_join_inside_ten_thousand_nested_flows_needs_no_recursion() -> None:
    """Task a decides about b and c; the flow d (d1, d2) follows both."""
    a, b, c = steps("a", "b", "c")
    d = LINEAR("d").add(*steps("d1", "d2"))
    flow = GRAPH("f").add(a, b, c, d).link(a, b, decider=decider).link(a, c, decider=decider)
    top = nested(flow.link(b, d).link(c, d).join(d, "any"))
    finish(Run(top), yes=False)
    revert_all(Run(top))


def test_join_after_ten_thousand_nested_flows_needs_no_recursion() -> None:
    a, b, j = steps("a", "b", "j")
    top: Any = GRAPH("bottom").add(a, b).link(a, b, decider=decider, decider_depth="atom")
    top = nested(top)
    run = Run(GRAPH("f").add(top, j).link(top, j).join(j, "any"))
    assert run.take() == "execute: a"
    run.ok("a")
    assert run.take() == "votes: b"
    assert run.decide("b", "a") == "b"
    assert run.take() == "votes: j"
    assert run.decide("j") == "j"
    assert run.end() == states.SUCCESS


def test_atoms_over_the_limit_are_not_sorted_again_for_each_batch() -> None:
    """The second task of each chain becomes ready while most first tasks still wait."""
    compared = 0

    class Counted(int):
        def __neg__(self) -> Counted:
            return Counted(-int(self))

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    flow = UNORDERED("f")
    for number in range(1000):
        pair = steps(f"{number}a", f"{number}b")
        for each in pair:
            each.priority = Counted(0)
        flow.add(LINEAR(f"{number}").add(*pair))
    run, taken = Run(flow), 0
    while not run.scheduler.done:
        turn = run.scheduler.take(8)
        assert 0 < len(turn.execute) <= 8
        taken += len(turn.execute)
        for node in turn.execute:
            run.scheduler.succeeded(node)
    assert taken == 2000
    # Bound for a heap of 2,000 atoms; sorting in each of 250 batches takes 500,000.
    assert compared < 2000 * 2 * 11


def test_all_atoms_behind_an_unfinished_one_are_stale_once() -> None:
    flow = GRAPH("g").add(*steps("a", "b", "c", "d"))
    for start, end in ("ac", "bc", "cd"):
        flow.link(*(next(each for each in flow if each.name == name) for name in (start, end)))
    plan = Run(flow).plan
    marks = bytearray(len(plan))
    for name in "cd":
        marks[plan.by_name[name]] = node_states.DONE
    assert reverting.stale(plan, marks) == sorted(plan.by_name[name] for name in "cd")


def test_failure_that_is_being_reverted_is_not_examined_again() -> None:
    run = Run(LINEAR("l").add(*steps("a")))
    assert run.take() == "execute: a"
    run.failed("a")
    assert run.names(run.scheduler.unresolved()) == "a"
    run.apply(states.REVERT)
    assert run.scheduler.unresolved() == [] and not run.scheduler._failed


@pytest.mark.parametrize(("name", "reverted"), [("a", "cb"), ("b", "ca"), ("c", "ba")])
def test_kept_result_is_not_reverted_and_delays_no_reverts(name: str, reverted: str) -> None:
    engine = engines.load(LINEAR("f").add(*steps(*"abc")))
    engine.compile()
    assert engine.compilation is not None
    plan = engine.compilation.plan
    saved = {plan.by_name[each]: (SUCCESS, states.EXECUTE) for each in "abc"}
    scheduler = Scheduler(plan, saved, not_owned={plan.by_name[name]})
    scheduler.start()
    scheduler.apply(retry_decisions.everything(plan))
    for node in (plan.by_name[each] for each in reverted):
        assert scheduler.take().revert == [node]
        scheduler.reverted(node)
    assert scheduler.done and scheduler.verdict() == states.REVERTED


# Decisions of retries.


def nested_retries(levels: int) -> Any:
    flow = LINEAR("f", control("r")).add(Step("a"))
    for i in range(levels):
        flow = LINEAR(f"f{i}", control(f"r{i}")).add(flow)
    return compile(flow)


@pytest.mark.parametrize("answer", [None, "retry", 3, True])
def test_invalid_decision_is_rejected_with_the_retry_name(answer: Any) -> None:
    plan = nested_retries(1)

    def ask(controller: int, failed: int) -> Any:
        return retry.REVERT if plan.names[controller] == "r" else answer

    with pytest.raises(ValueError, match=f"'r0'.*{answer!r}"):
        retry_decisions.resolve(plan, plan.by_name["a"], ask, defer_reverts=True)


def test_decisions_of_five_thousand_nested_retries_need_no_recursion() -> None:
    plan = nested_retries(5000)
    found = retry_decisions.resolve(
        plan, plan.by_name["a"], lambda controller, failed: retry.REVERT, defer_reverts=False
    )
    assert plan.names[found.scope.start] == "r"

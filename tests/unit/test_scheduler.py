from __future__ import annotations

from typing import Any

import pytest

from tests.unit.scheduling import (
    GRAPH,
    LINEAR,
    UNORDERED,
    Depth,
    Run,
    Step,
    branches,
    control,
    decider,
    steps,
    subflows,
)
from wbengine import states
from wbengine.runtime.compiler import compile

# -- forward


def test_one_after_the_other() -> None:
    run = Run(LINEAR("f").add(*steps("a", "b")))
    assert not run.scheduler.done
    assert run.take() == "execute: a"
    assert run.take() == ""
    assert run.scheduler.in_flight == 1
    run.ok("a")
    assert run.take() == "execute: b"
    run.ok("b")
    assert run.end() == states.SUCCESS


@pytest.mark.parametrize("kind", [LINEAR, UNORDERED, GRAPH])
def test_an_empty_flow_is_done(kind: Any) -> None:
    assert Run(kind("f")).end() == states.SUCCESS


def test_a_task_alone() -> None:
    run = Run(Step("a"))
    assert run.take() == "execute: a"
    assert run.failed("a")
    assert run.apply(states.REVERT) == {"a": "REVERT"}
    assert run.take() == "revert: a"
    run.reverted("a")
    assert run.end() == states.REVERTED


def test_bigger_priorities_first_and_then_in_order() -> None:
    atoms = steps("a", "b", "c", "d")
    atoms[2].priority = 5
    atoms[3].priority = -1
    run = Run(UNORDERED("f").add(*atoms))
    assert run.take() == "execute: c a b d"
    run.ok("a", "b", "c")
    assert run.failed("d")
    run.apply(states.REVERT)
    assert run.take() == "revert: c a b d"


def test_halted_nothing_is_handed_out() -> None:
    run = Run(UNORDERED("f").add(*steps("a", "b")))
    run.take()
    run.scheduler.give_back(run.id["a"])
    run.scheduler.halt()
    assert run.take() == ""
    assert not run.scheduler.done
    run.ok("b")
    assert run.end() == states.SUSPENDED


def test_what_is_given_back_comes_again() -> None:
    run = Run(LINEAR("f").add(*steps("a", "b")))
    run.take()
    run.scheduler.give_back(run.id["a"])
    assert run.scheduler.in_flight == 0
    assert run.take() == "execute: a"
    run.ok("a")
    run.take()
    run.failed("b")
    run.apply(states.REVERT)
    assert run.take() == "revert: b"
    run.scheduler.give_back(run.id["b"])
    assert run.take() == "revert: b"


def test_given_back_inside_a_scope_counts_as_pending() -> None:
    run = Run(LINEAR("f").add(Step("a"), UNORDERED("u").add(*steps("b", "c"))))
    run.take()
    run.ok("a")
    run.take()
    run.failed("b")
    run.apply(states.REVERT)
    assert run.take() == "revert: b"
    run.reverted("b")
    assert run.take() == ""
    run.scheduler.give_back(run.id["c"])
    assert run.take() == "revert: a"


def test_what_was_begun_and_given_back_comes_to_its_end() -> None:
    """A scope waits for it, and then it is reverted like the others."""
    run = Run(UNORDERED("f").add(*steps("a", "b")))
    run.take()
    assert run.failed("b")
    run.apply(states.REVERT)
    run.scheduler.give_back(run.id["a"], begun=True)
    assert run.scheduler.in_flight == 0 and not run.scheduler.done
    assert run.take() == "execute: a; revert: b"
    run.reverted("b")
    run.ok("a")
    assert run.take() == "revert: a"
    run.reverted("a")
    assert run.end() == states.REVERTED


def test_outcomes_of_what_is_not_in_flight_are_refused() -> None:
    run = Run(LINEAR("f").add(*steps("a", "b")))
    with pytest.raises(ValueError, match="'b'"):
        run.ok("b")
    run.take()
    run.ok("a")
    with pytest.raises(ValueError, match="'a'"):
        run.ok("a")
    with pytest.raises(ValueError, match="'b'"):
        run.reverted("b")


# -- backward


def test_everything_is_reverted_in_the_opposite_order() -> None:
    run = Run(LINEAR("f").add(*steps("a", "b", "c", "d")))
    for name in "ab":
        run.take()
        run.ok(name)
    run.take()
    assert run.failed("c")
    assert run.apply(states.REVERT) == dict.fromkeys("abc", "REVERT")
    for name in "cba":
        assert run.take() == f"revert: {name}"
        run.reverted(name)
    assert run.end() == states.REVERTED


def test_what_is_in_flight_is_waited_for_and_reverted_too() -> None:
    run = Run(LINEAR("f").add(Step("a"), UNORDERED("u").add(*steps("b", "c", "d"))))
    run.take()
    run.ok("a")
    run.take()
    assert run.failed("b")
    run.apply(states.REVERT)
    assert run.take() == "revert: b"
    run.reverted("b")
    assert run.take() == ""
    assert not run.failed("c")
    assert run.take() == "revert: c"
    run.ok("d")
    run.reverted("c")
    assert run.take() == "revert: d"
    run.reverted("d")
    assert run.take() == "revert: a"


def fail_c(run: Run) -> None:
    assert run.take() == "execute: a x"
    run.ok("a")
    assert run.take() == "execute: r1"
    run.ok("r1")
    assert run.take() == "execute: b"
    run.ok("b")
    assert run.take() == "execute: c"
    assert run.failed("c")


def test_reverting_a_subflow_leaves_the_others_done_and_the_flow_in_failure() -> None:
    run = Run(subflows())
    fail_c(run)
    assert run.apply(states.REVERT, "r1") == dict.fromkeys(("b", "c", "r1"), "REVERT")
    for name in ("c", "b", "r1"):
        assert run.take() == f"revert: {name}"
        run.reverted(name)
    assert run.take() == ""
    run.ok("x")
    assert run.take() == "execute: y"
    run.ok("y")
    assert run.end() == states.FAILURE  # a, x and y are left done


def test_retrying_a_subflow() -> None:
    run = Run(subflows())
    fail_c(run)
    assert run.apply(states.RETRY, "r1") == {"b": "REVERT", "c": "REVERT", "r1": "RETRY"}
    assert run.take() == "revert: c"
    run.reverted("c")
    assert run.take() == "revert: b"
    run.reverted("b")
    assert run.take() == "retry: r1"
    assert run.reset("r1") == "b c"
    assert run.reset("r1") == ""
    run.ok("r1")
    assert run.take() == "execute: b"
    run.ok("b")
    assert run.take() == "execute: c"
    # And once more, from scratch.
    assert run.failed("c")
    run.apply(states.REVERT, "r1")
    assert run.take() == "revert: c"


def test_a_wider_scope_takes_over_a_retry() -> None:
    run = Run(subflows())
    fail_c(run)
    run.apply(states.RETRY, "r1")
    assert run.take() == "revert: c"
    run.reverted("c")
    assert run.failed("x")
    assert run.apply(states.REVERT) == dict.fromkeys(("a", "r1", "b", "x"), "REVERT")
    assert run.take() == "revert: b x"
    run.reverted("b")
    assert run.take() == "revert: r1"
    run.reverted("r1", "x")
    assert run.take() == "revert: a"
    run.reverted("a")
    assert run.end() == states.REVERTED


def test_a_pending_revert_is_not_overwritten_by_retry_but_the_other_way_round() -> None:
    run = Run(subflows())
    fail_c(run)
    run.apply(states.REVERT, "r1")
    assert run.apply(states.RETRY, "r1") == {}
    for name in ("c", "b", "r1"):
        assert run.take() == f"revert: {name}"
        run.reverted(name)
    assert run.apply(states.RETRY, "r1") == {}
    assert run.take() == ""

    run = Run(subflows())
    fail_c(run)
    run.apply(states.RETRY, "r1")
    for name in ("c", "b"):
        assert run.take() == f"revert: {name}"
        run.reverted(name)
    assert run.apply(states.REVERT, "r1") == {"r1": "REVERT"}
    assert run.take() == "revert: r1"


def test_a_retry_overridden_while_it_is_handed_out_is_reverted_afterwards() -> None:
    run = Run(subflows())
    fail_c(run)
    run.apply(states.RETRY, "r1")
    for name in ("c", "b"):
        run.take()
        run.reverted(name)
    assert run.take() == "retry: r1"
    assert run.reset("r1") == "b c"
    run.failed("x")
    run.apply(states.REVERT)
    assert run.take() == "revert: x"
    run.ok("r1")
    assert run.take() == "revert: r1"


def test_a_retry_that_failed_is_reverted_with_what_is_around() -> None:
    run = Run(subflows())
    run.take()
    run.ok("a")
    run.take()
    assert run.failed("r1")
    run.apply(states.REVERT)
    assert run.take() == "revert: r1"
    run.reverted("r1")
    assert run.take() == "revert: a"


def test_a_failed_reversion_holds_what_comes_before() -> None:
    run = Run(LINEAR("f").add(*steps("a", "b")))
    run.take()
    run.ok("a")
    run.take()
    run.failed("b")
    run.apply(states.REVERT)
    run.take()
    run.scheduler.revert_failed(run.id["b"])
    assert run.take() == ""
    assert run.end() == states.FAILURE


def test_a_failure_nobody_resolved() -> None:
    run = Run(UNORDERED("f").add(*steps("a", "b")))
    run.take()
    assert run.failed("a")
    run.scheduler.halt()
    run.ok("b")
    assert run.scheduler.unresolved() == [run.id["a"]]
    assert run.end() == states.FAILURE


# -- retries that wait for their time


def postponed() -> Run:
    """`subflows`, with c failed, c and b reverted, and r1 postponed; x is in flight."""
    run = Run(subflows())
    fail_c(run)
    run.apply(states.RETRY, "r1")
    for name in ("c", "b"):
        assert run.take() == f"revert: {name}"
        run.reverted(name)
    assert run.take() == "retry: r1"
    run.scheduler.postpone(run.id["r1"])
    return run


def test_a_postponed_retry_comes_again_when_it_is_woken() -> None:
    run = postponed()
    assert run.scheduler.in_flight == 1
    assert run.take() == ""
    run.ok("x")
    assert run.take() == "execute: y"
    run.ok("y")
    assert run.scheduler.in_flight == 0
    assert not run.scheduler.done
    run.scheduler.wake(run.id["r1"])
    run.scheduler.wake(run.id["r1"])
    assert run.take() == "retry: r1"
    assert run.take() == ""
    run.scheduler.wake(run.id["r1"])
    assert run.reset("r1") == "b c"
    run.ok("r1")
    for name in "bcz":
        assert run.take() == f"execute: {name}"
        run.ok(name)
    assert run.end() == states.SUCCESS


def test_a_retry_may_be_postponed_again() -> None:
    run = postponed()
    run.scheduler.wake(run.id["r1"])
    assert run.take() == "retry: r1"
    run.scheduler.postpone(run.id["r1"])
    assert run.take() == ""
    run.scheduler.wake(run.id["r1"])
    assert run.take() == "retry: r1"


@pytest.mark.parametrize("controller", [None, "r1"])
@pytest.mark.parametrize("woken", [False, True])
def test_a_resolution_calls_off_a_postponed_retry(controller: str | None, woken: bool) -> None:
    run = postponed()
    run.ok("x")
    assert run.take() == "execute: y"
    if woken:
        run.scheduler.wake(run.id["r1"])
    run.failed("y")
    assert run.apply(states.REVERT, controller)["r1"] == "REVERT"
    run.scheduler.wake(run.id["r1"])
    assert run.take() == ("revert: r1" if controller else "revert: r1 y")
    run.scheduler.wake(run.id["r1"])
    run.reverted("r1")
    run.scheduler.wake(run.id["r1"])
    assert run.take() == ("" if controller else "revert: a")


def test_a_retry_that_was_overridden_in_its_turn_is_undone_rather_than_postponed() -> None:
    run = postponed()
    run.scheduler.wake(run.id["r1"])
    assert run.take() == "retry: r1"
    run.failed("x")
    run.apply(states.REVERT)
    run.scheduler.postpone(run.id["r1"])
    assert run.scheduler.in_flight == 0
    assert run.take() == "revert: r1 x"


def test_the_same_retry_again_changes_nothing_while_it_sleeps() -> None:
    run = postponed()
    assert run.apply(states.RETRY, "r1") == {}
    assert run.take() == ""
    run.scheduler.wake(run.id["r1"])
    assert run.take() == "retry: r1"


def test_suspended_while_a_retry_sleeps() -> None:
    run = postponed()
    run.scheduler.halt()
    assert not run.scheduler.done
    run.ok("x")
    run.scheduler.wake(run.id["r1"])
    assert run.take() == ""
    assert run.end() == states.SUSPENDED


def test_only_what_was_handed_out_as_a_retry_is_postponed() -> None:
    run = postponed()
    for name in ("r1", "x", "a", "z"):
        with pytest.raises(ValueError, match=f"'{name}' was not handed out to be tried again"):
            run.scheduler.postpone(run.id[name])
    run.scheduler.wake(run.id["x"])
    run.scheduler.wake(run.id["z"])
    assert run.take() == ""


# -- deciders


@pytest.mark.parametrize(
    ("depth", "ignored", "then"),
    [
        (Depth.ALL, "b c d e g", ""),
        (Depth.FLOW, "b c", "execute: d"),
        (Depth.NEIGHBORS, "b c", "execute: d"),
        (Depth.ATOM, "b", "execute: c"),
    ],
)
def test_how_far_a_no_reaches(depth: Depth, ignored: str, then: str) -> None:
    run = Run(branches())
    run.take()
    run.ok("a")
    assert run.take() == "votes: b"
    assert not run.scheduler.done
    assert run.ignore("b", depth) == ignored
    assert run.take() == then
    if not then:
        assert run.end() == states.SUCCESS


def test_a_yes() -> None:
    run = Run(branches())
    run.take()
    run.ok("a")
    run.take()
    run.approve("b")
    assert run.take() == "execute: b"
    run.approve("b")
    assert run.ignore("b") == ""
    assert run.take() == ""


def test_neighbors_are_the_next_tasks_only() -> None:
    a, b, c, d, e = steps("a", "b", "c", "d", "e")
    flow = GRAPH("f").add(a, b, c, d, e)
    flow.link(a, b, decider=decider).link(b, c).link(c, d).link(b, e)
    run = Run(flow)
    run.take()
    run.ok("a")
    run.take()
    assert run.ignore("b", Depth.NEIGHBORS) == "b c e"
    assert run.take() == "execute: d"


@pytest.mark.parametrize("depth", [Depth.FLOW, Depth.NEIGHBORS, Depth.ATOM])
def test_a_flow_as_the_target(depth: Depth) -> None:
    """It is ignored as a whole; what follows in the flow around it is not."""
    a, z = steps("a", "z")
    nest = LINEAR("nest", control("r")).add(*steps("b", "c"))
    flow = GRAPH("f").add(a, nest, z).link(a, nest, decider=decider).link(nest, z)
    run = Run(flow)
    run.take()
    run.ok("a")
    assert run.take() == "votes: nest"
    assert run.ignore("nest", depth) == "r b c"
    assert run.take() == "execute: z"
    run.ok("z")
    assert run.end() == states.SUCCESS


def test_a_flow_as_the_target_and_all_that_follows() -> None:
    a, z = steps("a", "z")
    nest = LINEAR("nest", control("r")).add(*steps("b", "c"))
    run = Run(GRAPH("f").add(a, nest, z).link(a, nest, decider=decider).link(nest, z))
    run.take()
    run.ok("a")
    run.take()
    assert run.ignore("nest", Depth.ALL) == "r b c z"
    assert run.end() == states.SUCCESS


def test_ignored_sources_have_no_vote() -> None:
    a, b, c = steps("a", "b", "c")
    flow = GRAPH("f").add(a, b, c)
    flow.link(a, b, decider=decider, decider_depth="atom").link(b, c, decider=decider)
    run = Run(flow)
    run.take()
    run.ok("a")
    run.take()
    run.ignore("b", Depth.ATOM)
    assert run.take() == "execute: c"


def test_a_decider_that_raises_is_a_failure_of_its_target() -> None:
    run = Run(branches())
    run.take()
    run.ok("a")
    run.take()
    assert run.failed("b")
    run.apply(states.REVERT)
    assert run.take() == "revert: b"


def test_a_decider_of_a_flow_that_raises() -> None:
    a, nest = Step("a"), LINEAR("nest").add(Step("b"))
    run = Run(GRAPH("f").add(a, nest).link(a, nest, decider=decider))
    run.take()
    run.ok("a")
    run.take()
    assert run.failed("nest")
    assert run.scheduler.unresolved() == [run.id["nest"]]
    run.apply(states.REVERT)
    assert run.scheduler.unresolved() == []
    assert run.take() == "revert: a"
    run.reverted("a")
    assert run.end() == states.REVERTED


def test_a_vote_that_was_called_off() -> None:
    a, b, x = steps("a", "b", "x")
    run = Run(GRAPH("f").add(a, b, x).link(a, b, decider=decider))
    run.take()
    run.ok("a")
    assert run.take() == "votes: b"
    run.failed("x")
    run.apply(states.REVERT)
    assert not run.failed("b")
    assert run.ignore("b") == ""
    run.approve("b")
    assert run.take() == "revert: a x"


def retried_branch() -> Any:
    """(r: a decides upon b, beside c) -> out -> last, and p decides upon out."""
    a, b, c = steps("a", "b", "c")
    inner = GRAPH("inner", control("r")).add(a, b, c).link(a, b, decider=decider)
    p, out, last = steps("p", "out", "last")
    flow = GRAPH("f").add(inner, p, out, last)
    return flow.link(inner, out).link(p, out, decider=decider).link(out, last)


def test_a_retry_takes_back_what_was_ignored_from_inside() -> None:
    run = Run(retried_branch())
    assert run.take() == "execute: r p"
    run.ok("r", "p")
    run.take()
    run.ok("a")
    run.take()
    assert run.ignore("b") == "b out last"
    run.failed("c")
    run.apply(states.RETRY, "r")
    run.take()
    run.reverted("a", "c")
    assert run.take() == "retry: r"
    assert run.reset("r") == "a b c last out"
    run.ok("r")
    assert run.take() == "execute: a c"
    run.ok("a", "c")
    assert run.take() == "votes: b"
    run.approve("b")
    run.take()
    run.ok("b")
    assert run.take() == "votes: out"


def test_what_somebody_else_ignored_too_stays_ignored() -> None:
    a, b, c = steps("a", "b", "c")
    inner = GRAPH("inner", control("r")).add(a, b, c).link(a, b, decider=decider)
    p, q, last = steps("p", "q", "last")
    flow = GRAPH("f").add(inner, p, q, last)
    flow.link(inner, last).link(p, q, decider=decider).link(q, last)
    run = Run(flow)
    run.take()
    run.ok("r", "p")
    run.take()
    run.ok("a")
    run.take()
    assert run.ignore("q") == "q last"
    assert run.ignore("b") == "b"
    run.failed("c")
    run.apply(states.RETRY, "r")
    run.take()
    run.reverted("a", "c")
    run.take()
    assert run.reset("r") == "a b c"
    run.ok("r")
    run.take()
    run.ok("a", "c")
    run.take()
    run.approve("b")
    run.take()
    run.ok("b")
    assert run.end() == states.SUCCESS


# -- going on with what was saved

RUNNING, SUCCESS, FAILURE = "RUNNING", "SUCCESS", "FAILURE"


def test_settled_and_running_atoms() -> None:
    run = Run(
        LINEAR("f").add(*steps("a", "b", "c")),
        {"a": (SUCCESS, "EXECUTE"), "b": (RUNNING, "EXECUTE")},
    )
    assert run.take() == "execute: b"
    run.ok("b")
    assert run.take() == "execute: c"


def test_a_new_atom_before_those_that_ran() -> None:
    saved = {"b": (RUNNING, "EXECUTE"), "c": (SUCCESS, "EXECUTE")}
    run = Run(LINEAR("f").add(*steps("new", "b", "c", "d")), saved)
    assert run.take() == "execute: new b"
    run.ok("b")
    assert run.take() == ""
    run.ok("new")
    assert run.take() == "execute: d"


def test_failures_nobody_resolved_are_reported() -> None:
    saved = {"a": (SUCCESS, "EXECUTE"), "x": (FAILURE, "EXECUTE"), "r1": (FAILURE, "EXECUTE")}
    run = Run(subflows(), saved)
    assert run.scheduler.unresolved() == [run.id["r1"], run.id["x"]]
    assert run.failed("x")
    run.apply(states.REVERT)
    assert not run.failed("r1")
    assert run.scheduler.unresolved() == []
    assert run.take() == "revert: r1 x"


def test_a_retry_goes_on() -> None:
    saved = {
        "a": (SUCCESS, "EXECUTE"),
        "r1": (SUCCESS, "RETRY"),
        "b": ("REVERTING", "REVERT"),
        "c": ("REVERTED", "REVERT"),
    }
    run = Run(subflows(), saved)
    assert run.take() == "execute: x; revert: b"
    run.reverted("b")
    assert run.take() == "retry: r1"
    assert run.reset("r1") == "b c"


@pytest.mark.parametrize("retrying", [("RETRYING", "EXECUTE"), (RUNNING, "RETRY")])
def test_a_retry_that_was_about_to_run_again(retrying: tuple[str, str]) -> None:
    saved = {"a": (SUCCESS, "EXECUTE"), "r1": retrying, "b": ("REVERTED", "REVERT")}
    run = Run(subflows(), saved)
    assert run.take() == "execute: x; retry: r1"
    assert run.reset("r1") == "b"


def test_subflow_that_was_reverted_stays_so_and_its_flow_is_in_failure() -> None:
    saved = {
        "a": (SUCCESS, "EXECUTE"),
        "r1": ("REVERTED", "REVERT"),
        "b": ("REVERTED", "REVERT"),
        "x": (RUNNING, "EXECUTE"),
    }
    run = Run(subflows(), saved)
    assert run.take() == "execute: x"
    run.ok("x")
    assert run.take() == "execute: y"
    run.ok("y")
    assert run.end() == states.FAILURE  # a, x and y are left done


def test_everything_goes_on_to_be_reverted() -> None:
    """What runs is finished first: its outcome may be waiting somewhere."""
    saved = {
        "a": (SUCCESS, "REVERT"),
        "r1": (SUCCESS, "REVERT"),
        "b": (FAILURE, "REVERT"),
        "x": (RUNNING, "EXECUTE"),
    }
    run = Run(subflows(), saved)
    assert run.scheduler.unresolved() == []
    assert run.take() == "execute: x; revert: b"
    run.ok("x")
    assert run.take() == "revert: x"


def two_retried() -> Any:
    return LINEAR("f").add(
        LINEAR("one", control("r1")).add(Step("a")),
        LINEAR("two", control("r2")).add(LINEAR("three", control("r3")).add(Step("b"))),
    )


def test_everything_is_saved_so_that_it_is_not_taken_for_a_subflow() -> None:
    run = Run(two_retried())
    for name in ("r1", "a", "r2", "r3"):
        run.take()
        run.ok(name)
    run.take()
    assert run.failed("b")
    changes = run.apply(states.REVERT)
    assert changes == dict.fromkeys(("r1", "a", "r2", "r3", "b"), "REVERT")
    saved = {name: (SUCCESS, what) for name, what in changes.items()}
    saved["b"] = (FAILURE, "REVERT")
    again = Run(run.plan, saved)
    for name in ("b", "r3", "r2", "a", "r1"):
        assert again.take() == f"revert: {name}"
        again.reverted(name)
    assert again.end() == states.REVERTED


def test_something_outside_says_that_everything_is_meant() -> None:
    retried = LINEAR("g", control("r")).add(Step("a"))
    run = Run(UNORDERED("f").add(retried, LINEAR("h").add(Step("z"))))
    run.take()
    run.ok("r")
    run.take()
    assert run.failed("a")
    changes = run.apply(states.REVERT)
    assert changes == {"r": "REVERT", "a": "REVERT", "z": "REVERT"}
    saved = {"r": (SUCCESS, "REVERT"), "a": (FAILURE, "REVERT"), "z": (RUNNING, "REVERT")}
    again = Run(run.plan, saved)
    assert again.take() == "execute: z; revert: a"
    again.ok("z")
    assert again.take() == "revert: z"


def test_a_failed_retry_is_resumed_in_the_scope_around_it() -> None:
    saved = {
        "r1": (SUCCESS, "EXECUTE"),
        "a": (SUCCESS, "EXECUTE"),
        "r2": (SUCCESS, "RETRY"),
        "r3": (FAILURE, "REVERT"),
    }
    run = Run(two_retried(), saved)
    assert run.scheduler.unresolved() == []
    assert run.take() == "revert: r3"
    run.reverted("r3")
    assert run.take() == "retry: r2"


def test_inside_a_retried_flow_the_marks_of_an_inner_one_do_not_mean_everything() -> None:
    saved = {
        "r1": (SUCCESS, "EXECUTE"),
        "a": (SUCCESS, "EXECUTE"),
        "r2": (SUCCESS, "RETRY"),
        "r3": (SUCCESS, "EXECUTE"),
        "b": ("REVERTED", "REVERT"),
    }
    run = Run(two_retried(), saved)
    assert run.take() == "revert: r3"
    run.reverted("r3")
    assert run.take() == "retry: r2"


def test_a_retry_that_failed_and_is_to_be_reverted_was_resolved_from_outside() -> None:
    run = Run(subflows(), {"a": (SUCCESS, "EXECUTE"), "r1": (FAILURE, "REVERT")})
    assert run.take() == "revert: r1"
    run.reverted("r1")
    assert run.take() == "revert: a"


def test_what_is_reverted_tells_that_its_scope_is() -> None:
    run = Run(UNORDERED("f").add(*steps("a", "b")), {"a": ("REVERTED", "EXECUTE")})
    assert run.take() == ""
    assert run.end() == states.REVERTED


def test_a_reversion_that_failed() -> None:
    saved = {"a": (SUCCESS, "REVERT"), "b": ("REVERT_FAILURE", "REVERT")}
    run = Run(LINEAR("f").add(*steps("a", "b")), saved)
    assert run.take() == ""
    assert run.end() == states.FAILURE


def test_ignored_atoms_stay_ignored() -> None:
    saved = dict.fromkeys("bcdeg", ("IGNORE", "IGNORE"))
    run = Run(branches(), {"a": (SUCCESS, "EXECUTE"), **saved})
    assert run.end() == states.SUCCESS


def test_a_retry_takes_back_what_was_ignored_by_an_earlier_engine() -> None:
    ignored = dict.fromkeys(("b", "out", "last"), ("IGNORE", "IGNORE"))
    saved = {"r": (SUCCESS, "EXECUTE"), "p": (SUCCESS, "EXECUTE"), "a": (SUCCESS, "EXECUTE")}
    run = Run(retried_branch(), {**saved, **ignored, "c": (FAILURE, "EXECUTE")})
    run.apply(states.RETRY, "r")
    assert run.take() == "revert: a c"
    run.reverted("a", "c")
    run.take()
    assert run.reset("r") == "a b c last out"


def test_votes_are_asked_again_but_not_of_a_flow_that_was_let_in() -> None:
    a, nest, z = Step("a"), LINEAR("nest").add(*steps("b", "c")), Step("z")
    flow = GRAPH("f").add(a, nest, z).link(a, nest, decider=decider).link(nest, z, decider=decider)
    plan = compile(flow)
    assert Run(plan, {"a": (SUCCESS, "EXECUTE")}).take() == "votes: nest"
    begun = {"a": (SUCCESS, "EXECUTE"), "b": (SUCCESS, "EXECUTE")}
    assert Run(plan, begun).take() == "execute: c"
    assert Run(plan, {**begun, "c": (SUCCESS, "EXECUTE")}).take() == "votes: z"
    ignored = {"b": ("IGNORE", "IGNORE"), "c": ("IGNORE", "IGNORE")}
    assert Run(plan, {"a": (SUCCESS, "EXECUTE"), **ignored}).take() == "votes: z"


def test_a_retry_that_waited_and_was_overridden_is_reverted() -> None:
    saved = {
        "a": (SUCCESS, "EXECUTE"),
        "r1": ("RETRYING", "REVERT"),
        "b": ("REVERTED", "REVERT"),
        "x": (RUNNING, "EXECUTE"),
    }
    assert Run(subflows(), saved).take() == "execute: x; revert: r1"


# -- cost: counted, not timed


def finish(run: Run) -> None:
    while not run.scheduler.done:
        turn = run.scheduler.take()
        for node in turn.execute:
            run.scheduler.succeeded(node)


@pytest.mark.parametrize("kind", [LINEAR, UNORDERED])
def test_a_run_follows_each_edge_once(kind: Any) -> None:
    run = Run(kind("f").add(*steps(*(f"t{i}" for i in range(2000)))))
    finish(run)
    assert run.end() == states.SUCCESS
    assert run.scheduler.visits == sum(len(after) for after in run.plan.succ)


def test_many_failures_cost_one_sweep() -> None:
    run = Run(LINEAR("f").add(UNORDERED("u").add(*steps(*(f"t{i}" for i in range(2000))))))
    nodes = run.scheduler.take().execute
    assert run.scheduler.failed(nodes[0])
    run.apply(states.REVERT)
    before = run.scheduler.visits
    assert not any(run.scheduler.failed(node) for node in nodes[1:])
    assert run.scheduler.visits == before
    for node in run.scheduler.take().revert:
        run.scheduler.reverted(node)
    assert run.end() == states.REVERTED
    assert run.scheduler.visits - before < 3 * len(run.plan)


def test_very_deep_flows_settle_and_revert_without_recursion() -> None:
    made: Any = LINEAR("f").add(Step("a"))
    for i in range(10_000):
        made = LINEAR(f"f{i}").add(made)
    run = Run(made)
    assert run.take() == "execute: a"
    run.failed("a")
    run.apply(states.REVERT)
    assert run.take() == "revert: a"
    run.reverted("a")
    assert run.end() == states.REVERTED

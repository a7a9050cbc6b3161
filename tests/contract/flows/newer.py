"""Flows with features that TaskFlow lacks."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

from tests.contract.flows import tasks
from tests.contract.flows.case import fails, flow
from tests.contract.flows.deciding import no, yes
from tests.contract.flows.steering import suspend_at
from wbengine import exceptions, retry, states, task
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.types import failure as ft

# -- joins ---------------------------------------------------------------------------------------


def _joined(rule: str, *answers: Any) -> Any:
    """a -?-> b, a -?-> c, and both -> d -> e."""
    a, b, c, d, e = (tasks.Step(name) for name in "abcde")
    root = graph_flow.Flow("f").add(a, b, c, d, e).link(b, d).link(c, d).link(d, e)
    return root.link(a, b, decider=answers[0]).link(a, c, decider=answers[1]).join(d, rule)


@flow(">a +a ~b >c +c >d +d >e +e")
def join_any_runs_when_one_branch_ran() -> Any:
    return _joined("any", no, yes)


@flow(">a +a ~b ~c ~d ~e")
def join_any_is_ignored_when_no_branch_ran() -> Any:
    return _joined("ANY", no, no)


@flow(">a +a ~b ~c >d +d >e +e")
def join_none_failed_runs_after_ignored_branches() -> Any:
    return _joined("None_Failed", no, no)


@flow(">a +a ~b ~d ~e >c +c")
def join_all_is_ignored_after_one_ignored_branch() -> Any:
    return _joined("all", no, yes)


@flow(">a +a ~b >x +x >y +y >z +z")
def flow_as_join() -> Any:
    a, b, z = (tasks.Step(name) for name in "abz")
    inner = linear_flow.Flow("in").add(tasks.Step("x"), tasks.Step("y"))
    root = graph_flow.Flow("f").add(a, b, inner, z).link(b, inner).link(inner, z)
    return root.link(a, b, decider=no).join(inner, "none_failed")


@flow(">a +a ~b ~c")
def join_is_ignored_by_its_own_decider() -> Any:
    a, b, c = (tasks.Step(name) for name in "abc")
    root = graph_flow.Flow("f").add(a, b, c).link(a, b, decider=no)
    return root.link(b, c).link(a, c, decider=no).join(c, "none_failed")


@flow(
    ">r +r >a +a ~b >d !d <d -d <a -a ?r .a .b .d >r +r >a +a >b +b >d +d",
    results={"n": 2},
    told={"a": ["1 | d"], "d": ["RuntimeError(d fails in try 1) | d"]},
    history={"r": [(1, "d:RuntimeError"), (2, "")]},
)
def join_in_next_attempt() -> Any:
    a, b = tasks.Give("a", rebind=["n"]), tasks.Step("b")
    d = tasks.Until("d", inject={"until": 2})
    root = graph_flow.Flow("f", retry.Times(2, "r", provides="n")).add(a, b, d).link(b, d)
    root.link(a, b, decider=lambda history: history["a"] > 1)
    return root.join(d, "none_failed")


# -- retries with backoff or conditions


def _until(until: int, **options: Any) -> Any:
    again = retry.Times(4, "r", provides="n", **options)
    return linear_flow.Flow("f", again).add(tasks.Until("a", inject={"until": until}))


_TWO_TRIES: dict[str, Any] = {
    "results": {"n": 2},
    "told": {"a": ["RuntimeError(a fails in try 1) | a"]},
    "history": {"r": [(1, "a:RuntimeError"), (2, "")]},
}


@flow(">r +r >a !a <a -a ?r .a >r +r >a +a", **_TWO_TRIES)
def retry_with_backoff() -> Any:
    return _until(2, backoff=retry.Backoff(delay=0.01, multiplier=3, jitter=0.005))


@flow(
    ">r +r >a !a <a -a ?r .a >r +r >a +a", **_TWO_TRIES,
    drive=suspend_at("RETRYING r"), flow="RUNNING SUSPENDING SUSPENDED RUNNING SUCCESS",
)  # fmt: skip
def waiting_retry_is_suspended() -> Any:
    """The next run waits for the remaining time."""
    return _until(2, backoff=0.02)


@flow(
    ">r >side +side +r >a !a <a -a ?r .a >r +r >a +a", order=["+r >a"], **_TWO_TRIES
)  # fmt: skip
def others_run_while_retry_waits() -> Any:
    return unordered_flow.Flow("all").add(_until(2, backoff=0.01), tasks.Step("side"))


@flow(">r +r >a !a <a -a ?r .a >r +r >a +a", **_TWO_TRIES)
def retry_on_listed_failure() -> Any:
    return _until(2, retry_on=(RuntimeError, "KeyError"))


_GIVES_UP: dict[str, Any] = {
    "raises": {"a": (RuntimeError, "in try 1")},
    "told": {"a": ["RuntimeError(a fails in try 1) | a"]},
    "history": {"r": []},
}


@flow(">r +r >a !a <a -a <r -r", **_GIVES_UP)
def retry_gives_up_on_unlisted_failure() -> Any:
    return _until(2, retry_on=LookupError)


@flow(">r +r >a !a <a -a <r -r", **_GIVES_UP)
def retry_gives_up_on_listed_failure() -> Any:
    return _until(2, give_up_on="RuntimeError")


@flow(
    ">r +r >a !a <a -a <r -r",
    results={},
    raises={"a": (tasks.Trouble, "deep trouble")},
    told={"a": ["tests.contract.flows.tasks.Trouble(('deep trouble', 7)) | a"]},
    history={"r": []},
)
def retry_gives_up_on_custom_exception() -> Any:
    again = retry.ForEach([1, 2, 3], "r", give_up_on=tasks.Trouble, backoff=60)
    return linear_flow.Flow("f", again).add(tasks.Troubled("a"))


# -- deadlines -------------------------------------------------------------------------------------


@flow(
    "", raises={"?": (exceptions.DeadlineExceeded, "")},
    drive=lambda engine: engine.run(deadline=0),
)  # fmt: skip
def expired_deadline_runs_nothing() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a"))


@flow(
    ">a +a <a -a", store={"seconds": 1.0},
    raises={"?": (exceptions.DeadlineExceeded, "")},
    told={"a": ["a | "]},
    drive=lambda engine: engine.run(deadline=0.8),
)  # fmt: skip
def deadline_reverts_completed_tasks() -> Any:
    """A task that runs at the deadline finishes first."""
    return linear_flow.Flow("f").add(tasks.Sleeps("a"), tasks.Step("b"))


@flow(
    ">r +r >a !a <a -a ?r <r -r",
    **fails("a"),
    raised=(exceptions.DeadlineExceeded, "did not end within"),
    history={"r": []},
    drive=lambda engine: engine.run(deadline=0.8),
)
def deadline_ends_wait_of_retry() -> Any:
    return linear_flow.Flow("f", retry.Times(9, "r", backoff=60)).add(tasks.Boom("a"))


# -- coroutines ------------------------------------------------------------------------------------


@flow(
    ">a +a >b !b <b -b <a -a", results={},
    raises={"b": (tasks.Trouble, "awaited")},
    told={"a": ["a | b"], "b": ["tests.contract.flows.tasks.Trouble(awaited) | b"]},
    heard={
        "a": [("update_progress", {"progress": n}) for n in (0.0, 0.5, 1.0, 0.0, 1.0)],
    },
)  # fmt: skip
def coroutines() -> Any:
    return linear_flow.Flow("f").add(tasks.Awaits("a"), tasks.AwaitsTrouble("b"))


def _by_await(engine: base.Engine) -> None:
    asyncio.run(engine.arun())


@flow(">a >b >c +a +b +c >d +d", order=["+a >d", "+c >d"], results={"d": "d"}, drive=_by_await)
def coroutines_and_functions_run_concurrently() -> Any:
    inner = unordered_flow.Flow("u").add(tasks.Awaits("a"), tasks.Quiet("b"), tasks.Awaits("c"))
    return linear_flow.Flow("f").add(inner, tasks.Awaits("d", provides="d"))


@flow(">a >b >c +a +b +c", order=[], results={name: name for name in "abc"})
def each_coroutine_has_its_own_context() -> Any:
    return unordered_flow.Flow("f").add(*(tasks.AwaitsHooks(n, provides=n) for n in "abc"))


@flow(">a +a", results={"a": [0, 1, 2, 3]}, check=lambda engine: tasks.Groups.kept.clear())
def groups_timeouts_and_threads_of_asyncio() -> Any:
    return linear_flow.Flow("f").add(tasks.Groups("a", provides="a"))


@flow(">a !a <a -a", store={"itself": False}, raises={"a": (asyncio.CancelledError, "enough")})
def cancelled_error_in_coroutine_fails_its_task() -> Any:
    return linear_flow.Flow("f").add(tasks.Cancels("a"))


@flow(">a !a <a -a", store={"itself": True}, raises={"a": (asyncio.CancelledError, "")})
def coroutine_that_cancels_itself_fails() -> Any:
    return linear_flow.Flow("f").add(tasks.Cancels("a"))


@flow(">a +a", store={"x": 2}, results={"a": 20})
def decorated_coroutine() -> Any:
    return linear_flow.Flow("f").add(tasks.tenfold("a", provides="a"))


# -- Maps


@flow(">a +a >m +m", results={"items": (1, 2, 3), "m": [1, 4, 9]})
def map_over_tuple() -> Any:
    return linear_flow.Flow("f").add(
        tasks.Give("a", provides="items", inject={"value": (1, 2, 3)}),
        task.Map(tasks.Squares("m"), provides="m", max_in_flight=2),
    )


@flow(">m +m", store={"items": []}, results={"m": []})
def map_over_empty_list() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Squares("m"), provides="m"))


@flow(
    ">s >b +s +b >a >m +m .a >a +a", order=["+b >a", ">m +m"],
    store={"items": [], "seconds": 0.3}, results={"m": []},
    drive=suspend_at("RUNNING a"), flow="RUNNING SUSPENDING SUSPENDED RUNNING SUCCESS",
)  # fmt: skip
def map_over_empty_list_succeeds_during_suspension() -> Any:
    """An atom is reported as started before it is reported as completed."""
    both = unordered_flow.Flow("both").add(
        tasks.Step("a"), task.Map(tasks.Squares("m"), provides="m")
    )
    behind = linear_flow.Flow("behind").add(tasks.Step("b"), both)
    return unordered_flow.Flow("f").add(tasks.Sleeps("s"), behind)


@flow(">m +m", store={"items": list(range(60))}, results={"m": [n * n for n in range(60)]})
def map_over_many_items() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Squares("m"), provides="m"))


@flow(
    ">m !m <m -m", store={"items": [1, -2, 3]},
    raises={"m": (ValueError, "-2 is negative")}, told={"m": [[None, None, None]]},
)  # fmt: skip
def map_fails_with_first_failure() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Squares("m"), max_in_flight=1))


def _collected(engine: base.Engine) -> None:
    first, second, third = engine.storage.get("m")
    assert (first, third) == (1, 9)
    assert isinstance(second, ft.Failure) and second.check(ValueError)


@flow(">m +m", store={"items": [1, -2, 3]}, check=_collected)
def map_collects_failures() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Squares("m"), on_item_failure="collect"))


@flow(
    ">m +m >b !b <b -b <m -m", store={"items": ["x", "y"]},
    raises={"b": (ValueError, "b fails")},
    told={"b": ["ValueError(b fails) | b"], "m": [["x | b", "y | b"]]},
)  # fmt: skip
def map_is_reverted() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Give("m"), item="value"), tasks.Boom("b"))


@flow(
    ">m >r +r >a !a <a -a ?r .a >r +r >a +a +m", order=[], store={"items": list(range(9))},
    results={"n": 2, "m": [n * n for n in range(9)]},
    told={"a": ["RuntimeError(a fails in try 1) | a"]},
    history={"r": [(1, "a:RuntimeError"), (2, "")]},
)  # fmt: skip
def flow_is_retried_beside_map() -> Any:
    """An iteration may start one item and one retry."""
    again = linear_flow.Flow("again", retry.Times(2, "r", provides="n"))
    return unordered_flow.Flow("f").add(
        task.Map(tasks.Squares("m"), provides="m", max_in_flight=1),
        again.add(tasks.Until("a", inject={"until": 2})),
    )


def _undone_from_the_end(engine: base.Engine) -> None:
    [record] = [atom for atom in engine.storage.flow_detail if atom.name == "m"]
    item_states = [item.state for item in record.items]
    assert item_states == [states.SUCCESS, states.REVERT_FAILURE, states.REVERTED]


@flow(
    ">m +m >b !b <b -b <m #m", store={"items": [1, 2, 3]}, ends="FAILURE",
    raises={"b": (ValueError, "b fails"), "m": (KeyError, "2 stays")},
    told={"b": ["ValueError(b fails) | b"]}, check=_undone_from_the_end,
)  # fmt: skip
def failed_reversion_of_item_ends_reversion_of_map() -> Any:
    """Items are reverted in reverse order."""
    many = task.Map(tasks.Undone("m"), provides="m", max_in_flight=1)
    return linear_flow.Flow("f").add(many, tasks.Boom("b"))


@flow(
    ">m !m <m -m", store={"items": "text"},
    raises={"m": (TypeError, "'items'")},
)  # fmt: skip
def map_over_string_fails() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Squares("m")))


# -- values that cannot be encoded


@flow(
    ">a !a <a -a",
    raises={"a": (exceptions.NotEncodable, "result['lock'][1]")},
    told={"a": ["wbengine.exceptions.NotEncodable"]},
)
def unencodable_result_fails_task() -> Any:
    return linear_flow.Flow("f").add(tasks.Locks("a"))


@flow(
    ">a +a >b !b <b -b <a -a",
    store={"odd": [threading.Lock()]},
    raises={"b": (exceptions.NotEncodable, "arguments['odd'][0]")},
    told={"a": ["a | b"]},
    # other kinds refuse the store
    kinds=["serial", "threads", "processes", "memory", "filesystem"],
)
def unencodable_argument_fails_task() -> Any:
    """The task never starts, so it is not reverted, although `revert` requires the same value."""
    return linear_flow.Flow("f").add(tasks.Step("a"), tasks.Carries("b"))


@flow(
    ">a +a >b !b <b -b <a -a",
    store={"x": 1, "y": 2},
    raises={"b": (exceptions.NotEncodable, "Task 'b': call cannot be pickled")},
    told={"a": ["a | b"]},
    kinds=["processes"],
)
def unpicklable_task_fails() -> Any:
    """Workers need only its class, and local kinds share the object."""
    return linear_flow.Flow("f").add(
        tasks.Step("a"), task.ReduceFunctorTask(lambda x, y: x + y, ["x", "y"], "b")
    )


def _from_asyncio(engine: base.Engine) -> None:
    async def several() -> None:
        await asyncio.wait_for(engine.arun(deadline=math.inf), 60)

    asyncio.run(several())
    assert engine.storage.get_flow_state() == states.SUCCESS


@flow(">a +a >b +b", results={"b": "b"}, drive=_from_asyncio)
def run_from_running_event_loop() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a"), tasks.Step("b", provides="b"))

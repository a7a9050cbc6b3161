"""Flows about what TaskFlow has not: joins, waits, deadlines, coroutines, fan-out, refusals."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

from tests.contract.flows import tasks
from tests.contract.flows.case import flow
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
    made = graph_flow.Flow("f").add(a, b, c, d, e).link(b, d).link(c, d).link(d, e)
    return made.link(a, b, decider=answers[0]).link(a, c, decider=answers[1]).join(d, rule)


@flow(">a +a ~b >c +c >d +d >e +e")
def a_join_of_any_runs_when_one_branch_was_taken() -> Any:
    return _joined("any", no, yes)


@flow(">a +a ~b ~c ~d ~e")
def a_join_of_any_is_ignored_when_no_branch_was_taken() -> Any:
    return _joined("ANY", no, no)


@flow(">a +a ~b ~c >d +d >e +e")
def a_join_of_none_failed_runs_whatever_was_ignored() -> Any:
    return _joined("None_Failed", no, no)


@flow(">a +a ~b ~d ~e >c +c")
def a_join_of_all_is_the_rule() -> Any:
    return _joined("all", no, yes)


@flow(">a +a ~b >x +x >y +y >z +z")
def a_flow_as_a_join() -> Any:
    a, b, z = (tasks.Step(name) for name in "abz")
    inner = linear_flow.Flow("in").add(tasks.Step("x"), tasks.Step("y"))
    made = graph_flow.Flow("f").add(a, b, inner, z).link(b, inner).link(inner, z)
    return made.link(a, b, decider=no).join(inner, "none_failed")


@flow(">a +a ~b ~c")
def a_join_may_still_be_refused_by_its_own_decider() -> Any:
    a, b, c = (tasks.Step(name) for name in "abc")
    made = graph_flow.Flow("f").add(a, b, c).link(a, b, decider=no)
    return made.link(b, c).link(a, c, decider=no).join(c, "none_failed")


@flow(
    ">r +r >a +a ~b >d !d <d -d <a -a ?r .a .b .d >r +r >a +a >b +b >d +d",
    results={"n": 2},
    told={"a": ["1 | d"], "d": ["RuntimeError(d fails in try 1) | d"]},
    history={"r": [(1, "d:RuntimeError"), (2, "")]},
)
def a_join_in_a_new_try() -> Any:
    a, b = tasks.Give("a", rebind=["n"]), tasks.Step("b")
    d = tasks.Until("d", inject={"until": 2})
    made = graph_flow.Flow("f", retry.Times(2, "r", provides="n")).add(a, b, d).link(b, d)
    made.link(a, b, decider=lambda history: history["a"] > 1)
    return made.join(d, "none_failed")


# -- retries that wait, or that look at what failed ------------------------------------------------


def _until(until: int, **options: Any) -> Any:
    again = retry.Times(4, "r", provides="n", **options)
    return linear_flow.Flow("f", again).add(tasks.Until("a", inject={"until": until}))


_TWO_TRIES: dict[str, Any] = {
    "results": {"n": 2},
    "told": {"a": ["RuntimeError(a fails in try 1) | a"]},
    "history": {"r": [(1, "a:RuntimeError"), (2, "")]},
}


@flow(">r +r >a !a <a -a ?r .a >r +r >a +a", **_TWO_TRIES)
def a_retry_waits() -> Any:
    return _until(2, backoff=retry.Backoff(delay=0.01, multiplier=3, jitter=0.005))


@flow(
    ">r +r >a !a <a -a ?r .a >r +r >a +a", **_TWO_TRIES,
    drive=suspend_at("RETRYING r"), flow="RUNNING SUSPENDING SUSPENDED RUNNING SUCCESS",
)  # fmt: skip
def a_retry_that_waits_is_suspended() -> Any:
    """The next run waits for what is left."""
    return _until(2, backoff=0.02)


@flow(
    ">r >side +side +r >a !a <a -a ?r .a >r +r >a +a", order=["+r >a"], **_TWO_TRIES
)  # fmt: skip
def others_go_on_while_a_retry_waits() -> Any:
    return unordered_flow.Flow("all").add(_until(2, backoff=0.01), tasks.Step("side"))


@flow(">r +r >a !a <a -a ?r .a >r +r >a +a", **_TWO_TRIES)
def a_retry_tries_what_it_knows_again() -> Any:
    return _until(2, retry_on=(RuntimeError, "KeyError"))


_GIVES_UP: dict[str, Any] = {
    "raises": {"a": (RuntimeError, "in try 1")},
    "told": {"a": ["RuntimeError(a fails in try 1) | a"]},
    "history": {"r": []},
}


@flow(">r +r >a !a <a -a <r -r", **_GIVES_UP)
def a_retry_gives_up_what_it_does_not_know() -> Any:
    return _until(2, retry_on=LookupError)


@flow(">r +r >a !a <a -a <r -r", **_GIVES_UP)
def a_retry_gives_up_on_some_failures() -> Any:
    return _until(2, give_up_on="RuntimeError")


@flow(
    ">r +r >a !a <a -a <r -r",
    results={},
    raises={"a": (tasks.Trouble, "deep trouble")},
    told={"a": ["tests.contract.flows.tasks.Trouble(('deep trouble', 7)) | a"]},
    history={"r": []},
)
def a_retry_gives_up_on_a_type_of_the_tasks_own() -> Any:
    again = retry.ForEach([1, 2, 3], "r", give_up_on=tasks.Trouble, backoff=60)
    return linear_flow.Flow("f", again).add(tasks.Troubled("a"))


# -- deadlines -------------------------------------------------------------------------------------


@flow(
    "", raises={"?": (exceptions.DeadlineExceeded, "")},
    drive=lambda engine: engine.run(deadline=0),
)  # fmt: skip
def a_deadline_that_is_over() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a"))


@flow(
    ">a +a <a -a", store={"seconds": 1.0},
    raises={"?": (exceptions.DeadlineExceeded, "")},
    told={"a": ["a | "]},
    drive=lambda engine: engine.run(deadline=0.8),
)  # fmt: skip
def a_deadline_reverts_what_is_done() -> Any:
    """What runs when time is up is finished first."""
    return linear_flow.Flow("f").add(tasks.Sleeps("a"), tasks.Step("b"))


@flow(
    ">r +r >a !a <a -a ?r <r -r",
    raises={"a": (ValueError, "a fails")},
    raised=(exceptions.DeadlineExceeded, "did not end within"),
    told={"a": ["ValueError(a fails) | a"]},
    history={"r": []},
    drive=lambda engine: engine.run(deadline=0.8),
)
def a_deadline_ends_a_wait() -> Any:
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
def coroutines_and_others_side_by_side() -> Any:
    inner = unordered_flow.Flow("u").add(tasks.Awaits("a"), tasks.Quiet("b"), tasks.Awaits("c"))
    return linear_flow.Flow("f").add(inner, tasks.Awaits("d", provides="d"))


@flow(">a +a", store={"x": 2}, results={"a": 20})
def a_decorated_coroutine() -> Any:
    return linear_flow.Flow("f").add(tasks.tenfold("a", provides="a"))


# -- fan-out ---------------------------------------------------------------------------------------


@flow(">a +a >m +m", results={"items": (1, 2, 3), "m": [1, 4, 9]})
def a_map() -> Any:
    return linear_flow.Flow("f").add(
        tasks.Give("a", provides="items", inject={"value": (1, 2, 3)}),
        task.Map(tasks.Squares("m"), provides="m", max_in_flight=2),
    )


@flow(">m +m", store={"items": []}, results={"m": []})
def a_map_over_nothing() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Squares("m"), provides="m"))


@flow(
    ">s >b +s +b >a .a >m +m >a +a", order=["+b >a", ">m +m"],
    store={"items": [], "seconds": 0.3}, results={"m": []},
    drive=suspend_at("RUNNING a"), flow="RUNNING SUSPENDING SUSPENDED RUNNING SUCCESS",
)  # fmt: skip
def a_map_over_nothing_ends_while_its_flow_is_suspended() -> Any:
    """What ended had begun: it is told in that order."""
    both = unordered_flow.Flow("both").add(
        tasks.Step("a"), task.Map(tasks.Squares("m"), provides="m")
    )
    behind = linear_flow.Flow("behind").add(tasks.Step("b"), both)
    return unordered_flow.Flow("f").add(tasks.Sleeps("s"), behind)


@flow(">m +m", store={"items": list(range(60))}, results={"m": [n * n for n in range(60)]})
def a_map_over_many() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Squares("m"), provides="m"))


@flow(
    ">m !m <m -m", store={"items": [1, -2, 3]},
    raises={"m": (ValueError, "-2 is negative")}, told={"m": [[None, None, None]]},
)  # fmt: skip
def a_map_fails_with_its_first_failure() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Squares("m"), max_in_flight=1))


def _collected(engine: base.Engine) -> None:
    first, second, third = engine.storage.get("m")
    assert (first, third) == (1, 9)
    assert isinstance(second, ft.Failure) and second.check(ValueError)


@flow(">m +m", store={"items": [1, -2, 3]}, check=_collected)
def a_map_collects_failures() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Squares("m"), on_item_failure="collect"))


@flow(
    ">m +m >b !b <b -b <m -m", store={"items": ["x", "y"]},
    raises={"b": (ValueError, "b fails")},
    told={"b": ["ValueError(b fails) | b"], "m": [["x | b", "y | b"]]},
)  # fmt: skip
def a_map_is_reverted() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Give("m"), item="value"), tasks.Boom("b"))


@flow(
    ">m >r +r >a !a <a -a ?r .a >r +r >a +a +m", order=[], store={"items": list(range(9))},
    results={"n": 2, "m": [n * n for n in range(9)]},
    told={"a": ["RuntimeError(a fails in try 1) | a"]},
    history={"r": [(1, "a:RuntimeError"), (2, "")]},
)  # fmt: skip
def a_flow_is_tried_again_beside_a_map() -> Any:
    """A turn may begin one item, and one retry."""
    again = linear_flow.Flow("again", retry.Times(2, "r", provides="n"))
    return unordered_flow.Flow("f").add(
        task.Map(tasks.Squares("m"), provides="m", max_in_flight=1),
        again.add(tasks.Until("a", inject={"until": 2})),
    )


def _undone_from_the_end(engine: base.Engine) -> None:
    [record] = [atom for atom in engine.storage.flow_detail if atom.name == "m"]
    found = [item.state for item in record.items]
    assert found == [states.SUCCESS, states.REVERT_FAILURE, states.REVERTED]


@flow(
    ">m +m >b !b <b -b <m #m", store={"items": [1, 2, 3]}, ends="FAILURE",
    raises={"b": (ValueError, "b fails"), "m": (KeyError, "2 stays")},
    told={"b": ["ValueError(b fails) | b"]}, check=_undone_from_the_end,
)  # fmt: skip
def an_item_that_cannot_be_reverted_ends_the_reverting_of_its_map() -> Any:
    """The latest is reverted first."""
    many = task.Map(tasks.Undone("m"), provides="m", max_in_flight=1)
    return linear_flow.Flow("f").add(many, tasks.Boom("b"))


@flow(
    ">m !m <m -m", store={"items": "text"},
    raises={"m": (TypeError, "'items'")},
)  # fmt: skip
def a_map_over_a_string() -> Any:
    return linear_flow.Flow("f").add(task.Map(tasks.Squares("m")))


# -- what cannot travel ----------------------------------------------------------------------------


@flow(
    ">a !a <a -a",
    raises={"a": (exceptions.NotEncodable, "result['lock'][1]")},
    told={"a": ["wbengine.exceptions.NotEncodable"]},
)
def a_result_that_cannot_travel() -> Any:
    return linear_flow.Flow("f").add(tasks.Locks("a"))


@flow(
    ">a +a >b !b <b -b <a -a",
    store={"odd": [threading.Lock()]},
    raises={"b": (exceptions.NotEncodable, "arguments['odd'][0]")},
    told={"a": ["a | b"]},
    kinds=["serial", "threads", "processes", "memory", "filesystem"],  # the rest refuse the store
)
def an_argument_that_cannot_travel() -> Any:
    """The task never began: there is nothing to undo, though its revert asks for that as well."""
    return linear_flow.Flow("f").add(tasks.Step("a"), tasks.Carries("b"))


@flow(
    ">a +a >b !b <b -b <a -a",
    store={"x": 1, "y": 2},
    raises={"b": (exceptions.NotEncodable, "Task 'b': call cannot be pickled")},
    told={"a": ["a | b"]},
    kinds=["processes"],
)
def a_task_that_cannot_travel() -> Any:
    """Workers know its class only, and others have it here."""
    return linear_flow.Flow("f").add(
        tasks.Step("a"), task.ReduceFunctorTask(lambda x, y: x + y, ["x", "y"], "b")
    )


def _from_asyncio(engine: base.Engine) -> None:
    async def several() -> None:
        await asyncio.wait_for(engine.arun(deadline=math.inf), 60)

    asyncio.run(several())
    assert engine.storage.get_flow_state() == states.SUCCESS


@flow(">a +a >b +b", results={"b": "b"}, drive=_from_asyncio)
def run_from_a_running_loop() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a"), tasks.Step("b", provides="b"))

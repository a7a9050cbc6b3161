"""Flows that are suspended, resumed, reset and run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.contract.flows import tasks
from tests.contract.flows.case import FOLDER, fails, flow
from wbengine import engines, exceptions, retry, states
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow

Drive = Callable[[base.Engine], None]


def suspend_at(*words: str, act: Drive | None = None) -> Drive:
    """Return a function that suspends a flow at changes (`"SUCCESS a"`) and resumes it.

    :param act: called before the last run.
    """

    def drive(engine: base.Engine) -> None:
        left = list(words)

        def on_atom(state: str, details: dict[str, Any]) -> None:
            name = details.get("task_name") or details["retry_name"]
            if left and left[0] == f"{state} {name}":
                del left[0]
                engine.suspend()

        engine.atom_notifier.register("*", on_atom)
        for place in range(len(words)):
            engine.run()
            assert engine.storage.get_flow_state() == states.SUSPENDED
            assert len(left) == len(words) - place - 1
        if act is not None:
            act(engine)
        engine.run()

    return drive


_ONCE = "RUNNING SUSPENDING SUSPENDED RUNNING"
_TWICE = f"{_ONCE} SUSPENDING SUSPENDED RUNNING"


@flow(
    ">a +a >b +b >c +c",
    drive=suspend_at("SUCCESS a", "SUCCESS b"),
    flow=f"{_TWICE} SUCCESS",
    results={"b": "b"},
)
def suspend_and_resume() -> Any:
    """Running tasks finish, no task starts, and no task runs twice."""
    return linear_flow.Flow("f").add(
        tasks.Step("a"), tasks.Step("b", provides="b"), tasks.Step("c")
    )


@flow(
    ">a .a >a +a >b +b", drive=suspend_at("RUNNING a"), flow=f"{_ONCE} SUCCESS",
)  # fmt: skip
def suspend_before_task_is_submitted() -> Any:
    """A listener suspends when a task starts: the task is pending again."""
    return linear_flow.Flow("f").add(tasks.Step("a"), tasks.Step("b"))


@flow(
    ">a +a >b +b >c !c <c -c <b -b <a -a",
    drive=suspend_at("FAILURE c", "REVERTED b"),
    flow=f"{_TWICE} REVERTED",
    **fails("c", "a", "b"),
)
def suspend_while_reverting() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a"), tasks.Step("b"), tasks.Boom("c"))


@flow(
    ">a +a >b !b <b !b <b -b <a -a",
    drive=suspend_at("REVERTING b"),
    flow=f"{_ONCE} REVERTED",
    **fails("b", "a"),
)
def suspend_before_reversion_is_submitted() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a"), tasks.Boom("b"))


@flow(
    ">r +r >a !a <a -a ?r .a >r +r >a !a <a -a ?r .a >r +r >a +a",
    drive=suspend_at("FAILURE a", "REVERTED a"),
    flow=f"{_TWICE} SUCCESS",
    results={"n": 3},
    told={"a": ["RuntimeError(a fails in try 1) | a", "RuntimeError(a fails in try 2) | a"]},
    history={"r": [(1, "a:RuntimeError"), (2, "a:RuntimeError"), (3, "")]},
)
def suspend_between_attempts() -> Any:
    return linear_flow.Flow("f", retry.Times(3, "r", provides="n")).add(
        tasks.Until("a", inject={"until": 3})
    )


def _give_up_what_was_to_be_tried_again(engine: base.Engine) -> None:
    engine.atom_notifier.register(states.PENDING, lambda state, details: engine.suspend())
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert engine.storage.get_atom_state("r") == states.RETRYING
    engine.run(deadline=0)


@flow(
    ">r +r >a !a <a -a ?r .a <r -r",
    drive=_give_up_what_was_to_be_tried_again,
    flow=f"{_ONCE} REVERTED",
    raised=(exceptions.DeadlineExceeded, ""),
    told={"a": ["RuntimeError(a fails in try 1) | a"]},
    history={"r": []},
)
def retry_suspended_before_next_attempt_is_reverted() -> Any:
    """It has tried before, so its reversion receives the history."""
    return linear_flow.Flow("f", retry.Times(3, "r", provides="n")).add(
        tasks.Until("a", inject={"until": 3})
    )


@flow(
    ">a +a ~b >c +c", drive=suspend_at("SUCCESS a"), flow=f"{_ONCE} SUCCESS",
)  # fmt: skip
def suspend_before_decider() -> Any:
    """The next run calls the decider."""
    a, b, c = (tasks.Step(name) for name in "abc")
    root = graph_flow.Flow("f").add(a, b, c).link(b, c)
    return root.link(a, b, decider=lambda history: history["a"] != "a", decider_depth="atom")


def _by_iteration(engine: base.Engine) -> None:
    seen = []
    steps = engine.run_iter()
    for state in steps:
        seen.append(state)
        if state == states.ANALYZING:
            break
    seen.append(steps.send(True))  # type: ignore[attr-defined]
    seen.extend(steps)
    assert seen[-1] == states.SUSPENDED
    steps = engine.run_iter()
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert list(engine.run_iter())[-1] == states.SUCCESS


@flow(
    ">a +a >b +b",
    drive=_by_iteration,
    flow=f"{_TWICE} SUCCESS",
)
def suspend_run_iter() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a"), tasks.Step("b"))


def _twice(engine: base.Engine) -> None:
    engine.run()
    engine.run()


@flow(">a +a", drive=_twice, flow="RUNNING SUCCESS RUNNING SUCCESS", results={"a": "a"})
def second_run_of_successful_flow_has_no_effect() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a", provides="a"))


def _reset_and_run(engine: base.Engine) -> None:
    engine.run()
    engine.reset()
    assert engine.storage.get_flow_state() == states.PENDING
    assert engine.storage.get_atom_state("a") == states.PENDING
    engine.run()
    attempt = engine.storage.get_attempt("a")
    assert attempt is not None and attempt.attempt == 2


@flow(
    ">r +r >a +a .r .a >r +r >a +a",
    drive=_reset_and_run, flow="RUNNING SUCCESS PENDING RUNNING SUCCESS",
    results={"n": 1, "a": 1}, history={"r": [(1, "")]},
)  # fmt: skip
def reset_and_run_again() -> Any:
    """Everything runs again; only attempt numbers continue."""
    return linear_flow.Flow("f", retry.Times(2, "r", provides="n")).add(
        tasks.Give("a", provides="a", rebind=["n"])
    )


def _fail_and_run_again(engine: base.Engine) -> None:
    try:
        engine.run()
    except Exception:
        assert engine.storage.get_flow_state() in (states.REVERTED, states.FAILURE)
    else:
        raise AssertionError("it should have failed")
    engine.run()


@flow(
    ">a +a >b !b <b -b <a -a .a .b >a +a >b +b",
    store={"folder": FOLDER, "times": 2},
    drive=_fail_and_run_again,
    flow="RUNNING REVERTED PENDING RUNNING SUCCESS",
    results={"a": "a", "b": 2},
    told={"a": ["a | b"], "b": ["RuntimeError(b fails the 1. time) | b"]},
)
def run_again_after_reversion() -> Any:
    return linear_flow.Flow("f").add(
        tasks.Step("a", provides="a"), tasks.Counted("b", provides="b")
    )


def _never_resolved(engine: base.Engine) -> None:
    for _ in range(2):
        try:
            engine.run()
        except Exception as error:
            last = error
        assert engine.storage.get_flow_state() == states.FAILURE
    raise last


@flow(
    ">a +a >b !b",
    options={"never_resolve": True},
    drive=_never_resolved,
    flow="RUNNING FAILURE RUNNING FAILURE",
    ends="FAILURE",
    raises={"b": (ValueError, "b fails")},
    results={"a": "a"},
)
def never_resolve_fails_in_each_run() -> Any:
    """Nothing is reverted or retried, and each run raises the failure."""
    return linear_flow.Flow("f").add(
        tasks.Step("a", provides="a"), tasks.Boom("b"), tasks.Step("c")
    )


def _reset_a_failure(engine: base.Engine) -> None:
    try:
        engine.run()
    except Exception:
        engine.reset()
        engine.run()


@flow(
    ">a +a >b !b .a .b >a +a >b +b",
    store={"folder": FOLDER, "times": 2},
    options={"never_resolve": True},
    drive=_reset_a_failure,
    flow="RUNNING FAILURE PENDING RUNNING SUCCESS",
    results={"a": "a", "b": 2},
)
def reset_after_failure() -> Any:
    return linear_flow.Flow("f").add(
        tasks.Step("a", provides="a"), tasks.Counted("b", provides="b")
    )


@flow(
    ">a +a >b !b",
    options={"never_resolve": True},
    drive=lambda engine: _resolved_by_another(engine),
    ends="FAILURE",
    raises={"b": (ValueError, "b fails")},
    results={"a": "a"},
)
def another_engine_resolves_remaining_failure() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a", provides="a"), tasks.Boom("b"))


def _resolved_by_another(engine: base.Engine) -> None:
    """Copy the records to an engine that resolves failures."""
    try:
        engine.run()
    except Exception:
        detail = engine.storage.flow_detail.copy()
        other = engines.load(another_engine_resolves_remaining_failure(), flow_detail=detail)
        outcomes: list[Any] = []
        other.atom_notifier.register(
            "REVERTED", lambda _, details: outcomes.append(details["result"])
        )
        try:
            other.run()
        except Exception:
            assert other.storage.get_flow_state() == states.REVERTED
            assert outcomes == ["ValueError(b fails) | b", "a | b"]
        raise

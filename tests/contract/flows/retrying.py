"""Flows with retries."""

from __future__ import annotations

from typing import Any

from tests.contract.flows import tasks
from tests.contract.flows.case import FOLDER, fails, flow
from wbengine import retry, states, task
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.types import failure as ft


def _clean(engine: base.Engine) -> None:
    """Check that failed attempts left only their history."""
    assert not engine.storage.has_failures()
    assert engine.storage.get_failures() == {}


@flow(
    ">r +r >a +a >b !b <b -b <a -a ?r .a .b >r +r >a +a >b !b <b -b <a -a ?r .a .b"
    " >r +r >a +a >b +b",
    results={"n": 3, "a": 3, "b": 3},
    told={
        "a": ["1 | b", "2 | b"],
        "b": ["RuntimeError(b fails in try 1) | b", "RuntimeError(b fails in try 2) | b"],
    },
    history={"r": [(1, "b:RuntimeError"), (2, "b:RuntimeError"), (3, "")]},
    check=_clean,
)
def times() -> Any:
    return linear_flow.Flow("f", retry.Times(3, "r", provides="n")).add(
        tasks.Give("a", provides="a", rebind=["n"]),
        tasks.Until("b", provides="b", inject={"until": 3}),
    )


@flow(
    ">r +r >b !b <b -b ?r .b >r +r >b !b <b -b <r -r",
    raises={"b": (RuntimeError, "b fails in try 2")},
    told={"b": ["RuntimeError(b fails in try 1) | b", "RuntimeError(b fails in try 2) | b"]},
    history={"r": []},
)
def times_fails_after_last_attempt() -> Any:
    """A reverted retry has no history."""
    return linear_flow.Flow("f", retry.Times(2, "r", provides="n")).add(
        tasks.Until("b", inject={"until": 9})
    )


@flow(
    ">r +r >t !t <t -t ?r .t >r +r >t !t <t -t ?r .t >r +r >t +t",
    results={"city": "Rome", "found": "Rome"},
    told={"t": ["LookupError(Oslo is not it) | t", "LookupError(Bonn is not it) | t"]},
    history={"r": [("Oslo", "t:LookupError"), ("Bonn", "t:LookupError"), ("Rome", "")]},
)
def for_each() -> Any:
    cities = ["Oslo", "Bonn", "Rome", "Lima"]
    return linear_flow.Flow("f", retry.ForEach(cities, "r", provides="city")).add(
        tasks.Finds("t", provides="found")
    )


@flow(
    ">a +a >r +r >t !t <t -t <r -r <a -a",
    store={"nothing": []},
    raises={"t": (LookupError, "Oslo")},
    told={"a": ["a | t"], "t": ["LookupError(Oslo is not it) | t"]},
    history={"r": []},
)
def for_each_reverts_all_after_last_value() -> Any:
    inner = linear_flow.Flow("in", retry.ForEach(["Oslo"], "r", provides="city", revert_all=True))
    return linear_flow.Flow("f").add(tasks.Step("a"), inner.add(tasks.Finds("t")))


@flow(
    ">r +r >t !t <t -t ?r .t >r +r >t +t",
    store={"numbers": [0, 5]},
    results={"n": 5, "q": 2.0},
    told={"t": ["ZeroDivisionError(division by zero) | t"]},
    history={"r": [(0, "t:ZeroDivisionError"), (5, "")]},
)
def parameterized_for_each() -> Any:
    again = retry.ParameterizedForEach("r", provides="n", rebind={"values": "numbers"})
    return linear_flow.Flow("f", again).add(tasks.DividesInto("t", provides="q"))


@flow(
    ">a +a >r +r >t !t <t -t ?r .t >r +r >t +t",
    results={"numbers": (0, 4), "n": 4, "q": 2.5},
    told={"t": ["ZeroDivisionError(division by zero) | t"]},
    history={"r": [(0, "t:ZeroDivisionError"), (4, "")]},
)
def parameterized_for_each_over_result_of_task() -> Any:
    again = retry.ParameterizedForEach("r", provides="n", rebind=["numbers"])
    return linear_flow.Flow("f").add(
        tasks.Give("a", provides="numbers", inject={"value": (0, 4)}),
        linear_flow.Flow("in", again).add(tasks.DividesInto("t", provides="q")),
    )


@flow(
    ">a +a >r +r >b +b >c !c <c -c <b -b <r -r",
    options={"defer_reverts": False},
    ends=states.FAILURE,
    **fails("c", "b"),
    results={"a": "a"},
    history={"r": []},
)
def without_defer_reverts_outer_tasks_stay() -> Any:
    inner = linear_flow.Flow("in", retry.AlwaysRevert("r")).add(tasks.Step("b"), tasks.Boom("c"))
    return linear_flow.Flow("f").add(tasks.Step("a", provides="a"), inner, tasks.Step("d"))


@flow(">a +a >r +r >b +b >c !c <c -c <b -b <r -r <a -a", **fails("c", "a", "b"), history={"r": []})
def always_revert_reverts_everything() -> Any:
    return without_defer_reverts_outer_tasks_stay()


@flow(">a +a >r +r >c !c <c -c <r -r <a -a", **fails("c", "a"), history={"r": []})
def always_revert_all() -> Any:
    inner = linear_flow.Flow("in", retry.AlwaysRevertAll("r")).add(tasks.Boom("c"))
    return linear_flow.Flow("f").add(tasks.Step("a"), inner)


@flow(
    ">out +out >a +a >in +in >b !b <b -b <in -in <a -a ?out .a .in .b"
    " >out +out >a +a >in +in >b +b",
    results={"n": 2, "b": 2},
    told={"a": ["a | b"], "b": ["RuntimeError(b fails in try 1) | b"]},
    history={"out": [(1, "in:RuntimeError"), (2, "")], "in": [(None, "")]},
)
def parent_of_reverting_retry_retries() -> Any:
    """The parent receives the failure of the inner retry, not of the task."""
    inner = linear_flow.Flow("i", retry.AlwaysRevert("in")).add(
        tasks.Until("b", provides="b", inject={"until": 2})
    )
    return linear_flow.Flow("o", retry.Times(2, "out", provides="n")).add(tasks.Step("a"), inner)


@flow(
    ">out +out >in +in >b !b <b -b ?in .b >in +in >b !b <b -b <in -in ?out .in .b"
    " >out +out >in +in >b !b <b -b ?in .b >in +in >b +b",
    store={"folder": FOLDER, "times": 4},
    results={"b": 4, "outer": 2, "inner": 2},
    told={
        "b": [
            "RuntimeError(b fails the 1. time) | b",
            "RuntimeError(b fails the 2. time) | b",
            "RuntimeError(b fails the 3. time) | b",
        ]
    },
    history={
        "out": [(1, "in:RuntimeError"), (2, "")],
        "in": [(1, "b:RuntimeError"), (2, "")],
    },
)
def nested_retries() -> Any:
    """The inner retry starts again with each attempt of the outer one."""
    inner = linear_flow.Flow("i", retry.Times(2, "in", provides="inner"))
    inner.add(tasks.Counted("b", provides="b"))
    return linear_flow.Flow("o", retry.Times(2, "out", provides="outer")).add(inner)


class ScriptedRetry(retry.Retry):
    """Retry that tries `tries` times, then returns a given decision."""

    def __init__(self, name: str, answer: Any, tries: int = 1) -> None:
        super().__init__(name)
        self.answer = answer
        self.tries = tries

    def execute(self, history: retry.History) -> int:
        return len(history)

    def on_failure(self, history: retry.History) -> Any:
        return retry.RETRY if len(history) < self.tries else self.answer

    def revert(self, history: retry.History, flow_failures: dict[str, ft.Failure]) -> str:
        return f"{list(history.provided_iter())} | {' '.join(sorted(flow_failures))}"


@flow(
    ">out +out >in +in >b !b <b -b <in -in",
    options={"defer_reverts": False},
    ends=states.FAILURE,
    raises={"b": (ValueError, "b fails")},
    told={"b": ["ValueError(b fails) | b"], "in": ["[0] | b"]},
    history={"out": [(0, "in:ValueError")], "in": []},
)
def without_defer_reverts_only_innermost_flow_is_reverted() -> Any:
    inner = linear_flow.Flow("i", ScriptedRetry("in", retry.REVERT)).add(tasks.Boom("b"))
    return linear_flow.Flow("o", ScriptedRetry("out", retry.REVERT)).add(inner)


@flow(
    ">z +z >out +out >in +in >b !b <b -b <in -in <out -out <z -z",
    raises={"b": (ValueError, "b fails")},
    told={
        "b": ["ValueError(b fails) | b"],
        "in": ["[0] | b"],
        "out": ["[0] | b"],
        "z": ["z | b"],
    },
    history={"out": [], "in": []},
)
def parent_retry_reverts_everything() -> Any:
    inner = linear_flow.Flow("i", ScriptedRetry("in", "REVERT")).add(tasks.Boom("b"))
    outer = linear_flow.Flow("o", ScriptedRetry("out", "REVERT_ALL")).add(inner)
    return linear_flow.Flow("f").add(tasks.Step("z"), outer)


@flow(
    ">a +a >r +r >b !b <b -b <r -r <a -a",
    raises={
        "b": (ValueError, "b fails"),
        "?": (ValueError, "on_failure() of retry 'r' must return"),
    },
    told={"a": ["a | b"], "b": ["ValueError(b fails) | b"], "r": ["[0] | b"]},
    history={"r": []},
)
def invalid_decision_of_retry_reverts_everything() -> Any:
    inner = linear_flow.Flow("i", ScriptedRetry("r", "PERHAPS")).add(tasks.Boom("b"))
    return linear_flow.Flow("f").add(tasks.Step("a"), inner)


class FailsOnFailure(ScriptedRetry):
    def on_failure(self, history: retry.History) -> Any:
        raise KeyError("no idea")


@flow(
    ">a +a >r +r >b !b <b -b <r -r <a -a",
    raises={"b": (ValueError, "b fails"), "?": (KeyError, "no idea")},
    told={"a": ["a | b"], "b": ["ValueError(b fails) | b"], "r": ["[0] | b"]},
    history={"r": []},
)
def retry_that_fails_to_decide_reverts_everything() -> Any:
    inner = linear_flow.Flow("i", FailsOnFailure("r", None)).add(tasks.Boom("b"))
    return linear_flow.Flow("f").add(tasks.Step("a"), inner)


class FailsToExecute(ScriptedRetry):
    """Retry that fails when it is executed for the first time."""

    left = 1

    def execute(self, history: retry.History) -> int:
        if self.left:
            self.left -= 1
            raise OSError("not ready")
        return len(history)


@flow(
    ">a +a >r !r <r -r <a -a",
    raises={"r": (OSError, "not ready")},
    told={"a": ["a | r"], "r": ["[] | r"]},
    history={"r": []},
)
def failing_retry_reverts_everything() -> Any:
    inner = linear_flow.Flow("i", FailsToExecute("r", retry.RETRY)).add(tasks.Step("b"))
    return linear_flow.Flow("f").add(tasks.Step("a"), inner)


@flow(
    ">out +out >in !in <in -in ?out .in >out +out >in +in >b +b",
    told={"in": ["[] | in"]},
    history={"out": [(0, "in:OSError"), (1, "")], "in": [(0, "")]},
)
def failing_retry_is_retried_by_outer_retry() -> Any:
    inner = linear_flow.Flow("i", FailsToExecute("in", retry.RETRY)).add(tasks.Step("b"))
    return linear_flow.Flow("o", ScriptedRetry("out", retry.REVERT, tries=2)).add(inner)


class FailsSecondly(retry.Times):
    """Retry that fails to execute, to decide or to wait after the first attempt."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(3, name)
        self.where = where

    def _check(self, where: str, history: retry.History) -> None:
        if where == self.where and len(history) == 1:
            raise OSError(f"{where} of {self.name}")

    def execute(self, history: retry.History, *args: Any, **kwargs: Any) -> int:
        self._check("execute", history)
        return super().execute(history)

    def on_failure(self, history: retry.History, *args: Any, **kwargs: Any) -> retry.Decision:
        self._check("on_failure", history)
        return super().on_failure(history)

    def wait(self, history: retry.History) -> float:
        self._check("wait", history)
        return super().wait(history)

    def revert(self, history: retry.History, *args: Any, **kwargs: Any) -> tuple[int, Any]:
        return len(history), history.failure and history.failure.exception_str


def _secondly(where: str) -> Any:
    return linear_flow.Flow("i", FailsSecondly("in", where)).add(tasks.Counted("b"))


_SECONDLY: dict[str, Any] = {
    "store": {"folder": FOLDER, "times": 2},
    "history": {"out": [(0, "in:OSError"), (1, "")], "in": [(1, "")]},
    "told": None,
    "check": _clean,
}


@flow(
    ">a +a >in +in >b !b <b -b ?in .b >in !in <in -in <a -a",
    store={"folder": FOLDER, "times": 2},
    raises={"in": (OSError, "execute of in")},
    told={
        "a": ["a | in"],
        "b": ["RuntimeError(b fails the 1. time) | b"],
        "in": [(1, "execute of in")],
    },
    history={"in": []},
)
def retry_that_fails_to_execute_again_reverts_everything() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a"), _secondly("execute"))


@flow(
    ">out +out >in +in >b !b <b -b ?in .b >in !in <in -in ?out .in >out +out >in +in >b +b",
    **_SECONDLY,
)
def retry_that_fails_to_execute_again_is_retried_by_outer_retry() -> Any:
    return linear_flow.Flow("o", ScriptedRetry("out", None, tries=2)).add(_secondly("execute"))


@flow(">out +out >in +in >b !b <b -b <in -in ?out .in .b >out +out >in +in >b +b", **_SECONDLY)
def retry_that_fails_to_decide_is_retried_by_outer_retry() -> Any:
    """The outer retry receives the failure of the inner retry, not that of the task."""
    return linear_flow.Flow("o", ScriptedRetry("out", None, tries=2)).add(_secondly("on_failure"))


@flow(
    ">out +out >in +in >b !b <b -b ?in .b >in !in <in -in ?out .in >out +out >in +in >b +b",
    **_SECONDLY,
)
def retry_that_fails_to_wait_is_retried_by_outer_retry() -> Any:
    return linear_flow.Flow("o", ScriptedRetry("out", None, tries=2)).add(_secondly("wait"))


@flow(
    ">out +out >in +in >b !b <b -b <in -in ?out .in .b >out +out >in +in >b +b >x !x "
    "<x -x <b -b <in -in <out -out",
    store={"folder": FOLDER, "times": 2},
    raises={"x": (ValueError, "x fails")},
    told=None,
    history=None,
)
def error_of_retried_decision_is_not_raised_with_a_later_failure() -> Any:
    return linear_flow.Flow("f").add(
        retry_that_fails_to_decide_is_retried_by_outer_retry(), tasks.Boom("x")
    )


class FailsToRevert(ScriptedRetry):
    def revert(self, history: retry.History, flow_failures: dict[str, ft.Failure]) -> str:
        raise OSError("stuck")


@flow(
    ">a +a >r +r >b !b <b -b <r #r",
    raises={"b": (ValueError, "b fails"), "r": (OSError, "stuck")},
    ends="FAILURE",
    results={"a": "a"},
    told={"b": ["ValueError(b fails) | b"]},
    history={"r": [(0, "b:ValueError")]},
)
def retry_that_fails_to_revert_fails_flow() -> Any:
    inner = linear_flow.Flow("i", FailsToRevert("r", retry.REVERT_ALL)).add(tasks.Boom("b"))
    return linear_flow.Flow("f").add(tasks.Step("a", provides="a"), inner)


@flow(
    ">a +a >r +r >b !b",
    options={"never_resolve": "yes"},
    ends="FAILURE",
    raises={"b": (ValueError, "b fails")},
    results={"a": "a", "n": 1},
    history={"r": [(1, "")]},
)
def never_resolve_calls_no_retry() -> Any:
    inner = linear_flow.Flow("in", retry.Times(5, "r", provides="n")).add(tasks.Boom("b"))
    return linear_flow.Flow("f").add(tasks.Step("a", provides="a"), inner)


def _reset_failed(engine: base.Engine) -> None:
    for _ in range(2):
        try:
            engine.run()
        except RuntimeError:
            assert engine.storage.get_flow_state() == states.FAILURE
    engine.reset(failed_only=True)
    assert not engine.storage.has_failures()
    engine.run()
    attempt = engine.storage.get_attempt("b")
    assert attempt is not None and attempt.attempt == 2


@flow(
    ">a +a >r +r >b !b .b >b +b >c +c",
    flow="RUNNING FAILURE RUNNING FAILURE PENDING RUNNING SUCCESS",
    options={"never_resolve": True},
    drive=_reset_failed,
    store={"folder": FOLDER, "times": 2},
    history={"r": [(1, "")]},
)
def never_resolve_keeps_failure_until_failed_reset() -> Any:
    inner = linear_flow.Flow("in", retry.Times(3, "r")).add(tasks.Counted("b"), tasks.Step("c"))
    return linear_flow.Flow("f").add(tasks.Step("a"), inner)


@flow(
    ">r +r >b !b <b -b ?r .b >r +r >b +b >x !x <x -x <b -b <r -r",
    raises={"x": (ValueError, "x fails")},
    store={"folder": FOLDER, "times": 2},
    told={
        "b": ["RuntimeError(b fails the 1. time) | b", "2 | x"],
        "x": ["ValueError(x fails) | x"],
    },
    history={"r": []},
)
def later_reversion_receives_no_failures_of_recovered_attempts() -> Any:
    tried = linear_flow.Flow("in", retry.Times(2, "r")).add(tasks.Counted("b"))
    return linear_flow.Flow("f").add(tried, tasks.Boom("x"))


@flow(
    ">r +r >a >b >c !a +b !c <a <b <c -a -b -c ?r .a .b .c >r +r >a >b >c +a +b +c",
    order=["+r >a", "+r >b", "+r >c", "-a ?r", "-b ?r", "-c ?r"],
    results={"n": 2},
    history={"r": [(1, "a:RuntimeError c:RuntimeError"), (2, "")]},
)
def several_failures_in_one_attempt() -> Any:
    root = unordered_flow.Flow("f", retry.Times(2, "r", provides="n"))
    return root.add(
        tasks.QuietUntil("a", inject={"until": 2}), tasks.QuietUntil("b", inject={"until": 0}),
        tasks.QuietUntil("c", inject={"until": 2}),
    )  # fmt: skip


@flow(
    ">x +x >r +r >a +a >b !b <b -b <a -a ?r .a .b >r +r >a +a >b +b >y +y",
    results={"n": 2, "x": "x", "a": "a", "y": 2},
    told={"a": ["a | b"], "b": ["RuntimeError(b fails in try 1) | b"]},
    history={"r": [(1, "b:RuntimeError"), (2, "")]},
)
def flow_between_others_is_retried() -> Any:
    inner = graph_flow.Flow("in", retry.Times(2, "r", provides="n")).add(
        a := tasks.Step("a", provides="a"), b := tasks.Until("b", inject={"until": 2})
    )
    inner.link(a, b)
    return linear_flow.Flow("f").add(
        tasks.Step("x", provides="x"), inner, tasks.Give("y", provides="y", rebind=["n"])
    )


class DecidesByHistory(ScriptedRetry):
    """Retry that decides by its history."""

    def on_failure(self, history: retry.History) -> Any:
        assert history.caused_by(RuntimeError) and history.caused_by("RuntimeError", index=-1)
        assert not history.caused_by(KeyError, include_retry=True)
        assert history.failure is None and len(history) == len(list(history)) == self.tries
        [(name, failure)] = history.outcomes_iter(index=-1)
        assert (name, failure.check(RuntimeError)) == ("b", RuntimeError)
        self.tries += 1
        return retry.RETRY if self.tries < 4 else retry.REVERT


@flow(
    ">r +r >b !b <b -b ?r .b >r +r >b !b <b -b ?r .b >r +r >b +b",
    store={"folder": FOLDER, "times": 3},
    told={"b": ["RuntimeError(b fails the 1. time) | b", "RuntimeError(b fails the 2. time) | b"]},
    history={"r": [(0, "b:RuntimeError"), (1, "b:RuntimeError"), (2, "")]},
)
def retry_decides_by_its_history() -> Any:
    return linear_flow.Flow("f", DecidesByHistory("r", None)).add(tasks.Counted("b"))


class Wide(retry.Retry):
    """Retry that takes and provides several values."""

    default_provides = ("one", "two")

    def execute(self, history: retry.History, start: int, step: int = 10) -> tuple[int, int]:
        return start + step * len(history), len(history)

    def on_failure(self, history: retry.History, start: int, **kwargs: Any) -> Any:
        return retry.RETRY if len(history) < start else retry.REVERT


@flow(
    ">r +r >b !b <b -b ?r .b >r +r >b +b",
    store={"start": 5},
    results={"one": 15, "two": 1, "b": 15},
    told={"b": ["RuntimeError(b fails in try 5) | b"]},
    history={"r": [((5, 0), "b:RuntimeError"), ((15, 1), "")]},
)
def retry_takes_arguments_and_provides_parts() -> Any:
    return linear_flow.Flow("f", Wide("r")).add(
        tasks.Until("b", provides="b", rebind={"n": "one"}, inject={"until": 7})
    )


@flow(">f_retry +f_retry >a +a", history={"f_retry": [(1, "")]})
def unnamed_retry_is_named_after_its_flow() -> Any:
    return linear_flow.Flow("f", retry.Times()).add(tasks.Step("a"))


# -- retries of one task -------------------------------------------------------------------------


def _again(atom: Any, retries: int, **options: Any) -> Any:
    atom.retries = retries
    for name, value in options.items():
        setattr(atom, name, value)
    return atom


_TWICE = {"b": ["RuntimeError(b fails the 1. time) | b", "RuntimeError(b fails the 2. time) | b"]}
_THIRD = {"b_retry": [(1, "b:RuntimeError"), (2, "b:RuntimeError"), (3, "")]}


@flow(
    ">a +a >b_retry +b_retry >b !b <b -b ?b_retry .b >b_retry +b_retry >b !b <b -b ?b_retry .b"
    " >b_retry +b_retry >b +b >c +c",
    store={"folder": FOLDER, "times": 3},
    results={"b": 3},
    told=_TWICE,
    history=_THIRD,
    check=_clean,
)
def task_with_retries_is_retried() -> Any:
    b = _again(tasks.Counted("b", provides="b"), 2, retry_on=[RuntimeError], backoff=0.001)
    return linear_flow.Flow("f").add(tasks.Step("a"), b, tasks.Plain("c", rebind=["b"]))


@flow(
    ">b_retry +b_retry >b !b <b -b ?b_retry .b >b_retry +b_retry >b !b <b -b ?b_retry .b"
    " >b_retry +b_retry >b +b",
    store={"folder": FOLDER, "times": 3},
    results={"b": 3},
    told=_TWICE,
    history=_THIRD,
)
def single_local_task_with_retries_is_retried() -> Any:
    return _again(tasks.Counted("b", provides="b"), 2, local=True)


@flow(
    ">a +a >b_retry +b_retry >b !b <b -b ?b_retry .b >b_retry +b_retry >b !b <b -b"
    " <b_retry -b_retry <a -a",
    raises={"b": (ValueError, "b fails")},
    told={"a": ["a | b"], "b": ["ValueError(b fails) | b"] * 2},
    history={"b_retry": []},
)
def task_without_remaining_retries_reverts_everything() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a"), _again(tasks.Boom("b"), 1), tasks.Step("c"))


@flow(">b_retry +b_retry >b !b <b -b <b_retry -b_retry", **fails("b"), history={"b_retry": []})
def task_is_not_retried_for_unlisted_failures() -> Any:
    return linear_flow.Flow("f").add(_again(tasks.Boom("b"), 9, retry_on=(KeyError, "os.Error")))


@flow(
    ">out +out >b_retry +b_retry >b !b <b -b ?b_retry .b >b_retry +b_retry >b !b <b -b"
    " <b_retry -b_retry ?out .b_retry .b >out +out >b_retry +b_retry >b +b",
    store={"folder": FOLDER, "times": 3},
    results={"b": 3},
    told=_TWICE,
    history={"out": [(1, "b_retry:RuntimeError"), (2, "")], "b_retry": [(1, "")]},
)
def task_without_remaining_retries_is_retried_by_outer_retry() -> Any:
    b = _again(tasks.Counted("b", provides="b"), 1)
    return linear_flow.Flow("f", retry.Times(2, "out")).add(b)


@flow(
    ">a +a >m_retry +m_retry >m !m <m -m ?m_retry .m >m_retry +m_retry >m !m <m -m"
    " <m_retry -m_retry <a -a",
    store={"items": [1, -2, 3]},
    raises={"m": (ValueError, "-2 is negative")},
    told={"a": ["a | m"], "m": [[None, None, None]] * 2},
    history={"m_retry": []},
)
def map_of_task_with_retries_retries_whole_list() -> Any:
    made = task.Map(_again(tasks.Squares("m"), 1), max_in_flight=1)
    return linear_flow.Flow("f").add(tasks.Step("a"), made)

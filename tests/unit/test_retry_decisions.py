from __future__ import annotations

from typing import Any

import pytest

from wbengine import retry, states, task
from wbengine.patterns import linear_flow
from wbengine.runtime import retry_decisions
from wbengine.runtime.compiler import compile
from wbengine.runtime.plan import Plan


class Step(task.Task):
    def execute(self) -> None: ...


@pytest.fixture
def plan() -> Plan:
    inner = linear_flow.Flow("f3", retry.AlwaysRevert("r3")).add(Step("c"))
    middle = linear_flow.Flow("f2", retry.AlwaysRevert("r2")).add(Step("b"), inner)
    outer = linear_flow.Flow("f1", retry.AlwaysRevert("r1")).add(middle)
    return compile(linear_flow.Flow("f0").add(Step("a"), outer))


class Answers:
    def __init__(self, plan: Plan, **answers: Any) -> None:
        self.plan, self.answers = plan, answers
        self.asked: list[tuple[str, str]] = []

    def __call__(self, controller: int, failed: int) -> Any:
        name = self.plan.names[controller]
        self.asked.append((name, self.plan.names[failed]))
        return self.answers[name]


def resolve(
    plan: Plan, name: str, ask: Answers, *, defer_reverts: bool = True
) -> tuple[str, str | None]:
    found = retry_decisions.resolve(plan, plan.by_name[name], ask, defer_reverts=defer_reverts)
    if found.retry < 0:
        assert found.scope == range(len(plan))
        return found.intention, None
    assert found.scope == plan.scope(found.retry)
    return found.intention, plan.names[found.retry]


def test_nobody_to_ask(plan: Plan) -> None:
    ask = Answers(plan)
    assert resolve(plan, "a", ask) == (states.REVERT, None)
    assert resolve(plan, "r1", ask) == (states.REVERT, None)
    assert ask.asked == []


def test_retry(plan: Plan) -> None:
    ask = Answers(plan, r3=retry.RETRY)
    assert resolve(plan, "c", ask) == (states.RETRY, "r3")
    assert ask.asked == [("r3", "c")]


def test_a_retry_that_failed_is_resolved_outside(plan: Plan) -> None:
    ask = Answers(plan, r2=retry.RETRY)
    assert resolve(plan, "r3", ask) == (states.RETRY, "r2")
    assert ask.asked == [("r2", "r3")]


def test_revert_all(plan: Plan) -> None:
    ask = Answers(plan, r3=retry.REVERT_ALL)
    assert resolve(plan, "c", ask) == (states.REVERT, None)
    assert ask.asked == [("r3", "c")]


@pytest.mark.parametrize("defer", [False, True])
def test_the_first_who_wants_something_else_than_revert_wins(plan: Plan, defer: bool) -> None:
    ask = Answers(plan, r3=retry.REVERT, r2=retry.REVERT, r1=retry.RETRY)
    assert resolve(plan, "c", ask, defer_reverts=defer) == (states.RETRY, "r1")
    assert ask.asked == [("r3", "c"), ("r2", "r3"), ("r1", "r2")]
    ask = Answers(plan, r3=retry.REVERT, r2=retry.REVERT_ALL)
    assert resolve(plan, "c", ask, defer_reverts=defer) == (states.REVERT, None)


def test_all_say_revert(plan: Plan) -> None:
    ask = Answers(plan, r3=retry.REVERT, r2=retry.REVERT, r1=retry.REVERT)
    assert resolve(plan, "c", ask, defer_reverts=False) == (states.REVERT, "r3")
    assert resolve(plan, "c", ask, defer_reverts=True) == (states.REVERT, None)


@pytest.mark.parametrize("answer", [None, "retry", 3, True])
def test_a_wrong_answer(plan: Plan, answer: Any) -> None:
    ask = Answers(plan, r3=retry.REVERT, r2=answer)
    with pytest.raises(ValueError, match="'r2'") as caught:
        resolve(plan, "c", ask)
    assert repr(answer) in str(caught.value)


def test_strings_are_answers_too(plan: Plan) -> None:
    assert resolve(plan, "c", Answers(plan, r3="RETRY")) == (states.RETRY, "r3")


def test_many_levels() -> None:
    made: Any = linear_flow.Flow("f", retry.AlwaysRevert("r")).add(Step("a"))
    for i in range(5000):
        made = linear_flow.Flow(f"f{i}", retry.AlwaysRevert(f"r{i}")).add(made)
    plan = compile(made)
    found = retry_decisions.resolve(
        plan, plan.by_name["a"], lambda controller, failed: retry.REVERT, defer_reverts=False
    )
    assert plan.names[found.retry] == "r"

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

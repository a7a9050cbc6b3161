"""Invalid decisions and deep nesting of retries, in addition to `tests/property`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.scheduling import LINEAR, Step, control
from wbengine import retry
from wbengine._runtime import retry_decisions
from wbengine._runtime.compiler import compile


def nested(levels: int) -> Any:
    made = LINEAR("f", control("r")).add(Step("a"))
    for i in range(levels):
        made = LINEAR(f"f{i}", control(f"r{i}")).add(made)
    return compile(made)


@pytest.mark.parametrize("answer", [None, "retry", 3, True])
def test_invalid_decision_is_rejected_with_the_retry_name(answer: Any) -> None:
    plan = nested(1)

    def ask(controller: int, failed: int) -> Any:
        return retry.REVERT if plan.names[controller] == "r" else answer

    with pytest.raises(ValueError, match=f"'r0'.*{answer!r}"):
        retry_decisions.resolve(plan, plan.by_name["a"], ask, defer_reverts=True)


def test_decisions_of_five_thousand_nested_retries_need_no_recursion() -> None:
    plan = nested(5000)
    found = retry_decisions.resolve(
        plan, plan.by_name["a"], lambda controller, failed: retry.REVERT, defer_reverts=False
    )
    assert plan.names[found.scope.start] == "r"

"""A flow that waits for a signal: `tests.support.signalled:flow`."""

from __future__ import annotations

from typing import Any

from wbengine import retry, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.types import _outline


class Use(task.Task):
    def execute(self, approval: Any) -> Any:
        return approval


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("signalled").add(
        task.WaitFor("approved", timeout=3600, provides="approval"), Use("use", provides="found")
    )


@task.workflow
def order(steps: Any) -> Any:
    """Wait for 'approved', and then for one of two signals."""
    return steps.wait_for("approved"), steps.wait_any("paid", "cancelled")


class AcceptsAny(task.WaitFor):
    """Marks its flow as one that accepts any signal, as a workflow does, and ends at once."""

    def __init__(self) -> None:
        super().__init__("any", timeout=0, name="accepts any")
        self.signal = _outline.ANY_SIGNAL

    def timeout_result(self) -> None:
        """Return None."""


class WaitForNumber(task.WaitFor):
    """Waits for the signal `tick` with a number."""

    def __init__(self, number: int) -> None:
        super().__init__("tick", provides=f"value {number}", name=f"tick {number}")
        self.number = number


def ticks(count: int = 3) -> unordered_flow.Flow:
    """Return a flow that accepts any signal and waits for signals `tick`."""
    waits = [WaitForNumber(number) for number in range(1, count + 1)]
    return unordered_flow.Flow("ticks").add(AcceptsAny(), *waits)


class Fails(task.Task):
    """Fails until its retry controller made a second attempt."""

    def execute(self, times: list[int]) -> Any:
        if len(times) < 2:
            raise ValueError("once more")
        return "found"


class Delayed(retry.Times):
    """Waits before the next attempt, and provides a list with one element for each attempt."""

    def execute(self, history: Any, *args: Any, **kwargs: Any) -> Any:
        return [*range(len(list(history)) + 1)]

    def wait(self, history: Any, *args: Any, **kwargs: Any) -> float:
        return 1.0


def waiting(kind: str, timeout: float = 1.0) -> Any:
    """Return a flow that waits in the way that `kind` selects."""
    root = linear_flow.Flow("waiting")
    if kind == "timeout":
        return root.add(task.WaitFor("approved", timeout=timeout, provides="found"))
    if kind == "retry":
        root = linear_flow.Flow("waiting", retry=Delayed(3, "again", provides="times"))
        return root.add(Fails("fails", provides="found"))
    assert kind == "eta"
    use = Use("use", inject={"approval": "found"}, provides="found")
    use.eta = timeout
    return root.add(use)

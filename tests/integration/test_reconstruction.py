"""Tasks that workers cannot reconstruct from their class and name."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from tests.support.workers import worker_in_thread
from wbengine import engines, exceptions, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base

URL = "memory://reconstruction"


class Adds(task.Task):
    default_provides = "sum"

    def __init__(
        self, name: str | None = None, amount: int = 1, note: str = "", **more: Any
    ) -> None:
        super().__init__(name, **more)
        self.amount, self.note = amount, note

    def execute(self, x: int) -> int:
        return x + self.amount


class AddsItem(Adds):
    def execute(self, item: int) -> int:  # type: ignore[override]
        return item + self.amount


class Needs(task.Task):
    def __init__(self, amount: int) -> None:
        super().__init__(f"needs {amount}")

    def execute(self) -> None:
        """Do nothing."""


class Made(task.Task):
    """Task whose constructor creates attributes that differ each time and do not matter."""

    default_provides = "made"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name, inject={"x": 1}, rebind={"y": "x"})
        self.lock, self.at, self.options = threading.Lock(), time.time_ns(), {"a": [1]}
        self.label = f"label of {name}"

    def execute(self, y: int) -> str:
        return self.label


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: Adds("t", amount=2), r"'t': .*\.Adds\(name=...\) must restore 'amount', got"),
        (lambda: Adds("t", 2, "why"), r"must restore 'amount' and 'note', got"),
        (lambda: Needs(3), r"'needs 3': .*\.Needs\(name=...\) raises TypeError: .*'name'"),
        (lambda: task.Map(AddsItem("t", 2), over="items"), r"'t': .*AddsItem.*'amount'"),
    ],
    ids=["one argument", "two arguments", "no name", "item of a map"],
)
def test_task_that_worker_cannot_reconstruct_is_rejected_at_load(made: Any, reason: str) -> None:
    flow = linear_flow.Flow("f").add(Made("fine"), made())
    with backends.backend("memory://") as backend:
        with pytest.raises(exceptions.CompilationFailure, match=reason) as caught:
            engines.load(flow, engine="worker-based", url=URL, backend=backend)
        assert "'fine'" not in str(caught.value) and "local_tasks=[" in str(caught.value)
        assert list(base.unfinished_flows(backend)) == []


def test_error_about_many_unreconstructible_tasks_is_short() -> None:
    flow = linear_flow.Flow("f").add(*[Adds(f"t{n}", 2) for n in range(100)])
    with pytest.raises(exceptions.CompilationFailure, match=r"and \d\d more") as caught:
        engines.load(flow, engine="worker-based", url=URL)
    assert len(str(caught.value)) < 2000


def test_reconstructible_task_runs_on_worker() -> None:
    flow = linear_flow.Flow("f").add(
        Made("label"),
        Adds("a", 1, "", rebind={"x": "start"}),
        Adds("here", 10, provides="here", inject={"x": 1}),
    )
    with worker_in_thread(URL, sys.modules[__name__]):
        found = engines.run(
            flow, store={"start": 4}, engine="worker-based", url=URL, local_tasks=["here"]
        )
    assert found == {"start": 4, "made": "label of label", "sum": 5, "here": 11}


def test_local_engines_accept_tasks_that_workers_cannot_reconstruct() -> None:
    for kind in ("serial", "parallel"):
        assert engines.run(Adds("t", 2), store={"x": 1}, engine=kind)["sum"] == 3

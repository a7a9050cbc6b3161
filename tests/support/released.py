"""A workflow of which each conductor of a process can have other code."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import Any

import pytest

from wbengine import task
from wbengine.conductors.backends import impl_executor, impl_nonblocking
from wbengine.jobs import base as jobs
from wbengine.patterns import linear_flow
from wbengine.persistence import base
from wbengine.steps import Steps

#: Calls of tasks and reverts, in order.
CALLS: list[str] = []

_thread = threading.local()


@task.task
def charge() -> None:
    CALLS.append("charge")


@charge.revert
def refund() -> None:
    CALLS.append("refund")


@task.task
def check() -> None:
    CALLS.append("check")


@task.task
def ship() -> None:
    CALLS.append("ship")


def _order(code: str) -> type[task.Task]:
    @task.workflow(name="order")
    def order(steps: Steps) -> None:
        steps.run(charge)
        if code == "new" or (code == "versioned" and steps.version("check", 2) >= 2):
            steps.run(check)
        steps.wait_for("go", timeout=3600)
        steps.run(ship)

    return order


_ORDERS = {code: _order(code) for code in ("old", "new", "versioned")}


def park_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let conductors park flows and poll blocked jobs without pauses, and forget all calls."""
    CALLS.clear()
    monkeypatch.setattr(impl_executor.ExecutorConductor, "PARK_SECONDS", 0.0)
    monkeypatch.setattr(impl_executor, "_BLOCKED_POLL_SECONDS", 0.0)


def orders() -> Any:
    """Return a flow with the code of the conductor that calls this, or with the old code."""
    code = getattr(_thread, "code", "old")
    return linear_flow.Flow("orders").add(_ORDERS[code]())


class Conductor(impl_nonblocking.NonBlockingConductor):
    """A conductor with one slot and this code of `orders`.

    :ivar runs: uuids of the jobs whose flows it ran.
    """

    def __init__(
        self, board: jobs.JobBoard, store: base.Backend, code: str, **options: Any
    ) -> None:
        super().__init__(
            code,
            board,
            store,
            max_simultaneous_jobs=1,
            executor_factory=lambda: futures.ThreadPoolExecutor(
                1, initializer=setattr, initargs=(_thread, "code", code)
            ),
            **options,
        )
        self.runs: list[str] = []
        self.notifier.register(
            "running_start", lambda event, details: self.runs.append(details["job"].uuid)
        )

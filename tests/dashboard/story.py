"""Stored flows for dashboards: succeeded and failed ones, hostile names and a secret."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import wbengine
from wbengine import engines, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import base
from wbengine.persistence.backends import _memory

#: Secret that must appear in no output.
CANARY = "canary-8c1f-do-not-show"
SCRIPT = "<script>alert('x')</script>"

TOKEN = "a-token-for-tests-0123456789"
HOST = "http://127.0.0.1:8585"


class Fine(task.Task):
    def execute(self, **given: Any) -> str:
        return f"fine {SCRIPT}"

    def revert(self, **given: Any) -> None:
        return None


class Leaky(task.Task):
    """A task that fails with secrets in its message."""

    def execute(self, password: str, dsn: str) -> None:
        raise RuntimeError(
            f"{SCRIPT} cannot log in at {dsn} with {password!r}; password={password}"
        )


class Kept:
    """A store, and the uuids of its flows by name."""

    def __init__(self) -> None:
        self.backend = _memory.MemoryBackend()
        self.uuids: dict[str, str] = {}

    def run(self, name: str, flow: Any, store: Any = None, **options: Any) -> str:
        """Store and run a flow; ignore its failure."""
        detail = base.create_flow_detail(flow, backend=self.backend)
        engine = engines.load(
            flow, flow_detail=detail, backend=self.backend, store=store, engine="serial", **options
        )
        with contextlib.suppress(RuntimeError, ValueError, wbengine.exceptions.WbengineException):
            engine.run()
        self.uuids[name] = detail.uuid
        return detail.uuid

    def see(self, read: Callable[[base.Connection], Any]) -> Any:
        with contextlib.closing(self.backend.get_connection()) as connection:
            return read(connection)


def good(tasks: int = 5, name: str = "good") -> Any:
    flow = linear_flow.Flow(name)
    inner = unordered_flow.Flow("inner")
    inner.add(*(Fine(f"task-{number}") for number in range(tasks)))
    return flow.add(Fine("first"), inner, Fine("last"))


def leaking() -> Any:
    flow = linear_flow.Flow(f"leaking {SCRIPT}")
    return flow.add(Fine(f"begin {SCRIPT}"), Leaky("log in"), Fine("never"))


class Half(task.Task):
    def execute(self, number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number // 2


def mapped() -> Any:
    """Return a flow with a Map that fails."""
    half = task.Map(Half("half"), over="numbers", item="number", name="halves")
    return linear_flow.Flow("mapped").add(half)


SECRETS = {"password": CANARY, "dsn": f"amqp://wbe:{CANARY}@broker.invalid//"}


def told() -> Kept:
    """Return a store with one flow that succeeded and one that failed and was reverted."""
    stored = Kept()
    stored.run("good", good())
    stored.run("leaking", leaking(), SECRETS)
    return stored

"""Flows for engines of TaskFlow and wbengine, and their runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.interop import tasks

if TYPE_CHECKING or os.environ.get(tasks.SIDE) != "taskflow":
    from wbengine import engines, retry
    from wbengine.patterns import linear_flow, unordered_flow
    from wbengine.types import failure as ft
else:
    from taskflow import engines, retry
    from taskflow.patterns import linear_flow, unordered_flow
    from taskflow.types import failure as ft


def adds() -> Any:
    return linear_flow.Flow("adds").add(
        tasks.Add("a"), tasks.Add("b", provides="twice", rebind={"x": "sum", "y": "sum"})
    )


def swaps() -> Any:
    return linear_flow.Flow("swaps").add(tasks.Swap("swap"))


def fails() -> Any:
    return linear_flow.Flow("fails").add(
        tasks.Note("first"), tasks.Note("second", provides="other"), tasks.Fails("bad")
    )


def steps() -> Any:
    return linear_flow.Flow("steps").add(tasks.Steps("steps"))


def rests(count: int = 1) -> Any:
    return unordered_flow.Flow("rests").add(
        *(tasks.Rests(f"r{n}", provides=f"p{n}") for n in range(count))
    )


def holds() -> Any:
    return linear_flow.Flow("holds").add(tasks.Holds("holds"))


def many(count: int = 40) -> Any:
    return unordered_flow.Flow("many").add(
        *(tasks.Add(f"t{n}", provides=f"p{n}", inject={"x": n, "y": 1}) for n in range(count))
    )


def where(count: int = 1) -> Any:
    return unordered_flow.Flow("where").add(
        *(tasks.Where(f"w{n}", provides=f"p{n}") for n in range(count))
    )


def exits() -> Any:
    return linear_flow.Flow("exits").add(tasks.Exits("exits"))


def odd() -> Any:
    return linear_flow.Flow("odd").add(tasks.Odd("odd"))


def limited() -> Any:
    return linear_flow.Flow("limited").add(tasks.Limited("limited"))


def flaky() -> Any:
    return linear_flow.Flow("flaky", retry=retry.Times(5, "again")).add(
        tasks.Note("note"), tasks.Flaky("flaky")
    )


FLOWS = {
    made.__name__: made
    for made in (adds, swaps, fails, steps, rests, holds, many, where, exits, odd, limited, flaky)
}


#: Flow name -> results of a successful run.
ENDS: dict[str, dict[str, Any]] = {
    "adds": {"sum": 3, "twice": 6},
    "swaps": {
        "swapped": {"values": tasks.VALUES, "pair": [4, [5, 6]], "odd": {"2": "two", "true": "yes"}}
    },
    "steps": {"steps": "done"},
    "many": {f"p{n}": n + 1 for n in range(40)},
    "flaky": {"noted": {"of": "note", "n": [1, 2]}, "flaky": 3},
}


class Run:
    """One run of a flow by an engine of this process's library."""

    def __init__(
        self, flow: str, store: Mapping[str, Any], made: Mapping[str, Any], **options: Any
    ) -> None:
        self.progress: list[float] = []
        self.engine = engines.load(
            FLOWS[flow](**made), store=dict(store), engine="worker-based", **options
        )
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.engine.compile()
        for task in self.engine.compilation.execution_graph:
            if type(task) is tasks.Steps:
                task.notifier.register("update_progress", self._on_progress)

    def _on_progress(self, event: str, details: Mapping[str, Any]) -> None:
        self.progress.append(details["progress"])

    def go(self) -> Run:
        try:
            self.engine.run()
        except Exception as error:
            self.error = error
        return self

    def start(self) -> None:
        """Run in a thread; `told` waits for its end."""
        self._thread = threading.Thread(target=self.go, daemon=True)
        self._thread.start()

    def attempt(self, name: str) -> Any:
        return self.engine.storage.get_attempt(name)

    def told(self, timeout: float = 60.0) -> dict[str, Any]:
        """Return the result of the run as JSON values."""
        if self._thread is not None:
            self._thread.join(timeout)
            assert not self._thread.is_alive(), "it did not end in time"
        storage = self.engine.storage
        failures = {}
        for name, kinds in storage.get_failures().items():
            failure: ft.Failure = kinds
            failures[name] = {
                "types": list(failure),
                "text": failure.exception_str,
                "args": list(failure.exception_args),
                "traceback": failure.traceback_str or "",
                "causes": [cause.exception_str for cause in failure.causes],
            }
        return {
            "state": storage.get_flow_state(),
            "values": {
                name: value
                for name, value in storage.fetch_all().items()
                if not isinstance(value, ft.Failure)
            },
            "failures": failures,
            "progress": self.progress,
            "error": None if self.error is None else f"{type(self.error).__name__}: {self.error}",
        }

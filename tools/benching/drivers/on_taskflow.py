"""TaskFlow: `engines.run`, and its `Worker` in a separate process."""

from __future__ import annotations

import logging
from typing import Any

import place
from flows import Flows
from taskflow import task

PACKAGES = ["taskflow", "kombu"]
EXCHANGE, TOPIC = "bench", "bench"


class Nothing(task.Task):
    def execute(self) -> None:
        return None


class Next(task.Task):
    def execute(self, x: int) -> int:
        return x + 1


class Back(task.Task):
    def execute(self, x: str) -> str:
        return x


def _wire() -> dict[str, Any]:
    if place.MEDIUM == "filesystem":
        return {"transport": "filesystem", "transport_options": place.folders()}
    return {"url": place.URL}


class Driver:
    def __init__(self) -> None:
        import on_taskflow

        logging.basicConfig(level="WARNING")
        self._flows = Flows("taskflow", on_taskflow)
        self._workers = None
        self._options: dict[str, Any] = {"engine": place.MEDIUM}
        if place.MEDIUM == "parallel":
            self._options["max_workers"] = place.SLOTS
        elif not place.LOCAL:
            self._options = {"engine": "worker-based", "exchange": EXCHANGE, "topics": [TOPIC],
                             **_wire()}  # fmt: skip
            self._workers = place.Workers(["on_taskflow.py"])

    def __getattr__(self, case: str) -> Any:
        if case.startswith("_"):
            raise AttributeError(case)
        run = getattr(self._flows, case)
        return lambda *sizes, **named: run(*sizes, **named, **self._options)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


def _work() -> None:
    from taskflow.engines.worker_based import worker

    logging.basicConfig(level="WARNING")
    tasks = [f"on_taskflow:{name}" for name in ("Nothing", "Next", "Back")]
    worker.Worker(EXCHANGE, TOPIC, tasks, threads_count=place.SLOTS, **_wire()).run(
        display_banner=False
    )


if __name__ == "__main__":
    _work()

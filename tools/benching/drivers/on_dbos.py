"""DBOS: workflows in a queue. Many of them are enqueued in one transaction."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import payloads
import place
import sqlalchemy
from dbos import DBOS, DBOSClient

PACKAGES = ["dbos", "psycopg", "sqlalchemy"]
URL = place.URL.replace("postgresql:", "postgresql+psycopg:")
#: Interval between two polls of the queue and of a result; the default is a second.
POLL_SECONDS = 0.005
#: The worker appends a byte for each run of a workflow.
RUNS = place.FOLDER / "runs"


def _count_run() -> None:
    with RUNS.open("ab") as runs:
        runs.write(b".")


@DBOS.workflow(name="nothing")
def nothing() -> None:
    _count_run()


@DBOS.workflow(name="next")
def next_(x: int) -> int:
    _count_run()
    return x + 1


@DBOS.workflow(name="back")
def back(x: str) -> str:
    _count_run()
    return x


@DBOS.workflow(name="delay")
def delay(sent: float) -> float:
    _count_run()
    return time.time() - sent


class Driver:
    def __init__(self) -> None:
        RUNS.touch()
        self._runs = 0
        self._workers = place.Workers(["on_dbos.py"])
        ready = place.FOLDER / "ready"
        while not ready.exists():
            time.sleep(0.01)
        self._client = DBOSClient(system_database_url=place.URL)
        self._database = sqlalchemy.create_engine(URL)

    def wide(self, tasks: int) -> None:
        place.check(len(self._all("nothing", [()] * tasks)), tasks)

    def chain(self, tasks: int) -> None:
        value = 0
        for _ in range(tasks):
            value = self._run("next", value)
        place.check(value, tasks)
        self._check_runs(tasks)

    def diamond(self, layers: int, width: int) -> None:
        for _ in range(layers):
            self.wide(width)

    def payload(self, tasks: int, size: int) -> None:
        sent = payloads.texts(tasks, size)
        place.check(self._all("back", [(text,) for text in sent]), sent)

    def latency(self, tasks: int) -> list[float]:
        delays = [self._run("delay", time.time()) for _ in range(tasks)]
        self._check_runs(tasks)
        return delays

    def _run(self, name: str, argument: Any) -> Any:
        return _get(self._client.enqueue(_options(name), argument))

    def _all(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        with self._database.begin() as connection:
            enqueue = self._client.enqueue_in_transaction
            handles = [enqueue(connection, _options(name), *each) for each in arguments]
        results = [_get(handle) for handle in handles]
        self._check_runs(len(results))
        return results

    def _check_runs(self, tasks: int) -> None:
        self._runs += tasks
        place.check(RUNS.stat().st_size, self._runs)

    def close(self) -> None:
        self._workers.close()
        self._client.destroy()
        self._database.dispose()


def _options(name: str) -> Any:
    return {"queue_name": "bench", "workflow_name": name}


def _get(handle: Any) -> Any:
    return handle.get_result(polling_interval_sec=POLL_SECONDS)


def _work() -> None:
    """Run the worker. Its pool of threads limits the number of workflows that run at a time."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    DBOS(
        config={"name": "bench", "system_database_url": place.URL, "run_admin_server": False,
                "log_level": "WARNING", "max_executor_threads": place.SLOTS}
    )  # fmt: skip
    DBOS.launch()
    DBOS.register_queue("bench", polling_interval_sec=POLL_SECONDS)
    (place.FOLDER / "ready").touch()
    ended.wait()
    DBOS.destroy()


if __name__ == "__main__":
    _work()

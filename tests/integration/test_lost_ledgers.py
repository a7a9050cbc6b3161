"""A Redis with a ledger loses its data while engines and workers use it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import sample_tasks as tasks
from tests.support.workers import worker_in_thread
from wbengine import engines, exceptions
from wbengine.engines.worker_based import executor as executors
from wbengine.patterns import linear_flow


def run(**options: Any) -> Any:
    flow = linear_flow.Flow("f").add(tasks.Add())
    return engines.run(flow, store={"x": 1, "y": 2}, engine="worker-based", **options)["sum"]


@pytest.fixture
def lose(redis_server: Any, redis_url: Any) -> Callable[[str], None]:
    def lose(what: str) -> None:
        with redis_server.client(redis_url.rpartition("/")[2]) as client:
            if what == "all":
                client.flushdb()
                return
            for key in client.scan_iter():
                if key.decode().rpartition(":")[2] in ("ledger", "users", "server"):
                    client.delete(key)

    return lose


@pytest.mark.parametrize(
    ("is_separate", "what"),
    [
        (True, "all"),
        (True, "keys of the ledger"),
        (False, "keys of the ledger"),
        # The worker declares its queues again within 10 s.
        pytest.param(False, "all", marks=pytest.mark.slow),
    ],
)
def test_worker_runs_requests_of_engines_that_start_after_a_loss(
    redis_url: Any, lose: Callable[[str], None], is_separate: bool, what: str
) -> None:
    url = "memory://lost-ledger" if is_separate else str(redis_url)
    options = {"ledger": str(redis_url)} if is_separate else {}
    with worker_in_thread(url, tasks, **options):
        for _ in range(3):
            assert run(url=url, **options) == 3
            lose(what)


def test_worker_that_starts_after_a_loss_runs_requests_of_earlier_engines(
    redis_url: Any, lose: Callable[[str], None]
) -> None:
    place = {"url": "memory://lost-ledger-2", "ledger": str(redis_url)}
    executor = executors.WorkerTaskExecutor("e", "default", **place)  # type: ignore[arg-type]
    executor.start()
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(executor.stop)
        for _ in range(3):
            with worker_in_thread(place["url"], tasks, ledger=place["ledger"]):
                assert run(executor=executor) == 3
            lose("all")


def test_worker_still_refuses_requests_of_another_ledger(redis_url: Any) -> None:
    with (
        worker_in_thread("memory://lost-ledger-3", tasks, ledger=str(redis_url)),
        pytest.raises(exceptions.NotFound, match="configure the same ledger"),
    ):
        run(url="memory://lost-ledger-3", ledger=f"{redis_url}?prefix=other")

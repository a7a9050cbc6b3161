"""A Redis with a ledger loses its data while engines and workers use it."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import sample_tasks as tasks
from tests.support.parking import conducting
from tests.support.reading import read_flow
from tests.support.workers import worker_in_thread
from wbengine import engines, exceptions, states
from wbengine.engines.worker_based import executor as executors
from wbengine.patterns import linear_flow
from wbengine.persistence import backends


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
    redis_url: Any, rowless_url: str, lose: Callable[[str], None], is_separate: bool, what: str
) -> None:
    url = rowless_url if is_separate else str(redis_url)
    options = {"ledger": str(redis_url)} if is_separate else {}
    with worker_in_thread(url, tasks, **options):
        for _ in range(3):
            assert run(url=url, **options) == 3
            lose(what)


def test_worker_that_starts_after_a_loss_runs_requests_of_earlier_engines(
    redis_url: Any, rowless_url: str, lose: Callable[[str], None]
) -> None:
    place = {"url": rowless_url, "ledger": str(redis_url)}
    executor = executors.WorkerTaskExecutor("e", "default", **place)  # type: ignore[arg-type]
    executor.start()
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(executor.stop)
        for _ in range(3):
            with worker_in_thread(place["url"], tasks, ledger=place["ledger"]):
                assert run(executor=executor) == 3
            lose("all")


def test_worker_still_refuses_requests_of_another_ledger(redis_url: Any, rowless_url: str) -> None:
    with (
        worker_in_thread(rowless_url, tasks, ledger=str(redis_url)),
        pytest.raises(exceptions.NotFound, match="configure the same ledger"),
    ):
        run(url=rowless_url, ledger=f"{redis_url}?prefix=other")


def test_flow_whose_ledger_is_away_when_a_run_begins_is_run_later(
    redis_url: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is away for a moment; the flow is unchanged, and the conductor runs it again."""
    begin, failures = executors.WorkerTaskExecutor.begin_run, [exceptions.LedgerFailure("away")]

    def begin_later(self: Any, *args: Any, **kwargs: Any) -> int:
        if failures:
            raise failures.pop()
        return begin(self, *args, **kwargs)

    monkeypatch.setattr(executors.WorkerTaskExecutor, "begin_run", begin_later)
    options = {"url": str(redis_url)}
    with (
        backends.backend(f"sqlite:///{tmp_path}/flows.db") as store,
        worker_in_thread(options["url"], tasks),
        conducting(store, engine="worker-based", **options),
    ):
        handle = engines.submit(
            "tests.integration.test_lost_ledgers:adding", backend=store, inputs={"x": 1, "y": 2}
        )
        assert handle.result(20)["sum"] == 3
        history = read_flow(store, handle.id, lazy=True).history
    assert not failures and all(change.state != states.FAILURE for change in history)


def adding() -> linear_flow.Flow:
    return linear_flow.Flow("f").add(tasks.Add())

"""A first start of engines and workers on a Redis that cannot be used yet."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis import exceptions as errors

from tests.support import sample_tasks as tasks
from tests.support.waiting import until
from tests.support.workers import worker_in_thread
from wbengine import engines, exceptions
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import worker as workers
from wbengine.engines.worker_based._connections import consumer_loop
from wbengine.patterns import linear_flow
from wbengine.transports import _reasons

REASONS = {"full": "maxmemory", "read-only": "read only replica", "down": "refused"}


@pytest.fixture
def server(redis_server: Any) -> Any:
    return redis_server


@pytest.fixture
def client(server: Any) -> Iterator[redis.Redis]:
    server.mend()
    with server.client() as connected:
        yield connected
        server.mend()


@pytest.fixture(params=REASONS)
def impaired(
    request: pytest.FixtureRequest, server: Any, client: redis.Redis
) -> Iterator[tuple[str, Callable[[], object]]]:
    """The reason in log lines, and a function that repairs the server."""
    if request.param == "full":
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
        repair: Callable[[], object] = lambda: client.config_set("maxmemory", 0)  # noqa: E731
    elif request.param == "read-only":
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        repair = lambda: client.execute_command("REPLICAOF", "NO", "ONE")  # noqa: E731
    else:
        server.kill()
        repair = server.start
    yield REASONS[request.param], repair
    server.mend()
    repair() if request.param != "down" else None


def retries(caplog: pytest.LogCaptureFixture) -> list[tuple[int | None, str]]:
    """Return thread and text of each message; engine and worker log the same, in own threads."""
    messages = [(record.thread, record.getMessage()) for record in caplog.records]
    return [each for each in messages if each[1].endswith(("retrying", "reconnecting"))]


@pytest.mark.parametrize("is_separate", [False, True])
def test_engine_and_worker_wait_for_a_redis_and_log_its_state_once(
    server: Any,
    impaired: tuple[str, Callable[[], object]],
    caplog: pytest.LogCaptureFixture,
    rowless_url: str,
    is_separate: bool,
) -> None:
    reason, repair = impaired
    url = rowless_url if is_separate else server.url("1")
    options = {"ledger": server.url("1")} if is_separate else {}
    results: list[Any] = []

    def run() -> None:
        flow = linear_flow.Flow("f").add(tasks.Add())
        with worker_in_thread(url, tasks, **options):
            results.append(
                engines.run(flow, store={"x": 1, "y": 2}, engine="worker-based", url=url, **options)
            )

    with caplog.at_level(logging.WARNING):
        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: retries(caplog))
        repair()
        thread.join(60)
    assert results[0]["sum"] == 3
    assert len(set(retries(caplog))) == len(retries(caplog))
    assert any(re.search(reason, text, re.IGNORECASE) for _, text in retries(caplog))


@pytest.mark.parametrize("what", ["engine", "worker"])
def test_start_on_an_impaired_redis_ends_with_its_reason(
    server: Any,
    impaired: tuple[str, Callable[[], object]],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    monkeypatch.setattr(consumer_loop, "CONNECT_TIMEOUT_SECONDS", 1.0)
    url = server.url("1")
    with pytest.raises(exceptions.TransportFailure, match=f"(?i){impaired[0]}"):
        if what == "engine":
            executors.WorkerTaskExecutor("e", "default", url=url).start()
        else:
            workers.Worker("default", "t", [tasks], url=url).run(display_banner=False)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (errors.BusyLoadingError("LOADING"), True),
        (errors.TimeoutError("no answer"), True),
        (errors.ConnectionError("closed"), True),
        (errors.ReadOnlyError("READONLY"), True),
        (errors.OutOfMemoryError("OOM"), True),
        (errors.ResponseError("MISCONF the disk is full"), True),
        (errors.ResponseError("BUSY Redis is busy running a script"), True),
        (errors.ResponseError("ERR unknown command"), False),
        (errors.NoPermissionError("NOPERM"), False),
        (errors.AuthenticationError("WRONGPASS"), False),
        (ValueError("x"), False),
    ],
)
def test_state_of_a_redis_that_may_pass_is_distinguished(error: Exception, passes: bool) -> None:
    failure = exceptions.LedgerFailure("ledger")
    failure.__cause__ = error
    outer = exceptions.TransportFailure("broker")
    outer.__cause__ = failure
    assert _reasons.may_pass(failure) == _reasons.may_pass(outer) == passes


@pytest.mark.timeout(10)
def test_search_for_errors_of_redis_ends_at_error_that_is_its_own_cause() -> None:
    error = ConnectionResetError("reset by peer")
    error.__cause__ = error
    assert not _reasons.may_pass(error)

"""Calls of users return while the ledger of their engine does not answer."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support import brokers, sample_tasks
from tests.support.engine_threads import Running
from tests.support.waiting import MARGIN
from tests.support.workers import until, worker_in_thread
from wbengine import engines, exceptions
from wbengine.patterns import unordered_flow

#: Number of requests that wait for the only slot of a worker. Each has a row.
WAITING = 7


def test_cancel_returns_while_the_ledger_is_frozen(tmp_path: Path, rowless_url: str) -> None:
    """The flow ends after the ledger answers again."""
    url, release = rowless_url, tmp_path / "release"
    started = [tmp_path / f"w{number}" for number in range(WAITING + 1)]
    flow = unordered_flow.Flow("f").add(
        *(
            sample_tasks.WaitFor(path.name, inject={"started": str(path), "release": str(release)})
            for path in started
        )
    )
    with (
        brokers.redis() as server,
        worker_in_thread(url, sample_tasks, threads_count=1, ledger=server.url()),
    ):
        engine = engines.load(flow, engine="worker-based", url=url, ledger=server.url())
        with server.client() as client, Running(engine) as run:
            until(lambda: any(path.exists() for path in started))
            until(lambda: len(client.keys("*r:*")) == len(started))
            server.pause()
            try:
                begin = time.monotonic()
                assert engine.cancel(reason="enough")
                took = time.monotonic() - begin
            finally:
                server.resume()
            # Requests that have not started are revoked before the slot becomes free.
            until(lambda: len(client.keys("*r:*")) == 1)
            release.touch()
        assert took < 1.0 * MARGIN, "no more than one time-out of the ledger"
        assert isinstance(run.error, exceptions.Cancelled)
    assert sum(path.exists() for path in started) == 1

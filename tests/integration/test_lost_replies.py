"""Calls to ledgers in databases whose connection is cut after the commit, before the reply."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.seams import ledgers
from tests.support import resuming_tasks as tasks
from tests.support import tcp_proxy, workers
from tests.support.servers import Databases
from tests.support.waiting import until
from wbengine import exceptions
from wbengine._calls import invocation
from wbengine.engines.worker_based import executor as executors
from wbengine.transports._sql import sql_ledger

ID = "request"


class Lossy:
    """A ledger behind a proxy, and a direct connection to it."""

    def __init__(
        self, near: ledgers.Ledger, direct: ledgers.Ledger, proxy: tcp_proxy.Proxy, url: str
    ) -> None:
        self.near, self.direct, self._proxy, self.url = near, direct, proxy, url

    def lose_reply(self, ledger: Any, word: str) -> threading.Event:
        """Discard the reply to the next statement with this word.

        The event is set before the statement is sent.
        """
        assert isinstance(ledger, sql_ledger.SQLLedger)
        sent = threading.Event()

        # Not before, because an idle connection is checked first.
        def lose(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if word in statement and not sent.is_set():
                self._proxy.lose("to-client")
                sent.set()

        sa.event.listen(ledger._engine, "before_cursor_execute", lose)
        return sent

    def cut(self, done: Callable[[], Any]) -> None:
        """Cut all connections after the effect of the statement is `done`."""
        until(done)
        self._proxy.cut()

    def call(self, work: Callable[[ledgers.Ledger], Any], done: Callable[[], Any]) -> Any:
        """Call, and cut the connection when the effect is `done` and the reply was discarded."""
        assert not done()
        self.lose_reply(self.near, "wbe_ledger")
        with ThreadPoolExecutor(1) as pool:
            calling = pool.submit(work, self.near)
            self.cut(lambda: done() or calling.done())
            return calling.result()

    def state(self) -> str | None:
        row = self.direct.state(ID)
        return None if row is None else row.state


@pytest.fixture(params=["postgresql", pytest.param("mysql", marks=pytest.mark.slow)])
def lossy(request: pytest.FixtureRequest, database_servers: Databases) -> Iterator[Lossy]:
    server = database_servers[request.param]
    with server.database() as url, tcp_proxy.threaded(server.port) as proxy:
        proxied = url.replace(f":{server.port}/", f":{proxy.port}/")
        with (
            contextlib.closing(ledgers.open_ledger(url)) as direct,
            contextlib.closing(ledgers.open_ledger(proxied)) as near,
        ):
            near.renew("w")
            yield Lossy(near, direct, proxy, proxied)


def test_row_whose_opening_got_no_reply_can_be_opened_again(lossy: Lossy) -> None:
    with contextlib.suppress(exceptions.LedgerFailure):
        lossy.call(lambda ledger: ledger.open(ID, 1), lossy.state)
    lossy.near.open(ID, 1)
    assert lossy.direct.state(ID) == ledgers.Row(ID, 1, "open")


def test_claim_without_reply_is_granted(lossy: Lossy) -> None:
    lossy.direct.open(ID, 1)
    claim = lossy.call(
        lambda ledger: ledger.claim(ID, 1, "w"), lambda: lossy.state() == ledgers.ROW_CLAIMED
    )
    assert claim == ledgers.Claim(ledgers.GRANTED, 1, None, "w")
    assert lossy.near.claim(ID, 1, "w").verdict == ledgers.HELD
    assert lossy.near.finish(ID, 1, "w", b"r") is True


def test_row_revoked_without_reply_is_reported_as_missing(lossy: Lossy) -> None:
    lossy.direct.open(ID, 1)
    results = lossy.call(
        lambda ledger: ledger.revoke_many([(ID, 1)]), lambda: lossy.state() is None
    )
    assert results == [None]


def test_result_without_reply_is_stored_once(lossy: Lossy) -> None:
    lossy.direct.open(ID, 1)
    assert lossy.near.claim(ID, 1, "w").granted
    (result,) = lossy.call(
        lambda ledger: ledger.finish_many("w", [(ID, 1, b"r")]),
        lambda: lossy.state() == ledgers.ROW_DONE,
    )
    assert isinstance(result, exceptions.LedgerFailure)
    assert lossy.near.finish(ID, 1, "w", b"r") is False
    assert lossy.direct.state(ID) == ledgers.Row(ID, 1, "done", None, b"r")


# -- engines and workers


def states_of(lossy: Lossy) -> list[str]:
    return [row.state for row in lossy.direct.list_rows().rows]


def run_with_lost_reply(
    lossy: Lossy, url: str, word: str, state: str, on: str, tmp_path: Path
) -> Any:
    """Run a task. The reply to a statement of the engine or the worker is lost."""
    ended = queue.SimpleQueue[Any]()
    executor = executors.WorkerTaskExecutor("e", "default", url=url, ledger=lossy.url)
    atom = tasks.Plain("p")
    call = invocation.Invocation(atom, "execute", "atom", 1, {"folder": str(tmp_path)})
    with workers.worker_in_thread(url, tasks, ledger=lossy.url) as worker:
        executor.wait_for_workers(1, 60)
        ledger = executor._writer.ledger if on == "engine" else worker._runner.ledger
        sent = lossy.lose_reply(ledger, word)
        with ThreadPoolExecutor(1) as pool:  # Publishing waits for the reply.
            pool.submit(executor.submit, call, lambda _, outcome: ended.put(outcome.value))
            lossy.cut(lambda: sent.is_set() and states_of(lossy) == [state])
        value = ended.get(timeout=60)
        executor.retire([call])
        executor.stop()
    return value


@pytest.mark.parametrize(
    ("word", "state", "on"),
    [
        ("INSERT INTO wbe_ledger ", ledgers.ROW_OPEN, "engine"),
        ("SET state = 1, holder", ledgers.ROW_CLAIMED, "worker"),
        ("SET state = 2", ledgers.ROW_DONE, "worker"),
    ],
    ids=["open", "claim", "finish"],
)
def test_task_runs_once_if_a_reply_of_the_ledger_is_lost(
    lossy: Lossy, rowless_url: str, word: str, state: str, on: str, tmp_path: Path
) -> None:
    assert run_with_lost_reply(lossy, rowless_url, word, state, on, tmp_path) == "done-p"
    assert tasks.runs(tmp_path) == ["execute-p"]
    assert not lossy.direct.ids()


def test_task_cancelled_without_reply_is_cancelled_and_not_lost(
    lossy: Lossy, rowless_url: str, tmp_path: Path
) -> None:
    url = rowless_url
    ended = queue.SimpleQueue[Any]()
    executor = executors.WorkerTaskExecutor("e", "default", url=url, ledger=lossy.url)
    first, second = (
        invocation.Invocation(tasks.Gated(name), "execute", name, 1, {"folder": str(tmp_path)})
        for name in "ab"
    )
    with workers.worker_in_thread(url, tasks, ledger=lossy.url, threads_count=1):
        executor.wait_for_workers(1, 60)
        executor.submit(first, lambda *_: None)
        until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        executor.submit(second, lambda _, outcome: ended.put(outcome.value))
        until(lambda: len(lossy.direct.ids()) == 2)
        lossy.lose_reply(executor._writer.ledger, "DELETE FROM wbe_ledger")
        executor.cancel([second])
        lossy.cut(lambda: len(lossy.direct.ids()) == 1)
        failure = ended.get(timeout=60)
        (tmp_path / "gate-execute").touch()
        executor.stop()
    assert isinstance(failure.exception, exceptions.Cancelled)

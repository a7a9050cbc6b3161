"""Redis that restarts with older data: from a snapshot, or without its last second."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seams import ledgers
from tests.support import audited_tasks, brokers, workers
from tests.support.redis_ends import SOON, Both
from tests.support.waiting import until
from wbengine import engines
from wbengine import exceptions as exc
from wbengine.engines.worker_based.executor import WorkerTaskExecutor
from wbengine.patterns import unordered_flow
from wbengine.transports._redis import redis_scripts

ID = "0b7f8a52-8f3e-5d6e-9a30-1d1f0f4e8a11"

Opened = Callable[..., ledgers.Ledger]


@pytest.fixture
def server() -> Iterator[brokers.Redis]:
    """Separate Redis with an append-only file."""
    with brokers.redis() as redis:
        yield redis


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Factory of ledgers, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(server: brokers.Redis) -> ledgers.Ledger:
            return stack.enter_context(contextlib.closing(ledgers.open_ledger(server.url())))

        yield make


def verdict(ledger: ledgers.Ledger, id: str = ID, epoch: int = 1, holder: str = "two") -> Any:
    """Return the verdict and owner of a claim as soon as the server grants claims."""
    said: list[ledgers.Claim] = []

    def claims() -> bool:
        with contextlib.suppress(exc.LedgerFailure):
            said.append(ledger.claim(id, epoch, holder))
        return bool(said)

    until(claims, 2 * redis_scripts.CLAIM_REFUSAL_SECONDS)
    return said[0].verdict, said[0].holder


def lose_claim(server: brokers.Redis, ledger: ledgers.Ledger) -> None:
    """Let the worker `one` claim a row, and let the server lose the claim."""
    ledger.open(ID, 1)
    set_back = server.copy_data()
    assert ledger.claim(ID, 1, "one").granted
    set_back()


FORGOTTEN = ledgers.HELD, ledgers.FORGOTTEN


def test_restart_without_data_loss_keeps_rows_claimable(
    server: brokers.Redis, opened: Opened
) -> None:
    """For a moment after the restart, claims are refused."""
    ledger, other = opened(server), opened(server)
    for id in ("one", "two"):
        ledger.open(id, 1)
    assert other.claim("one", 1, "w").granted
    server.kill()
    server.start()
    with pytest.raises(exc.LedgerFailure, match="has just started"):
        other.claim("two", 1, "w")
    assert verdict(other, "two", holder="w") == (ledgers.GRANTED, "w")
    assert other.finish("one", 1, "w", b"r")
    assert ledger.state("one") == ledgers.Row("one", 1, "done", None, b"r")
    assert ledger.identity == other.identity == ledger.digest


@pytest.mark.parametrize("ended", ["claimed", "finished", "dropped", "revoked"])
def test_server_that_lost_its_last_second_grants_no_second_claim(
    server: brokers.Redis, opened: Opened, ended: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that has seen the lost data reports it before any claim."""
    ledger = opened(server)
    ledger.open(ID, 1)
    set_back = server.copy_data()
    if ended == "revoked":
        assert ledger.revoke(ID)
    else:
        assert ledger.claim(ID, 1, "one").granted
    if ended in ("finished", "dropped"):
        assert ledger.finish(ID, 1, "one", b"r")
    if ended == "dropped":
        ledger.drop(ID)
    set_back()
    newcomer = opened(server)
    with pytest.raises(exc.LedgerFailure):
        newcomer.claim(ID, 1, "two")
    with caplog.at_level(logging.WARNING):
        assert ledger.state(ID) == ledgers.Row(ID, 1, ledgers.ROW_CLAIMED, ledgers.FORGOTTEN)
    assert "restarted with older data" in caplog.text
    assert verdict(newcomer) == FORGOTTEN
    assert opened(server).identity == ledger.identity != ledger.digest == newcomer.digest
    assert not newcomer.revoke(ID)


def test_row_lost_by_restore_is_granted_with_new_epoch(
    server: brokers.Redis, opened: Opened
) -> None:
    ledger = opened(server)
    lose_claim(server, ledger)
    assert ledger.reopen(ID, 2) is None
    assert verdict(ledger, epoch=1) == (ledgers.STALE, None)
    assert verdict(ledger, epoch=2) == (ledgers.GRANTED, "two")
    ledger.open("new", 1)
    assert verdict(ledger, "new") == (ledgers.GRANTED, "two")


@pytest.mark.parametrize("end", ["finish", "release"])
def test_worker_finishes_or_releases_row_after_server_lost_its_claim(
    server: brokers.Redis, opened: Opened, end: str
) -> None:
    """The claim was granted, but the server has lost it."""
    ledger = opened(server)
    lose_claim(server, ledger)
    if end == "finish":
        assert ledger.finish(ID, 1, "one", b"r")
        assert ledger.state(ID) == ledgers.Row(ID, 1, ledgers.ROW_DONE, None, b"r")
        assert not ledger.finish(ID, 1, "two", b"other")
    else:
        assert ledger.release(ID, 1, "one")
        assert verdict(ledger) == (ledgers.GRANTED, "two")


def test_restart_without_append_only_file_grants_no_open_row(opened: Opened) -> None:
    """Rows that were open are not granted, even after another restart."""
    with brokers.redis(appendonly="no") as server:
        ledger = opened(server)

        def restart() -> None:
            with server.client() as client:
                client.save()
            server.kill()
            server.start()

        ledger.open("one", 1)
        restart()
        assert verdict(ledger, "one") == FORGOTTEN
        ledger.open("two", 1)
        restart()
        assert verdict(ledger, "two") == FORGOTTEN
        ledger.open("three", 1)
        assert verdict(ledger, "three") == (ledgers.GRANTED, "two")


def test_worker_runs_no_request_twice_after_restore_of_broker(server: brokers.Redis) -> None:
    ends = [Both(server.url())]
    ends[0].post("done")
    set_back = server.copy_data()
    [claim] = ends[0].take(1)
    assert claim.granted
    ends[0].end(*ends[0].messages)
    set_back()
    with pytest.raises(ends[0].connection.recoverable_connection_errors):
        ends[0].connection.drain_events(timeout=SOON)
    try:
        assert ends[0].ledger.state("done").holder == ledgers.FORGOTTEN
        ends.append(Both(server.url(), holder="two"))
        [claim] = ends[1].take(1)
        assert (claim.verdict, claim.holder) == FORGOTTEN
    finally:
        for end in ends:
            end.close()


def test_server_that_denies_info_is_reported_and_ledger_works(
    server: brokers.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with server.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "few", "on", ">secret", "~wbe:{wbengine}:*", "+@all", "-info"
        )
    url = server.url().replace(f"redis://:{server.password}@", "redis://few:secret@")
    with caplog.at_level(logging.WARNING):
        ledgers.open_ledger(url).close()
        ledger = ledgers.open_ledger(url)
    with contextlib.closing(ledger):
        assert "INFO" in caplog.text and caplog.text.count("with older data") == 1
        ledger.open(ID, 1)
        assert ledger.claim(ID, 1, "w").granted
        assert ledger.finish(ID, 1, "w", b"r")


# -- under load


def flow_of(name: str, count: int) -> unordered_flow.Flow:
    """Return a flow of tasks, a quarter of which are idempotent."""
    kinds = [audited_tasks.Again if n % 4 == 0 else audited_tasks.Once for n in range(count)]
    tasks = [kind(f"{kind.__name__}-{name}-{n}", provides=f"n{n}") for n, kind in enumerate(kinds)]
    return unordered_flow.Flow(name).add(*tasks)


@pytest.mark.slow
@pytest.mark.parametrize(("appendonly", "times"), [("no", 50), ("yes", 20)])
def test_no_task_runs_twice_while_redis_is_restored_many_times(
    appendonly: str, times: int, tmp_path: Path
) -> None:
    """Each restore happens when a flow is half done. Lost tasks fail; later tasks run."""

    def lines() -> list[str]:
        path = tmp_path / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def run(flow: unordered_flow.Flow) -> None:
        with contextlib.suppress(exc.WbengineException, exc.WrappedFailure):
            engines.run(
                flow,
                inputs={"folder": str(tmp_path), "value": 1, "nap": 0.01},
                engine="worker-based",
                executor=executor,
            )

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(brokers.redis(appendonly=appendonly))
        words = ["--url", server.url(), "--topic", "t", "--threads", "4"]
        words += ["--tasks", "tests.support.audited_tasks"]
        for _ in range(2):
            stack.enter_context(workers.workers(tmp_path, *words))
        executor = WorkerTaskExecutor("e", "default", ["t"], url=server.url(), worker_expiry=15)
        stack.callback(executor.stop)
        executor.wait_for_workers(2, 60)
        flows = []
        for number in range(times):
            before = len(lines())
            flows.append(threading.Thread(target=run, args=[flow_of(f"f{number}", 200)]))
            flows[-1].start()
            until(lambda: len(lines()) >= before + 20)  # noqa: B023
            if appendonly == "no":
                with server.client() as client:
                    client.save()
            set_back = server.copy_data()
            until(lambda: len(lines()) >= before + 60)  # noqa: B023
            set_back()
        for thread in flows:
            thread.join(300)
            assert not thread.is_alive(), "a flow does not end"
        last = engines.run(
            flow_of("last", 40),
            inputs={"folder": str(tmp_path), "value": 1},
            engine="worker-based",
            executor=executor,
        )
        assert sum(name.startswith("n") for name in last) == 40
    counts = Counter(tuple(line.split()) for line in lines())
    assert {of: count for of, count in counts.items() if count > 1} == {}
    once = Counter(name for name, _, _ in counts if name.startswith("Once"))
    assert {name: count for name, count in once.items() if count > 1} == {}

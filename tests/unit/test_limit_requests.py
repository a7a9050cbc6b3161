"""Numbers of requests to the store of limits, for which flows of many tenants wait."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support import limited
from wbengine import engines
from wbengine._limits import RedisStore, account_stores
from wbengine._limits.permit_sharing import Account, PermitRequest
from wbengine._tasks.limit_attributes import Quota
from wbengine.conductors import _limited_flows
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends as stores

ONE = Quota(None, None, 1)
NAMES = [f"l{number}" for number in range(5)]


@pytest.fixture
def board(tmp_path: Path) -> Iterator[impl_sql.SQLJobBoard]:
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as store:
        board = impl_sql.SQLJobBoard("board", persistence=store)
        board.connect()
        wait_for_limits(board, NAMES)
        yield board


def wait_for_limits(board: impl_sql.SQLJobBoard, names: Sequence[str]) -> None:
    """Submit a flow for each of these limits that waits for it."""
    inputs = [{"tenant": name} for name in names]
    engines.submit_many(limited.waiting, inputs, backend=board.persistence)
    for name, job in zip(names, board.take("c", len(names)), strict=True):
        board.park(job, "c", None, None, limit=name)


def test_permits_of_many_limits_are_reserved_in_one_transaction(
    board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = board.persistence
    assert store is not None
    flows, limits = _limited_flows.LimitedFlows(lambda: board, store, store), [dict[str, Any]()]
    monkeypatch.setattr(_limited_flows, "_POLL_SECONDS", 0.0)
    settle, accounts = flows._store.settle, flows._store
    settle({name: (ONE, [PermitRequest("x", 1, 1, 0, 15.0)]) for name in NAMES})
    limits.clear()

    def record(requests: Mapping[str, Any]) -> Any:
        limits.append(dict(requests))
        return settle(requests)

    monkeypatch.setattr(accounts, "settle", record)
    for _ in range(3):
        flows.poll()
    assert [sorted(requests) for requests in limits] == [NAMES]
    for account, now in accounts.read(NAMES).values():
        (parked,) = [uuid for uuid in account.flows if uuid != "x"]
        assert account.reserves(parked, now)


def test_permit_that_becomes_free_during_a_reservation_is_offered(
    board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = board.persistence
    assert store is not None
    flows = _limited_flows.LimitedFlows(lambda: board, store, store)
    settle, read = flows._store.settle, flows._store.read
    settle({name: (ONE, [PermitRequest("x", 1, 1, 0, 15.0)]) for name in NAMES})

    def read_before_the_release(names: Any) -> Any:
        accounts = read(names)
        settle({"l2": (ONE, [PermitRequest("x", 1, 0, 0, 0.0)])})
        return accounts

    monkeypatch.setattr(flows._store, "read", read_before_the_release)
    flows.poll()
    waiting = dict(board.limits_waited_for())
    assert sorted(waiting) == sorted({*NAMES} - {"l2"})


def test_offered_flows_of_many_limits_are_read_with_one_request(
    board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = board.persistence
    assert store is not None
    flows, counts = _limited_flows.LimitedFlows(lambda: board, store, store), list[int]()
    monkeypatch.setattr(_limited_flows, "_POLL_SECONDS", 0.0)
    ready = board.ready

    def record(uuids: Sequence[str]) -> set[str]:
        counts.append(len(uuids))
        return ready(uuids)

    wait_for_limits(board, NAMES)
    monkeypatch.setattr(board, "ready", record)
    for _ in range(3):
        flows.poll()
    assert counts == [0, 5, 5]
    assert len(board.take("c", 10)) == 5


def test_flows_of_limits_on_later_pages_start_faster_and_faster(
    board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = board.persistence
    assert store is not None
    flows = _limited_flows.LimitedFlows(lambda: board, store, store)
    monkeypatch.setattr(_limited_flows, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(impl_sql, "MAX_PAGE_SIZE", len(NAMES))
    wait_for_limits(board, [*NAMES, "page2"] * 6)
    for _ in range(2 * 3):  # Two pages, for 1, 2 and 4 flows of each limit.
        flows.poll()
        for job in board.take("c", 100):
            board.consume(job, "c")
    assert board.job_count == 0


def test_accounts_in_redis_are_read_with_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account()
    account.settle(ONE, [PermitRequest("f", 1, 1, 0, 15.0)], 0.0)
    texts = {"wbengine:limit:l1": json.dumps(account.to_dict())}
    replies: list[Any] = []
    pipeline = mock.Mock()
    pipeline.get = lambda key: replies.append(texts.get(key))
    pipeline.time = lambda: replies.append((7, 500_000))
    pipeline.execute = mock.Mock(side_effect=lambda: replies)
    store = RedisStore("redis://limits")
    client = mock.Mock()
    client.pipeline = lambda transaction: contextlib.nullcontext(pipeline)
    monkeypatch.setattr(store, "_client", client)
    assert store.read(NAMES) == {"l1": (account, 7.5)}
    assert pipeline.execute.call_count == 1
    assert store.read([]) == account_stores.MemoryStore().read([]) == {}
    assert pipeline.execute.call_count == 1

"""Accounts of limits in memory, databases and Redis."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.threads import call_in_threads
from tests.support.waiting import until
from wbengine import exceptions
from wbengine._limits import RedisStore, SQLStore, account_stores, sql_accounts
from wbengine._limits.limit_changes import LimitChange
from wbengine._limits.permit_sharing import PermitRequest
from wbengine._tasks.limit_attributes import Quota
from wbengine.persistence import backends

THREE = Quota(None, None, 3)
KINDS = ["memory", "sqlite", "postgresql_url", "redis_url"]
#: Mark of tests for variants of databases, too.
dialects = pytest.mark.parametrize("store", [*KINDS, "folder", "mariadb_url"], indirect=True)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[account_stores.Store]:
    kind = request.param
    if kind == "memory":
        yield account_stores.MemoryStore()
        return
    local = {"sqlite": f"sqlite:///{tmp_path}/flows.db", "folder": f"dir://{tmp_path}/flows"}
    url = local.get(kind) or request.getfixturevalue(kind)
    if kind == "redis_url":
        with contextlib.closing(account_stores.store_of(url)) as limit_store:
            assert isinstance(limit_store, RedisStore)
            yield limit_store
        return
    with backends.backend(url) as backend:
        limit_store = account_stores.store_of(backend)
        assert isinstance(limit_store, SQLStore)
        yield limit_store


def request_permits(
    store: account_stores.Store, flow: str, held: int, wanted: int, seconds: float = 15
) -> int:
    wants = (THREE, [PermitRequest(flow, 1, held, wanted, seconds)])
    return len(store.settle({"Ä limit": wants})["Ä limit"].permits.get(flow, ()))


@dialects
def test_permits_are_granted_and_released(store: account_stores.Store) -> None:
    assert store.all() == {}
    assert request_permits(store, "a", 0, 2) == 2
    assert request_permits(store, "b", 0, 2) == 1
    ((name, (account, now)),) = store.all().items()
    assert name == "Ä limit" and account.quota == THREE
    assert {flow: row.held for flow, row in account.live(now).items()} == {"a": 2, "b": 1}
    assert request_permits(store, "a", 0, 0) == request_permits(store, "b", 1, 0) == 0
    assert request_permits(store, "b", 1, 5) == 2
    assert request_permits(store, "b", 0, 0) == 0
    assert store.all() == {}, "what nobody has a part in is not kept"


def test_expired_accounts_are_deleted(
    store: account_stores.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A released rate limit stores the time of the next permit until that has passed."""
    monkeypatch.setattr(sql_accounts, "_SWEEP_SECONDS", 0.0)
    rate = Quota("1000/s", 0.001, None)
    for number in range(2):
        names = [f"customer {number} {one}" for one in range(300)]
        for wanted in (1, 0):
            asks = [PermitRequest("a", 1, 0, wanted, 15)]
            store.settle(dict.fromkeys(names, (rate, asks)))
        until(lambda: all(one.expires(now) <= 0 for one, now in store.all().values()))
    request_permits(store, "a", 0, 1)
    assert set(store.all()) == {"Ä limit"}


@dialects
def test_change_replaces_quota_of_the_code(store: account_stores.Store) -> None:
    assert store.changes() == {}
    assert request_permits(store, "a", 0, 2) == 2
    store.change(LimitChange("Ä limit", "1/h", 5, "new contract", "ann", 7.5))
    assert request_permits(store, "b", 0, 4) == 1
    account, _ = store.all()["Ä limit"]
    assert (account.quota, account.defined) == (Quota("1/h", 3600.0, 5), THREE)
    assert store.remove_change("Ä limit") and not store.remove_change("Ä limit")
    assert request_permits(store, "b", 0, 4) == 1
    for flow in ("a", "b"):
        request_permits(store, flow, 0, 0)


@dialects
def test_second_change_keeps_values_that_it_does_not_name(store: account_stores.Store) -> None:
    first = LimitChange("shop", "5/s", None, "new contract", "ann", 7.5)
    store.change(first)
    store.change(LimitChange("Shop[Ä]", None, 3))
    assert store.changes() == {"shop": first, "Shop[Ä]": LimitChange("Shop[Ä]", None, 3)}
    assert store.changes(["shop[eve]", "other"]) == {"shop": first}
    store.change(LimitChange("shop", None, 4, None, "bob", 8.5))
    assert store.changes(["shop"]) == {"shop": LimitChange("shop", "5/s", 4, None, "bob", 8.5)}
    assert store.all() == {}
    for name in ("shop", "Shop[Ä]"):
        assert store.remove_change(name)


@dialects
def test_several_limits_are_settled_in_one_call(store: account_stores.Store) -> None:
    names = [f"limit {number}" for number in range(450)]
    wants = {name: (THREE, [PermitRequest("a", 1, 0, 5, 15)]) for name in names}
    answers = store.settle(wants)
    assert [len(answers[name].permits["a"]) for name in names] == [3] * 450
    assert sorted(store.all()) == sorted(names)
    gone = {name: (THREE, [PermitRequest("a", 1, 0, 0, 0)]) for name in names}
    store.settle(gone)
    assert store.all() == {}


@dialects
def test_concurrent_requests_never_exceed_limit(store: account_stores.Store) -> None:
    gate = threading.Barrier(8)
    running: list[int] = []
    maxima: list[int] = []

    def want(number: int) -> None:
        gate.wait(60)
        for _ in range(10):
            got = request_permits(store, f"flow {number}", 0, 3)
            if got:
                running.append(got)
                maxima.append(sum(running))
                running.remove(got)
                request_permits(store, f"flow {number}", 0, 0)

    call_in_threads(want, range(8))
    assert 0 < max(maxima) <= 3


def test_permits_expire_by_clock_of_store(store: account_stores.Store) -> None:
    assert request_permits(store, "dead", 0, 3, seconds=0.2) == 3
    gate = threading.Event()
    for _ in range(100):
        gate.wait(0.02)
        if got := request_permits(store, "b", 0, 3):
            break
    assert got == 3


@pytest.mark.parametrize(
    "text",
    [
        '{"next":',
        '{"flows": [], "terms": [null, null, 3], "next": 0, "served": 0}',
        '{"flows": {"f": [1, 1, 1, "x", 0]}, "terms": [null, null, 3], "next": 0, "served": 0}',
        '{"flows": {}, "terms": [null, null, 3], "next": null, "served": 0}',
    ],
)
def test_damaged_account_is_reset_and_logged(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        store = account_stores.store_of(backend)
        request_permits(store, "a", 0, 1)
        with sa.create_engine(f"sqlite:///{tmp_path}/flows.db").begin() as raw:
            raw.execute(sa.text("UPDATE wbe_limits SET account = :text"), {"text": text})
        assert request_permits(store, "b", 0, 3) == 3
    assert "cannot read the state of limit" in caplog.text


def test_unreachable_redis_raises_storage_failure() -> None:
    store = account_stores.store_of("redis://127.0.0.1:1/0")
    with pytest.raises(exceptions.StorageFailure, match="limits in Redis failed"):
        request_permits(store, "a", 0, 1)


def test_url_of_limits_must_be_redis() -> None:
    with pytest.raises(ValueError, match="got 'amqp://x'; by default, limits are in the store"):
        account_stores.check_url("amqp://x")
    with pytest.raises(ValueError, match="did you mean 'redis'"):
        account_stores.check_url("redis+sentinel://x")
    with pytest.raises(ValueError, match="in a password as %2F %3F %23"):
        account_stores.check_url("redis://:hu/sh@h")
    assert account_stores.check_url("redis+socket:///tmp/s") == "unix:///tmp/s"

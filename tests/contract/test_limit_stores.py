"""Accounts of limits are kept alike in a process, in databases and in Redis."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.waiting import until
from wbengine import exceptions
from wbengine.permits import stores
from wbengine.permits.accounts import PermitRequest
from wbengine.permits.limits import Quota
from wbengine.persistence import backends

THREE = Quota(None, None, 3)
KINDS = ["memory", "sqlite", "folder", "postgresql_url", "mariadb_url", "redis_url"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[stores.Store]:
    kind = request.param
    if kind == "memory":
        yield stores.MemoryStore()
        return
    local = {"sqlite": f"sqlite:///{tmp_path}/flows.db", "folder": f"dir://{tmp_path}/flows"}
    url = local.get(kind) or request.getfixturevalue(kind)
    if kind == "redis_url":
        with contextlib.closing(stores.store_of(url)) as made:
            assert isinstance(made, stores.RedisStore)
            yield made
        return
    with backends.backend(url) as backend:
        made = stores.store_of(backend)
        assert isinstance(made, stores.SQLStore)
        yield made


def ask(store: stores.Store, flow: str, held: int, wanted: int, seconds: float = 15) -> int:
    wants = (THREE, [PermitRequest(flow, 1, held, wanted, seconds)])
    return len(store.settle({"Ä limit": wants})["Ä limit"].permits.get(flow, ()))


def test_permits_are_given_and_given_back(store: stores.Store) -> None:
    assert store.all() == {}
    assert ask(store, "a", 0, 2) == 2
    assert ask(store, "b", 0, 2) == 1
    ((name, (account, now)),) = store.all().items()
    assert name == "Ä limit" and account.quota == THREE
    assert {flow: row.held for flow, row in account.live(now).items()} == {"a": 2, "b": 1}
    assert ask(store, "a", 0, 0) == ask(store, "b", 1, 0) == 0
    assert ask(store, "b", 1, 5) == 2
    assert ask(store, "b", 0, 0) == 0
    assert store.all() == {}, "what nobody has a part in is not kept"


def test_what_is_over_is_not_kept(store: stores.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow that leaves a rate leaves the time of the next permit, which passes."""
    monkeypatch.setattr(stores, "_SWEEP_SECONDS", 0.0)
    rate = Quota("1000/s", 0.001, None)
    for number in range(2):
        names = [f"customer {number} {one}" for one in range(300)]
        for wanted in (1, 0):
            asks = [PermitRequest("a", 1, 0, wanted, 15)]
            store.settle(dict.fromkeys(names, (rate, asks)))
        until(lambda: all(one.expires(now) <= 0 for one, now in store.all().values()))
    ask(store, "a", 0, 1)
    assert set(store.all()) == {"Ä limit"}


def test_several_limits_are_one_step(store: stores.Store) -> None:
    names = [f"limit {number}" for number in range(450)]
    wants = {name: (THREE, [PermitRequest("a", 1, 0, 5, 15)]) for name in names}
    answers = store.settle(wants)
    assert [len(answers[name].permits["a"]) for name in names] == [3] * 450
    assert sorted(store.all()) == sorted(names)
    gone = {name: (THREE, [PermitRequest("a", 1, 0, 0, 0)]) for name in names}
    store.settle(gone)
    assert store.all() == {}


def test_who_asks_at_once_gets_no_more_than_there_is(store: stores.Store) -> None:
    gate, given, errors = threading.Barrier(8), [], []

    def want(number: int) -> None:
        gate.wait(60)
        try:
            for _ in range(10):
                got = ask(store, f"flow {number}", 0, 3)
                if got:
                    given.append(got)
                    running.append(got)
                    most.append(sum(running))
                    running.remove(got)
                    ask(store, f"flow {number}", 0, 0)
        except Exception as error:
            errors.append(error)

    running: list[int] = []
    most: list[int] = []
    threads = [threading.Thread(target=want, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and max(most) <= 3 and given


def test_time_is_that_of_the_store(store: stores.Store) -> None:
    assert ask(store, "dead", 0, 3, seconds=0.2) == 3
    gate = threading.Event()
    for _ in range(100):
        gate.wait(0.02)
        if got := ask(store, "b", 0, 3):
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
def test_damaged_account_begins_anew(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        store = stores.store_of(backend)
        ask(store, "a", 0, 1)
        with sa.create_engine(f"sqlite:///{tmp_path}/flows.db").begin() as raw:
            raw.execute(sa.text("UPDATE wbe_limits SET account = :text"), {"text": text})
        assert ask(store, "b", 0, 3) == 3
    assert "cannot be read, and begins anew" in caplog.text


def test_a_redis_that_is_away_is_an_error() -> None:
    store = stores.store_of("redis://127.0.0.1:1/0")
    with pytest.raises(exceptions.StorageFailure, match="limits in Redis failed"):
        ask(store, "a", 0, 1)


def test_limits_are_kept_in_a_redis_only() -> None:
    with pytest.raises(ValueError, match="'amqp://x': without it limits are kept in the flow's"):
        stores.check_url("amqp://x")

"""Limits in a Redis that flows of several databases share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import limited
from wbengine import engines
from wbengine._limits import account_stores, permit_renewer
from wbengine._limits.permit_sharing import Account, PermitRequest
from wbengine._tasks.limit_attributes import Quota
from wbengine.conductors import _limited_flows
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends as stores
from wbengine.persistence import base as persistence

PLACE = "redis://limits"
ONE = Quota(None, None, 1)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> account_stores.MemoryStore:
    """The accounts, which are in memory instead of the Redis."""
    shared = account_stores.MemoryStore()
    monkeypatch.setattr(account_stores, "store_of", lambda place: shared)
    return shared


@pytest.fixture
def databases(tmp_path: Path) -> Iterator[list[persistence.Backend]]:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
    with stores.backend(urls[0]) as one, stores.backend(urls[1]) as two:
        yield [one, two]


def park_with_permit(store: persistence.Backend) -> str:
    """Let a flow of a database keep its permit while it is parked, and return its uuid."""
    uuid = engines.submit(limited.waiting, backend=store, inputs={"tenant": "a"}).id
    member = permit_renewer.Member(uuid, 1, 15.0, account_stores.home_of(PLACE, store))
    renewer = permit_renewer.PermitRenewer(account_stores.store_of(PLACE))
    membership = renewer.join("l", ONE, member, lambda: None)
    membership.add_running()
    renewer.leave([membership], [membership])
    return uuid


def poll(store: persistence.Backend) -> None:
    """Let a conductor compare the limit, for which a flow of its database waits, with its flows."""
    board = impl_sql.SQLJobBoard("board", persistence=store)
    board.connect()
    engines.submit(limited.waiting, backend=store, inputs={"tenant": "a"})
    for job in board.take("c", 10):
        board.park(job, "c", None, None, limit="l")
    _limited_flows.LimitedFlows(lambda: board, store, PLACE).poll()


def test_parked_flow_keeps_its_permit_beside_conductors_of_other_databases(
    limits: account_stores.MemoryStore, databases: list[persistence.Backend]
) -> None:
    uuid = park_with_permit(databases[0])
    poll(databases[1])
    account, now = limits.all()["l"]
    assert account.kept(now) == [uuid]


def test_permit_of_a_deleted_parked_flow_becomes_free(
    limits: account_stores.MemoryStore, databases: list[persistence.Backend]
) -> None:
    uuid = park_with_permit(databases[0])
    with databases[0].get_connection() as connection:
        connection.destroy_flow(uuid)
    poll(databases[0])
    account, now = limits.all()["l"]
    assert account.kept(now) == []


def test_stored_account_contains_the_home_of_a_parked_flow() -> None:
    account = Account()
    account.settle(ONE, [PermitRequest("f", 1, 1, 0, 15.0, (), (), "home")], 0.0)
    assert Account.from_dict(account.to_dict()) == account
    assert account.flows["f"].home == "home"


def test_url_of_a_database_does_not_change_its_home() -> None:
    urls = [
        "postgresql://localhost/flows",
        "postgresql://ann:secret@127.0.0.1:5432/flows",
        "postgresql:///flows?host=localhost",
    ]
    homes = {account_stores.home_of(PLACE, stores.fetch(url)) for url in urls}
    assert len(homes) == 1
    other = stores.fetch("postgresql://localhost:5433/flows")
    assert account_stores.home_of(PLACE, other) not in homes


def test_file_with_the_same_path_on_another_host_has_another_home(
    databases: list[persistence.Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = account_stores.home_of(PLACE, databases[0])
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert account_stores.home_of(PLACE, databases[0]) != home

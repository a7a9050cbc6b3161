"""Leases of flows in all stores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.seams import stores
from tests.support import servers
from tests.support.amounts import amount
from wbengine import exceptions, states
from wbengine.persistence import backends, base, models

from . import places, racing, records

Connection = base.Connection


@pytest.fixture
def flow(connection: Connection) -> models.FlowDetail:
    """Stored flow of three atoms."""
    book = models.LogBook("b")
    flow_detail = models.FlowDetail("f")
    flow_detail.add_all([models.TaskDetail("a"), models.TaskDetail("b"), models.RetryDetail("r")])
    book.add(flow_detail)
    connection.save_logbook(book)
    return flow_detail


def read(connection: Connection, flow: models.FlowDetail) -> models.FlowDetail:
    return connection.get_flow_details(flow.uuid)


def change(flow: models.FlowDetail) -> dict[str, Any]:
    """Change everything that a save can write; return further arguments of the save."""
    flow.state, flow.meta = states.RUNNING, {"changed": True}
    first = next(iter(flow))
    first.attempt += 1
    first.state, first.results = states.RUNNING, "changed"
    first.items = models.Items(first.attempt, [1, 2])
    flow.add(models.TaskDetail("new"))
    return {"items": {first.uuid: list(first.items)}}


# Acquiring and releasing.


def test_each_acquired_lease_increases_epoch(
    connection: Connection, flow: models.FlowDetail
) -> None:
    """Readers of the flow see the epoch."""
    assert connection.get_lease(flow.uuid) is None
    assert read(connection, flow).epoch == 0
    for epoch in (1, 2, 3):
        lease = connection.acquire_lease(flow.uuid, f"owner {epoch}", 15)
        assert lease == stores.Lease(flow.uuid, f"owner {epoch}", epoch)
        assert connection.get_lease(flow.uuid) == lease
        assert read(connection, flow).epoch == epoch
        connection.release_lease(lease)
        assert connection.get_lease(flow.uuid) is None
        connection.release_lease(lease)
    (book,) = connection.get_logbooks()
    (flow_detail,) = connection.get_flows_for_book(book.uuid, lazy=True)
    assert [f.epoch for f in (*book, flow_detail, read(connection, flow))] == [3] * 3


def test_second_owner_is_refused_with_name_of_first(
    connection: Connection, flow: models.FlowDetail
) -> None:
    """The error contains the owner and the remaining time. The owner itself is refused too."""
    lease = connection.acquire_lease(flow.uuid, "one/π '\"%", 15)
    for owner in ("two", lease.owner):
        with pytest.raises(exceptions.FlowBusy, match="one/π") as caught:
            connection.acquire_lease(flow.uuid, owner, 15)
        assert (caught.value.owner, caught.value.epoch) == (lease.owner, 1)
        assert 5 < caught.value.seconds <= 15
    assert connection.get_lease(flow.uuid) == lease
    other = models.LogBook("other")
    other.add(models.FlowDetail("free"))
    connection.save_logbook(other)
    assert connection.acquire_lease(next(iter(other)).uuid, "two", 15).epoch == 1


def test_unknown_flow_has_no_lease(connection: Connection) -> None:
    """Releasing an unknown lease is no error."""
    gone = models.FlowDetail("gone")
    lease = stores.Lease(gone.uuid, "owner", 1)
    with pytest.raises(exceptions.NotFound, match=gone.uuid):
        connection.acquire_lease(gone.uuid, "owner", 15)
    with pytest.raises(exceptions.NotFound, match=gone.uuid):
        connection.get_lease(gone.uuid)
    with pytest.raises(exceptions.LeaseLost):
        connection.renew_lease(lease, 15)
    with pytest.raises(exceptions.LeaseLost):
        connection.save_changes(gone, [], lease=lease)
    connection.release_lease(lease)


# Writing.


def test_owner_can_write_repeatedly_and_renew_lease(
    connection: Connection, flow: models.FlowDetail
) -> None:
    lease = connection.acquire_lease(flow.uuid, "owner", 15)
    connection.save_changes(flow, flow, lease=lease, **change(flow))
    connection.renew_lease(lease, 20)
    connection.save_changes(flow, flow, lease=lease, **change(flow))
    assert records.of_flow(read(connection, flow)) == records.of_flow(flow)


def _given_back(connection: Connection, lease: stores.Lease) -> None:
    connection.release_lease(lease)


def _taken_over(connection: Connection, lease: stores.Lease) -> None:
    connection.acquire_lease(lease.flow, lease.owner, 15, dead=lease.epoch)


def _taken_over_and_ended(connection: Connection, lease: stores.Lease) -> None:
    connection.acquire_lease(lease.flow, "other", 0, dead=lease.epoch)


def _taken_over_and_given_back(connection: Connection, lease: stores.Lease) -> None:
    connection.release_lease(connection.acquire_lease(lease.flow, "x", 9, dead=lease.epoch))


@pytest.mark.parametrize(
    "lose", [_given_back, _taken_over, _taken_over_and_ended, _taken_over_and_given_back]
)
def test_lost_lease_refuses_every_write(
    connection: Connection,
    flow: models.FlowDetail,
    lose: Callable[[Connection, stores.Lease], None],
) -> None:
    lease = connection.acquire_lease(flow.uuid, "owner", 15)
    connection.save_changes(flow, flow, lease=lease)
    lose(connection, lease)
    before = records.of_store(connection)
    more = change(flow)
    for flow_row in (True, False):
        with pytest.raises(exceptions.LeaseLost, match="owner"):
            connection.save_changes(flow, flow, flow_row=flow_row, lease=lease, **more)
    with pytest.raises(exceptions.LeaseLost):
        connection.save_changes(flow, [], flow_row=False, lease=lease)
    with pytest.raises(exceptions.LeaseLost):
        connection.renew_lease(lease, 15)
    connection.release_lease(lease)
    assert records.of_store(connection) == before


def test_running_flow_refuses_writes_without_its_lease(
    connection: Connection, flow: models.FlowDetail
) -> None:
    """They are accepted after the lease has expired."""
    lease = connection.acquire_lease(flow.uuid, "owner", 15)
    before = records.of_store(connection)
    more = change(flow)
    atom = next(iter(flow))
    for write in (
        lambda: connection.save_changes(flow, flow, **more),
        lambda: connection.save_changes(flow, [], flow_row=False),
        lambda: connection.update_flow_details(flow),
        lambda: connection.update_atom_details(atom),
    ):
        with pytest.raises(exceptions.FlowBusy, match="owner") as caught:
            write()
        assert (caught.value.owner, caught.value.epoch) == ("owner", 1)
        assert records.of_store(connection) == before
    connection.renew_lease(lease, 0)
    connection.save_changes(flow, flow, **more)
    assert records.of_flow(read(connection, flow)) == records.of_flow(flow)
    assert read(connection, flow).epoch == 1


def test_save_logbook_does_not_change_running_flows(
    connection: Connection, flow: models.FlowDetail
) -> None:
    """This includes flows that ran since the logbook was read."""
    (book,) = connection.get_logbooks()
    stale = book.find(flow.uuid)
    assert stale is not None and stale.epoch == 0
    lease = connection.acquire_lease(flow.uuid, "owner", 15)
    before = records.of_flow(read(connection, flow))
    change(stale)
    saved = connection.save_logbook(book)
    for _ in ("run by somebody", "given back"):
        book.meta["n"] = book.meta.get("n", 0) + 1
        free = models.FlowDetail("free")
        free.add(models.TaskDetail("t"))
        book.add(free)
        saved = connection.save_logbook(book)
        flow_detail = saved.find(flow.uuid)
        assert flow_detail is not None and flow_detail.epoch == 1
        assert records.of_flow(flow_detail) == before == records.of_flow(read(connection, flow))
        assert saved.meta["n"] == book.meta["n"]
        assert records.of_flow(read(connection, free)) == records.of_flow(free)
        connection.release_lease(lease)
    fresh = read(connection, flow)
    book.add(fresh)
    change(fresh)
    connection.save_logbook(book)
    assert records.of_flow(read(connection, flow)) == records.of_flow(fresh) != before


@pytest.mark.parametrize("how", ["destroy_logbook", "clear_all"])
def test_lease_of_removed_flow_is_lost(
    connection: Connection, flow: models.FlowDetail, how: str
) -> None:
    """The owner receives the error with its next write."""
    (book,) = connection.get_logbooks(lazy=True)
    lease = connection.acquire_lease(flow.uuid, "owner", 15)
    connection.save_changes(flow, flow, lease=lease, **change(flow))
    if how == "clear_all":
        connection.clear_all()
    else:
        connection.destroy_logbook(book.uuid)
    with pytest.raises(exceptions.LeaseLost):
        connection.save_changes(flow, flow, lease=lease)
    with pytest.raises(exceptions.LeaseLost):
        connection.renew_lease(lease, 15)
    connection.release_lease(lease)
    assert list(connection.get_logbooks()) == []
    with pytest.raises(exceptions.NotFound):
        connection.get_lease(flow.uuid)
    with pytest.raises(exceptions.NotFound):
        connection.get_flow_details(flow.uuid)


# Comparison with a model.

_owners = st.sampled_from(["x", "y"])
_seconds = st.sampled_from([0.0, 60.0])
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), _owners, _seconds, st.none() | st.integers(-2, 1)),
        st.tuples(st.sampled_from(["renew", "write", "back"]), st.integers(-3, -1), _seconds),
        st.tuples(st.just("write without"), st.none(), st.none()),
    ),
    max_size=20,
)


def _play(connection: Connection, steps: list[tuple[Any, ...]]) -> None:
    """Perform the steps with a new flow, and compare each result with that of a model."""
    book = models.LogBook("b")
    flow = models.FlowDetail("f")
    atom = models.TaskDetail("a")
    flow.add(atom)
    book.add(flow)
    connection.save_logbook(book)
    taken: list[stores.Lease] = []  # all leases so far
    latest, live = False, False  # of the latest lease: not released; not expired
    for step, *words in steps:
        if step == "take":
            owner, seconds, dead = words
            expected_epoch = None if dead is None else len(taken) + dead
            if live and expected_epoch != len(taken):
                with pytest.raises(exceptions.FlowBusy, match=taken[-1].owner):
                    connection.acquire_lease(flow.uuid, owner, seconds, dead=expected_epoch)
            else:
                lease = connection.acquire_lease(flow.uuid, owner, seconds, dead=expected_epoch)
                taken.append(lease)
                assert lease == stores.Lease(flow.uuid, owner, len(taken))
                latest, live = True, seconds > 0
        elif step == "write without":
            atom.attempt += 1
            with pytest.raises(exceptions.FlowBusy) if live else contextlib.nullcontext():
                connection.save_changes(flow, [atom])
            atom.attempt -= live
        elif -words[0] <= len(taken):
            lease, mine = taken[words[0]], latest and words[0] == -1
            if step == "back":
                connection.release_lease(lease)
                latest, live = (False, False) if mine else (latest, live)
                continue
            atom.attempt += 1
            lost = pytest.raises(exceptions.LeaseLost, match=lease.owner)
            with contextlib.nullcontext() if mine else lost:
                if step == "renew":
                    connection.renew_lease(lease, words[1])
                    live = words[1] > 0
                else:
                    connection.save_changes(flow, [atom], lease=lease)
            atom.attempt -= step == "renew" or not mine
        assert connection.get_lease(flow.uuid) == (taken[-1] if live else None)
        stored = read(connection, flow)
        assert (stored.epoch, next(iter(stored)).attempt) == (len(taken), atom.attempt)


#: The last number of `take` is the dead epoch, from the latest one; of others, the lease.
STEPS: dict[str, list[tuple[Any, ...]]] = {
    "expired lease can be acquired at once, and until then its owner continues": [
        ("take", "old", 0.0, None), ("write", -1, 0.0), ("renew", -1, 60.0),
        ("take", "new", 60.0, None), ("renew", -1, 0.0), ("take", "new", 60.0, None),
        ("renew", -2, 60.0), ("back", -2, 0.0), ("write", -2, 0.0), ("write", -1, 0.0),
    ],
    "dead epoch takes over only that lease": [
        ("take", "old", 60.0, None), ("take", "new", 60.0, -1), ("take", "new", 60.0, 1),
        ("take", "new", 60.0, 0), ("take", "third", 60.0, -1), ("write", -2, 0.0),
        ("back", -1, 0.0), ("take", "third", 60.0, -1), ("write", -1, 0.0),
    ],
}  # fmt: skip


@places.dialects
@pytest.mark.parametrize("name", STEPS)
def test_lease_operations_agree_with_model(connection: Connection, name: str) -> None:
    _play(connection, STEPS[name])


@places.dialects
@settings(max_examples=amount(10, 40), suppress_health_check=list(HealthCheck))
@given(steps=_steps)
def test_random_lease_operations_agree_with_model(
    connection: Connection, steps: list[tuple[Any, ...]]
) -> None:
    _play(connection, steps)


# Between processes.


@pytest.mark.slow
@places.durable_dialects
def test_lease_is_granted_to_one_of_several_processes(
    conf: stores.Conf, connection: Connection
) -> None:
    book = models.LogBook("b")
    for number in range(60):
        book.add(models.FlowDetail(f"f{number}"))
    connection.save_logbook(book)
    results = racing.race("take", 4, conf, [flow.uuid for flow in book])
    granted = [stores.Lease(*fields) for mine in results for fields in mine]
    assert sorted(lease.flow for lease in granted) == sorted(flow.uuid for flow in book)
    assert {lease.epoch for lease in granted} == {1}
    assert [connection.get_lease(lease.flow) for lease in granted] == granted


@places.durable_dialects
def test_alternating_owners_lose_no_write(conf: stores.Conf, connection: Connection) -> None:
    book = models.LogBook("b")
    flow = models.FlowDetail("f")
    flow.add(models.TaskDetail("count"))
    book.add(flow)
    connection.save_logbook(book)
    epochs = racing.race("count", 2, conf, flow.uuid, 20)
    assert sorted(epochs[0] + epochs[1]) == list(range(1, 41))
    (atom,) = read(connection, flow)
    assert atom.results == 40


@places.every_durable
def test_several_processes_can_upgrade_store_at_once(
    kind: str, tmp_path: Path, database_servers: servers.Databases
) -> None:
    with places.place(kind, tmp_path, database_servers) as fresh:
        results = racing.race("upgrade", 3, fresh)
        with backends.backend(fresh) as backend, backend.get_connection() as connection:
            connection.validate()
            assert {book.uuid for book in connection.get_logbooks()} == set(results)

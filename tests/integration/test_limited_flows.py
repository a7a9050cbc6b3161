"""Flows that wait for a permit of their own limit hold nothing, and run when a permit is free."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract import places
from tests.seams import stores as stored_in
from tests.support import limited, servers
from tests.support.parking import conducting
from tests.support.waiting import until
from wbengine import engines, operations, states
from wbengine._limits import shared_accounts
from wbengine._limits.limit_changes import LimitChange
from wbengine._limits.permit_rules import PermitRequest
from wbengine._tasks.limit_attributes import Quota
from wbengine.conductors import _limited_flows
from wbengine.conductors.backends import impl_executor
from wbengine.engines import _submission
from wbengine.jobs import backends as boards
from wbengine.persistence import base as persistence


@pytest.fixture(params=stored_in.DURABLE)
def uri(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: servers.Databases
) -> Iterator[str]:
    with places.place(request.param, tmp_path, database_servers) as conf:
        yield conf["connection"]


@pytest.fixture(autouse=True)
def parked_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impl_executor.ExecutorConductor, "PARK_SECONDS", 0.05)


@pytest.fixture
def only_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows start because a permit becomes free, not because a conductor compares the limits."""
    monkeypatch.setattr(_limited_flows, "_POLL_SECONDS", 1e6)


def submit(
    store: persistence.Backend, tenant: str, priority: str = "NORMAL", **limits: Any
) -> _submission.FlowHandle:
    return engines.submit(
        limited.waiting,
        factory_kwargs=limits or None,
        backend=store,
        inputs={"tenant": tenant},
        priority=priority,
    )


def has_begun(store: persistence.Backend, handle: _submission.FlowHandle) -> bool:
    """Return whether the flow has a permit: its first task has ended."""
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(handle.id)
    return any(atom.name == "begun" and atom.state == states.SUCCESS for atom in detail)


def begun(
    store: persistence.Backend, handles: list[_submission.FlowHandle]
) -> list[_submission.FlowHandle]:
    return [handle for handle in handles if has_begun(store, handle)]


def test_flows_without_a_permit_leave_the_places_to_others(store: persistence.Backend) -> None:
    first = [submit(store, "a") for _ in range(5)]
    with conducting(store, most=1) as (board, parked):
        until(lambda: {handle.id for handle in first} <= set(parked))
        other = submit(store, "b")
        until(lambda: has_begun(store, other))
        assert {handle.state for handle in first} == {states.WAITING}
        assert len(begun(store, first)) == 1
        assert next(board.iterjobs(only_unclaimed=True), None) is None


@pytest.mark.usefixtures("only_events")
def test_end_of_a_flow_starts_the_next_one_by_priority_and_age(
    store: persistence.Backend,
) -> None:
    handles = [submit(store, "a")]
    with conducting(store, most=2) as (_, parked):
        until(lambda: has_begun(store, handles[0]))
        handles += [submit(store, "a", priority) for priority in ("LOW", "NORMAL", "HIGH")]
        until(lambda: {handle.id for handle in handles} <= set(parked))
        order = []
        left = list(handles)
        while left:
            until(lambda: bool(begun(store, left)))
            (running,) = begun(store, left)
            order.append(handles.index(running))
            left.remove(running)
            running.signal("go")
            assert running.wait(20)
    assert order == [0, 3, 2, 1]


def test_resumption_releases_a_flow_that_waits_for_a_permit(store: persistence.Backend) -> None:
    """Conductors of earlier releases take a flow only if its job is due."""
    first = submit(store, "a")
    with conducting(store, most=2) as (_, parked):
        until(lambda: parked == [first.id])
        second = submit(store, "a")
        until(lambda: second.id in parked)
    with boards.backend("b", "sql", persistence=store) as board:
        assert second.id not in [job.uuid for job in board.iterjobs(only_unclaimed=True)]
        operations.request(store, second.id, "resume")
        assert second.id in [job.uuid for job in board.iterjobs(only_unclaimed=True)]


def test_parked_flow_keeps_its_permit(store: persistence.Backend) -> None:
    with conducting(store, most=2) as (_, parked):
        first = submit(store, "a")
        until(lambda: parked == [first.id])
    second = submit(store, "a")
    with conducting(store, most=2) as (_, parked):
        until(lambda: second.id in parked)
        assert not has_begun(store, second), "the first flow keeps its permit"
        first.signal("go")
        assert first.wait(20)
        until(lambda: has_begun(store, second))
        second.signal("go")
        assert second.wait(20)


def test_permit_of_a_deleted_parked_flow_becomes_free(store: persistence.Backend) -> None:
    with conducting(store, most=2) as (_, parked):
        first = submit(store, "a")
        until(lambda: parked == [first.id])
        second = submit(store, "a")
        until(lambda: second.id in parked)
        with contextlib.closing(store.get_connection()) as connection:
            connection.destroy_flow(first.id)
        until(lambda: has_begun(store, second))


def test_cancelled_flow_releases_the_permit_that_it_kept(store: persistence.Backend) -> None:
    with conducting(store, most=2) as (_, parked):
        first = submit(store, "a")
        until(lambda: parked == [first.id])
        second = submit(store, "a")
        until(lambda: second.id in parked)
        first.cancel()
        until(lambda: has_begun(store, second))
        assert first.state == states.REVERTED


def test_cancelled_flow_that_waits_for_a_permit_ends_at_once(store: persistence.Backend) -> None:
    with conducting(store, most=2) as (_, parked):
        submit(store, "a")
        second = submit(store, "a")
        until(lambda: len(set(parked)) == 2)
        second.cancel()
        assert second.wait(20) and second.state == states.REVERTED


def test_raised_limit_starts_flows_that_wait(store: persistence.Backend) -> None:
    handles = [submit(store, "a") for _ in range(4)]
    with conducting(store, most=2) as (_, parked):
        until(lambda: {handle.id for handle in handles} <= set(parked))
        limits = shared_accounts.store_of(store)
        limits.change(LimitChange("flow tenant_work", concurrency=3))
        until(lambda: len(begun(store, handles)) == 3)


def test_limited_rate_starts_flows_one_by_one(store: persistence.Backend) -> None:
    handles = [submit(store, "a", concurrency=None, rate="2/s") for _ in range(4)]
    with conducting(store, most=2) as (_, _parked):
        until(lambda: len(begun(store, handles)) == 4)


def test_permits_of_a_dead_process_become_free(store: persistence.Backend) -> None:
    """Its permits expire. No event tells this, so a conductor has to compare."""
    quota = Quota(None, None, 1)
    dead = PermitRequest("gone", 1, 1, 0, 1.5)
    shared_accounts.store_of(store).settle({"flow tenant_work[a]": (quota, [dead])})
    with conducting(store, most=2) as (_, parked):
        first = submit(store, "a")
        until(lambda: parked == [first.id])
        until(lambda: has_begun(store, first))

"""Flows that wait for a permit of their own limit hold nothing, and run when a permit is free."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import limited
from tests.support.parking import conducting
from tests.support.parking import dialects as on_all_dialects
from tests.support.reading import read_flow
from tests.support.waiting import until
from wbengine import engines, operations, states
from wbengine._limits import account_stores, usage
from wbengine._limits.limit_changes import LimitChange
from wbengine._limits.permit_sharing import KEPT_SECONDS, Account, PermitRequest
from wbengine._sql import dialects
from wbengine._tasks.limit_attributes import Quota
from wbengine._text import rates
from wbengine.conductors import _limited_flows
from wbengine.conductors.backends import impl_executor
from wbengine.engines import _submission
from wbengine.jobs._queues import JobQueues
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base as persistence
from wbengine.persistence.backends import _sql as sql
from wbengine.persistence.backends._sql import tables
from wbengine.views.flow_status import FlowRecords
from wbengine.views.redaction import Redactor


@pytest.fixture(autouse=True)
def parked_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impl_executor.ExecutorConductor, "PARK_SECONDS", 0.05)


@pytest.fixture
def only_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows start because a permit becomes free, not because a conductor compares the limits."""
    monkeypatch.setattr(_limited_flows, "_POLL_SECONDS", 1e6)


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The uuids of the flows that conductors offered, in order."""
    offered: list[str] = []
    offer = impl_sql.SQLJobBoard.offer_limited

    def recording(board: impl_sql.SQLJobBoard, limit: str, uuids: Collection[str]) -> list[str]:
        chosen = offer(board, limit, uuids)
        offered.extend(chosen)
        return chosen

    monkeypatch.setattr(impl_sql.SQLJobBoard, "offer_limited", recording)
    return offered


def submit(
    store: persistence.Backend,
    tenant: str,
    priority: str = "NORMAL",
    queue: str | None = None,
    **limits: Any,
) -> _submission.FlowHandle:
    return engines.submit(
        limited.waiting,
        factory_kwargs=limits or None,
        backend=store,
        inputs={"tenant": tenant},
        priority=priority,
        queue=queue,
    )


def has_begun(store: persistence.Backend, handle: _submission.FlowHandle) -> bool:
    """Return whether the flow has a permit: its first task has ended."""
    detail = read_flow(store, handle.id)
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


def test_resumption_releases_a_flow_that_waits_for_a_permit(
    store: persistence.Backend, board: impl_sql.SQLJobBoard
) -> None:
    """Conductors of earlier releases take a flow only if its job is due."""
    first = submit(store, "a")
    with conducting(store, most=2) as (_, parked):
        until(lambda: parked == [first.id])
        second = submit(store, "a")
        until(lambda: second.id in parked)
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


@pytest.mark.parametrize("how", ["deleted", "cancelled"])
def test_permit_of_a_deleted_or_cancelled_parked_flow_becomes_free(
    how: str, store: persistence.Backend
) -> None:
    with conducting(store, most=2) as (_, parked):
        first = submit(store, "a")
        until(lambda: parked == [first.id])
        second = submit(store, "a")
        until(lambda: second.id in parked)
        if how == "deleted":
            with contextlib.closing(store.get_connection()) as connection:
                connection.destroy_flow(first.id)
        else:
            first.cancel()
        until(lambda: has_begun(store, second))
        assert how == "deleted" or first.state == states.REVERTED


def test_cancelled_flow_that_waits_for_a_permit_ends_at_once(store: persistence.Backend) -> None:
    with conducting(store, most=2) as (_, parked):
        submit(store, "a")
        second = submit(store, "a")
        until(lambda: len(set(parked)) == 2)
        second.cancel()
        assert second.wait(20) and second.state == states.REVERTED


def test_undo_of_a_complete_flow_waits_for_its_permit(store: persistence.Backend) -> None:
    limited.REVERTED.clear()
    limited.MAY_END.set()
    complete = engines.submit(limited.held, backend=store, inputs={"tenant": "a"})
    with conducting(store, most=2) as (_, parked):
        assert complete.wait(20)
        running = submit(store, "a")
        until(lambda: running.id in parked)
        operations.request(store, complete.id, "revert")
        until(lambda: complete.id in parked)
        assert limited.REVERTED == [] and complete.state != states.REVERTED
        running.signal("go")
        assert running.wait(20)
        until(lambda: complete.state == states.REVERTED)
    assert limited.REVERTED == ["a"]


def test_flow_waits_for_the_undo_of_another_one(store: persistence.Backend) -> None:
    limited.REVERTED.clear()
    limited.MAY_END.set()
    complete = engines.submit(limited.held, backend=store, inputs={"tenant": "a"})
    with conducting(store, most=2) as (_, parked):
        assert complete.wait(20)
        limited.MAY_END.clear()
        operations.request(store, complete.id, "revert")
        until(lambda: is_reverting(store, complete))
        second = submit(store, "a")
        until(lambda: second.id in parked)
        assert not has_begun(store, second)
        limited.MAY_END.set()
        until(lambda: has_begun(store, second))
        assert complete.state == states.REVERTED


def is_reverting(store: persistence.Backend, handle: _submission.FlowHandle) -> bool:
    with contextlib.closing(store.get_connection()) as connection:
        records = list(connection.get_atoms_for_flow(handle.id))
    return any(record.state == states.REVERTING for record in records)


def test_raised_limit_starts_flows_that_wait(store: persistence.Backend) -> None:
    handles = [submit(store, "a") for _ in range(4)]
    with conducting(store, most=2) as (_, parked):
        until(lambda: {handle.id for handle in handles} <= set(parked))
        limits = account_stores.store_of(store)
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
    account_stores.store_of(store).settle({"flow tenant_work[a]": (quota, [dead])})
    with conducting(store, most=2) as (_, parked):
        first = submit(store, "a")
        until(lambda: parked == [first.id])
        until(lambda: has_begun(store, first))


def use_units(store: persistence.Backend, name: str, rate: str, units: float, ago: float) -> None:
    """Store that a flow took units of a limit some seconds ago, whose distance has passed."""
    assert isinstance(store, sql.SQLBackend)
    quota = Quota(rate, rates.interval(rate), None)
    account = Account(quota, quota, log=[])
    with store.engine.begin() as connection:
        now = connection.scalar(sa.text(f"SELECT {dialects.now(store.options.dialect)}"))
        account.last = account.next = now
        account.log = [(now - ago, units)]
        values = {"name": name, "account": json.dumps(account.to_dict()), "expires": now + 100}
        connection.execute(sa.insert(tables.LIMITS), [values])


@pytest.mark.slow
def test_flow_with_a_cost_is_offered_once_and_keeps_its_place(
    store: persistence.Backend, offers: list[str]
) -> None:
    """Five units are free at once, and all of them after four seconds."""
    rate = "600/m"
    with conducting(store, most=2) as (_, parked):
        use_units(store, "flow tenant_work[a]", rate, 595, 56.6)
        large = submit(store, "a", concurrency=None, rate=rate, cost=40)
        until(lambda: parked == [large.id])
        small = [submit(store, "a", concurrency=None, rate=rate, cost=0.5) for _ in range(3)]
        until(lambda: has_begun(store, large))
        assert begun(store, small) == [], "no later flow takes the free units"
        until(lambda: len(begun(store, small)) == 3)
    assert sorted(offers) == sorted(handle.id for handle in (large, *small))
    assert offers[0] == large.id


@pytest.mark.slow
@on_all_dialects
@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "not served"])
def test_flow_of_a_queue_that_no_conductor_serves_takes_no_permit(
    is_paused: bool, store: persistence.Backend, offers: list[str]
) -> None:
    first = submit(store, "a")
    with conducting(store, most=2) as (board, parked):
        board.queues = ("*",)
        until(lambda: has_begun(store, first))
        blocked = submit(store, "a", "HIGH", queue="reports")
        other = submit(store, "a", "LOW")
        until(lambda: {blocked.id, other.id} <= set(parked))
        if is_paused:
            JobQueues(store).pause("reports")
        else:
            board.queues = ("default",)
        first.signal("go")
        until(lambda: has_begun(store, other))
        assert offers == [other.id]
        if is_paused:
            JobQueues(store).resume("reports")
        else:
            board.queues = ("reports", "default")
        other.signal("go")
        until(lambda: has_begun(store, blocked))


@on_all_dialects
def test_limit_of_a_paused_queue_is_listed_and_offers_no_flow(
    store: persistence.Backend, offers: list[str], board: impl_sql.SQLJobBoard
) -> None:
    board.connect()
    handles = [wait_for_limit(board, store, "l") for _ in range(3)]
    JobQueues(store).pause("default", by="ann")
    limits = account_stores.store_of(store)
    _limited_flows.LimitedFlows(lambda: board, store, store).poll()
    assert offers == [] and limits.read([]) == limits.changes([]) == {}
    (listed,) = usage.listed(limits)
    assert (listed.name, listed.held, listed.waiting, listed.flow_count) == ("l", 0, 3, 3)
    with contextlib.closing(store.get_connection()) as connection:
        view = FlowRecords(connection, handles[0].id, Redactor()).view()
    assert view.waiting is not None and view.waiting.startswith("Its queue 'default' is paused")
    JobQueues(store).resume("default")
    _limited_flows.LimitedFlows(lambda: board, store, store).poll()
    assert offers == [handles[0].id]
    (listed,) = usage.listed(limits)
    assert (listed.waiting, listed.flow_count) == (2, 2)


@on_all_dialects
def test_signal_does_not_begin_a_flow_that_waits_for_its_first_permit(
    store: persistence.Backend, board: impl_sql.SQLJobBoard
) -> None:
    board.connect()
    handle = wait_for_limit(board, store, "l")
    handle.signal("go")
    assert not list(board.take("c", 1))
    assert handle.cancel()
    assert [job.uuid for job in board.take("c", 1)] == [handle.id]


def test_flows_are_offered_again_only_after_a_while(
    store: persistence.Backend,
    offers: list[str],
    monkeypatch: pytest.MonkeyPatch,
    board: impl_sql.SQLJobBoard,
) -> None:
    """A conductor without places cannot take the offered flow yet."""
    monkeypatch.setattr(_limited_flows, "_POLL_SECONDS", 0.0)
    board.connect()
    flows = _limited_flows.LimitedFlows(lambda: board, store, store)
    handles = [wait_for_limit(board, store, "l") for _ in range(3)]
    one = Quota(None, None, 1)
    account_stores.store_of(store).settle({"l": (one, [PermitRequest("x", 1, 0, 5, 15.0)])})
    for _ in range(5):
        flows.poll()
    assert offers == []
    account_stores.store_of(store).settle({"l": (one, [PermitRequest("x", 1, 0, 0, 0.0)])})
    for _ in range(5):
        flows.poll()
    assert offers == [handles[0].id]
    (listed,) = usage.listed(account_stores.store_of(store))
    assert listed.waiting == 3, "the offered flow still waits"


def test_flows_start_faster_and_faster_if_their_code_has_no_limit_any_more(
    store: persistence.Backend,
    offers: list[str],
    monkeypatch: pytest.MonkeyPatch,
    board: impl_sql.SQLJobBoard,
) -> None:
    monkeypatch.setattr(_limited_flows, "_POLL_SECONDS", 0.0)
    board.connect()
    flows = _limited_flows.LimitedFlows(lambda: board, store, store)
    handles = [wait_for_limit(board, store, "l") for _ in range(10)]
    counts = []
    while len(offers) < len(handles):
        for _ in range(2):  # Also until the offered flows have been taken.
            flows.poll()
        counts.append(len(offers))
        for job in board.take("c", 10):
            board.consume(job, "c")
    assert counts == [1, 3, 7, 10]


def wait_for_limit(
    board: impl_sql.SQLJobBoard, store: persistence.Backend, name: str
) -> _submission.FlowHandle:
    """Submit a flow that waits for a limit."""
    handle = submit(store, "a")
    (job,) = board.take("c", 1)
    board.park(job, "c", None, None, limit=name)
    return handle


def test_permits_of_parked_flows_are_compared_in_one_statement(
    store: persistence.Backend, board: impl_sql.SQLJobBoard
) -> None:
    assert isinstance(store, sql.SQLBackend)
    quota, limits = Quota(None, None, 100), account_stores.store_of(store)
    statements: list[str] = []

    @sa.event.listens_for(store.engine, "before_cursor_execute")
    def record(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if tables.FLOWS.name in statement:
            statements.append(statement)

    board.connect()
    wait_for_limit(board, store, "l")
    kept = [PermitRequest(submit(store, "b").id, 1, 1, 0, KEPT_SECONDS) for _ in range(20)]
    gone = PermitRequest("gone", 1, 1, 0, KEPT_SECONDS)
    # All permits are in use.
    limits.settle({"l": (quota, [*kept, gone, PermitRequest("x", 1, 80, 5, 15.0)])})
    statements.clear()
    _limited_flows.LimitedFlows(lambda: board, store, store).poll()
    account, now = limits.all()["l"]
    assert account.kept(now) == [request.flow for request in kept]
    assert len(statements) == 1


def test_flow_that_runs_again_keeps_its_permit_from_a_late_conductor(
    store: persistence.Backend, board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota, limits = Quota(None, None, 1), account_stores.store_of(store)
    board.connect()
    wait_for_limit(board, store, "l")
    limits.settle({"l": (quota, [PermitRequest("gone", 1, 1, 0, KEPT_SECONDS)])})
    flows = _limited_flows.LimitedFlows(lambda: board, store, store)
    read = flows._records

    def read_before_the_run(uuids: Sequence[str]) -> Any:
        monkeypatch.setattr(flows, "_records", read)
        records = read(uuids)
        limits.settle({"l": (quota, [PermitRequest("gone", 2, 0, 1, 15.0)])})
        return records

    monkeypatch.setattr(flows, "_records", read_before_the_run)
    flows.poll()
    account, now = limits.all()["l"]
    assert account.live(now)["gone"].held == 1


@pytest.mark.parametrize(
    ("flow", "inputs"),
    [
        (limited.using_tool, {}),
        (limited.using_tool_for_items, {"items": [1, 2]}),
        (limited.using_tool_in_steps, {}),
    ],
    ids=["task", "items", "step"],
)
def test_flow_that_waits_for_the_end_of_a_task_elsewhere_is_parked(
    flow: Any, inputs: dict[str, Any], store: persistence.Backend, offers: list[str]
) -> None:
    quota, limits = Quota(None, None, 1), account_stores.store_of(store)
    limits.settle({"tool": (quota, [PermitRequest("x", 1, 1, 0, 60.0)])})
    with conducting(store, most=1) as (_, parked):
        handle = engines.submit(flow, backend=store, inputs=inputs)
        until(lambda: parked == [handle.id])
        other = submit(store, "b")
        until(lambda: has_begun(store, other))
        assert offers == [] and handle.state == states.WAITING
        limits.settle({"tool": (quota, [PermitRequest("x", 1, 0, 0, 0.0)])})
        assert handle.wait(20) and handle.state == states.SUCCESS
    assert set(offers) == {handle.id}


@pytest.mark.usefixtures("only_events")
def test_end_of_a_task_starts_the_parked_flows_one_by_one_in_their_order(
    store: persistence.Backend, offers: list[str]
) -> None:
    limited.tool_released.clear()
    with conducting(store, most=2) as (_, parked):
        first = engines.submit(limited.holding_tool, backend=store)
        until(lambda: "tool" in account_stores.store_of(store).all())
        handles = {
            priority: engines.submit(limited.using_tool, backend=store, priority=priority)
            for priority in ("LOW", "NORMAL", "HIGH")
        }
        until(lambda: {handle.id for handle in handles.values()} <= set(parked))
        assert offers == []
        limited.tool_released.set()
        for handle in handles.values():
            assert handle.wait(20) and handle.state == states.SUCCESS
        assert offers == [handles[priority].id for priority in ("HIGH", "NORMAL", "LOW")]
        first.signal("go")
        assert first.wait(20)


def test_flow_that_waits_for_a_slow_rate_is_parked_until_its_permit(
    store: persistence.Backend, offers: list[str]
) -> None:
    """Its only task takes the units of three seconds; it is not overtaken meanwhile."""
    quota, limits = Quota("60/m", 1.0, None), account_stores.store_of(store)
    limits.settle({"budget": (quota, [PermitRequest("x", 1, 0, 1, 60.0, (3.0,))])})
    with conducting(store, most=1) as (_, parked):
        handle = engines.submit(limited.using_budget, backend=store)
        until(lambda: parked == [handle.id])
        assert handle.wait(20) and handle.state == states.SUCCESS
    assert offers == [handle.id]

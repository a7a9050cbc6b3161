"""Flows whose code does not repeat the recorded steps, in conductors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract import places
from tests.seams import stores as stored_in
from tests.support import conducted, released, servers
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine.jobs import backends as boards
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends, base
from wbengine.views import _flow_list, flow_status


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    released.park_at_once(monkeypatch)


@pytest.fixture(params=[None])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: servers.Databases
) -> Iterator[base.Backend]:
    with contextlib.ExitStack() as stack:
        uri = f"sqlite:///{tmp_path}/flows.db"
        if request.param is not None:
            place = places.place(request.param, tmp_path, database_servers)
            uri = stack.enter_context(place)["connection"]
        yield stack.enter_context(backends.backend(uri))


@pytest.fixture
def board(store: base.Backend) -> Iterator[impl_sql.SQLJobBoard]:
    with boards.backend("b", "sql", persistence=store) as opened:
        assert isinstance(opened, impl_sql.SQLJobBoard)
        yield opened


@contextlib.contextmanager
def serving(board: impl_sql.SQLJobBoard, code: str) -> Iterator[released.Conductor]:
    assert board.persistence is not None
    conductor = released.Conductor(board, board.persistence, code)
    with conducted.running(conductor):
        yield conductor


def shown(store: base.Backend, uuid: str) -> str:
    with contextlib.closing(store.get_connection()) as connection:
        (row,) = connection.list_flows(uuid=uuid).flows
        view = flow_status.read(connection, uuid)
    if row.lease is None and row.state == view.state:
        assert view.shown_state == _flow_list.shown_state(row)
    return view.shown_state


def submit(board: impl_sql.SQLJobBoard, code: str = "old") -> engines.FlowHandle:
    """Submit a flow, and run it with this code until it waits for a signal."""
    store = board.persistence
    assert store is not None
    handle = engines.submit(released.orders, backend=store)
    with serving(board, code):
        until(lambda: shown(store, handle.id) == states.WAITING and not board_has_claims(board))
    return handle


def board_has_claims(board: impl_sql.SQLJobBoard) -> bool:
    return any(job.state == states.CLAIMED for job in board.iterjobs())


def block(board: impl_sql.SQLJobBoard) -> engines.FlowHandle:
    """Return a flow of the old code that the new code does not repeat."""
    assert board.persistence is not None
    handle = submit(board)
    handle.signal("go")
    with serving(board, "new"):
        until(lambda: len(board.blocked_jobs()) == 1)
    return handle


@pytest.mark.parametrize("store", [*stored_in.DURABLE, "mysql"], indirect=True)
def test_other_code_blocks_flow_until_a_conductor_with_its_code_starts(
    store: base.Backend, board: impl_sql.SQLJobBoard
) -> None:
    handle = block(board)
    assert shown(store, handle.id) == states.BLOCKED and board.job_count == 1
    with contextlib.closing(store.get_connection()) as connection:
        view = flow_status.read(connection, handle.id)
    assert view.waiting is not None
    assert "step 1 of workflow 'order' is recorded as" in view.waiting
    assert "check" in view.waiting and "go" in view.waiting
    assert released.CALLS == ["charge"]
    with serving(board, "old"):
        handle.result(60)
    assert released.CALLS == ["charge", "ship"] and board.job_count == 0


def test_running_conductor_continues_flow_that_another_one_blocked(
    store: base.Backend, board: impl_sql.SQLJobBoard
) -> None:
    """The last conductor with the old code may block flows after all new ones have started."""
    handle = submit(board, "new")
    with serving(board, "new") as new:
        with serving(board, "old") as old:
            until(lambda: handle.id in old.runs or handle.state == states.SUCCESS or send(handle))
        handle.result(60)
    assert released.CALLS == ["charge", "check", "ship"]
    assert new.runs[-1] == handle.id


def send(handle: engines.FlowHandle) -> bool:
    with contextlib.suppress(exceptions.Duplicate):
        handle.signal("go")
    return False


def test_blocked_flow_runs_once_in_each_conductor_after_other_flows(
    store: base.Backend, board: impl_sql.SQLJobBoard
) -> None:
    handle = block(board)
    live = [engines.submit(conducted.greeting, backend=store, inputs={"name": "Ada"})]
    with serving(board, "new") as conductor:
        until(lambda: handle.id in conductor.runs)
        live.append(engines.submit(conducted.greeting, backend=store, inputs={"name": "B"}))
        assert [each.result(60)["greeting"] for each in live]
        until(lambda: len(board.blocked_jobs()) == 1)
    assert conductor.runs == [live[0].id, handle.id, live[1].id]
    assert shown(store, handle.id) == states.BLOCKED


def test_blocked_flow_that_is_cancelled_is_reverted(
    store: base.Backend, board: impl_sql.SQLJobBoard
) -> None:
    handle = block(board)
    handle.cancel("wrong release")
    with serving(board, "new"), pytest.raises(exceptions.Cancelled):
        handle.result(60)
    assert released.CALLS == ["charge", "refund"] and board.job_count == 0


def test_suspended_blocked_flow_is_not_run(
    store: base.Backend, board: impl_sql.SQLJobBoard
) -> None:
    handle = block(board)
    operations.suspend(store, handle.id)
    assert shown(store, handle.id) == states.SUSPENDED and board.job_count == 0


def test_version_keeps_the_path_of_flows_in_flight(board: impl_sql.SQLJobBoard) -> None:
    handles = [submit(board), submit(board, "versioned")]
    for handle in handles:
        handle.signal("go")
    with serving(board, "versioned"):
        for handle in handles:
            handle.result(60)
    assert sorted(released.CALLS) == ["charge", "charge", "check", "ship", "ship"]


def test_board_in_another_store_keeps_blocked_job(tmp_path: Path, store: base.Backend) -> None:
    options = {"board": "sql", "connection": f"sqlite:///{tmp_path}/jobs.db"}
    with boards.backend("b", options, persistence=store) as board:
        job, uuid = conducted.post(board, store, released.orders)
        old = released.Conductor(board, store, "old")
        with conducted.running(old):
            until(lambda: shown(store, uuid) == states.WAITING)
        operations.signal(store, uuid, "go")
        for _ in range(2):
            new = released.Conductor(board, store, "new")
            with conducted.running(new):
                until(functools.partial(bool, new.runs))
                until(lambda: shown(store, uuid) == states.BLOCKED)
            assert board.job_count == 1 and new.runs == [job.uuid]
        with conducted.running(released.Conductor(board, store, "old")):
            until(lambda: board.job_count == 0)
    assert shown(store, uuid) == states.SUCCESS
    assert released.CALLS == ["charge", "ship"]

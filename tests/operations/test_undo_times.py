"""The time until which complete flows can be undone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from tests.operations import undo_flows
from tests.operations.undo_flows import record
from tests.support import key_files
from wbengine import engines, exceptions, operations, states
from wbengine._security import keys
from wbengine.operations import _bulk
from wbengine.persistence import _commands, base, models
from wbengine.persistence._bulk_records import BulkFlow
from wbengine.persistence.backends import _sql
from wbengine.testing import run_submitted
from wbengine.views import flow_status

#: Passes before the clock is read again.
AT_ONCE = 1e-9
DAY = 86_400.0


def complete(store: base.Backend, undo_until: str | float | None) -> str:
    """Return the uuid of a submitted flow in SUCCESS."""
    handle = engines.submit(undo_flows.plain, backend=store, undo_until=undo_until)
    run_submitted(store)
    assert handle.state == states.SUCCESS
    return handle.id


def send_revert(store: base.Backend, uuid: str, at: float) -> None:
    """Store a request of this time."""
    with contextlib.closing(store.get_connection()) as connection:
        connection.send_command(uuid, _commands.FlowCommand(_commands.REVERT, at=at))


def load(store: base.Backend) -> str:
    engine = engines.load(undo_flows.plain, backend=store, undo_until="2d")
    return str(engine.storage.flow_uuid)


def load_from_factory(store: base.Backend) -> str:
    engine = engines.load_from_factory(undo_flows.order, backend=store, undo_until=2 * DAY)
    return str(engine.storage.flow_uuid)


def submit_many(store: base.Backend) -> str:
    inputs: list[dict[str, Any]] = [{}]
    return engines.submit_many(undo_flows.order, inputs, backend=store, undo_until="2d")[0].id


def asubmit(store: base.Backend) -> str:
    return asyncio.run(engines.asubmit(undo_flows.order, backend=store, undo_until="48h")).id


def run(store: base.Backend) -> str:
    engines.run(undo_flows.order(), backend=store, undo_until="2d")
    with contextlib.closing(store.get_connection()) as connection:
        return connection.list_flows().flows[0].uuid


def resubmitted(store: base.Backend) -> str:
    """Submit a flow and replace it before it starts."""
    for seconds in (DAY, 2 * DAY):
        handle = engines.submit(
            undo_flows.order, backend=store, debounce=("key", 60.0), undo_until=seconds
        )
    return handle.id


@pytest.mark.parametrize("start", [load, load_from_factory, submit_many, asubmit, run, resubmitted])
def test_time_is_stored_with_the_flow(
    store: base.Backend, start: Callable[[base.Backend], str]
) -> None:
    assert record(store, start(store)).meta[models.UNDO_UNTIL] == 2 * DAY


@pytest.mark.parametrize(
    ("duration", "error"),
    [("soon", ValueError), (0, ValueError), (-1.0, ValueError), (float("nan"), ValueError),
     (float("inf"), ValueError), (True, TypeError), ([], TypeError)],
)  # fmt: skip
def test_invalid_duration_is_rejected_before_anything_is_stored(
    store: base.Backend, duration: Any, error: type[Exception]
) -> None:
    for call in (engines.submit, engines.load):
        with pytest.raises(error, match="undo_until must be"):
            call(undo_flows.plain, backend=store, undo_until=duration)
    with contextlib.closing(store.get_connection()) as connection:
        assert connection.count_flows() == 0


def test_time_does_not_apply_to_a_stored_record(store: base.Backend) -> None:
    detail = models.FlowDetail("plain")
    with pytest.raises(ValueError, match="undo_until= apply only to a new record"):
        engines.load(undo_flows.plain, flow_detail=detail, undo_until="1d")


def test_time_begins_at_the_end_of_the_flow(store: base.Backend) -> None:
    uuid = complete(store, "2d")
    flow = record(store, uuid)
    assert flow.undo_until == flow.history[-1].at + 2 * DAY
    assert operations.find(store, uuid).undo_until == flow.undo_until
    assert operations.plan_undo(store, uuid).expired is None
    operations.request(store, uuid, "revert")
    run_submitted(store)
    reverted = record(store, uuid)
    assert (reverted.state, reverted.undo_until) == (states.REVERTED, None)
    operations.request(store, uuid, "retry")
    run_submitted(store)
    again = record(store, uuid)
    assert again.undo_until == again.history[-1].at + 2 * DAY > (flow.undo_until or 0.0)


@pytest.mark.parametrize("partial", [False, True])
def test_undo_after_its_time_is_refused(store: base.Backend, partial: bool) -> None:
    uuid = complete(store, AT_ONCE)
    before = record(store, uuid)
    plan = operations.plan_undo(store, uuid)
    assert plan.expired == before.undo_until
    assert "it could be undone until 20" in str(plan.refusal(is_partial=True))
    refusal = rf"Flow {uuid} is complete: it could be undone until 20.*Z \(undo_until\)"
    with pytest.raises(exceptions.InvalidState, match=refusal):
        operations.revert(store, uuid, partial=partial)
    with pytest.raises(exceptions.InvalidState, match=refusal):
        operations.request(store, uuid, "revert", partial=partial)
    with pytest.raises(exceptions.InvalidState, match=refusal):
        operations.fork(store, uuid, start="0", undo=True)
    run_submitted(store)
    after = record(store, uuid)
    assert (after.state, after.history, undo_flows.UNDONE) == (states.SUCCESS, before.history, [])


def test_request_in_time_is_carried_out_later(store: base.Backend) -> None:
    uuid = complete(store, AT_ONCE)
    end = record(store, uuid).history[-1].at
    send_revert(store, uuid, end - 1.0)
    run_submitted(store)
    assert (record(store, uuid).state, undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def test_request_that_was_stored_too_late_is_refused_by_the_engine(store: base.Backend) -> None:
    uuid = complete(store, AT_ONCE)
    end = record(store, uuid).history[-1].at
    send_revert(store, uuid, end + 1.0)
    run_submitted(store)
    after = record(store, uuid)
    assert (after.state, undo_flows.UNDONE) == (states.SUCCESS, [])
    assert "could be undone until" in str(after.history[-1].why)


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
def test_clock_of_the_store_decides_whether_a_request_is_in_time(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    uuid = complete(store, 1800.0)
    end = record(store, uuid).history[-1].at
    monkeypatch.setattr(_sql.SQLConnection, "now", lambda self: end + seconds)
    bulk = _bulk.start(store, "flow revert", [BulkFlow(uuid, states.SUCCESS)], {})
    assert bulk.created == end + seconds
    if seconds > 1800.0:
        with pytest.raises(exceptions.InvalidState, match="could be undone until"):
            operations.fork(store, uuid, start="0", undo=True)
        with pytest.raises(exceptions.InvalidState, match="could be undone until"):
            operations.request(store, uuid, "revert")
    else:
        assert operations.request(store, uuid, "revert").at == end + seconds


def test_failed_flow_is_reverted_at_any_time(store: base.Backend) -> None:
    flow = undo_flows.order()
    flow.add(undo_flows.fail())
    engine = engines.load(flow, backend=store, undo_until=AT_ONCE)
    with pytest.raises(ZeroDivisionError):
        engine.run()
    assert (engine.storage.get_flow_state(), undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def test_failed_undo_continues_after_its_time(store: base.Backend) -> None:
    uuid = complete(store, AT_ONCE)
    end = record(store, uuid).history[-1].at
    undo_flows.FAILING.append("charge")
    send_revert(store, uuid, end - 1.0)
    run_submitted(store)
    undo_flows.FAILING.clear()
    assert record(store, uuid).state == states.FAILURE
    operations.request(store, uuid, "revert")
    run_submitted(store)
    assert (record(store, uuid).state, undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def test_fork_has_the_time_of_its_original(store: base.Backend) -> None:
    uuid = complete(store, "2d")
    fork = operations.fork(store, uuid, start="0")
    assert record(store, fork.uuid).meta[models.UNDO_UNTIL] == 2 * DAY


def test_time_and_undo_of_a_flow_in_an_encrypted_store(
    store: base.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_files.in_use(tmp_path / "keys.json", monkeypatch, encrypt=True)
    handle = engines.submit(undo_flows.order, backend=store, undo_until="2d")
    run_submitted(store)
    end = record(store, handle.id).history[-1].at
    with monkeypatch.context() as without_key:
        without_key.delenv(keys.VARIABLE)
        assert operations.find(store, handle.id).undo_until == end + 2 * DAY
        with contextlib.closing(store.get_connection()) as connection:
            assert flow_status.read(connection, handle.id).undo_until == end + 2 * DAY
    assert operations.plan_undo(store, handle.id).revert == ("tests.operations.undo_flows.charge",)
    operations.request(store, handle.id, "revert", partial=True, reason="a secret")
    run_submitted(store)
    with contextlib.closing(store.get_connection()) as connection:
        undo = flow_status.read(connection, handle.id).undo
        assert undo is not None and undo.remaining == ("tests.operations.undo_flows.send",)
    with cast(Any, store).engine.begin() as connection:
        row = connection.execute(sa.text("SELECT meta, more FROM wbe_flowdetails")).one()
    assert "a secret" not in str(row) and models.UNDO_UNTIL in row.meta


def test_flow_that_can_be_undone_is_pruned_only_by_decision(store: base.Backend) -> None:
    uuid = complete(store, "2d")
    with contextlib.closing(store.get_connection()) as connection:
        future = connection.now() + DAY
    assert list(operations.prune(store, before=future)) == []
    assert [row.uuid for row in operations.prune(store, before=future, undoable=True)] == [uuid]

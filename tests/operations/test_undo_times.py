"""The time until which complete flows can be undone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from tests.operations import undo_flows
from tests.support import key_files
from wbengine import engines, exceptions, operations, states
from wbengine._security import keys
from wbengine.persistence import _commands, backends, base, models
from wbengine.testing import run_submitted
from wbengine.views import flow_status

#: Passes before the clock is read again.
AT_ONCE = 1e-9
DAY = 86_400.0


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[base.Backend]:
    undo_flows.UNDONE.clear()
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


def complete(backend: base.Backend, undo_until: str | float | None) -> str:
    """Return the uuid of a submitted flow in SUCCESS."""
    handle = engines.submit(undo_flows.plain, backend=backend, undo_until=undo_until)
    run_submitted(backend)
    assert handle.state == states.SUCCESS
    return handle.id


def record(backend: base.Backend, uuid: str) -> models.FlowDetail:
    with contextlib.closing(backend.get_connection()) as connection:
        return connection.get_flow_details(uuid)


def load(backend: base.Backend) -> str:
    engine = engines.load(undo_flows.plain, backend=backend, undo_until="2d")
    return str(engine.storage.flow_uuid)


def load_from_factory(backend: base.Backend) -> str:
    engine = engines.load_from_factory(undo_flows.order, backend=backend, undo_until=2 * DAY)
    return str(engine.storage.flow_uuid)


def submit_many(backend: base.Backend) -> str:
    inputs: list[dict[str, Any]] = [{}]
    return engines.submit_many(undo_flows.order, inputs, backend=backend, undo_until="2d")[0].id


def asubmit(backend: base.Backend) -> str:
    return asyncio.run(engines.asubmit(undo_flows.order, backend=backend, undo_until="48h")).id


def run(backend: base.Backend) -> str:
    engines.run(undo_flows.order(), backend=backend, undo_until="2d")
    with contextlib.closing(backend.get_connection()) as connection:
        return connection.list_flows().flows[0].uuid


def resubmitted(backend: base.Backend) -> str:
    """Submit a flow and replace it before it starts."""
    for seconds in (DAY, 2 * DAY):
        handle = engines.submit(
            undo_flows.order, backend=backend, debounce=("key", 60.0), undo_until=seconds
        )
    return handle.id


@pytest.mark.parametrize("start", [load, load_from_factory, submit_many, asubmit, run, resubmitted])
def test_time_is_stored_with_the_flow(
    backend: base.Backend, start: Callable[[base.Backend], str]
) -> None:
    assert record(backend, start(backend)).meta[models.UNDO_UNTIL] == 2 * DAY


@pytest.mark.parametrize(
    ("duration", "error"),
    [("soon", ValueError), (0, ValueError), (-1.0, ValueError), (float("nan"), ValueError),
     (float("inf"), ValueError), (True, TypeError), ([], TypeError)],
)  # fmt: skip
def test_invalid_duration_is_rejected_before_anything_is_stored(
    backend: base.Backend, duration: Any, error: type[Exception]
) -> None:
    for call in (engines.submit, engines.load):
        with pytest.raises(error, match="undo_until must be"):
            call(undo_flows.plain, backend=backend, undo_until=duration)
    with contextlib.closing(backend.get_connection()) as connection:
        assert connection.count_flows() == 0


def test_time_does_not_apply_to_a_stored_record(backend: base.Backend) -> None:
    detail = models.FlowDetail("plain")
    with pytest.raises(ValueError, match="undo_until= apply only to a new record"):
        engines.load(undo_flows.plain, flow_detail=detail, undo_until="1d")


def test_time_begins_at_the_end_of_the_flow(backend: base.Backend) -> None:
    uuid = complete(backend, "2d")
    flow = record(backend, uuid)
    assert flow.undo_until == flow.history[-1].at + 2 * DAY
    assert operations.find(backend, uuid).undo_until == flow.undo_until
    assert operations.plan_undo(backend, uuid).expired is None
    operations.request(backend, uuid, "revert")
    run_submitted(backend)
    reverted = record(backend, uuid)
    assert (reverted.state, reverted.undo_until) == (states.REVERTED, None)
    operations.request(backend, uuid, "retry")
    run_submitted(backend)
    again = record(backend, uuid)
    assert again.undo_until == again.history[-1].at + 2 * DAY > (flow.undo_until or 0.0)


@pytest.mark.parametrize("partial", [False, True])
def test_undo_after_its_time_is_refused(backend: base.Backend, partial: bool) -> None:
    uuid = complete(backend, AT_ONCE)
    before = record(backend, uuid)
    plan = operations.plan_undo(backend, uuid)
    assert plan.expired == before.undo_until
    assert "it could be undone until 20" in str(plan.refusal(is_partial=True))
    refusal = rf"Flow {uuid} is complete: it could be undone until 20.*Z \(undo_until\)"
    with pytest.raises(exceptions.InvalidState, match=refusal):
        operations.revert(backend, uuid, partial=partial)
    with pytest.raises(exceptions.InvalidState, match=refusal):
        operations.request(backend, uuid, "revert", partial=partial)
    with pytest.raises(exceptions.InvalidState, match=refusal):
        operations.fork(backend, uuid, start="0", undo=True)
    run_submitted(backend)
    after = record(backend, uuid)
    assert (after.state, after.history, undo_flows.UNDONE) == (states.SUCCESS, before.history, [])


def test_request_in_time_is_carried_out_later(backend: base.Backend) -> None:
    uuid = complete(backend, AT_ONCE)
    end = record(backend, uuid).history[-1].at
    with contextlib.closing(backend.get_connection()) as connection:
        connection.send_command(uuid, _commands.FlowCommand(_commands.REVERT, at=end - 1.0))
    run_submitted(backend)
    assert (record(backend, uuid).state, undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def test_request_that_was_stored_too_late_is_refused_by_the_engine(backend: base.Backend) -> None:
    uuid = complete(backend, AT_ONCE)
    end = record(backend, uuid).history[-1].at
    with contextlib.closing(backend.get_connection()) as connection:
        connection.send_command(uuid, _commands.FlowCommand(_commands.REVERT, at=end + 1.0))
    run_submitted(backend)
    after = record(backend, uuid)
    assert (after.state, undo_flows.UNDONE) == (states.SUCCESS, [])
    assert "could be undone until" in str(after.history[-1].why)


def test_failed_flow_is_reverted_at_any_time(backend: base.Backend) -> None:
    flow = undo_flows.order()
    flow.add(undo_flows.fail())
    engine = engines.load(flow, backend=backend, undo_until=AT_ONCE)
    with pytest.raises(ZeroDivisionError):
        engine.run()
    assert (engine.storage.get_flow_state(), undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def test_failed_undo_continues_after_its_time(backend: base.Backend) -> None:
    uuid = complete(backend, AT_ONCE)
    end = record(backend, uuid).history[-1].at
    undo_flows.FAILING.append("charge")
    try:
        with contextlib.closing(backend.get_connection()) as connection:
            connection.send_command(uuid, _commands.FlowCommand(_commands.REVERT, at=end - 1.0))
        run_submitted(backend)
    finally:
        undo_flows.FAILING.clear()
    assert record(backend, uuid).state == states.FAILURE
    operations.request(backend, uuid, "revert")
    run_submitted(backend)
    assert (record(backend, uuid).state, undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def test_fork_has_the_time_of_its_original(backend: base.Backend) -> None:
    uuid = complete(backend, "2d")
    fork = operations.fork(backend, uuid, start="0")
    assert record(backend, fork.uuid).meta[models.UNDO_UNTIL] == 2 * DAY


def test_time_and_undo_of_a_flow_in_an_encrypted_store(
    backend: base.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_files.in_use(tmp_path / "keys.json", monkeypatch, encrypt=True)
    handle = engines.submit(undo_flows.order, backend=backend, undo_until="2d")
    run_submitted(backend)
    end = record(backend, handle.id).history[-1].at
    with monkeypatch.context() as without_key:
        without_key.delenv(keys.VARIABLE)
        assert operations.find(backend, handle.id).undo_until == end + 2 * DAY
        with contextlib.closing(backend.get_connection()) as connection:
            assert flow_status.read(connection, handle.id).undo_until == end + 2 * DAY
    assert operations.plan_undo(backend, handle.id).revert == (
        "tests.operations.undo_flows.charge",
    )
    operations.request(backend, handle.id, "revert", partial=True, reason="a secret")
    run_submitted(backend)
    with contextlib.closing(backend.get_connection()) as connection:
        undo = flow_status.read(connection, handle.id).undo
        assert undo is not None and undo.remaining == ("tests.operations.undo_flows.send",)
    with cast(Any, backend).engine.begin() as connection:
        row = connection.execute(sa.text("SELECT meta, more FROM wbe_flowdetails")).one()
    assert "a secret" not in str(row) and models.UNDO_UNTIL in row.meta


def test_flow_that_can_be_undone_is_pruned_only_by_decision(backend: base.Backend) -> None:
    uuid = complete(backend, "2d")
    with contextlib.closing(backend.get_connection()) as connection:
        future = connection.now() + DAY
    assert list(operations.prune(backend, before=future)) == []
    assert [row.uuid for row in operations.prune(backend, before=future, undoable=True)] == [uuid]

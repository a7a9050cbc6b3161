"""Forks of signed and encrypted flows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import fork_flows, key_files
from tests.support.fork_flows import EFFECTS, FAILING, flow_of, run, submit
from wbengine import exceptions, operations, states
from wbengine.jobs import base as jobs
from wbengine.operations import Edits
from wbengine.persistence import backends, base, models
from wbengine.persistence.backends import _sql

ORDER = {"amount": 5, "address": "Elm Street"}


@pytest.fixture(autouse=True)
def clean() -> None:
    EFFECTS.clear()
    FAILING.clear()


@pytest.fixture(params=[False, True], ids=["signed", "encrypted"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[base.Backend]:
    key_files.in_use(tmp_path / "keys", monkeypatch, encrypt=request.param)
    with contextlib.closing(backends.fetch(f"sqlite:///{tmp_path}/flows.db")) as opened:
        yield opened


@pytest.fixture
def board(store: base.Backend) -> Iterator[jobs.JobBoard]:
    with fork_flows.board_of(store) as board:
        yield board


def failed(
    store: base.Backend, board: jobs.JobBoard, factory: Any, name: str, **inputs: Any
) -> str:
    FAILING.add(name)
    uuid = submit(store, board, factory, **inputs)
    run(store, board)
    FAILING.clear()
    EFFECTS.clear()
    return uuid


@pytest.mark.parametrize("edits", [None, Edits({"address": "Oak Street"})])
def test_fork_of_protected_workflow_continues(
    store: base.Backend, board: jobs.JobBoard, edits: Edits | None
) -> None:
    uuid = failed(store, board, fork_flows.order, "ship", **ORDER)
    fork = operations.fork(store, uuid, "ship", edits=edits).uuid
    run(store, board)
    assert EFFECTS == ["ship"] and flow_of(store, fork).state == states.SUCCESS


@pytest.mark.parametrize("is_changed", [False, True])
def test_fork_of_protected_workflow_that_continued_as_new_is_signed(
    store: base.Backend, board: jobs.JobBoard, is_changed: bool
) -> None:
    uuid = submit(store, board, fork_flows.continued)
    for number in (1, 2, 3):
        operations.signal(store, uuid, "approval", number)
    run(store, board)
    EFFECTS.clear()
    if is_changed:
        _continue_with(store, uuid, {"month": 2})
        with pytest.raises(exceptions.NotTrusted):
            operations.fork(store, uuid, "ship")
        return
    fork = operations.fork(store, uuid, "ship").uuid
    run(store, board)
    assert EFFECTS == ["ship"] and flow_of(store, fork).state == states.SUCCESS


def _continue_with(store: base.Backend, uuid: str, inputs: dict[str, Any]) -> None:
    """Replace the inputs with which a workflow continued as new."""
    with contextlib.closing(store.get_connection()) as connection:
        for record in connection.get_flow_details(uuid):
            if record.meta_value(models.CONTINUED) is not None:
                record.meta[models.CONTINUED] = {**record.meta[models.CONTINUED], "inputs": inputs}
                connection.update_atom_details(record)


def test_fork_that_owns_protected_steps_reverts_them(
    store: base.Backend, board: jobs.JobBoard
) -> None:
    uuid = failed(store, board, fork_flows.order, "ship", **ORDER)
    FAILING.add("ship")
    fork = operations.fork(store, uuid, "ship", own=True).uuid
    run(store, board, never_resolve=False)
    assert EFFECTS == ["ship", "undo pack", "undo charge"]
    assert flow_of(store, fork).state == states.REVERTED


def test_fork_of_flow_with_changed_input_is_refused(
    store: base.Backend, board: jobs.JobBoard
) -> None:
    uuid = failed(store, board, fork_flows.order, "ship", **ORDER)
    with store.get_connection() as connection:
        flow = connection.get_flow_details(uuid)
        (injector,) = [record for record in flow if record.name == models.INJECTOR]
        injector.results["address"] = "Forged Street"
        connection.save_changes(flow, [injector])
    with pytest.raises(exceptions.NotTrusted, match="its input 'address' was changed"):
        operations.fork(store, uuid, "ship")


def test_fork_of_flow_with_changed_step_is_refused(
    store: base.Backend, board: jobs.JobBoard
) -> None:
    uuid = failed(store, board, fork_flows.order, "ship", **ORDER)
    with store.get_connection() as connection:
        flow = connection.get_flow_details(uuid)
        step = next(record for record in flow if record.is_step)
        step.meta[models.STEP] = {**step.meta[models.STEP], "task": "os:remove"}
        connection.save_changes(flow, [step])
    with pytest.raises(exceptions.NotTrusted, match=r"step .* is not trusted"):
        operations.fork(store, uuid, "ship")


@pytest.mark.parametrize("store", [True], indirect=True, ids=["encrypted"])
def test_fork_stores_no_value_of_encrypted_flow_in_clear(
    store: base.Backend, board: jobs.JobBoard, tmp_path: Path
) -> None:
    uuid = failed(store, board, fork_flows.order, "ship", **ORDER)
    operations.fork(store, uuid, "ship", reason="Secret Reason")
    assert isinstance(store, _sql.SQLBackend)
    with store.engine.begin() as connection:
        connection.execute(sa.text("PRAGMA wal_checkpoint(TRUNCATE)"))
    content = b"".join(path.read_bytes() for path in tmp_path.glob("flows.db*"))
    assert b"Elm Street" not in content and b"Secret Reason" not in content

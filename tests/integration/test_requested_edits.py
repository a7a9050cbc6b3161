"""Retries with other inputs and results, carried out by conductors."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import conducted
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine._cli import app
from wbengine.conductors import backends as conductors
from wbengine.jobs import backends as boards
from wbengine.operations import Edits
from wbengine.persistence import _commands, base, models
from wbengine.persistence import backends as stores

PURCHASE = "tests.cli.payments:purchase"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    with contextlib.closing(stores.fetch(f"sqlite:///{tmp_path}/flows.db")) as opened:
        yield opened


def run_jobs(store: base.Backend, **engine_options: Any) -> None:
    """Run a conductor until the board has no job."""
    with boards.backend("b", "sql", persistence=store) as board:
        conductor = conductors.fetch(
            "nonblocking", "c", board, persistence=store, engine_options=engine_options
        )
        with conducted.running(conductor):
            until(lambda: board.job_count == 0)


def failed(store: base.Backend, **engine_options: Any) -> engines.FlowHandle:
    handle = engines.submit(PURCHASE, backend=store, inputs={"order": 1, "card": "bad"})
    run_jobs(store, **engine_options)
    return handle


def detail(store: base.Backend, handle: engines.FlowHandle) -> models.FlowDetail:
    with contextlib.closing(store.get_connection()) as connection:
        return connection.get_flow_details(handle.id)


def send(store: base.Backend, handle: engines.FlowHandle, edits: dict[str, Any]) -> None:
    """Store a request without the checks of `operations.request`."""
    with contextlib.closing(store.get_connection()) as connection:
        connection.send_command(handle.id, _commands.FlowCommand("retry", None, "ann", 1.0, edits))


def test_conductor_retries_failed_tasks_with_edits(store: base.Backend) -> None:
    handle = failed(store, never_resolve=True)
    operations.request(
        store, handle.id, "retry", by="ann", reason="typo", edits=Edits({"card": "a"}, {"quote": 7})
    )
    run_jobs(store)
    assert handle.state == states.SUCCESS
    assert handle.result() == {"order": 1, "card": "a", "price": 7, "paid": "a 7"}
    (why,) = [each.why for each in detail(store, handle).history if each.state == states.PENDING]
    assert why == "input 'card' and result of 'quote' replaced; retried by ann: typo"


def test_conductor_retries_reverted_flow_with_edits(store: base.Backend) -> None:
    handle = failed(store)
    operations.request(store, handle.id, "retry", edits=Edits({"card": "a", "order": 2}))
    run_jobs(store)
    assert handle.state == states.SUCCESS and handle.result()["paid"] == "a 20"


@pytest.mark.parametrize(
    ("edits", "error", "text"),
    [
        (Edits({"order": 2}), exceptions.InvalidState, "task 'quote' has used it"),
        (Edits({"crad": 2}), exceptions.NotFound, r"did you mean 'card'\?"),
        (Edits(results={"pay": 2}), exceptions.InvalidState, "it is in FAILURE"),
    ],
)
def test_request_refuses_edits_by_the_records(
    store: base.Backend, edits: Edits, error: type[Exception], text: str
) -> None:
    handle = failed(store, never_resolve=True)
    with pytest.raises(error, match=text):
        operations.request(store, handle.id, "retry", edits=edits)
    with contextlib.closing(store.get_connection()) as connection:
        assert not connection.commands([handle.id])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"inputs": {"order": 2}, "results": {}}, "task 'quote' has used it"),
        ({"inputs": []}, "invalid edits"),
    ],
)
def test_conductor_refuses_edits_and_states_the_reason(
    store: base.Backend, data: dict[str, Any], text: str
) -> None:
    handle = failed(store, never_resolve=True)
    send(store, handle, data)
    run_jobs(store)
    record = detail(store, handle)
    assert record.state == states.FAILURE
    assert record.error is not None and text in record.error
    assert record.error.startswith("not retried by ann: ")
    with contextlib.closing(store.get_connection()) as connection:
        assert not connection.commands([handle.id])


def test_command_requests_retries_of_many_flows_with_edits(
    store: base.Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handles = [failed(store), failed(store, never_resolve=True)]
    words = ("flow", "retry", "--error", "declined", "--set", 'card="a"', "--yes", "--json")
    assert app.main([f"--persistence=sqlite:///{tmp_path}/flows.db", *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {*answer["flows"]} == {handle.id for handle in handles}
    assert {handle.state for handle in handles} == {states.REVERTED, states.FAILURE}
    run_jobs(store)
    assert [handle.result()["paid"] for handle in handles] == ["a 10", "a 10"]


def test_edits_require_a_retry(store: base.Backend) -> None:
    handle = failed(store)
    with pytest.raises(ValueError, match="edits= requires operation 'retry'"):
        operations.request(store, handle.id, "revert", edits=Edits({"card": "a"}))

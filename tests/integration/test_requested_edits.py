"""Retries with other inputs and results, carried out by conductors."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from tests.support.reading import read_flow
from tests.support.requested import command_of, conducting, run_jobs
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine._cli import app
from wbengine.operations import Edits
from wbengine.persistence import _commands, base

PURCHASE = "tests.cli.payments:purchase"


pytestmark = pytest.mark.parametrize("uri", ["sqlite"], indirect=True)


def failed(store: base.Backend, **engine_options: Any) -> engines.FlowHandle:
    handle = engines.submit(PURCHASE, backend=store, inputs={"order": 1, "card": "bad"})
    with conducting(store, **engine_options) as board:
        until(lambda: board.job_count == 0)
    return handle


def test_conductor_retries_failed_tasks_with_edits(store: base.Backend) -> None:
    handle = failed(store, never_resolve=True)
    operations.request(
        store, handle.id, "retry", by="ann", reason="typo", edits=Edits({"card": "a"}, {"quote": 7})
    )
    run_jobs(store)
    assert handle.state == states.SUCCESS
    assert handle.result() == {"order": 1, "card": "a", "price": 7, "paid": "a 7"}
    (why,) = [
        each.why for each in read_flow(store, handle.id).history if each.state == states.PENDING
    ]
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
    assert command_of(store, handle.id) is None


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
    command = _commands.FlowCommand("retry", None, "ann", 1.0, data)
    with contextlib.closing(store.get_connection()) as connection:
        connection.send_command(handle.id, command)  # without the checks of `operations.request`
    run_jobs(store)
    record = read_flow(store, handle.id)
    assert record.state == states.FAILURE
    assert record.error is not None and text in record.error
    assert record.error.startswith("not retried by ann: ")
    assert command_of(store, handle.id) is None


def test_command_requests_retries_of_many_flows_with_edits(
    store: base.Backend, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handles = [failed(store), failed(store, never_resolve=True)]
    words = ("flow", "retry", "--error", "declined", "--set", 'card="a"', "--yes", "--json")
    assert app.main([f"--persistence={uri}", *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {*answer["flows"]} == {handle.id for handle in handles}
    assert {handle.state for handle in handles} == {states.REVERTED, states.FAILURE}
    run_jobs(store)
    assert [handle.result()["paid"] for handle in handles] == ["a 10", "a 10"]


def test_edits_require_a_retry(store: base.Backend) -> None:
    handle = failed(store)
    with pytest.raises(ValueError, match="edits= requires operation 'retry'"):
        operations.request(store, handle.id, "revert", edits=Edits({"card": "a"}))

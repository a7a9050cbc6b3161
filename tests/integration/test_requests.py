"""Requests to run submitted flows again, carried out by conductors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operations import flows
from tests.support.requested import STEPS, command_of, failed, run_jobs
from wbengine import engines, exceptions, operations, states
from wbengine.persistence import _commands, base
from wbengine.persistence import backends as stores


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    flows.DONE.clear()
    flows.FAILING.clear()
    with contextlib.closing(stores.fetch(f"sqlite:///{tmp_path}/flows.db")) as opened:
        yield opened


def test_retry_of_reverted_flow_runs_in_a_conductor(store: base.Backend) -> None:
    handle = failed(store)
    assert handle.state == states.REVERTED
    requested = operations.request(store, handle.id, "retry", by="ann", reason="fixed")
    assert requested.is_new and requested.state == states.REVERTED and flows.DONE == []
    run_jobs(store)
    assert handle.state == states.SUCCESS and flows.DONE == ["a", "b", "c", "d"]
    assert command_of(store, handle.id) is None


def test_retry_of_failure_runs_only_failed_tasks_and_their_successors(store: base.Backend) -> None:
    handle = failed(store, never_resolve=True)
    assert handle.state == states.FAILURE
    operations.request(store, handle.id, "retry")
    run_jobs(store)
    assert handle.state == states.SUCCESS and flows.DONE == ["c", "d"]


def test_revert_of_failure_reverts_in_a_conductor(store: base.Backend) -> None:
    handle = failed(store, never_resolve=True)
    operations.request(store, handle.id, "revert", reason="withdrawn")
    run_jobs(store)
    assert handle.state == states.REVERTED and flows.DONE == ["-c", "-b", "-a"]


def test_resume_of_suspended_flow_runs_in_a_conductor(store: base.Backend) -> None:
    handle = engines.submit(STEPS, backend=store)
    operations.suspend(store, handle.id, by="ann")
    run_jobs(store)
    assert handle.state == states.SUSPENDED and flows.DONE == []
    operations.request(store, handle.id, "resume")
    run_jobs(store)
    assert handle.state == states.SUCCESS and flows.DONE == ["a", "b", "c", "d"]


def test_second_request_returns_the_first(store: base.Backend) -> None:
    handle = failed(store)
    first = operations.request(store, handle.id, "retry", by="ann", reason="one")
    second = operations.request(store, handle.id, "retry", by="bob", reason="two")
    assert not second.is_new and second[:4] == first[:4]
    command = _commands.FlowCommand("retry", "one", "ann", first.at)
    assert command_of(store, handle.id) == command


def test_handles_wait_for_a_requested_run(store: base.Backend) -> None:
    handle = failed(store)
    assert handle.wait(0)
    operations.request(store, handle.id, "retry", by="ann")
    assert not handle.wait(0)
    with pytest.raises(TimeoutError, match="it is REVERTED, about to be retried by ann"):
        handle.result(0)
    run_jobs(store)
    assert handle.wait(0) and handle.result()["of_a"] == "a"


def test_other_request_is_refused_until_the_pending_one_is_withdrawn(store: base.Backend) -> None:
    handle = failed(store, never_resolve=True)
    operations.request(store, handle.id, "retry", by="ann")
    for operation in ("revert", "resume"):
        with pytest.raises(exceptions.InvalidState, match="is about to be retried by ann"):
            operations.request(store, handle.id, operation)
    operations.suspend(store, handle.id)
    operations.request(store, handle.id, "revert")
    run_jobs(store)
    assert handle.state == states.REVERTED and flows.DONE == ["-c", "-b", "-a"]


def test_revert_of_suspended_flow_with_another_request_is_refused(
    store: base.Backend,
) -> None:
    handle = engines.submit(STEPS, backend=store)
    operations.suspend(store, handle.id, by="ann")
    run_jobs(store)
    operations.request(store, handle.id, "resume", by="ann")
    with pytest.raises(exceptions.InvalidState, match="is about to be resumed by ann"):
        operations.request(store, handle.id, "revert", by="bob")
    operations.cancel(store, handle.id, by="bob")
    run_jobs(store)
    assert handle.state == states.REVERTED and flows.DONE == []


def test_refused_retry_does_not_run_a_flow_that_a_person_suspended(store: base.Backend) -> None:
    """The reversion began, and was suspended, after the check of the request."""
    handle = failed(store, never_resolve=True)
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(handle.id)
        detail.enter(states.SUSPENDED, time.time(), "suspended by ann")
        for atom in detail:
            atom.intention = states.REVERT
        connection.save_changes(detail, detail)
        connection.send_command(handle.id, _commands.FlowCommand("retry"))
    run_jobs(store)
    assert command_of(store, handle.id) is None
    assert handle.state == states.SUSPENDED and flows.DONE == []


@pytest.mark.parametrize("operation", ["cancel", "suspend"])
def test_request_of_an_ended_flow_is_withdrawn(operation: str, store: base.Backend) -> None:
    handle = failed(store)
    operations.request(store, handle.id, "retry")
    getattr(operations, operation)(store, handle.id)
    assert command_of(store, handle.id) is None
    run_jobs(store)
    assert handle.state == states.REVERTED and flows.DONE == []
    with pytest.raises(exceptions.InvalidState, match="has ended in REVERTED"):
        getattr(operations, operation)(store, handle.id)


def test_flow_of_a_program_is_not_requested(store: base.Backend) -> None:
    engine = operations.start(store, STEPS)
    with pytest.raises(exceptions.InvalidState, match="was not submitted"):
        operations.request(store, engine.storage.flow_uuid, "resume")

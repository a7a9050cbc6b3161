"""Requests to run submitted flows again, carried out by conductors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operations import flows
from tests.support.requested import STEPS, command_of, failed, run_jobs
from wbengine import engines, exceptions, operations, states
from wbengine.persistence import backends as stores
from wbengine.persistence import base, commands


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
    command = commands.FlowCommand("retry", "one", "ann", first.at)
    assert command_of(store, handle.id) == command


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

"""`wbengine flow resume`, `retry` and `revert` of submitted flows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.operations import flows
from tests.support import requested
from tests.support.waiting import until
from wbengine import engines, operations, states
from wbengine.cli import errors
from wbengine.persistence import backends, base


@pytest.fixture
def store(home: Path) -> Iterator[base.Backend]:
    (home / "wbengine.toml").write_text('persistence = "sqlite:///flows.db"\n')
    flows.DONE.clear()
    flows.FAILING.clear()
    with contextlib.closing(backends.fetch(f"sqlite:///{home}/flows.db")) as opened:
        yield opened


def test_retry_of_submitted_flow_runs_nothing_in_the_command(
    wbengine: Command, store: base.Backend
) -> None:
    uuid = requested.failed(store).id
    answer = wbengine("flow", "retry", uuid, "--json", "--reason", "release 43")
    assert answer.code == 0 and flows.DONE == []
    assert answer.json["uuid"] == uuid and answer.json["is_new"] is True
    assert "retry requested; a conductor (wbengine serve) carries it out" in answer.err
    again = wbengine("flow", "retry", uuid, "--json")
    assert again.code == 0 and again.json["is_new"] is False and "requested before" in again.err
    command = requested.command_of(store, uuid)
    assert command is not None and command.reason == "release 43"
    requested.run_jobs(store)
    assert flows.DONE == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "words", [("--detach",), ("--engine", "serial"), ("--report", "r.html"), ("--deadline", "1m")]
)
def test_options_of_a_run_are_refused_for_submitted_flow(
    words: tuple[str, ...], wbengine: Command, store: base.Backend
) -> None:
    uuid = requested.failed(store).id
    answer = wbengine("flow", "retry", uuid, *words)
    assert answer.code == errors.USAGE
    assert f"{words[0]} is for flows that this command runs" in answer.error
    assert requested.command_of(store, uuid) is None


@pytest.mark.parametrize(("words", "fails"), [(("--wait", "1m"), True), (("--watch",), False)])
def test_retry_waits_for_the_end_of_the_flow(
    words: tuple[str, ...], fails: bool, wbengine: Command, store: base.Backend
) -> None:
    uuid = requested.failed(store).id
    if fails:
        flows.FAILING.add("d")

    def conduct() -> None:
        until(lambda: requested.command_of(store, uuid) is not None)
        requested.run_jobs(store)

    conductor = threading.Thread(target=conduct)
    conductor.start()
    answer = wbengine("flow", "retry", uuid, *words)
    conductor.join()
    assert answer.code == (errors.UNHEALTHY if fails else errors.OK)
    assert flows.DONE[:3] == ["a", "b", "c"]


def test_wait_for_requested_flow_without_conductor_ends_in_time(
    wbengine: Command, store: base.Backend
) -> None:
    uuid = requested.failed(store).id
    answer = wbengine("flow", "revert", uuid, "--yes")
    assert answer.code == errors.UNHEALTHY and "no task can be reverted" in answer.err
    assert wbengine("flow", "retry", uuid, "--wait", "0.1").code == errors.TRY_AGAIN


def test_suspended_submitted_flow_is_resumed_by_a_conductor(
    wbengine: Command, store: base.Backend
) -> None:
    handle = engines.submit(requested.STEPS, backend=store)
    operations.suspend(store, handle.id)
    requested.run_jobs(store)
    assert handle.state == states.SUSPENDED
    assert wbengine("flow", "resume", handle.id, "--wait", "0.1").code == errors.TRY_AGAIN
    assert flows.DONE == []
    requested.run_jobs(store)
    assert handle.state == states.SUCCESS


def test_request_options_are_refused_for_flow_of_a_program(
    wbengine: Command, store: base.Backend
) -> None:
    engine = operations.start(store, requested.STEPS)
    answer = wbengine("flow", "resume", engine.storage.flow_uuid, "--watch")
    assert answer.code == errors.USAGE and "are for submitted flows" in answer.error

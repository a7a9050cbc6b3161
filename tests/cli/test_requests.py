"""`wbengine flow resume`, `retry` and `revert` of submitted flows."""

from __future__ import annotations

import contextlib
import re
import signal
import threading

import pytest

from tests.cli.conftest import ORDER, Command
from tests.operations import flows
from tests.support import conducted, requested
from tests.support.waiting import until
from wbengine import engines, operations, states
from wbengine._cli import claimed_jobs, errors
from wbengine.conductors import backends as conductors
from wbengine.diagnosis import _store_checks
from wbengine.jobs import backends as boards
from wbengine.jobs.backends.impl_sql import SQLJobBoard
from wbengine.operations import _resuming
from wbengine.persistence import base


@pytest.fixture(autouse=True)
def clear_tasks() -> None:
    flows.DONE.clear()
    flows.FAILING.clear()


def test_retry_of_submitted_flow_runs_nothing_in_the_command(
    wbengine: Command, store: base.Backend
) -> None:
    uuid = requested.failed(store).id
    answer = wbengine("flow", "retry", uuid, "--json", "--reason", "release 43")
    assert answer.code == 0 and flows.DONE == []
    assert answer.json["uuid"] == uuid and answer.json["is_new"] is True
    assert "retry requested; no conductor (wbengine serve) runs now: the next one" in answer.err
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
    assert answer.code == errors.USAGE and "are for requests to conductors" in answer.error


def jobs_of(store: base.Backend) -> dict[str, str | None]:
    """Return the owners of the claimed and unclaimed jobs, by uuid."""
    with boards.backend("b", "sql", persistence=store) as board:
        return {job.uuid: board.find_owner(job) for job in board.iterjobs()}


def test_flow_runs_in_the_command_and_its_job_is_deleted(
    wbengine: Command, store: base.Backend
) -> None:
    uuid = requested.failed(store).id
    answer = wbengine("flow", "retry", uuid, "--here", "--set", "a=1")
    assert "has no input 'a'" in answer.err and jobs_of(store) == {}
    answer = wbengine("flow", "retry", uuid, "--here", "--reason", "fixed")
    assert answer.code == 0 and flows.DONE == ["a", "b", "c", "d"]
    assert jobs_of(store) == {} and requested.command_of(store, uuid) is None


def test_selected_flows_run_in_the_command(wbengine: Command, store: base.Backend) -> None:
    uuids = {requested.failed(store).id for _ in range(2)}
    answer = wbengine("flow", "retry", "--error", "c fails", "--here", "--yes", "--json")
    assert {*answer.json["flows"]} == uuids and "".join(flows.DONE) == "abcdabcd"
    assert jobs_of(store) == {}


@pytest.mark.parametrize("words", [("--wait", "1m"), ("--watch",), ("--detach",)])
def test_options_of_requests_are_refused_for_a_run_in_the_command(
    words: tuple[str, ...], wbengine: Command, store: base.Backend
) -> None:
    uuid = requested.failed(store, never_resolve=True).id
    for operation in ("retry", "revert"):
        if operation == "retry" or words[0] != "--detach":
            sure = ("--yes",) if operation == "revert" else ()
            wbengine.fails(errors.USAGE, words[0], "flow", operation, uuid, "--here", *words, *sure)
    assert flows.DONE == []


def test_flow_that_never_ran_requires_the_engine(wbengine: Command, store: base.Backend) -> None:
    handle = engines.submit(requested.STEPS, backend=store)
    wbengine.fails(errors.USAGE, "--here requires --engine", "flow", "resume", handle.id, "--here")
    assert wbengine("flow", "resume", handle.id, "--here", "--engine", "serial").code == 0
    assert handle.state == states.SUCCESS and jobs_of(store) == {}


def test_flow_of_a_conductor_does_not_run_in_the_command(
    wbengine: Command, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimed_jobs, "_CLAIM_PATIENCE_SECONDS", 0.0)
    uuid = engines.submit(requested.STEPS, backend=store).id
    with boards.backend("b", "sql", persistence=store) as board:
        (job,) = board.iterjobs()
        board.claim(job, "other:1")
        answer = wbengine("flow", "resume", uuid, "--here", "--engine", "serial")
    assert answer.code != 0 and "other:1 has claimed its job" in answer.err
    assert flows.DONE == [] and jobs_of(store) == {uuid: "other:1"}


def test_flow_whose_job_is_in_the_trash_runs_in_the_command(
    wbengine: Command, store: base.Backend
) -> None:
    uuid = engines.submit(requested.STEPS, backend=store).id
    with boards.backend("b", "sql", persistence=store) as board:
        (job,) = board.iterjobs()
        board.claim(job, "other:1")
        board.trash(job, "other:1")
        assert wbengine("flow", "resume", uuid, "--here", "--engine", "serial").code == 0
        assert not board.is_trashed(uuid) and flows.DONE == ["a", "b", "c", "d"]


def test_job_is_kept_if_the_command_dies_before_it_claims(
    wbengine: Command, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conductors do not post a job again on a board in the store of its flow."""

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    handle = engines.submit(requested.STEPS, backend=store, eta=3600)
    words = ("flow", "resume", handle.id, "--here", "--engine", "serial")
    for name in ("repost", "claim"):
        with monkeypatch.context() as patch:
            patch.setattr(SQLJobBoard, name, die)
            assert wbengine(*words).code != 0
        assert jobs_of(store) == {handle.id: None}
    assert wbengine(*words).code == 0 and handle.state == states.SUCCESS


def test_flow_with_a_pending_request_does_not_run_in_the_command(
    wbengine: Command, store: base.Backend
) -> None:
    uuid = requested.failed(store).id
    operations.request(store, uuid, "retry", by="ann")
    answer = wbengine("flow", "retry", uuid, "--here")
    assert answer.code == errors.UNHEALTHY and flows.DONE == []
    assert "is about to be retried by ann. To withdraw this request" in answer.err


def test_request_says_that_no_conductor_runs(wbengine: Command, store: base.Backend) -> None:
    uuid = requested.failed(store).id
    assert "no conductor (wbengine serve) runs now" in wbengine("flow", "retry", uuid).err
    many = wbengine("flow", "retry", "--state", "REVERTED", "--yes")
    assert "no conductor (wbengine serve) runs now" in many.err
    with contextlib.closing(store.get_connection()) as connection:
        connection.add_codes("", [""])
    answer = wbengine("flow", "retry", uuid)
    assert "a conductor (wbengine serve) carries it out" in answer.err


def test_commands_report_that_no_conductor_serves_a_submitted_flow(
    wbengine: Command, store: base.Backend
) -> None:
    nobody = "no conductor (wbengine serve) runs now"

    def reports() -> list[bool]:
        submitted = wbengine("flow", "submit", ORDER)
        uuid = submitted.out.strip()
        show = wbengine("flow", "show", uuid, "--json").json
        doctor = wbengine("doctor", "--json").json["findings"]
        texts = [one["text"] for one in doctor if one["check"] == "conductors"]
        return [
            nobody in text
            for text in (
                submitted.err,
                show["waiting"].lower(),
                wbengine("flow", "list").err,
                " ".join(texts),
            )
        ]

    assert reports() == [True] * 4
    with contextlib.closing(store.get_connection()) as connection:
        connection.add_codes("", [""])
    assert reports() == [False] * 4


def listed(wbengine: Command, *words: str) -> dict[str, str]:
    """Return the displayed states of the listed flows, by uuid."""
    flows = wbengine("flow", "list", "--json", *words).json["flows"]
    return {flow["uuid"]: flow["shown_state"] for flow in flows}


def test_open_request_is_displayed_until_it_is_carried_out(
    wbengine: Command, store: base.Backend
) -> None:
    uuid, other = requested.failed(store).id, requested.failed(store).id
    assert listed(wbengine) == {uuid: "REVERTED", other: "REVERTED"}
    wbengine("flow", "retry", uuid)
    assert listed(wbengine) == {uuid: "REQUESTED", other: "REVERTED"}
    assert listed(wbengine, "--state", "REQUESTED") == {uuid: "REQUESTED"}
    assert listed(wbengine, "--state", "requested", "--state", "SUSPENDED") == {uuid: "REQUESTED"}
    assert listed(wbengine, "--state", "PENDING") == {}
    assert "runs flows in PENDING and REQUESTED" in wbengine("flow", "list").err
    show = wbengine("flow", "show", uuid, "--json").json
    assert (show["state"], show["shown_state"]) == ("REVERTED", "REQUESTED")
    assert show["waiting"].endswith("runs now: the next one carries the request out.")
    withdrawn = wbengine("flow", "suspend", "--state", "REQUESTED", "--yes", "--json")
    assert withdrawn.json["flows"] == [uuid]
    assert listed(wbengine) == {uuid: "REVERTED", other: "REVERTED"}
    wbengine("flow", "retry", uuid)
    requested.run_jobs(store)
    assert listed(wbengine) == {uuid: "SUCCESS", other: "REVERTED"}


def conductors_finding(wbengine: Command) -> tuple[bool | None, str] | None:
    findings = wbengine("doctor", "--json").json["findings"]
    found = [(one["good"], one["text"]) for one in findings if one["check"] == "conductors"]
    return found[0] if found else None


@pytest.mark.slow
def test_doctor_reports_work_that_waits_too_long_as_a_problem(
    wbengine: Command, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = requested.failed(store).id
    assert conductors_finding(wbengine) is None
    wbengine("flow", "retry", uuid)
    nobody = "no conductor (wbengine serve) runs now"
    text = f"{nobody}; waiting: 1 request to run flows again (REQUESTED)"
    assert conductors_finding(wbengine) == (None, text), "it may begin soon"
    monkeypatch.setattr(_store_checks, "_MAX_WAIT_SECONDS", 0.0)
    good, text = conductors_finding(wbengine) or (None, "")
    assert good is False and re.search(r"waiting for .* s: 1 request to", text)
    wbengine("flow", "suspend", uuid)
    requested.failed(store)
    wbengine("flow", "retry", "--all", "--yes", "--background")
    good, text = conductors_finding(wbengine) or (None, "")
    assert good is False and text.endswith("s: 1 operation on many flows")
    wbengine("flow", "submit", ORDER)
    good, text = conductors_finding(wbengine) or (None, "")
    assert good is False and "1 flow in PENDING, 1 operation" in text
    with contextlib.closing(store.get_connection()) as connection:
        connection.add_codes("", [""])
    assert conductors_finding(wbengine) is None


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["cancel", "revert"])
def test_doctor_reports_suspended_flows_that_wait_for_their_cancellation(
    verb: str, wbengine: Command, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store_checks, "_MAX_WAIT_SECONDS", 0.0)
    handle = engines.submit("tests.operations.flows:approval", backend=store)
    with requested.conducting(store):
        until(lambda: operations.find(store, handle.id).parked)
    assert conductors_finding(wbengine) is None, "it waits for a signal, not for a conductor"
    wbengine("flow", verb, handle.id, "--yes", "--wait", "0.1")
    good, text = conductors_finding(wbengine) or (None, "")
    assert good is False and text.endswith("s: 1 request to cancel flows")
    requested.run_jobs(store)
    assert handle.state == states.REVERTED
    assert conductors_finding(wbengine) is None


def test_flow_of_a_program_that_never_ran_is_no_problem(
    wbengine: Command, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No conductor runs it."""
    monkeypatch.setattr(_store_checks, "_MAX_WAIT_SECONDS", 0.0)
    operations.start(store, requested.STEPS)
    good, text = conductors_finding(wbengine) or (False, "")
    assert good is None and "1 flow in PENDING" in text


@pytest.mark.parametrize("end", ["interrupted", "killed"])
def test_flow_returns_to_the_conductors(end: str, wbengine: Command, store: base.Backend) -> None:
    """After an interruption at once; the claim of a killed process expires."""
    handle = engines.submit("tests.operations.flows:approval", backend=store)
    process = wbengine.begin("flow", "resume", handle.id, "--here", "--engine", "serial")
    until(lambda: operations.find(store, handle.id).waits_for)
    assert f":{process.pid}" in str(jobs_of(store)[handle.id])
    process.send_signal(signal.SIGINT if end == "interrupted" else signal.SIGKILL)
    _, text = process.communicate(timeout=60)
    if end == "interrupted":
        assert "suspended; conductors (wbengine serve) continue it" in text
    else:
        with boards.backend("b", "sql", persistence=store) as board:
            (job,) = board.iterjobs()
            assert 0 < job.expires_in() <= 15
            board.abandon(job, str(board.find_owner(job)))  # as the end of that time
    assert jobs_of(store) == {handle.id: None}
    handle.signal("approved")
    requested.run_jobs(store)
    assert handle.state == states.SUCCESS


def test_engine_of_the_conductor_is_recorded(store: base.Backend) -> None:
    handle = engines.submit(requested.STEPS, backend=store)
    with boards.backend("b", "sql", persistence=store) as board:
        conductor = conductors.fetch(
            "nonblocking", "c", board, persistence=store, engine="parallel"
        )
        with conducted.running(conductor):
            assert handle.wait(60)
    assert _resuming.kind(store, handle.id) == "parallel"

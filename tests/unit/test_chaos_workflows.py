"""The judge of workflows in chaos tests finds faults in changed histories."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import audit, requests, workflows
from wbengine import engines, exceptions, operations
from wbengine.persistence import backends

#: One workflow of each kind: a plain one and a coroutine that succeed, and one of each that fail.
NAMES = ("flow0", "flow1", "flow2", "flow5")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the workflows by uuid, the lines of the audit file, and the store."""
    path = tmp_path_factory.mktemp("chaos") / "audit"
    audit.begin(path)
    try:
        with backends.backend("memory://") as store:
            uuids = {run(name, store): name for name in NAMES}
            yield uuids, list(audit.parse(path.read_text(encoding="utf-8"))), store
    finally:
        audit.end()


def run(name: str, store: Any) -> str:
    factory = workflows.async_program if workflows.is_async(name) else workflows.program
    engine = engines.load(factory, {"flow": name}, backend=store)
    uuid: str = engine.storage.flow_uuid
    assert workflows.send_signals([uuid], store) == 1
    with contextlib.suppress(ValueError):
        engine.run()
    return uuid


def problems(
    ran: Any, change: Any = lambda lines: lines, retries: Mapping[str, range] = {}
) -> list[str]:
    uuids, lines, store = ran
    with contextlib.closing(store.get_connection()) as connection:
        return list(workflows.judge(uuids, change(lines), connection, retries))


def find(lines: list[audit.Line], name: str) -> int:
    return next(index for index, line in enumerate(lines) if line.name == name)


def repeated(name: str, /, *, after: str, **changes: Any) -> Any:
    """Return a change of a history: a task runs again after the start of another one."""

    def change(lines: list[audit.Line]) -> list[audit.Line]:
        again, place = replace(lines[find(lines, name)], **changes), find(lines, after) + 1
        return [*lines[:place], again, *lines[place:]]

    return change


def without(name: str) -> Any:
    return lambda lines: [line for line in lines if line.name != name]


def test_correct_history_has_no_problems(ran: Any) -> None:
    assert problems(ran) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (repeated("flow0.1", after="flow0.1"), "flow0.1 ran 2 times under epoch 1"),
        (repeated("flow1.1", after="flow1.2", epoch=2), "flow1.1 was saved, and ran at"),
        (repeated("flow2.last", after="flow2.0.revert", epoch=2), "flow2.last was saved, and ran"),
        (repeated("flow0.1", after="flow0.1", request="x"), "flow0.1 ran for 2 requests"),
        (repeated("flow1.once0", after="flow1.once0", epoch=2), "flow1.once0 ran for 1 requests"),
        (repeated("flow1.1", after="flow1.last", name="flow1.1.revert"), "flow1.1.revert ran"),
        (without("flow5.last"), "flow5.last never ran"),
        (without("flow5.map1.revert"), "flow5.map1.revert never ran"),
        (
            repeated("flow2.0.revert", after="flow2.last.revert", request="x"),
            "flow2.map0.revert was saved, and ran",
        ),
    ],
)
def test_fault_in_history_is_reported(ran: Any, change: Any, text: str) -> None:
    assert any(problem.startswith(text) for problem in problems(ran, change))


def test_repetition_after_the_loss_of_a_worker_is_no_fault(ran: Any) -> None:
    assert problems(ran, repeated("flow0.1", after="flow0.1", epoch=2)) == []
    undone = repeated("flow5.map1.revert", after="flow5.map1.revert", epoch=2)
    assert problems(ran, undone) == []


@pytest.fixture(scope="module")
def retried(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a failing workflow that was retried once, as `ran`."""
    path = tmp_path_factory.mktemp("retried") / "audit"
    audit.begin(path)
    try:
        with backends.backend("memory://") as store:
            uuid = run("flow2", store)
            with contextlib.suppress(ValueError):
                operations.retry(store, uuid).run()
            yield {uuid: "flow2"}, list(audit.parse(path.read_text(encoding="utf-8"))), store
    finally:
        audit.end()


@pytest.mark.parametrize(
    ("retries", "is_right"), [(range(1, 2), True), (range(3), True), (range(1), False)]
)
def test_each_retry_is_one_more_end(retried: Any, retries: range, is_right: bool) -> None:
    assert (problems(retried, retries={"flow2": retries}) == []) is is_right


def test_retry_that_was_lost_is_reported(ran: Any) -> None:
    (problem,) = problems(ran, retries={"flow2": range(1, 2)})
    assert "ended in ['REVERTED']; retries: range(1, 2)" in problem


def test_run_of_a_saved_step_in_the_second_attempt_is_reported(retried: Any) -> None:
    def change(lines: list[audit.Line]) -> list[audit.Line]:
        starts = [line for line in lines if line.what == audit.STARTED]
        latest = next(line for line in reversed(starts) if line.name == "flow2.last")
        return [*lines, replace(latest, epoch=latest.epoch + 1)]

    (problem,) = problems(retried, change, {"flow2": range(1, 2)})
    assert problem.startswith("flow2.last was saved, and ran")


def test_requests_are_sent_after_the_store_is_reachable(
    ran: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids, _, store = ran
    outages = [exceptions.StorageFailure("down")]

    @contextlib.contextmanager
    def backend(url: str) -> Iterator[Any]:
        if outages:
            raise outages.pop()
        yield store

    monkeypatch.setattr(requests, "backends", SimpleNamespace(backend=backend))
    shared = requests.Requests(tmp_path)
    shared.write_flows({uuid: name for uuid, name in uuids.items() if name == "flow0"})
    shared.calm()
    requests.run("postgresql://down", tmp_path, 0, 1)
    assert not outages and shared.retries() == {}


@pytest.mark.parametrize(("name", "result"), [("flow0", []), ("flow1", [0])])
def test_wrong_result_is_reported(ran: Any, name: str, result: Any) -> None:
    uuids, lines, store = ran
    (uuid,) = (uuid for uuid, each in uuids.items() if each == name)
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(uuid)
        (record,) = (each for each in detail if each.name.endswith("program"))
        record.results = result
        assert any(
            problem.startswith(f"{name} returned {result}")
            for problem in workflows._judge_steps(
                name, lines, detail, workflows._attempts(detail)[0]
            )
        )

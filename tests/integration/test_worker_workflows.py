"""Workflows whose steps run on worker processes, over a folder as broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import conducted, workers
from tests.support import worker_steps as support
from tests.support.engine_threads import Running
from tests.support.resuming_tasks import runs
from wbengine import engines, exceptions, operations, states
from wbengine.conductors.backends import impl_executor, impl_nonblocking
from wbengine.jobs import backends as boards
from wbengine.persistence import base

ENGINE = "worker-based"
#: Seconds of silence after which a worker is lost.
EXPIRY = 2.0


pytestmark = pytest.mark.parametrize("uri", ["sqlite"], indirect=True)


@contextlib.contextmanager
def fleet(folder: Path, count: int = 1) -> Iterator[list[workers.WorkerProcess]]:
    arguments = ("--url", url(folder), "--topic", "t", "--tasks", support.__name__)
    with workers.workers(folder, *arguments, "--threads", "4", count=count) as started:
        yield started


def url(folder: Path) -> str:
    return f"filesystem://{folder / 'broker'}"


def options(folder: Path) -> dict[str, Any]:
    # The start of workers has no time limit.
    return {"url": url(folder), "worker_expiry": EXPIRY, "transition_timeout": 300}


def load(workflow: Any, folder: Path, store: base.Backend, **inputs: Any) -> Any:
    return engines.load(
        workflow,
        store={"folder": str(folder), **inputs},
        backend=store,
        engine=ENGINE,
        **options(folder),
    )


def open_gates(folder: Path, *numbers: int) -> None:
    for number in numbers:
        (folder / f"gate-{number}").touch()


@pytest.mark.parametrize(
    ("workflow", "result", "ran"),
    [
        pytest.param(
            support.resent, ["repeated", "done once"], ["repeatable", "repeatable", "once"],
            id="idempotent step is resent", marks=pytest.mark.slow,
        ),
        pytest.param(
            support.lost, ["lost", "repeated"], ["once", "repeatable"],
            id="workflow handles the loss",
        ),
    ],
)  # fmt: skip
def test_workflow_handles_loss_of_the_worker_of_a_step(
    workflow: Any, result: list[str], ran: list[str], tmp_path: Path, store: base.Backend
) -> None:
    with fleet(tmp_path, 2):
        engine = load(workflow, tmp_path, store)
        engine.run()
    assert engine.storage.fetch("result") == result
    assert runs(tmp_path) == ran


@pytest.mark.parametrize(
    ("workflow", "inputs", "error", "ran"),
    [
        pytest.param(
            support.given_up, {}, exceptions.WorkerLost, ["repeatable", "once", "undo-once"],
            id="lost step of unknown effect",
        ),
        pytest.param(
            support.undone, {"repeats": True}, ValueError,
            ["once", "mortal", "undo-mortal", "undo-mortal", "undo-once"],
            id="idempotent revert is resent", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_steps_are_reverted_after_loss_of_a_worker(
    workflow: Any, inputs: dict[str, Any], error: Any, ran: list[str], tmp_path: Path,
    store: base.Backend,
) -> None:  # fmt: skip
    with fleet(tmp_path, 2):
        engine = load(workflow, tmp_path, store, **inputs)
        with pytest.raises(error):
            engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert runs(tmp_path) == ran


def test_revert_of_a_step_that_was_lost_can_be_repeated_by_command(
    tmp_path: Path, store: base.Backend
) -> None:
    with fleet(tmp_path, 2):
        engine = load(support.undone, tmp_path, store, repeats=False)
        with pytest.raises(exceptions.WorkerLost, match=r"mortal_undo_once' \(revert\)"):
            engine.run()
        assert engine.storage.get_flow_state() == states.FAILURE
        assert runs(tmp_path) == ["once", "mortal", "undo-mortal"]
        again = operations.revert(
            store, engine.storage.flow_uuid, engine=ENGINE, **options(tmp_path)
        )
        with pytest.raises(ValueError, match="no"):
            again.run()
    assert again.storage.get_flow_state() == states.REVERTED
    assert runs(tmp_path)[3:] == ["undo-mortal", "undo-once"]


def test_cancelled_workflow_reverts_steps_that_ran_meanwhile(
    tmp_path: Path, store: base.Backend
) -> None:
    open_gates(tmp_path, 0)
    with fleet(tmp_path):
        engine = load(support.gates, tmp_path, store)
        with Running(engine) as run:
            workers.until(lambda: len(runs(tmp_path)) == 3)
            assert engine.cancel()
            open_gates(tmp_path, 1, 2)
        assert type(run.error) is exceptions.Cancelled
    assert engine.storage.get_flow_state() == states.REVERTED
    assert sorted(runs(tmp_path)[1:3]) == ["step-1", "step-2"]
    assert sorted(runs(tmp_path)[3:5]) == ["undo-1", "undo-2"]
    assert runs(tmp_path)[5:] == ["undo-0"]


def test_suspended_workflow_continues_behind_its_running_steps(
    tmp_path: Path, store: base.Backend
) -> None:
    with fleet(tmp_path):
        engine = load(support.gates, tmp_path, store)
        with Running(engine) as run:
            workers.until(lambda: runs(tmp_path) == ["step-0"])
            engine.suspend()
            open_gates(tmp_path, 0, 1, 2)
        assert run.end() == states.SUSPENDED
        assert runs(tmp_path) == ["step-0"]
        again = operations.resume(
            store, engine.storage.flow_uuid, engine=ENGINE, **options(tmp_path)
        )
        again.run()
    assert again.storage.fetch("result") == [0, 1, 2]
    assert sorted(runs(tmp_path)) == ["step-0", "step-1", "step-2"]


def test_parked_workflow_continues_on_workers(
    tmp_path: Path, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(impl_executor.ExecutorConductor, "PARK_SECONDS", 0.1)
    parked: list[str] = []
    open_gates(tmp_path, 0, 1)
    with fleet(tmp_path), boards.backend("b", "sql", persistence=store) as board:
        conductor = impl_nonblocking.NonBlockingConductor(
            "c", board, store, ENGINE, options(tmp_path)
        )
        conductor.notifier.register("job_abandoned", lambda event, details: parked.append(event))
        handle = engines.submit(support.waits, backend=store, inputs={"folder": str(tmp_path)})
        with conducted.running(conductor):
            workers.until(lambda: len(parked) == 2)
            handle.signal("approved", 1)
            assert handle.result(60)["result"] == 1
    assert runs(tmp_path) == ["step-0", "step-1"]


def test_worker_receives_the_options_of_a_call(tmp_path: Path, store: base.Backend) -> None:
    with fleet(tmp_path):
        engine = load(support.compare_limits, tmp_path, store)
        engine.run()
    assert engine.storage.fetch("result") == [True, False]


@pytest.mark.slow
def test_workflow_on_workers_continues_after_the_loss_of_a_worker(
    tmp_path: Path, store: base.Backend
) -> None:
    with fleet(tmp_path, 2):
        engine = load(support.continued_on_workers, tmp_path, store)
        engine.run()
    assert engine.storage.fetch("result") == 3
    assert runs(tmp_path) == ["repeatable"] * 5
    assert sum(atom.is_step for atom in engine.storage.flow_detail) == 1

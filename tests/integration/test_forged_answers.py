"""Answers that no worker gave: what an engine does not believe."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import sample_tasks
from tests.support.workers import until, worker_in_thread
from wbengine import engines, exceptions
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.ledger.sql import SQLLedger
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.patterns import linear_flow
from wbengine.types.failure import Failure


@pytest.mark.parametrize("state", [pr.SUCCESS, pr.FAILURE])
@pytest.mark.parametrize("kind", ["memory", "redis", "rabbitmq"])
def test_outcome_that_is_not_in_the_ledger_is_not_believed(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, state: str
) -> None:
    """Although it comes to the engine's own queue, and names the worker that runs the task."""
    own = {"memory": f"memory://{tmp_path.name}"}
    url = own.get(kind) or request.getfixturevalue(f"{kind}_url")
    ledger = f"dir://{tmp_path}/ledger"
    store = {"started": str(tmp_path / "started"), "release": str(tmp_path / "release")}
    executor = executors.WorkerTaskExecutor("victim", "default", url=url, ledger=ledger)
    forger = executors.WorkerTaskExecutor("forger", "default", url=url)
    flow = linear_flow.Flow("f").add(sample_tasks.WaitFor(provides="seen"))
    with worker_in_thread(url, sample_tasks, ledger=ledger) as worker:
        engine = engines.load(flow, store=store, engine="worker-based", executor=executor)
        thread = threading.Thread(target=engine.run)
        thread.start()
        until(lambda: executor.requests("started"))
        (running,) = executor.requests("started")
        headers = {env.WBE_VERSION: "1", env.WBE_EPOCH: 1, env.WBE_WORKER: worker.identity}
        failure = pr.failure_to_dict(Failure.from_exception(ValueError("forged")))
        forged = failure if state == pr.FAILURE else "forged"
        seen: list[Any] = []
        heard = executor._recovery.on_row
        executor._recovery.on_row = lambda *told: seen.append(told) or heard(*told)
        forger.start()
        forger.publish(
            pr.Response(state, result=forged), "victim", correlation_id=running.id, headers=headers
        )
        until(lambda: seen)
        assert [each.state for each in executor.requests()] == ["started"]
        (tmp_path / "release").touch()
        thread.join(60)
        forger.stop()
    assert engine.storage.fetch("seen") == "released"
    assert engine.storage.get_flow_state() == "SUCCESS"


def test_result_that_the_ledger_could_not_take_is_stored_as_soon_as_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the engine believes nothing else."""
    finish, failed = SQLLedger._finish, []

    def ail(self: Any, holder: str, ended: Any) -> Any:
        if len(failed) < 3:
            failed.append(holder)
            return [exceptions.LedgerFailure("away")] * len(ended)
        return finish(self, holder, ended)

    monkeypatch.setattr(SQLLedger, "_finish", ail)
    url, ledger = f"memory://{tmp_path.name}", f"sqlite:///{tmp_path}/ledger.db"
    flow = linear_flow.Flow("f").add(sample_tasks.Echo(provides="seen"))
    with worker_in_thread(url, sample_tasks, ledger=ledger):
        engine = engines.load(
            flow, store={"value": 5}, engine="worker-based", url=url, ledger=ledger
        )
        engine.run()
    assert (engine.storage.fetch("seen"), len(failed)) == (5, 3)


@pytest.mark.parametrize("kind", ["memory", "filesystem", "redis", "rabbitmq"])
def test_requests_go_to_no_queue_that_is_not_that_of_its_tasks(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever announces one, with or without the headers of a worker, reads no arguments.

    The log names the queue once.
    """
    caplog.set_level(logging.DEBUG, "wbengine.engines.worker_based.discovery")
    own = {"memory": f"memory://{tmp_path.name}", "filesystem": f"filesystem://{tmp_path}/broker"}
    url = own.get(kind) or request.getfixturevalue(f"{kind}_url")
    executor = executors.WorkerTaskExecutor("victim", "default", url=url)
    forger = executors.WorkerTaskExecutor("forger", "default", url=url)
    executor.start()
    forger.start()
    told = {env.WBE_VERSION: "1", env.WBE_STATE: env.READY, env.WBE_SLOTS: 4, env.WBE_RUNNING: 0}
    task = f"{sample_tasks.__name__}.Echo"
    for topic, headers in (
        ("t", {**told, env.WBE_WORKER: "evil", env.WBE_QUEUE: "forger"}),
        ("forger", {**told, env.WBE_WORKER: "evil"}),
        ("forger", {}),
    ):
        notify = pr.Notify(topic=topic, tasks=[task])
        forger.publish(notify, "victim", headers=headers)
    words = "'forger' is no queue for its tasks"
    until(lambda: caplog.text.count(words) == 3)
    levels = [each.levelname for each in caplog.records if words in each.getMessage()]
    assert levels == ["WARNING", "DEBUG", "DEBUG"]
    assert executor.workers() == []
    forger.stop()
    executor.stop()


@pytest.mark.parametrize("kind", ["memory", "filesystem", "redis", "rabbitmq"])
def test_outcome_that_is_sent_to_all_engines_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    own = {"memory": f"memory://{tmp_path.name}", "filesystem": f"filesystem://{tmp_path}/broker"}
    url = own.get(kind) or request.getfixturevalue(f"{kind}_url")
    store = {"started": str(tmp_path / "started"), "release": str(tmp_path / "release")}
    executor = executors.WorkerTaskExecutor("victim", "default", url=url)
    forger = executors.WorkerTaskExecutor("forger", "default", url=url)
    flow = linear_flow.Flow("f").add(sample_tasks.WaitFor(provides="seen"))
    with worker_in_thread(url, sample_tasks) as worker:
        engine = engines.load(flow, store=store, engine="worker-based", executor=executor)
        thread = threading.Thread(target=engine.run)
        thread.start()
        until(lambda: executor.requests("started"))
        (running,) = executor.requests("started")
        headers = {env.WBE_VERSION: "1", env.WBE_EPOCH: 1, env.WBE_WORKER: worker.identity}
        forger.start()
        forger.publish(
            pr.Response(pr.SUCCESS, result="forged"),
            env.ALL_ENGINES,
            correlation_id=running.id,
            headers=headers,
        )
        until(lambda: executor.ignored.get("misaddressed") == 1)
        assert [each.state for each in executor.requests()] == ["started"]
        (tmp_path / "release").touch()
        thread.join(60)
        forger.stop()
    assert engine.storage.fetch("seen") == "released"
    assert engine.storage.get_flow_state() == "SUCCESS"

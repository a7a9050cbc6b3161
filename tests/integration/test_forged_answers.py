"""Engines ignore forged replies."""

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
def test_forged_result_missing_from_the_ledger_is_ignored(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, state: str
) -> None:
    """The forged reply is in the engine's own queue and names the worker that runs the task."""
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


def test_worker_saves_result_again_after_ledger_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine accepts only results that are in the ledger."""
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
def test_worker_announcing_a_foreign_queue_is_rejected(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A forged announcement gets no requests, with or without the headers of a worker.

    The first one is logged as a warning, later ones at level DEBUG.
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
    words = "queue 'forger' does not match its topic and tasks"
    until(lambda: caplog.text.count(words) == 3)
    levels = [each.levelname for each in caplog.records if words in each.getMessage()]
    assert levels == ["WARNING", "DEBUG", "DEBUG"]
    assert executor.workers() == []
    forger.stop()
    executor.stop()


@pytest.mark.parametrize("kind", ["memory", "filesystem", "redis", "rabbitmq"])
def test_reply_sent_to_all_engines_is_ignored(
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

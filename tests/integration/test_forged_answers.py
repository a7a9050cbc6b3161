"""Engines ignore forged replies."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import engine_threads, sample_tasks
from tests.support.brokers import broker_url
from tests.support.workers import until, worker_in_thread
from wbengine import engines, exceptions
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import notices
from wbengine.engines.worker_based._requests import recovery, tracker
from wbengine.patterns import linear_flow
from wbengine.transports._sql.sql_ledger import SQLLedger
from wbengine.types.failure import Failure


@pytest.fixture(
    params=[
        "memory",
        "filesystem",
        "redis",
        "rabbitmq",
        pytest.param("postgresql", marks=pytest.mark.slow),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a broker for one test."""
    return broker_url(request.param, request, tmp_path)


@contextlib.contextmanager
def forged_reply(
    url: Any, folder: Path, response: pr.Response, to: str, **ledger: str
) -> Iterator[executors.WorkerTaskExecutor]:
    """Publish a reply to the request of a running task, and yield the engine's executor.

    After the block, check that the engine ignored the reply.
    """
    store = {"started": str(folder / "started"), "release": str(folder / "release")}
    executor = executors.WorkerTaskExecutor("victim", "default", url=url, **ledger)
    forger = executors.WorkerTaskExecutor("forger", "default", url=url)
    flow = linear_flow.Flow("f").add(sample_tasks.WaitFor(provides="seen"))
    with worker_in_thread(url, sample_tasks, **ledger) as worker:
        engine = engines.load(flow, store=store, engine="worker-based", executor=executor)
        with engine_threads.Running(engine):
            until(lambda: executor.requests("started"))
            (running,) = executor.requests("started")
            headers = {hd.WBE_VERSION: "1", hd.WBE_EPOCH: 1, hd.WBE_WORKER: worker.identity}
            forger.start()
            forger._proxy.publish(response, to, correlation_id=running.id, headers=headers)
            yield executor
            assert [each.state for each in executor.requests()] == ["started"]
            (folder / "release").touch()
        forger.stop()
    assert engine.storage.fetch("seen") == "released"
    assert engine.storage.get_flow_state() == "SUCCESS"


@pytest.mark.parametrize("state", [pr.SUCCESS, pr.FAILURE])
@pytest.mark.parametrize("url", ["rowless", "rabbitmq"], indirect=True)
def test_forged_result_missing_from_the_ledger_is_ignored(
    url: Any, tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forged reply is in the engine's own queue and names the worker that runs the task."""
    failure = pr.failure_to_dict(Failure.from_exception(ValueError("forged")))
    response = pr.Response(state, result=failure if state == pr.FAILURE else "forged")
    rows: list[Any] = []
    on_event = tracker.RequestTracker.on_event

    def record(self: tracker.RequestTracker, event: Any, now: float) -> Any:
        if isinstance(event, recovery.RowRead):
            rows.append(event)
        return on_event(self, event, now)

    monkeypatch.setattr(tracker.RequestTracker, "on_event", record)
    with forged_reply(url, tmp_path, response, "victim", ledger=f"dir://{tmp_path}/ledger"):
        until(lambda: rows)


def test_worker_saves_result_again_after_ledger_failures(
    tmp_path: Path, rowless_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine accepts only results that are in the ledger."""
    finish, failed = SQLLedger._finish, []

    def ail(self: Any, holder: str, ended: Any, fence: Any) -> Any:
        if len(failed) < 3:
            failed.append(holder)
            return [exceptions.LedgerFailure("away")] * len(ended)
        return finish(self, holder, ended, fence)

    monkeypatch.setattr(SQLLedger, "_finish", ail)
    url, ledger = rowless_url, f"sqlite:///{tmp_path}/ledger.db"
    flow = linear_flow.Flow("f").add(sample_tasks.Echo(provides="seen"))
    with worker_in_thread(url, sample_tasks, ledger=ledger):
        engine = engines.load(
            flow, store={"value": 5}, engine="worker-based", url=url, ledger=ledger
        )
        engine.run()
    assert (engine.storage.fetch("seen"), len(failed)) == (5, 3)


def test_worker_announcing_a_foreign_queue_is_rejected(
    url: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A forged announcement can neither redirect requests nor hide its formats.

    The first one that is ignored is logged as a warning, later ones at level DEBUG.
    """
    caplog.set_level(logging.DEBUG, "wbengine.engines.worker_based._discovery")
    executor = executors.WorkerTaskExecutor("victim", "default", url=url)
    forger = executors.WorkerTaskExecutor("forger", "default", url=url)
    executor.start()
    forger.start()
    worker_headers = {
        hd.WBE_VERSION: "1",
        hd.WBE_STATE: notices.READY,
        hd.WBE_SLOTS: 4,
        hd.WBE_RUNNING: 0,
    }
    task = f"{sample_tasks.__name__}.Echo"
    for topic, headers in (
        ("t", {**worker_headers, hd.WBE_WORKER: "evil", hd.WBE_FORMATS: [99]}),
        ("forger", {**worker_headers, hd.WBE_WORKER: "evil"}),
        ("forger", {hd.WBE_WORKER: "evil"}),
    ):
        notify = pr.Notify(topic=topic, tasks=[task])
        forger._proxy.publish(notify, "victim", headers=headers)
    words = "worker evil (wbengine None) gets no requests"
    until(lambda: caplog.text.count(words) == 3)
    levels = [each.levelname for each in caplog.records if words in each.getMessage()]
    assert levels == ["WARNING", "DEBUG", "DEBUG"]
    assert executor.workers() == []
    headers = {**worker_headers, hd.WBE_WORKER: "evil", hd.WBE_FORMATS: [1]}
    forger._proxy.publish(pr.Notify(topic="forger", tasks=[task]), "victim", headers=headers)
    until(lambda: len(executor.workers()) == 1)
    assert executor.workers()[0].queues == (env.queue_name("default", "forger", [task]),)
    forger.stop()
    executor.stop()


def test_reply_sent_to_all_engines_is_ignored(url: Any, tmp_path: Path) -> None:
    response = pr.Response(pr.SUCCESS, result="forged")
    with forged_reply(url, tmp_path, response, env.ALL_ENGINES) as executor:
        until(lambda: executor.ignored.get("misaddressed") == 1)

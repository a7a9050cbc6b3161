"""Results that a ledger in SQLite refuses."""

from __future__ import annotations

import contextlib
import logging
import signal
import sqlite3
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import sample_tasks, workers
from tests.support.workers import until, worker_in_thread
from wbengine import engines, exceptions
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based._worker_side import task_runner
from wbengine.patterns import linear_flow

#: Writes that the database refuses: results that are too large, or all writes after a claim.
LARGE = "BEFORE UPDATE ON wbe_ledger WHEN length(NEW.result) > 5000"
CLAIMED = "EXISTS (SELECT 1 FROM wbe_ledger WHERE state = 1)"
ALL = (
    "BEFORE UPDATE ON wbe_ledger WHEN NEW.state = 2",
    f"BEFORE UPDATE ON wbe_ledger_holders WHEN {CLAIMED}",
)


def refuse(path: Path, *events: str) -> None:
    with sqlite3.connect(path, timeout=60) as database:
        for number, event in enumerate(events):
            database.execute(
                f"CREATE TRIGGER refusal{number} {event} BEGIN SELECT RAISE(ABORT, 'too much'); END"
            )
    database.close()


def accept(path: Path) -> None:
    with sqlite3.connect(path, timeout=60) as database:
        for number in range(len(ALL)):
            database.execute(f"DROP TRIGGER refusal{number}")
    database.close()


def make_ledger(folder: Path) -> tuple[Path, str]:
    path = folder / "ledger.db"
    ledgers.open_ledger(f"sqlite:///{path}").close()
    return path, f"sqlite:///{path}"


def run(engine: Any) -> None:
    with contextlib.suppress(exceptions.LedgerFailure, exceptions.WorkerLost):
        engine.run()


def load(url: str, ledger: str, value: Any) -> Any:
    flow = linear_flow.Flow("f").add(sample_tasks.Echo(provides="seen"))
    return engines.load(flow, store={"value": value}, engine="worker-based", url=url, ledger=ledger)


def test_result_refused_by_ledger_fails_its_task(
    tmp_path: Path,
    rowless_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The worker logs once that it retries, and its slot is free afterwards."""
    monkeypatch.setattr(task_runner, "STORE_TIMEOUT_SECONDS", 1.0)
    path, ledger = make_ledger(tmp_path)
    refuse(path, LARGE)
    url = rowless_url
    with worker_in_thread(url, sample_tasks, ledger=ledger, concurrency=1):
        with pytest.raises(exceptions.LedgerFailure, match=r"cannot be stored: .*too much"):
            load(url, ledger, "x" * 5000).run()
        load(url, ledger, "x").run()
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len([each for each in told if "retrying" in each]) == 1


def test_result_is_stored_when_unavailable_ledger_returns(
    tmp_path: Path,
    rowless_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The worker retries unless the ledger accepts other writes."""
    monkeypatch.setattr(task_runner, "STORE_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(task_runner, "LEDGER_RETRY_SECONDS", 0.01)
    path, ledger = make_ledger(tmp_path)
    url = rowless_url
    tries: list[Any] = []
    finish = task_runner.TaskRunner._finish_row

    def mend(finisher: Any, message: Any) -> Any:
        tries.append(message)
        if len(tries) == 20:
            accept(path)
        return finish(finisher, message)

    monkeypatch.setattr(task_runner.TaskRunner, "_finish_row", mend)
    with worker_in_thread(url, sample_tasks, ledger=ledger):
        engine = load(url, ledger, 5)
        refuse(path, *ALL)
        engine.run()
    assert (engine.storage.fetch("seen"), len(tries)) == (5, 20)
    assert caplog.text.count("cannot be stored, retrying") == 1


@pytest.mark.parametrize("kind", ["large", "away"])
def test_worker_stops_although_ledger_refuses_its_result(
    tmp_path: Path, rabbitmq_url: str, kind: str
) -> None:
    path, ledger = make_ledger(tmp_path)
    url = str(rabbitmq_url)
    tasks = ("--tasks", sample_tasks.__name__)
    words = ("--url", url, "--topic", "t", "--threads", "1", *tasks, "--ledger", ledger)
    with workers.workers(tmp_path, *words) as (worker,):
        engine = load(url, ledger, "x" * 5000)
        refuse(path, *((LARGE,) if kind == "large" else ALL))
        thread = threading.Thread(target=run, args=(engine,), daemon=True)
        thread.start()
        until(lambda: "retrying" in worker.text)
        worker.process.send_signal(signal.SIGTERM)
        try:
            assert worker.process.wait(20) == 0
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker goes on: {worker.text}")
        if kind == "away":
            accept(path)  # else the engine cannot drop the row
        thread.join(60)
        assert not thread.is_alive()

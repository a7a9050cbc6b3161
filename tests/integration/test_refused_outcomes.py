"""A ledger of its own that does not take what came of a task: real sqlite, which refuses it."""

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
from wbengine.engines.worker_based.worker_side import task_runner
from wbengine.patterns import linear_flow

#: What a database refuses: outcomes that are too large; and all that a worker writes once it has
#: claimed something.
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


def test_outcome_that_the_ledger_refuses_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says why; the worker warned once that it tries again, and its slot is free."""
    monkeypatch.setattr(task_runner, "LEDGER_PATIENCE", 1.0)
    path, ledger = make_ledger(tmp_path)
    refuse(path, LARGE)
    url = f"memory://{tmp_path.name}"
    with worker_in_thread(url, sample_tasks, ledger=ledger, concurrency=1):
        with pytest.raises(exceptions.LedgerFailure, match=r"result cannot be stored: .*too much"):
            load(url, ledger, "x" * 5000).run()
        load(url, ledger, "x").run()
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len([each for each in told if "trying again" in each]) == 1


def test_outcome_waits_for_a_ledger_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long: only one that takes other things refuses for good."""
    monkeypatch.setattr(task_runner, "LEDGER_PATIENCE", 0.0)
    monkeypatch.setattr(task_runner, "LEDGER_PAUSE", 0.01)
    path, ledger = make_ledger(tmp_path)
    url = f"memory://{tmp_path.name}"
    tries: list[Any] = []
    finish = task_runner.TaskRunner._finish_rows

    def mend(runner: Any, messages: Any) -> Any:
        tries.append(messages)
        if len(tries) == 20:
            accept(path)
        return finish(runner, messages)

    monkeypatch.setattr(task_runner.TaskRunner, "_finish_rows", mend)
    with worker_in_thread(url, sample_tasks, ledger=ledger):
        engine = load(url, ledger, 5)
        refuse(path, *ALL)
        engine.run()
    assert (engine.storage.fetch("seen"), len(tries)) == (5, 20)
    assert caplog.text.count("cannot be stored, trying again") == 1


@pytest.mark.parametrize("kind", ["large", "away"])
def test_worker_that_is_told_to_end_does_so(tmp_path: Path, kind: str) -> None:
    """Although the ledger does not take what it has to store."""
    path, ledger = make_ledger(tmp_path)
    url = f"filesystem://{tmp_path}/broker"
    tasks = ("--tasks", sample_tasks.__name__)
    words = ("--url", url, "--topic", "t", "--threads", "1", *tasks, "--ledger", ledger)
    with workers.workers(tmp_path, *words) as (worker,):
        engine = load(url, ledger, "x" * 5000)
        refuse(path, *((LARGE,) if kind == "large" else ALL))
        thread = threading.Thread(target=run, args=(engine,), daemon=True)
        thread.start()
        until(lambda: "trying again" in worker.text)
        worker.process.send_signal(signal.SIGTERM)
        try:
            assert worker.process.wait(20) == 0
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker goes on: {worker.text}")
        if kind == "away":
            accept(path)  # else the engine cannot end it there
        thread.join(60)
        assert not thread.is_alive()

"""Tasks in transactions of a user's database, on workers that are killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from tests.support import mortal_shop, shop, workers
from wbengine import engines, exceptions, task
from wbengine._transactions import registered
from wbengine.patterns import linear_flow

#: Seconds of silence after which a worker is lost: three heartbeats.
EXPIRY = 2.0


@pytest.fixture
def broker(redis_url: str) -> str:
    """Return the URL of a broker that a stopped process cannot block."""
    return redis_url


def run(
    here: shop.Shop,
    broker: str,
    folder: Path,
    point: str,
    *,
    charge: task.Task | None = None,
    frozen: Callable[[list[workers.WorkerProcess], Path], object] | None = None,
    **options: Any,
) -> Any:
    """Run a flow with two workers, of which one is killed at a point.

    :param frozen: the worker is only stopped, and this is called with the workers and the file that
        contains its process id. The worker stops when the file is deleted.
    """
    mark = folder / "mark"
    environment = {
        registered.VARIABLE: json.dumps({shop.NAME: here.url}),
        mortal_shop.POINT: point,
        mortal_shop.MARK: str(mark),
        mortal_shop.SIGNAL: str(int(signal.SIGSTOP if frozen else signal.SIGKILL)),
    }
    arguments = ["--url", broker, "--topic", "t", "--threads", "1"]
    arguments += ["--tasks", "tests.support.mortal_shop"]
    engine = engines.load(
        linear_flow.Flow("f").add(charge or shop.charge()),
        inputs={"order": 7}, engine="worker-based", url=broker, worker_expiry=EXPIRY,
        transition_timeout=300, **options,
    )  # fmt: skip
    name = shop.charge().name
    with (
        workers.workers(folder, *arguments, count=2, environment=environment) as started,
        futures.ThreadPoolExecutor(1) as pool,
    ):
        result = pool.submit(engine.run)
        if frozen is not None:
            workers.until(lambda: mark.exists() and mark.read_text())
            # The engine knows which worker runs the task.
            workers.until(lambda: engine.storage.record(name).worker)
            frozen(started, mark)
        result.result()
    assert mark.with_suffix(".taken").exists()
    return engine.storage


on_two_kinds = pytest.mark.parametrize("here", ["sqlite", "postgresql"], indirect=True)
POINTS = ["step.after-row", "step.after-function", "step.before-commit", "step.after-commit"]


@pytest.mark.parametrize("point", POINTS)
@on_two_kinds
def test_effect_happens_once_when_worker_is_killed(
    here: shop.Shop, broker: str, tmp_path: Path, point: str
) -> None:
    storage = run(here, broker, tmp_path, point)
    assert storage.fetch("receipt") == ("paid", 7)
    assert here.effects() == [7]
    assert here.rows() == [1]


@on_two_kinds
def test_retry_after_lost_worker_undoes_committed_effect_first(
    here: shop.Shop, broker: str, tmp_path: Path
) -> None:
    charge = shop.charge()
    charge.idempotent, charge.retries = False, 1
    storage = run(here, broker, tmp_path, "step.after-commit", charge=charge)
    assert storage.fetch("receipt") == ("paid", 7)
    assert here.effects() == [-7, 7]
    assert here.rows() == [3]


@pytest.mark.parametrize("point", ["step.before-row", "step.after-row", "step.before-commit"])
@on_two_kinds
def test_effect_happens_once_when_worker_is_frozen(
    here: shop.Shop, broker: str, tmp_path: Path, point: str
) -> None:
    """The other worker gets a copy of the request, and waits for the row of the first one."""

    def resume(started: list[workers.WorkerProcess], mark: Path) -> None:
        pid = int(mark.read_text())
        mark.unlink()
        (other,) = (each for each in started if each.process.pid != pid)
        try:
            if point == "step.before-row":
                workers.until(lambda: here.effects() == [7])
            else:
                workers.until(lambda: "waits for another transaction" in other.text)
        finally:
            mark.with_suffix(".resumed").touch()
            os.kill(pid, signal.SIGCONT)

    storage = run(here, broker, tmp_path, point, frozen=resume)
    assert storage.fetch("receipt") == ("paid", 7)
    assert here.effects() == [7]
    assert here.rows() == [1]


@pytest.mark.parametrize(
    ("point", "effects"), [("step.after-commit", [-7]), ("step.before-commit", [])]
)
@on_two_kinds
def test_lost_effect_is_undone_only_if_it_was_committed(
    here: shop.Shop, broker: str, tmp_path: Path, point: str, effects: list[int]
) -> None:
    with pytest.raises(exceptions.WorkerLost):
        run(here, broker, tmp_path, point, max_resends=0)
    assert here.effects() == effects


def test_worker_without_the_database_does_not_start(tmp_path: Path) -> None:
    arguments = ["--url", f"filesystem://{tmp_path}", "--topic", "t"]
    arguments += ["--tasks", "tests.support.shop:charge"]
    with workers.workers(tmp_path, *arguments) as (worker,):
        assert worker.wait(60) != 0
        assert "Database 'shop' of task 'tests.support.shop.charge' is not re" in worker.text

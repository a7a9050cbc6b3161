"""`python -m wbengine.worker`, as people use it: two shells, signals, wrong usage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import sample_tasks, workers
from tests.workers import until
from wbengine import engines, exceptions
from wbengine import worker as command
from wbengine.patterns import linear_flow

TASKS = "tests.sample_tasks"

ENGINE = """
import sys
from tests import sample_tasks
from wbengine import engines, exceptions
from wbengine import worker as command
from wbengine.patterns import linear_flow
flow = linear_flow.Flow("shells").add(sample_tasks.Add(), sample_tasks.Double())
print(engines.run(flow, store={"x": 1, "y": 2}, engine="worker-based")["double"])
"""

FORBIDDEN = """
import sys, runpy, atexit
def look():
    bad = [m for m in sys.modules if m == "networkx" or m.startswith(
        ("wbengine._core", "wbengine.storage", "wbengine.arguments", "wbengine.persistence"))]
    print("LOADED", bad, file=sys.stderr)
atexit.register(look)
sys.argv = ["wbengine.worker", "--topic", "t", "--tasks", "tests.sample_tasks", "--burst"]
runpy.run_module("wbengine.worker", run_name="__main__")
"""


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """An environment in which the default folder is a fresh one."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    return {
        "XDG_RUNTIME_DIR": str(folder),
        "WBENGINE_URL": "",
        "PYTHONPATH": str(workers.REPOSITORY),
    }


def engine(runtime: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", ENGINE],
        env={**os.environ, **runtime},
        cwd=workers.REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("first", ["worker", "engine"])
def test_worker_and_engine_find_each_other_in_either_order(
    tmp_path: Path, runtime: dict[str, str], first: str
) -> None:
    arguments = ("--topic", "t", "--tasks", TASKS)
    early = engine(runtime) if first == "engine" else None
    if early is not None:
        root = Path(runtime["XDG_RUNTIME_DIR"]) / "wbengine"
        until(lambda: any(root.glob("exchanges/default/*wbe.engines*")))
    with workers.workers(tmp_path, *arguments, environment=runtime) as (worker,):
        if early is None:
            until(lambda: "wbengine" in worker.text)
        running = early or engine(runtime)
        out, err = running.communicate(timeout=30)
        assert (running.returncode, out.strip(), err) == (0, "6", "")
        assert worker.stop() == 0
        assert "ERROR" not in worker.text and "Traceback" not in worker.text


def test_a_worker_loads_no_core_and_no_storage(runtime: dict[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORBIDDEN],
        env={**os.environ, **runtime},
        cwd=workers.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "LOADED []" in ended.stderr


def test_first_signal_finishes_what_runs(tmp_path: Path) -> None:
    url = f"filesystem://{tmp_path / 'broker'}"
    started, release = tmp_path / "started", tmp_path / "release"
    flow = linear_flow.Flow("f").add(sample_tasks.WaitFor())
    store = {"started": str(started), "release": str(release)}
    loaded = engines.load(flow, store=store, engine="worker-based", url=url)
    arguments = ("--topic", "t", "--tasks", TASKS, "--url", url)
    with workers.workers(tmp_path, *arguments) as (worker,):
        states = loaded.run_iter()
        for state in states:
            if state == "WAITING":
                break
        until(started.exists)
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGTERM)  # as from a supervisor that also signals the group
        until(lambda: "finishing" in worker.text)
        release.touch()
        for _ in states:
            pass
        assert loaded.storage.fetch("waited") == "released"
        assert worker.wait() == 0


def test_second_signal_gives_up_what_runs(tmp_path: Path) -> None:
    url = f"filesystem://{tmp_path / 'broker'}"
    started = tmp_path / "started"
    flow = linear_flow.Flow("f").add(sample_tasks.WaitFor())
    store = {"started": str(started), "release": str(tmp_path / "never")}
    loaded = engines.load(flow, store=store, engine="worker-based", url=url)
    arguments = ("--topic", "t", "--tasks", TASKS, "--url", url)
    with workers.workers(tmp_path, *arguments) as (worker,):
        states = loaded.run_iter()
        for state in states:
            if state == "WAITING":
                break
        until(started.exists)
        worker.signal(signal.SIGINT)
        until(lambda: "finishing" in worker.text)
        time.sleep(2 * command.SAME_SIGNAL)
        worker.signal(signal.SIGINT)
        assert worker.wait() == 1
        with pytest.raises(Exception, match="was lost while it ran task"):
            for _ in states:
                pass
        assert loaded.storage.get_flow_state() == "REVERTED"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "--topic"),
        (("--topic", "t"), 2, "--tasks"),
        (("--topic", "t", "--tasks", "no_such_module"), 2, "no_such_module"),
        (("--topic", "t", "--tasks", "tests.sample_tasks:Ad"), 2, "did you mean 'Add'"),
        (("--topic", "t", "--tasks", "json"), 2, "module 'json' holds no tasks"),
        (("--topic", "a/b", "--tasks", TASKS), 2, "topic 'a/b'"),
        (("--topic", "..", "--tasks", TASKS), 2, "topic '..'"),
        (("--topic", "t", "--exchange", "../x", "--tasks", TASKS), 2, "exchange '../x'"),
        (("--topic", "t", "--exchange", "", "--tasks", TASKS), 2, "exchange ''"),
        (("--topic", "t", "--tasks", TASKS, "--threads", "0"), 2, "'0' is not a whole number"),
        (("--topic", "t", "--tasks", TASKS, "--threads", "x"), 2, "'x' is not a whole number"),
        (("--topic", "t", "--tasks", TASKS, "--threads", "1", "--processes", "1"), 2, "not all"),
        (("--topic", "t", "--tasks", TASKS, "--transport-option", "k"), 2, "KEY=VALUE"),
        (("--topic", "t", "--tasks", TASKS, "--max-idle-time", "1"), 2, "goes with --burst"),
        (("--topic", "t", "--tasks", TASKS, "--url", "amqp://127.0.0.1:1//"), 69, "not be reached"),
        (("--topic", "t", "--tasks", TASKS, "--url", "filesystem:///proc/nowhere"), 69, "/proc"),
        (("--topic", "t", "--tasks", TASKS, "--url", "nonsense://x"), 2, "nonsense"),
        (("--topic", "t", "--tasks", TASKS, "--url", "reddis://x"), 2, "did you mean 'redis'?"),
        (("--topic", "t", "--tasks", TASKS, "--threads", "\N{SUPERSCRIPT TWO}"), 2, "whole number"),
    ],
)
def test_wrong_usage_is_one_clear_line(
    runtime: dict[str, str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    ended = subprocess.run(
        workers.command(*arguments),
        env={**os.environ, **runtime},
        cwd=workers.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = ended.stderr.splitlines()
    assert ended.returncode == code, ended.stderr
    assert "error:" in lines[-1] and words in lines[-1], ended.stderr
    assert len(lines) == 1 or code == 69, ended.stderr  # there the banner came before
    assert "error:" not in "".join(lines[:-1]) and "Traceback" not in ended.stderr


def test_processes_run_tasks_and_burst_ends(tmp_path: Path) -> None:
    url = f"filesystem://{tmp_path / 'broker'}"
    flow = linear_flow.Flow("f").add(
        sample_tasks.Add(), sample_tasks.Double(), sample_tasks.Progressing()
    )
    arguments = ("--topic", "t", "--tasks", TASKS, "--url", url, "--processes", "2",
                 "--burst", "--max-idle-time", "3")  # fmt: skip
    with workers.workers(tmp_path, *arguments) as (worker,):
        results = engines.run(flow, store={"x": 2, "y": 3}, engine="workers", url=url)
        assert results["double"] == 10
        assert worker.wait() == 0
        assert "Traceback" not in worker.text


def test_a_killed_worker_is_noticed_and_what_it_had_not_started_goes_elsewhere(
    tmp_path: Path,
) -> None:
    url = f"filesystem://{tmp_path / 'broker'}"
    started = tmp_path / "started"
    flow = linear_flow.Flow("f").add(sample_tasks.WaitFor(name="w"))
    store = {"started": str(started), "release": str(tmp_path / "never")}
    one = engines.load(flow, store=store, engine="worker-based", url=url, worker_expiry=2)
    other = engines.load(
        linear_flow.Flow("g").add(sample_tasks.Nothing(name="n")), engine="workers", url=url,
        worker_expiry=2,
    )  # fmt: skip
    arguments = ("--topic", "t", "--tasks", TASKS, "--url", url, "--threads", "1")
    with workers.workers(tmp_path, *arguments) as (first,):
        states = one.run_iter()
        for state in states:
            if state == "WAITING":
                break
        until(started.exists)
        queued = other.run_iter()  # its request waits behind the one that runs
        for state in queued:
            if state == "WAITING":
                break
        until(lambda: {w.period for w in one.executor.finder.workers()} == {0.5})
        first.process.kill()
        with workers.workers(tmp_path, *arguments) as (second,):
            for _ in queued:
                pass
            with pytest.raises(exceptions.WorkerLost, match="was lost while it ran task 'w'"):
                for _ in states:
                    pass
            assert other.storage.get_attempt("n").worker.split("-")[-2] == str(second.process.pid)
            assert second.stop() == 0


def test_a_child_process_that_dies_fails_its_task_and_is_replaced(tmp_path: Path) -> None:
    url = f"filesystem://{tmp_path / 'broker'}"
    arguments = ("--topic", "t", "--tasks", TASKS, "--url", url, "--processes", "1")
    with workers.workers(tmp_path, *arguments) as (worker,):
        flow = linear_flow.Flow("f").add(sample_tasks.Die())
        with pytest.raises(exceptions.WrappedFailure, match="exit code 9"):
            engines.run(flow, engine="workers", url=url)
        flow = linear_flow.Flow("f").add(sample_tasks.Add())
        assert engines.run(flow, store={"x": 1, "y": 1}, engine="workers", url=url)["sum"] == 2
        assert worker.stop() == 0

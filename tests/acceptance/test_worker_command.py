"""The command `python -m wbengine.worker`: start, signals and wrong usage."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from tests.support import python, sample_tasks, worker_tasks, workers
from tests.support.workers import until
from wbengine import engines, exceptions
from wbengine import worker as command
from wbengine._cli import app, context, worker_command
from wbengine.patterns import linear_flow

TASKS = "tests.support.sample_tasks"

ENGINE = """
from tests.support import sample_tasks
from wbengine import engines
from wbengine.patterns import linear_flow
flow = linear_flow.Flow("shells").add(sample_tasks.Add(), sample_tasks.Double())
print(engines.run(flow, store={"x": 1, "y": 2}, engine="worker-based")["double"])
"""

FORBIDDEN = """
import sys, runpy, atexit
def look():
    bad = [m for m in sys.modules if m == "networkx" or m.startswith(
        ("wbengine._runtime", "wbengine.storage", "wbengine._tasks.arguments",
         "wbengine.persistence"))]
    print("LOADED", bad, file=sys.stderr)
atexit.register(look)
sys.argv = ["wbengine.worker", "--topic", "t", "--tasks", "tests.support.sample_tasks", "--burst"]
runpy.run_module("wbengine.worker", run_name="__main__")
"""


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the default folder is new."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    return {
        "XDG_RUNTIME_DIR": str(folder),
        "WBENGINE_URL": "",
        "PYTHONPATH": str(workers.REPOSITORY),
    }


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a new broker."""
    return f"filesystem://{tmp_path / 'broker'}"


def serving(url: str, *more: str) -> tuple[str, ...]:
    """Return the arguments of a worker that offers the sample tasks at `url`."""
    return ("--topic", "t", "--tasks", TASKS, "--url", url, *more)


def ended(
    arguments: list[str], runtime: dict[str, str], real: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return python.run(
        arguments,
        real=real,
        env={**os.environ, **runtime},
        cwd=workers.REPOSITORY,
        capture_output=True,
        text=True,
    )


def called(arguments: Sequence[str]) -> int:
    """Run the command in this process and return its exit code."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return command.main(arguments)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Waiting:
    """An engine whose only task, `w`, creates the file `started` and waits for `release`."""

    def __init__(self, folder: Path, url: str, **options: Any) -> None:
        self.started, self.release = folder / "started", folder / "release"
        self.engine = engines.load(
            linear_flow.Flow("f").add(sample_tasks.WaitFor(name="w")),
            store={"started": str(self.started), "release": str(self.release)},
            engine="worker-based",
            url=url,
            **options,
        )

    def begin(self) -> Iterator[str]:
        """Run until the task has started; return the iterator of further states."""
        states = sent(self.engine)
        until(self.started.exists)
        return states


def sent(loaded: Any) -> Iterator[str]:
    """Run an engine until its requests are published; return the iterator of further states."""
    states: Iterator[str] = loaded.run_iter()
    for state in states:
        if state == "WAITING":
            break
    return states


def engine(runtime: dict[str, str]) -> subprocess.Popen[str]:
    return python.start(
        ["-W", "error", "-c", ENGINE],
        env={**os.environ, **runtime},
        cwd=workers.REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def listens(file: Path) -> bool:
    """Return True if an engine listens at a folder broker, according to its database."""
    if not file.exists():
        return False
    with contextlib.closing(sqlite3.connect(file)) as queues:
        try:
            binding = queues.execute("SELECT 1 FROM binding WHERE key = 'wbe.engines'").fetchone()
        except sqlite3.OperationalError:  # the tables do not exist yet
            return False
    return binding is not None


@pytest.mark.parametrize("first", ["worker", "engine"])
def test_worker_and_engine_find_each_other_in_either_order(
    tmp_path: Path, runtime: dict[str, str], first: str
) -> None:
    arguments = ("--topic", "t", "--tasks", TASKS)
    early = engine(runtime) if first == "engine" else None
    if early is not None:
        root = Path(runtime["XDG_RUNTIME_DIR"]) / "wbengine"
        until(lambda: listens(root / "wbengine.db"))
    with workers.workers(tmp_path, *arguments, environment=runtime) as (worker,):
        if early is None:
            until(lambda: "wbengine" in worker.text)
        running = early or engine(runtime)
        out, err = running.communicate(timeout=60)
        assert (running.returncode, out.strip(), err) == (0, "6", "")
        assert worker.stop() == 0
        assert "ERROR" not in worker.text and "Traceback" not in worker.text


def test_worker_imports_no_core_and_no_storage(runtime: dict[str, str]) -> None:
    process = ended(["-c", FORBIDDEN], runtime, real=True)
    assert process.returncode == 0, process.stderr
    assert "LOADED []" in process.stderr


def test_first_signal_finishes_running_task(tmp_path: Path, url: str) -> None:
    waiting = Waiting(tmp_path, url)
    with workers.workers(tmp_path, *serving(url)) as (worker,):
        states = waiting.begin()
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGTERM)  # like a supervisor that also signals the process group
        until(lambda: "finishing" in worker.text)
        waiting.release.touch()
        assert list(states)[-1] == "SUCCESS"
        assert waiting.engine.storage.fetch("waited") == "released"
        assert worker.wait() == 0


def test_second_signal_abandons_running_task(tmp_path: Path, url: str) -> None:
    waiting = Waiting(tmp_path, url)
    with workers.workers(tmp_path, *serving(url)) as (worker,):
        states = waiting.begin()
        worker.signal(signal.SIGINT)
        until(lambda: "finishing" in worker.text)
        time.sleep(0.3)  # signals in quick succession count as one
        worker.signal(signal.SIGINT)
        assert worker.wait() == 1
        with pytest.raises(exceptions.WorkerLost, match="was lost while it ran task"):
            list(states)
        assert waiting.engine.storage.get_flow_state() == "REVERTED"
        assert "abandoning 1 running tasks: stopped a second time" in worker.text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "--topic"),
        (("--topic", "t"), 2, "--tasks"),
        (("--topic", "t", "--tasks", "no_such_module"), 2, "no_such_module"),
        (
            ("--topic", "t", "--tasks", "tests.support.quitting"),
            2,
            "cannot import the tasks: the code ends the process (SystemExit: 5)",
        ),
        (("--topic", "t", "--tasks", "tests.support.sample_tasks:Ad"), 2, "did you mean 'Add'"),
        (("--topic", "t", "--tasks", "json"), 2, "module 'json' contains no task classes"),
        (("--topic", "a/b", "--tasks", TASKS), 2, "topic must be 1 to 120 characters"),
        (("--topic", "..", "--tasks", TASKS), 2, "got '..'"),
        (("--topic", "t", "--exchange", "../x", "--tasks", TASKS), 2, "got '../x'"),
        (("--topic", "t", "--exchange", "", "--tasks", TASKS), 2, "--exchange must be 1 to 120"),
        (("--topic", "t", "--tasks", TASKS, "--threads", "0"), 2, "0 is not in the range"),
        (("--topic", "t", "--tasks", TASKS, "--threads", "x"), 2, "'x' is not a valid integer"),
        (
            ("--topic", "t", "--tasks", TASKS, "--threads", "1", "--processes", "1"),
            2,
            "at most one of --threads and --processes",
        ),
        (("--topic", "t", "--tasks", TASKS, "--transport-option", "k"), 2, "KEY=VALUE"),
        (("--topic", "t", "--tasks", TASKS, "--url", "amqp://127.0.0.1:1//"), 69, "not be reached"),
        (("--topic", "t", "--tasks", TASKS, "--url", "filesystem:///proc/nowhere"), 69, "/proc"),
        (("--topic", "t", "--tasks", TASKS, "--url", "nonsense://x"), 2, "nonsense"),
        (("--topic", "t", "--tasks", TASKS, "--url", "sqlalchemy+no://"), 69, "cannot be used"),
        (("--topic", "t", "--tasks", TASKS, "--url", "reddis://x"), 2, "did you mean 'redis'?"),
        (("--topic", "t", "--tasks", TASKS, "--threads", "\N{SUPERSCRIPT TWO}"), 2, "integer"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(
    runtime: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    for name, value in runtime.items():
        monkeypatch.setenv(name, value)
    assert called(arguments) == code
    _said_in_one_line(capsys.readouterr().err, code, words)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "--topic"),
        (("--topic", "t", "--tasks", TASKS, "--url", "filesystem:///proc/nowhere"), 69, "/proc"),
    ],
)
def test_wrong_usage_sets_exit_code_of_process(
    runtime: dict[str, str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    process = ended(workers.command(*arguments), runtime)
    assert process.returncode == code, process.stderr
    _said_in_one_line(process.stderr, code, words)


def _said_in_one_line(said: str, code: int, words: str) -> None:
    lines = said.splitlines()
    assert "error:" in lines[-1] and words in lines[-1], said
    assert len(lines) == 1 or code == 69, said  # with this code the banner is printed first
    assert "error:" not in "".join(lines[:-1]) and "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-idle-time", "0"), "--max-idle-time must be a duration above 0, got '0'"),
        (("--max-tasks", "0"), "0 is not in the range"),
        (
            ("--drain-timeout", "-1"),
            "--drain-timeout must be a duration such as 30, 1.5h or 30d, got '-1'",
        ),
        (
            ("--result-ttl", "soon"),
            "must be a duration such as 30, 1.5h or 30d, or 'never', got 'soon'",
        ),
        (("--url", "amqp://h//?heartbeat=often"), "heartbeat must be 0 (none) to"),
        (("--url", "amqps://h//?ssl_ca_certs=/no.pem"), "ssl_ca_certs must be an existing file"),
        (("--url", "rediss://h?ssl_certfile=/no.pem"), "ssl_certfile must be an existing file"),
        (("--pool", "fibres"), "must be one of threads, processes, solo, got 'fibres'"),
        (("--pool", "solo", "--concurrency", "2"), "solo"),
        (("--pool", "processes", "--threads", "2"), "threads"),
        (
            ("--threads", "2", "--concurrency", "2"),
            "at most one of --threads and --concurrency can be used",
        ),
        (("--max-tasks-per-child", "2"), "processes"),
        (("--pool", "processes", "--max-memory-per-child", "1K"), "at least 16M"),
        (
            ("--pool", "processes", "--max-memory-per-child", "much"),
            "must be an amount of memory of at least 16M (such as 200M, 2G, or bytes), got 'much'",
        ),
        (("--exception-handler", "tests.support.worker_tasks:frist"), "did you mean 'first'"),
        (("--exception-handler", "no_such_module:f"), "no_such_module"),
        (("--color", "blue"), "must be one of auto, always, never, got 'blue'"),
    ],
)
def test_invalid_option_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], url: str, arguments: tuple[str, ...], words: str
) -> None:
    assert command.main(serving(url, *arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "error:" in line and words in line


def test_worker_runs_if_banner_cannot_be_written(url: str) -> None:
    with open("/dev/full", "w") as full:
        arguments = serving(url, "--burst", "--max-idle-time", "0.1")
        ended = python.run(
            workers.command(*arguments), real=True, cwd=workers.REPOSITORY, stderr=full
        )
    assert ended.returncode == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("16M", 16 << 20), ("200mb", 200 << 20), ("2 GiB", 2 << 30), ("20000000", 20_000_000)],
)
def test_memory_size_with_unit_is_parsed(text: str, size: int) -> None:
    words = ["--max-memory-per-child", text]
    with (
        click.Context(app.root, obj=context.Context(app.COMMANDS)) as above,
        worker_command.command.make_context("worker", words, parent=above) as worker_context,
    ):
        assert worker_context.params["max_memory_per_child"] == size


def memory_of(pid: int) -> float:
    """Return the resident memory of a process in megabytes."""
    (line,) = (
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line
    )
    return int(line.split()[1]) / 1024


def test_solo_worker_calls_handlers_and_exits_after_max_tasks(tmp_path: Path, url: str) -> None:
    """The idle worker is small.  Then it runs one task in its main thread and exits."""
    calls = tmp_path / "calls"
    arguments = (
        "--topic", "t", "--tasks", "tests.support.worker_tasks", "--url", url, "--pool", "solo",
        "--max-tasks", "1", "--log-level", "debug", "--quiet",
        "--exception-handler", "tests.support.worker_tasks:first", "--color", "always",
    )  # fmt: skip
    environment = {worker_tasks.CALLS: str(calls)}
    # A real program, because others have imported more.
    serving = workers.workers(tmp_path, *arguments, environment=environment, real=True)
    with serving as (worker,):
        loaded: Any = engines.load(
            linear_flow.Flow("f").add(worker_tasks.Bad(name="b")), engine="workers", url=url
        )
        assert loaded.executor.wait_for_workers(1, 60) == 0
        assert memory_of(worker.process.pid) < 60
        with pytest.raises(ValueError, match="bad as ever"):
            loaded.run()
        assert worker.wait() == 0
        assert calls.read_text() == (
            f"first b {worker.process.pid} ValueError bad as ever bad as ever\n"
        )
        assert "\x1b[33m" in worker.text
        assert "RuntimeError: a handler that fails" in worker.text
        assert "task 'b' of request" in worker.text and "ValueError: bad as ever" in worker.text
        assert "wbengine 0" not in worker.text


def test_abandoned_processes_leave_no_temporary_files(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, url: str
) -> None:
    temporary = tmp_path_factory.mktemp("t")  # a short path, because paths of sockets are limited
    waiting = Waiting(tmp_path, url)
    arguments = serving(url, "--processes", "1", "--drain-timeout", "0.1")
    environment = {"TMPDIR": str(temporary)}
    with workers.workers(tmp_path, *arguments, environment=environment) as (worker,):
        states = waiting.begin()
        assert list(temporary.iterdir())
        worker.signal(signal.SIGTERM)
        with pytest.raises(exceptions.WorkerLost):
            list(states)
        assert worker.wait() == 1
    assert list(temporary.iterdir()) == []


def test_worker_exits_without_waiting_for_blocked_main_thread(tmp_path: Path, url: str) -> None:
    arguments = (
        "--topic", "t", "--tasks", "tests.support.worker_tasks", "--url", url, "--pool", "solo",
    )  # fmt: skip
    with workers.workers(tmp_path, *arguments) as (worker,):
        flow = linear_flow.Flow("f").add(worker_tasks.Deaf(name="d"))
        with pytest.raises(exceptions.TimeLimitExceeded):
            engines.run(flow, store={"started": str(tmp_path / "s")}, engine="workers", url=url)
        worker.signal(signal.SIGTERM)
        assert worker.wait(25) == 0  # the task in the main thread runs for half a minute


def test_task_running_after_drain_timeout_is_abandoned(tmp_path: Path, url: str) -> None:
    waiting = Waiting(tmp_path, url)
    arguments = serving(url, "--pool", "solo", "--drain-timeout", "0.2")
    with workers.workers(tmp_path, *arguments) as (worker,):
        states = waiting.begin()
        worker.signal(signal.SIGTERM)
        with pytest.raises(exceptions.WorkerLost, match="was lost while it ran task"):
            list(states)
        assert worker.wait() == 1
        assert "abandoning 1 tasks" in worker.text


def test_burst_worker_with_processes_runs_tasks_and_exits(tmp_path: Path, url: str) -> None:
    flow = linear_flow.Flow("f").add(
        sample_tasks.Add(), sample_tasks.Double(), sample_tasks.Progressing()
    )
    arguments = serving(url, "--processes", "2", "--burst", "--max-idle-time", "3")
    with workers.workers(tmp_path, *arguments) as (worker,):
        results = engines.run(flow, store={"x": 2, "y": 3}, engine="workers", url=url)
        assert results["double"] == 10
        assert worker.wait() == 0
        assert "Traceback" not in worker.text


def test_unstarted_request_of_killed_worker_runs_on_another_worker(
    tmp_path: Path, url: str
) -> None:
    one = Waiting(tmp_path, url, worker_expiry=4)
    other = engines.load(
        linear_flow.Flow("g").add(sample_tasks.Nothing(name="n")), engine="workers", url=url,
        worker_expiry=4,
    )  # fmt: skip
    arguments = serving(url, "--threads", "1")
    with workers.workers(tmp_path, *arguments) as (first,):
        states = one.begin()
        queued = sent(other)  # this request waits behind the running one
        until(lambda: {w.period for w in one.engine.executor.finder.workers()} == {1.0})
        first.process.kill()
        with workers.workers(tmp_path, *arguments) as (second,):
            assert list(queued)[-1] == "SUCCESS"
            with pytest.raises(exceptions.WorkerLost, match="was lost while it ran task 'w'"):
                list(states)
            assert other.storage.get_attempt("n").worker.split("-")[-2] == str(second.process.pid)
            assert second.stop() == 0


def test_dead_child_process_fails_its_task_and_is_replaced(tmp_path: Path, url: str) -> None:
    with workers.workers(tmp_path, *serving(url, "--processes", "1")) as (worker,):
        flow = linear_flow.Flow("f").add(sample_tasks.Die())
        with pytest.raises(exceptions.WrappedFailure, match="exit code 9"):
            engines.run(flow, engine="workers", url=url)
        flow = linear_flow.Flow("f").add(sample_tasks.Add())
        assert engines.run(flow, store={"x": 1, "y": 1}, engine="workers", url=url)["sum"] == 2
        assert worker.stop() == 0


def test_invalid_metrics_exporter_is_reported(url: str, runtime: dict[str, str]) -> None:
    arguments = ["-m", "wbengine.worker", *serving(url, "--burst")]
    process = ended(arguments, {**runtime, "OTEL_METRICS_EXPORTER": "nonsense"})
    assert process.returncode == 2
    assert "must name an installed exporter, got 'nonsense'" in process.stderr


def test_worker_name_starts_with_given_name(url: str, runtime: dict[str, str]) -> None:
    words = serving(url, "--burst", "-n", "shop-7", "-P", "threads", "-c", "3")
    process = ended(["-m", "wbengine.worker", *words], runtime)
    assert process.returncode == 0
    assert re.search(r"shop-7-[0-9]+-[0-9a-f]{8}", process.stderr)
    assert re.search(r"slots +3 ", process.stderr)
    process = ended(["-m", "wbengine.worker", *serving(url, "-n", "a b")], runtime)
    assert process.returncode == 2
    assert "name must be 1 to 60 characters of A-Z a-z 0-9 -, got 'a b'" in process.stderr

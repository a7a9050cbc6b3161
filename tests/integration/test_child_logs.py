"""Log records of child processes reach the handlers of their parent."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import python
from tests.support.workers import REPOSITORY, until, worker_in_thread
from wbengine import engines, exceptions, pools, task
from wbengine.patterns import linear_flow

LOG = logging.getLogger("tests.child_logs.task")


class LogCollector(logging.Handler):
    """Handler that collects records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def messages(self) -> list[tuple[str, str, str]]:
        return [(record.name, record.levelname, record.getMessage()) for record in self.records]


@pytest.fixture
def collected() -> Iterator[LogCollector]:
    """Handler of the root logger."""
    handler = LogCollector()
    logging.root.addHandler(handler)
    before = LOG.level
    yield handler
    LOG.setLevel(before)
    logging.root.removeHandler(handler)


def run(fn: Any, *args: Any, pool: pools.ProcessPool | None = None) -> Any:
    """Return the result of `fn(*args)` in a child process."""
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    if pool is not None:
        pool.submit(fn, args, ended.put)
        return ended.get(timeout=60)
    with pools.ProcessPool(1) as made:
        return run(fn, *args, pool=made)


# Functions that run in child processes.


class Logs(task.Task):
    default_provides = "pid"

    def execute(self) -> int:
        LOG.warning("%s of %d", "one", 2)
        LOG.info("also")
        logging.getLogger("tests.child_logs.other").error("from %(where)s", {"where": "elsewhere"})
        logging.debug("nobody asked for this")
        return os.getpid()


class Odd:
    """Object that cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __str__(self) -> str:
        return "an odd one"

    __repr__ = __str__


class Unspeakable(Odd):
    def __repr__(self) -> str:
        raise RuntimeError("no")


class OddError(Exception):
    def __init__(self, lock: Any) -> None:
        super().__init__(lock)


def log_oddly(emit: Any) -> str:
    LOG.warning("given: %s", Odd())
    LOG.warning(Odd())  # type: ignore[arg-type]
    try:
        raise OddError(Odd())
    except OddError:
        LOG.exception("failed", stack_info=True)
    more = {"plain": {"a": [1]}, "odd": Odd(), "mute": Unspeakable(), "far": Far()}
    LOG.warning("more", extra=more)
    LOG.warning("%d", "no number")
    LOG.warning("last")
    return "done"


class Far:
    """Object that can be pickled and cannot be unpickled."""

    def __reduce__(self) -> Any:
        return refuse, ()

    def __repr__(self) -> str:
        return "far away"


def refuse() -> None:
    raise RuntimeError("not here")


def log_many(count: int, emit: Any) -> None:
    for number in range(count):
        LOG.warning("%d %s", number, "x" * 200)


def log_from_threads(count: int, emit: Any) -> None:
    threads = [threading.Thread(target=log_many, args=(count, emit)) for _ in range(4)]
    for each in threads:
        each.start()
    log_many(count, emit)
    for each in threads:
        each.join()


def leave_a_thread(folder: str, emit: Any) -> int:
    """Start a thread that logs when the file `go` exists, then creates `logged`."""

    def late() -> None:
        until((Path(folder) / "go").exists)
        LOG.warning("from behind")
        (Path(folder) / "logged").touch()

    threading.Thread(target=late, daemon=True).start()
    return os.getpid()


def nothing(emit: Any) -> int:
    return os.getpid()


def log_and_die(emit: Any) -> None:
    LOG.warning("before")
    os.kill(os.getpid(), signal.SIGKILL)


def log_in_a_fork(emit: Any) -> str:
    for _ in range(20):
        pid = os.fork()
        if not pid:
            LOG.warning("x" * 100_000)
            os._exit(0)
        LOG.warning("here")
        os.waitpid(pid, 0)
    return "done"


def log_while_logging(emit: Any) -> str:
    """Log in a signal handler while the main thread logs."""
    handled = 0

    def handle(*_: Any) -> None:
        nonlocal handled
        handled += 1
        LOG.warning("in between %s", "y" * 5000)

    before = signal.signal(signal.SIGUSR2, handle)
    done = threading.Event()

    def disturb() -> None:
        while not done.wait(0.0005):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    helper = threading.Thread(target=disturb)
    helper.start()
    for number in range(300):
        LOG.warning("%d %s", number, "x" * 50_000)
    done.set()
    helper.join()
    signal.signal(signal.SIGUSR2, before)
    return f"{handled}"


# Tests in the parent.


def test_pool_child_log_records_reach_parent_before_success(collected: LogCollector) -> None:
    """Records contain name, level and message, and arrive before SUCCESS is notified."""
    LOG.setLevel(logging.INFO)
    engine = engines.load(
        linear_flow.Flow("f").add(Logs("l")), engine="parallel", executor="processes"
    )

    def note(state: str, details: dict[str, Any]) -> None:
        collected.records.append(logging.makeLogRecord({"name": state, "levelname": "", "msg": ""}))

    engine.atom_notifier.register("SUCCESS", note)
    engine.run()
    told = [line for line in collected.messages if not line[0].startswith("wbengine")]
    assert told == [
        (LOG.name, "WARNING", "one of 2"),
        (LOG.name, "INFO", "also"),
        ("tests.child_logs.other", "ERROR", "from elsewhere"),
        ("SUCCESS", "", ""),
    ]
    record = collected.records[0]
    assert record.process == engine.storage.fetch("pid") != os.getpid()
    assert record.funcName == "execute"
    assert record.pathname == __file__


def test_worker_child_log_records_reach_handlers_of_the_worker(
    collected: LogCollector, tmp_path: Path
) -> None:
    url = f"memory://{tmp_path.name}"
    with worker_in_thread(url, Logs, processes_count=1):
        pid = engines.run(Logs("l"), engine="worker-based", url=url)["pid"]
    told = [
        (name, text) for name, _, text in collected.messages if name.startswith("tests.child_logs")
    ]
    assert told == [(LOG.name, "one of 2"), ("tests.child_logs.other", "from elsewhere")]
    assert pid != os.getpid()


def test_logger_levels_of_parent_apply_in_children(collected: LogCollector) -> None:
    """Handlers of a child logger receive each record once."""
    own = LogCollector()
    LOG.setLevel(logging.ERROR)
    other = logging.getLogger("tests.child_logs.other")
    other.addHandler(own)
    other.propagate = False
    try:
        run(call_task)
    finally:
        other.propagate = True
        other.removeHandler(own)
    assert collected.messages == []
    assert own.messages == [("tests.child_logs.other", "ERROR", "from elsewhere")]


def call_task(emit: Any) -> None:
    Logs("l").execute()


def test_disabled_logging_is_disabled_in_children(collected: LogCollector) -> None:
    logging.disable(logging.WARNING)
    try:
        run(call_task)
        assert collected.messages == [("tests.child_logs.other", "ERROR", "from elsewhere")]
    finally:
        logging.disable(logging.NOTSET)


def test_unpicklable_log_arguments_are_sent_as_text(collected: LogCollector) -> None:
    assert run(log_oddly) == "done"
    texts = [text for _, _, text in collected.messages]
    assert texts == ["given: an odd one", "an odd one", "failed", "more", "last"]
    failed, more = collected.records[2], collected.records[3]
    assert failed.exc_text.splitlines()[0].startswith("Traceback")
    assert failed.exc_text.splitlines()[-1].endswith("OddError: an odd one")
    assert "log_oddly" in failed.stack_info
    assert logging.Formatter().format(failed).startswith("failed\nTraceback")
    assert (more.plain, more.odd, more.far) == ({"a": [1]}, "an odd one", "far away")
    assert more.mute == "<Unspeakable>"


def test_3000_log_records_arrive_in_order(collected: LogCollector) -> None:
    assert run(log_many, 3000) is None
    assert [int(text.split()[0]) for _, _, text in collected.messages] == list(range(3000))


def test_log_records_of_several_child_threads_arrive_complete(collected: LogCollector) -> None:
    assert run(log_from_threads, 300) is None
    numbers = sorted(int(text.split()[0]) for _, _, text in collected.messages)
    assert numbers == sorted([*range(300)] * 5)


def test_log_record_between_calls_arrives_with_the_next_call(
    collected: LogCollector, tmp_path: Path
) -> None:
    """The pool does not replace its child."""
    with pools.ProcessPool(1) as pool:
        first = run(leave_a_thread, str(tmp_path), pool=pool)
        (tmp_path / "go").touch()
        until((tmp_path / "logged").exists)
        assert collected.messages == []
        assert run(nothing, pool=pool) == first
    assert [text for _, _, text in collected.messages] == ["from behind"]


def test_log_records_arrive_after_a_child_is_killed(collected: LogCollector) -> None:
    with pools.ProcessPool(1) as pool:
        assert run(log_and_die, pool=pool).check(exceptions.WorkerLost)
        run(call_task, pool=pool)
    assert (LOG.name, "WARNING", "one of 2") in collected.messages


def test_fork_of_child_does_not_corrupt_its_log_records(
    collected: LogCollector, capfd: Any
) -> None:
    assert run(log_in_a_fork) == "done"
    assert [text for _, _, text in collected.messages] == ["here"] * 20


def test_signal_handler_in_child_can_log_while_logging(collected: LogCollector) -> None:
    handled = int(run(log_while_logging))
    texts = [text for _, _, text in collected.messages]
    assert handled > 0
    assert len(texts) == 300 + handled
    assert [int(text.split()[0]) for text in texts if text[0] != "i"] == list(range(300))


def test_log_filter_that_raises_does_not_fail_the_task(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise LookupError("filter")

    LOG.addFilter(refuse)
    try:
        assert run(log_many, 1) is None
    finally:
        LOG.removeFilter(refuse)
    assert "LookupError: filter" in capfd.readouterr().err


#: Script that configures logging without a main guard.
SCRIPT = """
import logging
from wbengine import engines, task

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")

class Says(task.Task):
    def execute(self):
        logging.getLogger("mine").info("said once")

if __name__ == "__main__":
    engines.run(Says(), engine="parallel", executor="processes")
"""


def test_script_configuring_logging_on_import_logs_each_record_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    found = python.run(
        [str(script)],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert found.stderr.splitlines().count("INFO mine said once") == 1, found.stderr

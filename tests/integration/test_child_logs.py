"""What tasks log in child processes comes out of the handlers of the parent."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers import REPOSITORY, until, worker_in_thread
from wbengine import engines, exceptions, pools, task
from wbengine.patterns import linear_flow

LOG = logging.getLogger("tests.child_logs.task")


class Kept(logging.Handler):
    """Keeps records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def told(self) -> list[tuple[str, str, str]]:
        return [(record.name, record.levelname, record.getMessage()) for record in self.records]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """A handler of the root logger."""
    handler = Kept()
    logging.root.addHandler(handler)
    before = LOG.level
    yield handler
    LOG.setLevel(before)
    logging.root.removeHandler(handler)


def run(fn: Any, *args: Any, pool: pools.ProcessPool | None = None) -> Any:
    """What a child makes of `fn(*args)`."""
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    if pool is not None:
        pool.submit(fn, args, ended.put)
        return ended.get(timeout=60)
    with pools.ProcessPool(1) as made:
        return run(fn, *args, pool=made)


# What children do.


class Logs(task.Task):
    default_provides = "pid"

    def execute(self) -> int:
        LOG.warning("%s of %d", "one", 2)
        LOG.info("also")
        logging.getLogger("tests.child_logs.other").error("from %(where)s", {"where": "elsewhere"})
        logging.debug("nobody asked for this")
        return os.getpid()


class Odd:
    """Cannot be pickled."""

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
    """Can be pickled, and not be read elsewhere."""

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
    """It logs when it may, and says when it has."""

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
    """A handler of signals logs in the midst of what the main thread logs."""
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


# What the parent hears.


def test_records_of_a_parallel_engine_come_out_here(kept: Kept) -> None:
    """With name, level and message, and before the task is told to have ended."""
    LOG.setLevel(logging.INFO)
    engine = engines.load(
        linear_flow.Flow("f").add(Logs("l")), engine="parallel", executor="processes"
    )

    def note(state: str, details: dict[str, Any]) -> None:
        kept.records.append(logging.makeLogRecord({"name": state, "levelname": "", "msg": ""}))

    engine.atom_notifier.register("SUCCESS", note)
    engine.run()
    told = [line for line in kept.told if not line[0].startswith("wbengine")]
    assert told == [
        (LOG.name, "WARNING", "one of 2"),
        (LOG.name, "INFO", "also"),
        ("tests.child_logs.other", "ERROR", "from elsewhere"),
        ("SUCCESS", "", ""),
    ]
    record = kept.records[0]
    assert record.process == engine.storage.fetch("pid") != os.getpid()
    assert record.funcName == "execute"
    assert record.pathname == __file__


def test_records_of_a_worker_with_processes_come_out_of_the_worker(
    kept: Kept, tmp_path: Path
) -> None:
    url = f"memory://{tmp_path.name}"
    with worker_in_thread(url, Logs, processes_count=1):
        pid = engines.run(Logs("l"), engine="worker-based", url=url)["pid"]
    told = [(name, text) for name, _, text in kept.told if name.startswith("tests.child_logs")]
    assert told == [(LOG.name, "one of 2"), ("tests.child_logs.other", "from elsewhere")]
    assert pid != os.getpid()


def test_levels_of_the_parent_decide(kept: Kept) -> None:
    """Also where handlers sit further down, and what they have there comes once."""
    own = Kept()
    LOG.setLevel(logging.ERROR)
    other = logging.getLogger("tests.child_logs.other")
    other.addHandler(own)
    other.propagate = False
    try:
        run(call_task)
    finally:
        other.propagate = True
        other.removeHandler(own)
    assert kept.told == []
    assert own.told == [("tests.child_logs.other", "ERROR", "from elsewhere")]


def call_task(emit: Any) -> None:
    Logs("l").execute()


def test_disabled_logging_is_disabled_in_children(kept: Kept) -> None:
    logging.disable(logging.WARNING)
    try:
        run(call_task)
        assert kept.told == [("tests.child_logs.other", "ERROR", "from elsewhere")]
    finally:
        logging.disable(logging.NOTSET)


def test_what_cannot_be_pickled_is_logged_as_text(kept: Kept) -> None:
    assert run(log_oddly) == "done"
    texts = [text for _, _, text in kept.told]
    assert texts == ["given: an odd one", "an odd one", "failed", "more", "last"]
    failed, more = kept.records[2], kept.records[3]
    assert failed.exc_text.splitlines()[0].startswith("Traceback")
    assert failed.exc_text.splitlines()[-1].endswith("OddError: an odd one")
    assert "log_oddly" in failed.stack_info
    assert logging.Formatter().format(failed).startswith("failed\nTraceback")
    assert (more.plain, more.odd, more.far) == ({"a": [1]}, "an odd one", "far away")
    assert more.mute == "<Unspeakable>"


def test_no_record_is_lost_before_the_end(kept: Kept) -> None:
    """However many there are, in the order in which they were logged."""
    assert run(log_many, 3000) is None
    assert [int(text.split()[0]) for _, _, text in kept.told] == list(range(3000))


def test_records_of_several_threads_come_whole(kept: Kept) -> None:
    assert run(log_from_threads, 300) is None
    numbers = sorted(int(text.split()[0]) for _, _, text in kept.told)
    assert numbers == sorted([*range(300)] * 5)


def test_what_is_logged_between_calls_comes_with_the_next(kept: Kept, tmp_path: Path) -> None:
    """And costs no child."""
    with pools.ProcessPool(1) as pool:
        first = run(leave_a_thread, str(tmp_path), pool=pool)
        (tmp_path / "go").touch()
        until((tmp_path / "logged").exists)
        assert kept.told == []
        assert run(nothing, pool=pool) == first
    assert [text for _, _, text in kept.told] == ["from behind"]


def test_a_child_that_is_killed_hurts_nobody_else(kept: Kept) -> None:
    with pools.ProcessPool(1) as pool:
        assert run(log_and_die, pool=pool).check(exceptions.WorkerLost)
        run(call_task, pool=pool)
    assert (LOG.name, "WARNING", "one of 2") in kept.told


def test_what_a_fork_logs_does_not_mix_with_it(kept: Kept, capfd: Any) -> None:
    assert run(log_in_a_fork) == "done"
    assert [text for _, _, text in kept.told] == ["here"] * 20


def test_a_handler_of_signals_may_log(kept: Kept) -> None:
    handled = int(run(log_while_logging))
    texts = [text for _, _, text in kept.told]
    assert handled > 0
    assert len(texts) == 300 + handled
    assert [int(text.split()[0]) for text in texts if text[0] != "i"] == list(range(300))


def test_a_filter_that_raises_hurts_no_task(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise LookupError("filter")

    LOG.addFilter(refuse)
    try:
        assert run(log_many, 1) is None
    finally:
        LOG.removeFilter(refuse)
    assert "LookupError: filter" in capfd.readouterr().err


#: A script that configures logging without a guard.
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


def test_a_script_that_configures_logging_on_import_logs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    found = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert found.stderr.splitlines().count("INFO mine said once") == 1, found.stderr

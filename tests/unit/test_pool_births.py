"""Children that cannot start: it is said once, and no more of them are made."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.fresh import REPOSITORY
from wbengine import pools

#: It has no `if __name__ == "__main__":`, so each child runs it, too.
STORM = """
import os
from wbengine import engines, task
from wbengine.patterns import unordered_flow
with open("runs", "a") as runs:
    runs.write("x")
class One(task.Task):
    def execute(self):
        return 1
flow = unordered_flow.Flow("fan").add(*(One(f"one {n}") for n in range(200)))
engines.run(flow, engine="parallel", executor="processes", max_workers=2)
"""


def test_a_script_that_its_children_run_again_ends_at_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STORM)
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 1
    told = ended.stderr.splitlines()
    refused = [line for line in told if line.startswith("RuntimeError: a child process cannot")]
    assert 1 <= len(refused) <= 2
    assert 'belongs below `if __name__ == "__main__":`' in told[-1]
    assert len(told[-1]) < 5000  # some failures, and how many more
    assert (tmp_path / "runs").read_text() in ("xx", "xxx")


def failures(pool: pools.ProcessPool, calls: int) -> list[str]:
    values: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(calls):
        pool.submit(os.getpid, (), values.put)
    return [values.get(timeout=60).exception_str for _ in range(calls)]


def test_what_ends_by_itself_before_it_is_ready_is_not_made_again() -> None:
    with pools.ProcessPool(1, initializer=os._exit, initargs=(3,)) as pool:
        told = failures(pool, 5)
    assert len(set(told)) == 1  # one process of one number
    assert "ended with exit code 3 before it was ready; each child process imports" in told[0]


def test_what_is_killed_before_it_is_ready_is_made_again() -> None:
    """The system had no memory, perhaps, and has some later."""
    with pools.ProcessPool(1, initializer=_kill_this, initargs=()) as pool:
        told = failures(pool, 3)
    assert len(set(told)) == 3
    assert all("was killed by SIGKILL before it was ready" in text for text in told)


def _kill_this() -> None:
    os.kill(os.getpid(), 9)


def _leave_if(path: str) -> None:
    if os.path.exists(path):
        os._exit(3)
    Path(path).touch()


def test_a_pool_that_had_children_goes_on_making_them(tmp_path: Path) -> None:
    path = tmp_path / "was here"
    values: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with pools.ProcessPool(1, initializer=_leave_if, initargs=(str(path),), max_calls=1) as pool:
        pool.submit(_number, (), values.put)
        assert values.get(timeout=60) == 1
        pool.submit(_number, (), values.put)
        assert "before it was ready" in values.get(timeout=60).exception_str
        path.unlink()
        pool.submit(_number, (), values.put)
        assert values.get(timeout=60) == 1


def _number(emit: Any) -> int:
    return 1

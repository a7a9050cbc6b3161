"""Child processes that cannot start: one error, and no endless restarts."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import python
from wbengine import pools

#: Script without `if __name__ == "__main__":`, so that each child runs it.
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


def test_script_without_main_guard_fails_at_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STORM)
    ended = python.run(
        [str(script)],
        real=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(python.REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    refused = [line for line in lines if line.startswith("RuntimeError: a child process must not")]
    assert 1 <= len(refused) <= 2
    assert 'below `if __name__ == "__main__":`' in lines[-1]
    assert len(lines[-1]) < 5000  # a few failures, and the number of the others
    assert (tmp_path / "runs").read_text() in ("xx", "xxx")


def failures(pool: pools.ProcessPool, calls: int) -> list[str]:
    values: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(calls):
        pool.submit(os.getpid, (), values.put)
    return [values.get(timeout=60).exception_str for _ in range(calls)]


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pools.ProcessPool]:
    """Return a function that creates a pool whose child imports a module before it is ready."""

    def pool_with_import(text: str, **options: Any) -> pools.ProcessPool:
        (tmp_path / "first_of_all.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        pool = pools.ProcessPool(1, **options)
        pool.preload(["first_of_all"])
        return pool

    return pool_with_import


def test_child_that_exits_before_ready_is_not_started_again(importing: Any) -> None:
    with importing("import os; os._exit(3)") as pool:
        messages = failures(pool, 5)
    assert len(set(messages)) == 1  # all errors name the same process
    assert "ended with exit code 3 before it was ready; each child process imports" in messages[0]


def test_child_that_is_killed_before_ready_is_started_again(importing: Any) -> None:
    """The cause may be a temporary lack of memory."""
    with importing("import os; os.kill(os.getpid(), 9)") as pool:
        messages = failures(pool, 3)
    assert len(set(messages)) == 3
    assert all("was killed by SIGKILL before it was ready" in text for text in messages)


def test_failed_preload_does_not_affect_other_calls(importing: Any) -> None:
    values: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with importing("raise LookupError('not here')") as pool:
        pool.submit(_number, (), values.put)
        assert values.get(timeout=60) == 1


def test_pool_that_had_a_ready_child_keeps_starting_children(
    importing: Any, tmp_path: Path
) -> None:
    path = tmp_path / "was here"
    leaves = f"import os, pathlib\npath = {str(path)!r}\nif os.path.exists(path): os._exit(3)\n"
    values: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with importing(f"{leaves}pathlib.Path(path).touch()", max_calls=1) as pool:
        pool.submit(_number, (), values.put)
        assert values.get(timeout=60) == 1
        pool.submit(_number, (), values.put)
        assert "before it was ready" in values.get(timeout=60).exception_str
        path.unlink()
        pool.submit(_number, (), values.put)
        assert values.get(timeout=60) == 1


def _number(emit: Any) -> int:
    return 1

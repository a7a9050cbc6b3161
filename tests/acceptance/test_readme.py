"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import workers

README = (workers.REPOSITORY / "README.md").read_text(encoding="utf-8")
TASKS, FLOW, REMOTE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def python(folder: Path, program: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


RESULTS = "{'order_id': 7, 'reservation': 'reservation of 7'}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the README's module of tasks."""
    (tmp_path / "orders.py").write_text(TASKS, encoding="utf-8")
    return tmp_path


def test_the_first_flow_is_five_lines_and_runs(folder: Path) -> None:
    assert len(FLOW.splitlines()) == 5
    assert python(folder, FLOW).splitlines() == ["charging for reservation of 7", RESULTS]


def test_the_same_flow_runs_on_a_worker(folder: Path) -> None:
    url = f"filesystem://{folder / 'broker'}"
    start = FLOW.splitlines()[:4]
    program = "\n".join([f"import os; os.environ['WBENGINE_URL'] = {url!r}", *start, REMOTE])
    arguments = ("--topic", "orders", "--tasks", "orders", "--url", url)
    with workers.workers(folder, *arguments, cwd=folder) as (worker,):
        assert python(folder, program).splitlines() == [RESULTS]
        assert worker.stop() == 0
        assert "charging for reservation of 7" in worker.text


def test_what_was_reserved_is_given_back_when_charging_fails(folder: Path) -> None:
    tasks = TASKS.replace('print("charging for", reservation)', 'raise ValueError("no money")')
    (folder / "orders.py").write_text(tasks, encoding="utf-8")
    *start, run = FLOW.splitlines()
    program = [*start, "try:", f"    {run}", "except ValueError as error:", "    print(error)"]
    told = python(folder, "\n".join(program))
    assert told.splitlines() == ["giving back reservation of 7", "no money"]

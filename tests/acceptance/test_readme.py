"""What the README says of a first flow, besides what it shows (`test_installed` runs that)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import pages, workers

BLOCKS = pages.blocks(workers.REPOSITORY / "README.md")
TASKS = next(block.text for block in BLOCKS if block.caption == "orders.py")
FLOW = next(block.text for block in BLOCKS if block.language == "python" and not block.caption)


def test_first_flow_is_five_lines() -> None:
    assert len(FLOW.splitlines()) == 5


def test_what_was_reserved_is_given_back_when_charging_fails(tmp_path: Path) -> None:
    tasks = TASKS.replace('print("charging for", reservation)', 'raise ValueError("no money")')
    assert _run(tasks, tmp_path) == ["giving back reservation of 7", "no money"]


def test_what_was_not_reserved_is_not_given_back(tmp_path: Path) -> None:
    reserving = 'return f"reservation of {order_id}"'
    assert reserving in TASKS
    tasks = TASKS.replace(reserving, 'raise ValueError("no room")')
    assert _run(tasks, tmp_path) == ["no room"]


def _run(tasks: str, folder: Path) -> list[str]:
    """What the first flow prints with these tasks."""
    (folder / "orders.py").write_text(tasks, encoding="utf-8")
    *start, run = FLOW.splitlines()
    program = [*start, "try:", f"    {run}", "except ValueError as error:", "    print(error)"]
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(program)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()

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
    (tmp_path / "orders.py").write_text(tasks, encoding="utf-8")
    *start, run = FLOW.splitlines()
    program = [*start, "try:", f"    {run}", "except ValueError as error:", "    print(error)"]
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["giving back reservation of 7", "no money"]

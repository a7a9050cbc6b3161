"""Wide flows over folders, again and again: nothing hangs, nothing is lost, nothing is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import workers


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wide_flows_leave_nothing_behind() -> None:
    tool = Path(workers.REPOSITORY) / "tools" / "soak"
    ended = subprocess.run(
        [sys.executable, str(tool), "--here", "--runs", "3", "--timeout", "120"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 runs, 0 problems" in ended.stdout

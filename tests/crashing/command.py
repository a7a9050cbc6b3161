"""`tools/crash`, as tests run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "crash"


def crash(*arguments: str) -> str:
    """What the tool prints; it must not have found anything wrong."""
    command = [sys.executable, str(TOOL), "--here", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout

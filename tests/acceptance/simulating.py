"""The program tools/simulate, run as people do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import workers

TOOL = Path(workers.REPOSITORY) / "tools" / "simulate"


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--here", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)

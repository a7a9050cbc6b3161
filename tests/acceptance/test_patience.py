"""Time limits of commands that `tools/test` runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import workers
from tests.support.workers import until

CALL = """
import sys
sys.path.insert(0, "tools")
import _patience
sys.exit(_patience.call([sys.executable, *sys.argv[2:]], float(sys.argv[1])))
"""

FROZEN = """
import faulthandler, os, signal, subprocess, sys, time
faulthandler.enable()
child = subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", sys.argv[1]])
print(child.pid, flush=True)
def wait_for_it():
    child.wait()
    time.sleep(1000)
wait_for_it()
"""

CHILD = """
import os, signal
def where_it_is():
    os.kill(os.getpid(), signal.SIGSTOP)
where_it_is()
"""


def lives(pid: int) -> bool:
    """Return True unless the process is missing or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def called(limit: float, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CALL, str(limit), *arguments],
        cwd=workers.REPOSITORY,
        capture_output=True,
        text=True,
    )


def test_hung_process_is_reported_and_killed() -> None:
    """A child is stopped, and its parent waits for it."""
    ended = called(6, "-c", FROZEN, CHILD)
    pid = int(ended.stdout)
    assert ended.returncode == 1
    assert "not over after 6.0 s: " in ended.stderr
    assert f"\n  {pid} T {sys.executable}" in ended.stderr
    assert "in where_it_is" in ended.stderr, "the child, which goes on to tell"
    assert "in wait_for_it" in ended.stderr, "its parent"
    until(lambda: not lives(pid))

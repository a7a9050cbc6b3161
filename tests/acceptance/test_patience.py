"""What `tools/test` runs ends, whatever becomes of it."""

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
    """Also who is dead and has no parent that asked for it is dead."""
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
        timeout=60,
    )


def test_what_hangs_is_shown_and_killed() -> None:
    """A child that is frozen, and its parent, which waits for it."""
    ended = called(6, "-c", FROZEN, CHILD)
    pid = int(ended.stdout)
    assert ended.returncode == 1
    assert "not over after 6.0 s: " in ended.stderr
    assert f"\n  {pid} T {sys.executable}" in ended.stderr
    assert "in where_it_is" in ended.stderr, "the child, which goes on to tell"
    assert "in wait_for_it" in ended.stderr, "its parent"
    until(lambda: not lives(pid))

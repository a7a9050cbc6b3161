"""Process 1 of a container reaps orphans, and forwards signals and exit codes."""

from __future__ import annotations

import pytest

from tests.support import python

#: A subreaper inherits orphans as process 1 of a container does.
PROGRAM = """
import ctypes, os, signal, sys, time
from wbengine._cli import reaper

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
reaper.continue_in_child()
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
reader, writer = os.pipe()
parent = os.fork()
if not parent:
    orphan = os.fork()
    if orphan:
        os.write(writer, b"%d" % orphan)
    os._exit(0)
assert os.waitpid(parent, 0) == (parent, 0)  # the status of a child is not lost
orphan = os.read(reader, 20).decode()
while os.path.exists("/proc/" + orphan):
    time.sleep(0.001)
os.kill(*END)
signal.pause()
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("os.getppid(), signal.SIGUSR1", 7), ("os.getpid(), signal.SIGKILL", 137)],
    ids=["forwarded signal", "killed"],
)
def test_first_process_reaps_orphans_and_ends_like_its_child(end: str, code: int) -> None:
    program = PROGRAM.replace("*END", end)
    completed = python.run(["-c", program], capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (code, "")

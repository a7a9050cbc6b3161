"""The tasks of `shop` in a worker that is killed or frozen once, at a crash point."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.support.shop import Note, charge, refund
from wbengine._concurrency import crash_points

__all__ = ["MARK", "POINT", "SIGNAL", "Note", "charge", "refund"]

#: Variables with the name of the point, the number of the signal, and the path of a file that then
#: contains the process id. The process freezes when the test has deleted the file.
POINT = "WBE_TEST_POINT"
SIGNAL = "WBE_TEST_SIGNAL"
MARK = "WBE_TEST_MARK"


def _reach(point: str) -> None:
    if point != os.environ.get(POINT):
        return
    mark = Path(os.environ[MARK])
    try:
        mark.with_suffix(".taken").touch(exist_ok=False)
    except FileExistsError:
        return
    mark.write_text(str(os.getpid()))
    number = int(os.environ.get(SIGNAL, signal.SIGKILL))
    while number == signal.SIGSTOP and mark.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), number)
    # Another thread may receive the signal, so that this one continues for a moment.
    while not mark.with_suffix(".resumed").exists():
        time.sleep(0.01)


crash_points.install(_reach)

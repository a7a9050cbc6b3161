"""An alarm rings while there is garbage to be collected."""

from __future__ import annotations

import gc
import threading

from tests.support import fresh
from wbengine import alarms, exceptions

THREADS = 100


class Waiting(threading.Thread):
    """Waits under an alarm, until that rings."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ready = threading.Event()
        self.start()
        self.ready.wait()

    def run(self) -> None:
        self.alarm = alarms.ThreadAlarm()
        self.value = alarms.call(self.alarm, self._wait, ())

    def _wait(self) -> None:
        own = threading.Lock()
        own.acquire()
        self.ready.set()
        while True:
            own.acquire(timeout=0.01)


def ring_them_all() -> int:
    """How many ended by it; their frames are more objects than make a collection."""
    waiting = [Waiting() for _ in range(THREADS)]
    gc.collect()
    gc.set_threshold(THREADS // 2)
    for each in waiting:
        garbage = threading.local()
        garbage.itself = garbage
        del garbage
        each.alarm.ring()
    for each in waiting:
        each.join()
    assert gc.isenabled()
    return sum(each.value.check(exceptions.SoftTimeLimitExceeded) is not None for each in waiting)


def test_nobody_stands_still_for_ever() -> None:
    assert fresh.call(__name__, "ring_them_all") == THREADS

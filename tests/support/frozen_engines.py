"""An engine in another process that is frozen at a crash point, as if its host were paused.

SIGSTOP freezes the process. Its clock stands still meanwhile, as in a virtual machine that is
paused, so it does not notice that its lease has expired. The loss of its flow is reported only by
the next write to the store.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.support import resuming_tasks
from wbengine import exceptions
from wbengine._concurrency import clocks, crash_points
from wbengine.persistence import _lease_renewer

#: Seconds after which another engine may take over the flow.
LEASE_SECONDS = 1.0
#: Exit code of an engine that has lost its flow.
LOST = 3


class PausedClock:
    """A clock that stands still while the process is frozen."""

    def __init__(self) -> None:
        self.paused_seconds = 0.0

    def __call__(self) -> float:
        return clocks.uptime() - self.paused_seconds

    def freeze(self) -> None:
        began = clocks.uptime()
        signal.raise_signal(signal.SIGSTOP)
        self.paused_seconds += clocks.uptime() - began


def main(flow: str, folder: str, url: str, ledger: str, point: str) -> None:
    clock = PausedClock()
    _lease_renewer.HeldLease.__init__.__defaults__ = (clock,)
    engine = resuming_tasks.engine_of(
        flow, Path(folder), url=url, ledger=ledger or None, lease=LEASE_SECONDS
    )

    def freeze(name: str) -> None:
        if name == point and not clock.paused_seconds:
            # The present lease is the last one: it is not renewed before the next write.
            lease = engine._ownership.held
            assert lease is not None and lease.renew()
            lease.due = float("inf")
            clock.freeze()

    crash_points.install(freeze)
    try:
        engine.run()
    except exceptions.LeaseLost as error:
        print(f"lost: {error}", flush=True)
        sys.exit(LOST)


if __name__ == "__main__":
    # Workers find the tasks under this module name.
    from tests.support import frozen_engines

    frozen_engines.main(*sys.argv[1:])

"""An engine in another process that stops itself at a crash point until SIGCONT.

python -m tests.support.stopping_engine STORE POINT
"""

from __future__ import annotations

import os
import signal
import sys

from tests.support import sample_tasks
from tests.support.points import Points
from wbengine import engines
from wbengine.patterns import linear_flow


def main(store: str, point: str) -> None:
    points = Points(lambda _: os.kill(os.getpid(), signal.SIGSTOP))
    points.stop_at(point)
    points.install()
    flow = linear_flow.Flow("stopped").add(sample_tasks.Echo("echo"))
    engines.run(flow, store={"value": 1}, backend=store)


if __name__ == "__main__":
    main(*sys.argv[1:])

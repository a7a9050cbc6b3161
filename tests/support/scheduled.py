"""A program that serves the schedules of a database with a clock that tests control.

    python -m tests.support.scheduled URI FILE

`FILE` contains the seconds by which the clock is ahead of the clock of the host.
"""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path

from wbengine.conductors import service
from wbengine.persistence import backends


def clock(file: str) -> float:
    return time.time() + float(Path(file).read_text() or 0)


def main(uri: str, file: str) -> None:
    with backends.backend(uri) as backend:
        service.ConductorService(
            backend, max_simultaneous=1, clock=functools.partial(clock, file)
        ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])

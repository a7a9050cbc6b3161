"""Processes of a run: forks of this process, or programs with a build of the package.

`python -m tests.chaos.program BUILD FILE` calls the function in the file.
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import wbengine
from tests.chaos import audit
from tests.crashing import children
from tests.support import servers

#: Signals that end a process in order.
STOP_SIGNALS = (signal.SIGTERM,)


def start(
    function: Callable[..., None], arguments: tuple[Any, ...], log: Path, build: Path | None = None
) -> int:
    """Call a function in a child process and return its pid.

    The `STOP_SIGNALS` are blocked there until the function calls `handle_stop`.

    :param build: the folder of the build that the process imports; None: the process is a fork.
        Then the function and its arguments must be picklable; they are stored beside `log`.
    """
    work: Callable[[], None] = functools.partial(function, *arguments)
    if build is not None:
        call = log.with_suffix(".call")
        call.write_bytes(pickle.dumps(work))
        work = functools.partial(_replace_process, build, call)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        return children.fork(work, log, patience=36_000)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def handle_stop(stop: Callable[[int, object], None]) -> None:
    """Call `stop` at the `STOP_SIGNALS` signals from now on."""
    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _replace_process(build: Path, call: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(build), str(servers.REPOSITORY))),
        "PYTHONPYCACHEPREFIX": str(call.parent / "bytecode"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    program = [sys.executable, "-P", "-m", "tests.chaos.program", str(build), str(call)]
    os.execve(sys.executable, program, environment)


def _main(build: Path, call: Path) -> None:
    assert Path(wbengine.__file__).is_relative_to(build), f"{wbengine.__file__} is not in {build}"
    children.log_to_stderr()
    audit.begin(call.parent / "audit")
    pickle.loads(call.read_bytes())()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    _main(*map(Path, sys.argv[1:]))

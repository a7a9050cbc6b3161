"""Workers that are killed and stopped."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import clocks, program, tasks
from wbengine import exceptions
from wbengine.engines.worker_based import worker

EXCHANGE, TOPIC = "chaos", "chaos"
#: Exit code of a worker that could not reach the broker at its start.
AWAY = 3


@dataclass(frozen=True)
class WorkerSettings:
    """The configuration of workers."""

    folder: Path
    options: Mapping[str, Any]
    slots: int = 4
    clocks: clocks.Clocks | None = None
    #: Whether the workers are those of TaskFlow.
    control: bool = False


def start(settings: WorkerSettings, number: int, build: Path | None = None) -> int:
    """Start a worker in a child process and return its pid."""
    log = settings.folder / f"worker-{number}.log"
    return program.start(run, (settings, number), log, build)


def run(settings: WorkerSettings, number: int) -> None:
    """Run a worker until it is killed or stopped."""
    faulthandler.register(signal.SIGUSR1, file=sys.stderr)
    if settings.control:
        from tests.chaos import control

        signal.pthread_sigmask(signal.SIG_UNBLOCK, program.STOP_SIGNALS)
        control.work(settings.options, settings.slots)
        return
    if settings.clocks is not None:
        settings.clocks.install(number)
    started = worker.Worker(
        EXCHANGE, TOPIC, [tasks], threads_count=settings.slots, **settings.options
    )

    def stop(signum: int, frame: object) -> None:
        threading.Thread(target=started.stop, daemon=True).start()

    program.handle_stop(stop)
    try:
        started.run(display_banner=False)
    except (exceptions.TransportFailure, exceptions.LedgerFailure) as error:
        # Like the command: a supervisor restarts it.
        print(f"note: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(AWAY)

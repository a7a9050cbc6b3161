"""The worker and engine processes of a run, which are killed, stopped and restarted."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import engines, workers
from tests.chaos.checking import Fault
from tests.crashing import children

#: Delay in seconds before a worker that could not reach the broker is restarted.
RESTART_DELAY_SECONDS = 0.5


@dataclass
class ManagedProcess:
    """A worker or engine process; `pid` is None while it does not run."""

    number: int
    work: engines.Work | None = None
    #: The build of the package; None: the process is a fork of this one.
    build: Path | None = None
    pid: int | None = None
    lives: int = 0
    #: Whether it finished its work.
    done: bool = False
    #: Time at which it is resumed or restarted.
    due: float | None = None
    stopped: Fault | None = None

    @property
    def kind(self) -> str:
        return "worker" if self.work is None else "engine"


class Crew:
    """All processes of a run. Not thread-safe."""

    def __init__(
        self,
        settings: workers.WorkerSettings,
        count: int,
        works: Sequence[engines.Work],
        builds: tuple[Path | None, Path | None] = (None, None),
    ) -> None:
        self._settings = settings
        self.workers = [ManagedProcess(number, None, builds[0]) for number in range(count)]
        self.engines = [ManagedProcess(work.number, work, builds[1]) for work in works]
        #: Builds by pid.
        self.builds: dict[int, Path | None] = {}
        self.faults: list[Fault] = []
        self.problems: list[str] = []

    def begin(self) -> None:
        for process in (*self.workers, *self.engines):
            self.start(process)

    def start(self, process: ManagedProcess) -> None:
        if process.work is None:
            process.pid = workers.start(self._settings, process.number, process.build)
        else:
            process.pid = engines.start(process.work, process.lives, process.build)
        self.builds[process.pid] = process.build
        process.lives += 1
        process.due = None

    def living(self, kind: str) -> list[ManagedProcess]:
        """Return the processes that run and are not stopped."""
        processes = self.workers if kind == "worker" else self.engines
        return [
            process for process in processes if process.pid is not None and process.stopped is None
        ]

    def kill(self, process: ManagedProcess, back: float = 0.0) -> Fault:
        """Kill a process by SIGKILL, and restart it after `back` seconds."""
        assert process.pid is not None
        pid = process.pid
        fault = Fault(f"kill {process.kind}", time.monotonic(), pid)
        self.faults.append(fault)
        children.kill(pid)
        process.pid = process.stopped = None
        process.due = time.monotonic() + back
        if not back:
            self.start(process)
        return fault

    def replace(self, process: ManagedProcess, build: Path, *, kill: bool) -> None:
        """Restart a process with another build, after SIGKILL or SIGTERM."""
        process.build = build
        if kill:
            self.kill(process)
            return
        assert process.pid is not None
        code = children.stop(process.pid)
        if code != (0 if process.work is None else engines.STOPPED):
            self.problems.append(f"{process.kind} {process.number} ended with {code} when asked to")
        self.start(process)

    def stop(self, process: ManagedProcess, seconds: float) -> None:
        """Stop a process by SIGSTOP, and resume it after this many seconds."""
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        now = time.monotonic()
        process.stopped = Fault(f"stop {process.kind}", now, process.pid, now + seconds)
        self.faults.append(process.stopped)
        process.due = now + seconds

    def poll(self) -> None:
        """Resume and restart processes that are due, and reap those that ended."""
        now = time.monotonic()
        for process in (*self.workers, *self.engines):
            if process.due is not None and now >= process.due:
                if process.stopped is not None:
                    self._resume(process)
                else:
                    self.start(process)
            if process.pid is not None and process.stopped is None:
                self._reap(process)

    def _resume(self, process: ManagedProcess) -> None:
        assert process.pid is not None and process.stopped is not None
        os.kill(process.pid, signal.SIGCONT)
        at = self.faults.index(process.stopped)
        fault = process.stopped
        self.faults[at] = Fault(fault.kind, fault.at, fault.pid, time.monotonic())
        process.due = process.stopped = None

    def _reap(self, process: ManagedProcess) -> None:
        assert process.pid is not None
        code = children.ended(process.pid, 0)
        if code is None:
            return
        pid, process.pid = process.pid, None
        if code == 0 and process.kind == "engine":
            process.done = True
            return
        now = time.monotonic()
        if process.kind == "worker" and code == workers.AWAY:
            self.faults.append(Fault("no broker for worker", now, pid))
            process.due = now + RESTART_DELAY_SECONDS
            return
        self.problems.append(f"{process.kind} {process.number} ({pid}) ended with {code}")
        self.faults.append(Fault(f"kill {process.kind}", now, pid))
        self.start(process)

    def heal(self) -> None:
        """Resume or restart all processes."""
        for process in (*self.workers, *self.engines):
            if process.stopped is not None:
                self._resume(process)
            elif process.pid is None and not process.done:
                self.start(process)

    @property
    def done(self) -> bool:
        """Return whether all engines have finished."""
        return all(process.done for process in self.engines)

    def write_stacks(self) -> None:
        """Make processes that do not end write their stacks to their logs."""
        for process in (*self.workers, *self.engines):
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
                    os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)

    def dismiss(self) -> None:
        """Send SIGTERM to all workers, and wait for their end."""
        for process in self.workers:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGTERM)
        for process in self.workers:
            if process.pid is not None:
                code = children.stop(process.pid)
                process.pid = None
                if code:
                    self.problems.append(f"worker {process.number} ended with {code} when asked to")

    def end(self) -> None:
        """Kill all remaining processes."""
        for process in (*self.workers, *self.engines):
            if process.pid is not None:
                children.kill(process.pid)
                process.pid = None

    def logs(self, folder: Path) -> dict[str, Path]:
        return {path.name: path for path in sorted(folder.glob("*.log"))}

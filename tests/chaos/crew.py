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
AGAIN = 0.5


@dataclass
class Hand:
    """A worker or engine process; `pid` is None while it does not run."""

    number: int
    work: engines.Work | None = None
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

    def __init__(self, hire: workers.Hire, count: int, works: Sequence[engines.Work]) -> None:
        self._hire = hire
        self.workers = [Hand(number) for number in range(count)]
        self.engines = [Hand(work.number, work) for work in works]
        self.faults: list[Fault] = []
        self.problems: list[str] = []

    def begin(self) -> None:
        for hand in (*self.workers, *self.engines):
            self.start(hand)

    def start(self, hand: Hand) -> None:
        if hand.work is None:
            hand.pid = workers.start(self._hire, hand.number)
        else:
            hand.pid = engines.start(hand.work, hand.lives)
        hand.lives += 1
        hand.due = None

    def living(self, kind: str) -> list[Hand]:
        """Return the processes that run and are not stopped."""
        hands = self.workers if kind == "worker" else self.engines
        return [hand for hand in hands if hand.pid is not None and hand.stopped is None]

    def kill(self, hand: Hand, back: float = 0.0) -> Fault:
        """Kill a process by SIGKILL, and restart it after `back` seconds."""
        assert hand.pid is not None
        pid = hand.pid
        fault = Fault(f"kill {hand.kind}", time.monotonic(), pid)
        self.faults.append(fault)
        children.kill(pid)
        hand.pid = hand.stopped = None
        hand.due = time.monotonic() + back
        if not back:
            self.start(hand)
        return fault

    def stop(self, hand: Hand, seconds: float) -> None:
        """Stop a process by SIGSTOP, and resume it after this many seconds."""
        assert hand.pid is not None
        os.kill(hand.pid, signal.SIGSTOP)
        now = time.monotonic()
        hand.stopped = Fault(f"stop {hand.kind}", now, hand.pid, now + seconds)
        self.faults.append(hand.stopped)
        hand.due = now + seconds

    def look(self) -> None:
        """Resume and restart processes that are due, and reap those that ended."""
        now = time.monotonic()
        for hand in (*self.workers, *self.engines):
            if hand.due is not None and now >= hand.due:
                if hand.stopped is not None:
                    self._resume(hand)
                else:
                    self.start(hand)
            if hand.pid is not None and hand.stopped is None:
                self._reap(hand)

    def _resume(self, hand: Hand) -> None:
        assert hand.pid is not None and hand.stopped is not None
        os.kill(hand.pid, signal.SIGCONT)
        at = self.faults.index(hand.stopped)
        fault = hand.stopped
        self.faults[at] = Fault(fault.kind, fault.at, fault.pid, time.monotonic())
        hand.due = hand.stopped = None

    def _reap(self, hand: Hand) -> None:
        assert hand.pid is not None
        code = children.ended(hand.pid, 0)
        if code is None:
            return
        pid, hand.pid = hand.pid, None
        if code == 0 and hand.kind == "engine":
            hand.done = True
            return
        now = time.monotonic()
        if hand.kind == "worker" and code == workers.AWAY:
            self.faults.append(Fault("no broker for worker", now, pid))
            hand.due = now + AGAIN
            return
        self.problems.append(f"{hand.kind} {hand.number} ({pid}) ended with {code}")
        self.faults.append(Fault(f"kill {hand.kind}", now, pid))
        self.start(hand)

    def heal(self) -> None:
        """Resume or restart all processes."""
        for hand in (*self.workers, *self.engines):
            if hand.stopped is not None:
                self._resume(hand)
            elif hand.pid is None and not hand.done:
                self.start(hand)

    @property
    def done(self) -> bool:
        """Return whether all engines have finished."""
        return all(hand.done for hand in self.engines)

    def tell_stacks(self) -> None:
        """Make processes that do not end write their stacks to their logs."""
        for hand in (*self.workers, *self.engines):
            if hand.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(hand.pid, signal.SIGCONT)
                    os.kill(hand.pid, signal.SIGUSR1)
        time.sleep(0.5)

    def dismiss(self) -> None:
        """Send SIGTERM to all workers, and wait for their end."""
        for hand in self.workers:
            if hand.pid is not None:
                os.kill(hand.pid, signal.SIGTERM)
        for hand in self.workers:
            if hand.pid is not None:
                code = workers.stop(hand.pid)
                hand.pid = None
                if code:
                    self.problems.append(f"worker {hand.number} ended with {code} when asked to")

    def end(self) -> None:
        """Kill all remaining processes."""
        for hand in (*self.workers, *self.engines):
            if hand.pid is not None:
                children.kill(hand.pid)
                hand.pid = None

    def logs(self, folder: Path) -> dict[str, Path]:
        return {path.name: path for path in sorted(folder.glob("*.log"))}

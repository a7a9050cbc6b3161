"""The processes of a run: workers and engines, which die and are stopped, and come back."""

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

#: Seconds after which a worker that found no broker is started again.
AGAIN = 0.5


@dataclass
class Hand:
    """A worker, or an engine's process; `pid` is None while there is none."""

    number: int
    work: engines.Work | None = None
    pid: int | None = None
    lives: int = 0
    #: It came to its own end.
    done: bool = False
    #: When it goes on, or comes back.
    due: float | None = None
    stopped: Fault | None = None

    @property
    def kind(self) -> str:
        return "worker" if self.work is None else "engine"


class Crew:
    """All of them; not to be used by two threads."""

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
        """Those that run, and are not stopped."""
        hands = self.workers if kind == "worker" else self.engines
        return [hand for hand in hands if hand.pid is not None and hand.stopped is None]

    def kill(self, hand: Hand, back: float = 0.0) -> Fault:
        """Kill -9; it comes back so many seconds later."""
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
        """SIGSTOP; it goes on so many seconds later."""
        assert hand.pid is not None
        os.kill(hand.pid, signal.SIGSTOP)
        now = time.monotonic()
        hand.stopped = Fault(f"stop {hand.kind}", now, hand.pid, now + seconds)
        self.faults.append(hand.stopped)
        hand.due = now + seconds

    def look(self) -> None:
        """Let those go on whose time has come; see who has ended."""
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
        """All of them run again."""
        for hand in (*self.workers, *self.engines):
            if hand.stopped is not None:
                self._resume(hand)
            elif hand.pid is None and not hand.done:
                self.start(hand)

    @property
    def done(self) -> bool:
        """Whether all engines came to their ends."""
        return all(hand.done for hand in self.engines)

    def tell_stacks(self) -> None:
        """Have those that do not end write into their logs where they are."""
        for hand in (*self.workers, *self.engines):
            if hand.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(hand.pid, signal.SIGCONT)
                    os.kill(hand.pid, signal.SIGUSR1)
        time.sleep(0.5)

    def dismiss(self) -> None:
        """Ask all workers to end."""
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
        """Kill whoever is left."""
        for hand in (*self.workers, *self.engines):
            if hand.pid is not None:
                children.kill(hand.pid)
                hand.pid = None

    def logs(self, folder: Path) -> dict[str, Path]:
        return {path.name: path for path in sorted(folder.glob("*.log"))}

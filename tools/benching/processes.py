"""What the system tells of processes: children, processor time, memory.  Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
#: As clock_getcpuclockid(3) makes the number of a process's clock.
_CPUCLOCK_SCHED = 2


def _stat(pid: int) -> list[str]:
    """Fields from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def tree(root: int) -> list[int]:
    """A process and what descends from it."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found


def processor(pids: Iterable[int]) -> float:
    """Seconds of them by their own clocks, and of children of theirs that have ended, in ticks."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += fine([pid]) + sum(map(int, _stat(pid)[13:15])) / TICK
    return total


def fine(pids: Iterable[int]) -> float:
    """Seconds of them by their own clocks, which are finer than ticks; without their children."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    return total


def memory(pids: Iterable[int]) -> tuple[float, float]:
    """Megabytes that they have, all added up, and what is left when shared ones are divided."""
    whole = share = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
                name, _, rest = line.partition(":")
                if name == "Rss":
                    whole += int(rest.split()[0]) / 1024
                elif name == "Pss":
                    share += int(rest.split()[0]) / 1024
    return whole, share


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)

"""Children, processor time and memory of processes. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
#: Constant with which clock_getcpuclockid(3) computes the clock of a process.
_CPUCLOCK_SCHED = 2


def _stat(pid: int) -> list[str]:
    """Return the fields from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def tree(root: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
    family = [root]
    for pid in family:
        family += children.get(pid, ())
    return family


def processor(pids: Iterable[int]) -> float:
    """Return the processor time in seconds of processes and of their children that have ended.

    The times of children have the resolution of ticks.
    """
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += own_processor([pid]) + sum(map(int, _stat(pid)[13:15])) / TICK
    return total


def own_processor(pids: Iterable[int]) -> float:
    """Return the processor time in seconds by process clocks, which are finer; without children."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    return total


def memory(pids: Iterable[int]) -> tuple[float, float]:
    """Return the memory in megabytes: the sum, and the sum with shared pages divided."""
    total = share = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
                name, _, rest = line.partition(":")
                if name == "Rss":
                    total += int(rest.split()[0]) / 1024
                elif name == "Pss":
                    share += int(rest.split()[0]) / 1024
    return total, share


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)

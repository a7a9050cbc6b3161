"""Profiles of engine and worker: samples of py-spy by part of the program."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.benching import cases, private_brokers
from tools.benching.driving import Driver, Failed
from tools.benching.systems import System

#: Requirement for pip.
PACKAGE = "py-spy>=0.3.14"
MEDIUM = "redis"
CASES = ("wide", "chain")
SAMPLES_PER_SECOND = 250
#: Part -> files. The innermost frame in any of these files determines the part; the first match
#: counts.
PARTS = {
    "JSON": r"json/|orjson|/json_text|/(codec|envelope|_encoding|protocol)\.py",
    "the task, its thread": r"_pool_|/(running|invocation)\.py|_tasks/|on_wbengine|futures/",
    "schedule and records": (
        r"runtime/|persistence/|(storage|arguments|binding|atom)\.py|engines/base"
    ),
    "connections, queues, ledger": r"/ledger\.py|transports/|redis/|kombu/|amqp/|socket|selectors",
    "request book, worker's decisions, their shells": r"worker_based/",
}
THREADS, OTHER = "threads: locks, wake-ups", "flows built, garbage collected, and others"
_THREADS = re.compile(r"\((threading|queue)\.py|clocks\.py|nudge")
_KNOWN = {name: re.compile(pattern) for name, pattern in PARTS.items()}


@dataclass(frozen=True)
class Profile:
    """Profile of a process during repeated runs of a case. `parts` are fractions of the whole."""

    case: str
    side: str
    samples: int
    parts: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def part(stack: str) -> str:
    """Return the part of a stack of py-spy: frames separated by semicolons, outermost first."""
    frames = [
        frame_text
        for frame_text in stack.split(";")
        if not frame_text.startswith(("thread (", "process "))
    ]
    if frames and _THREADS.search(frames[-1]):
        return THREADS
    for frame in reversed(frames):
        for name, pattern in _KNOWN.items():
            if pattern.search(frame):
                return name
    return OTHER


def shares(raw: str) -> tuple[int, dict[str, float]]:
    """Return the number of samples and the fraction of each part, largest first."""
    counts: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        counts[part(stack)] += int(count)
    total = counts.total() or 1
    return counts.total(), {name: count / total for name, count in counts.most_common()}


def measure(
    system: System,
    python: str,
    spy: str,
    where: private_brokers.PrivateBrokers,
    seconds: int,
    patience: float,
) -> Iterator[Profile | str]:
    """Profile each case and each side in turn. Yield a text for each failure."""
    cases_by_name = {
        each_case.name: each_case for each_case in cases.matching_cases([*CASES], MEDIUM)
    }
    with where.fresh(MEDIUM) as place:
        try:
            driver = Driver(system, python, place)
        except Failed as error:
            yield str(error)
            return
        raw = Path(place["folder"]) / "samples.raw"
        try:
            for case in CASES:
                for side, pid in (("engine", driver.pid), ("worker", driver.workers[0])):
                    command = [spy, "record", "--pid", str(pid), "--duration", str(seconds),
                               "--rate", str(SAMPLES_PER_SECOND), "--format", "raw", "--threads",
                               "--nonblocking", "--output", str(raw)]  # fmt: skip
                    with subprocess.Popen(
                        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
                    ) as sampling:
                        while sampling.poll() is None:
                            driver.run(case, cases_by_name[case].sizes, patience)
                        assert sampling.stderr is not None
                        if sampling.returncode:
                            yield f"{case}, {side}: {sampling.stderr.read().strip()[:200]}"
                            continue
                    yield Profile(case, side, *shares(raw.read_text(encoding="utf-8")))
        except Failed as error:
            yield str(error)
        finally:
            driver.close()

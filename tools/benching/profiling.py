"""Where the time of an engine and of a worker goes: py-spy's samples, by part of the program."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.benching import cases, places
from tools.benching.driving import Driver, Failed
from tools.benching.systems import System

#: What pip is asked for.
PACKAGE = "py-spy>=0.3.14"
MEDIUM = "redis"
CASES = ("wide", "chain")
RATE = 250
#: Parts, by the files in which they are; the first that fits the innermost frame that fits any.
PARTS = {
    "JSON": r"json/|orjson|_json_text|_codec|/(envelope|_envelope|protocol)\.py",
    "the task, its thread": r"_pool_|/(running|invocation)\.py|_tasks/|on_wbengine|futures/",
    "schedule and records": (
        r"runtime/|persistence/|(storage|arguments|_binding|atom)\.py|engines/base"
    ),
    "connections, queues, ledger": r"/ledger/|transports/|redis/|kombu/|amqp/|socket|selectors",
    "request book, worker's decisions, their shells": r"worker_based/",
}
THREADS, OTHER = "threads: locks, wake-ups", "flows built, garbage collected, and others"
_THREADS = re.compile(r"\((threading|queue)\.py|_clock\.py|nudge")
_KNOWN = {name: re.compile(pattern) for name, pattern in PARTS.items()}


@dataclass(frozen=True)
class Profile:
    """Of one process while a case ran again and again; parts are of the whole."""

    case: str
    side: str
    samples: int
    parts: dict[str, float]

    def told(self) -> dict[str, Any]:
        return asdict(self)


def part(stack: str) -> str:
    """What a line of py-spy's belongs to: frames from the outermost on, with semicolons between."""
    frames = [one for one in stack.split(";") if not one.startswith(("thread (", "process "))]
    if frames and _THREADS.search(frames[-1]):
        return THREADS
    for frame in reversed(frames):
        for name, known in _KNOWN.items():
            if known.search(frame):
                return name
    return OTHER


def shares(raw: str) -> tuple[int, dict[str, float]]:
    """How many samples there are, and the share of each part, the largest first."""
    counts: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        counts[part(stack)] += int(count)
    whole = counts.total() or 1
    return counts.total(), {name: count / whole for name, count in counts.most_common()}


def measure(
    system: System, python: str, spy: str, where: places.Places, seconds: int, patience: float
) -> Iterator[Profile | str]:
    """Each case, and each side of it in turn; a line for what could not be looked at."""
    known = {one.name: one for one in cases.of([*CASES], MEDIUM)}
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
                               "--rate", str(RATE), "--format", "raw", "--threads",
                               "--nonblocking", "--output", str(raw)]  # fmt: skip
                    with subprocess.Popen(
                        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
                    ) as sampling:
                        while sampling.poll() is None:
                            driver.run(case, known[case].sizes, patience)
                        assert sampling.stderr is not None
                        if sampling.returncode:
                            yield f"{case}, {side}: {sampling.stderr.read().strip()[:200]}"
                            continue
                    yield Profile(case, side, *shares(raw.read_text(encoding="utf-8")))
        except Failed as error:
            yield str(error)
        finally:
            driver.close()

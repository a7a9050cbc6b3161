"""Growth of the cost of a flow with its size: seconds, peak memory, growth exponent."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.benching import figures

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ("unordered", "linear", "nested")
ENGINES = ("serial", "parallel")
SIZES = (1000, 10_000, 100_000)


@dataclass(frozen=True)
class Grown:
    """One flow of empty tasks, measured from the construction of its tasks to its end."""

    shape: str
    tasks: int
    build: float
    run: float
    peak_mb: float
    #: Exponent of the growth of `all` from the next smaller size; None for the smallest.
    growth: float | None = None

    @property
    def all(self) -> float:
        return self.build + self.run

    def to_dict(self) -> dict[str, Any]:
        return {key: _short(value) for key, value in asdict(self).items()} | {
            "all": round(self.all, 4)
        }


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def measure(shape: str, tasks: int, engine: str) -> dict[str, float]:
    """Load and run one flow of empty tasks in this process."""
    from wbengine import engines, task
    from wbengine.patterns import linear_flow, unordered_flow

    class Nothing(task.Task):
        def execute(self) -> None:
            return None

    started = time.perf_counter()
    tasks_made = [Nothing(name=f"task-{number}") for number in range(tasks)]
    if shape == "unordered":
        flow = unordered_flow.Flow("wide").add(*tasks_made)
    elif shape == "linear":
        flow = linear_flow.Flow("line").add(*tasks_made)
    else:
        flow = linear_flow.Flow("inner").add(tasks_made[0])
        for number, empty_task in enumerate(tasks_made[1:]):
            flow = linear_flow.Flow(f"level-{number}").add(empty_task, flow)
    built = time.perf_counter()
    loaded = engines.load(flow, engine=engine)
    loaded.run()
    ended = time.perf_counter()
    assert loaded.storage.get_flow_state() == "SUCCESS"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"build": built - started, "run": ended - built, "peak_mb": peak}


def _runs(shape: str, tasks: int, engine: str, repeat: int) -> list[dict[str, float]]:
    command = [sys.executable, "-m", __spec__.name, shape, str(tasks), engine]
    return [json.loads(subprocess.check_output(command, cwd=ROOT)) for _ in range(repeat)]


def grow(
    sizes: Sequence[int], engine: str, repeat: int, shapes: Sequence[str] = SHAPES
) -> Iterator[Grown]:
    """Yield the medians of each shape in all sizes, as they are measured."""
    for shape in shapes:
        before: tuple[int, float] | None = None
        for size in sizes:
            medians = figures.medians(_runs(shape, size, engine, repeat))
            took = medians["build"] + medians["run"]
            exponent = figures.growth(before, (size, took)) if before else None
            before = (size, took)
            yield Grown(shape, size, medians["build"], medians["run"], medians["peak_mb"], exponent)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])))

"""Growth of the costs of requests and heartbeats with the size of the fleet.

`tools/simulate scale` prints it.

    python -m tests.simulation.growth WORKERS REQUESTS OPEN     one size, as JSON

CPU costs are measured on this machine; messages, calls and bytes are counted.  Figures for larger
fleets, brokers and networks are computed from both.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.seams import tracker
from tests.simulation import prices, scaling
from tests.support import python

ROOT: Final = Path(__file__).resolve().parent.parent.parent

#: Kinds of messages of a request and of a heartbeat.
OF_A_REQUEST: Final = ("request", "RUNNING", "answer")
OF_A_BEAT: Final = ("beat", "announcement")

#: Cost -> description with its unit.
COSTS: Final = {
    "request_us": "CPU of a request (µs)",
    "beat_us": "CPU of a heartbeat (µs)",
    "join_us": "CPU of a new worker (µs)",
    "loss_us": "CPU of a lost worker (µs)",
    "round_us": "CPU of a poll (each 5 s) for each worker (µs)",
    "messages": "messages of a request",
    "calls": "ledger calls of a request",
    "bytes": "bytes of a request",
    "beat_bytes": "bytes of a heartbeat",
}


def measure(
    plan: scaling.Plan, progress: Callable[[int, float], None] | None = None
) -> dict[str, float]:
    """Run a fleet in this process and return its costs."""
    return measured(scaling.Fleet(plan, progress))


def measured(fleet: scaling.Fleet) -> dict[str, float]:
    """Run a fleet and return its costs."""
    plan, before, started = fleet.plan, _peak(), time.monotonic()
    fleet.run()
    assert fleet.failed == 0 and not len(fleet.tracker)
    meter, n = fleet.meter, plan.requests
    seconds, counts, messages = meter.seconds, meter.counts, meter.messages
    beats = sum(messages[kind] for kind in OF_A_BEAT) - plan.workers
    costs = {
        "workers": plan.workers,
        "requests": n,
        "wall": time.monotonic() - started,
        "cpu": time.process_time(),
        "simulated": fleet.step * scaling.STEP,
        "peak_mb": _peak(),
        "peak_of_run_mb": _peak() - before,
        "request_us": 1e6 * (seconds["submit"] + seconds["answers"] + seconds["ticks"]) / n,
        "submit_us": 1e6 * seconds["submit"] / n,
        "answers_us": 1e6 * seconds["answers"] / n,
        "ticks_us": 1e6 * seconds["ticks"] / n,
        "worker_us": 1e6 * seconds["workers"] / n,
        "beat_us": 1e6 * seconds["beats"] / max(1, beats),
        "join_us": 1e6 * seconds["joins"] / plan.workers,
        "loss_us": 1e6 * seconds["losses"] / max(1, counts["workers noticed as lost"]),
        "round_us": 1e6 * seconds["rounds"] / counts["rounds"] / plan.workers,
        "messages": sum(messages[kind] for kind in OF_A_REQUEST) / n,
        "calls": (counts["ledger calls of the engine"] + counts["ledger calls of workers"]) / n,
        "bytes": sum(messages[kind] * meter.size(kind) for kind in OF_A_REQUEST) / n,
        "beats": beats / n,
        "beat_bytes": meter.size("beat"),
        "lost": counts["workers noticed as lost"],
        "sent_again": messages["request"] - n,
    }
    return costs | {f"bytes of {kind}": meter.size(kind) for kind in (*OF_A_REQUEST, *OF_A_BEAT)}


def measure_apart(plan: scaling.Plan) -> dict[str, float]:
    """Run a fleet in a separate process, so that its memory can be measured; it prints its
    progress.
    """
    given = [str(plan.workers), str(plan.requests), str(plan.open)]
    command = ["-m", "tests.simulation.growth", *given]
    ended = python.run(command, real=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    data: dict[str, float] = json.loads(ended.stdout)
    return data


def _peak() -> float:
    """Return the peak memory of this process in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def plans(workers: int, requests: int, open: float) -> Iterator[scaling.Plan]:
    """Yield plans for 10, 100, ... and `workers` workers; smaller fleets have fewer requests."""
    sizes = [10**n for n in range(1, 12) if 10**n < workers]
    for size in (*sizes, workers):
        share = max(min(10_000, requests), requests * size // workers)
        yield scaling.Plan(size, share, open=open)


def footprint(workers: int = 500, requests: int = 1000) -> dict[str, float]:
    """Return the bytes that an engine needs for each known worker and each waiting request."""
    plan = scaling.Plan(workers, requests, open=float(requests))
    fleet = scaling.Fleet(plan)
    for _ in range(workers):
        fleet.join()
    tracemalloc.start()
    try:
        fleet.serve_notices()
        known = tracemalloc.get_traced_memory()[0]
        book = scaling.Fleet(scaling.Plan(1, requests, open=float(requests)))
        before = tracemalloc.get_traced_memory()[0]
        book.submit()
        waiting = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return {"worker_bytes": known / workers, "request_bytes": waiting / requests}


def exponent(rows: Sequence[dict[str, float]], what: str) -> float:
    """Return `b` of `a * workers ** b`, by least squares."""
    points = [(math.log(r["workers"]), math.log(r[what])) for r in rows if r[what] > 0]
    if len(points) < 2:
        return 0.0
    x = sum(p[0] for p in points) / len(points)
    y = sum(p[1] for p in points) / len(points)
    wide = sum((p[0] - x) ** 2 for p in points)
    return sum((p[0] - x) * (p[1] - y) for p in points) / wide


# Extrapolation to larger fleets.


@dataclass(frozen=True)
class Costs:
    """Costs of a task and of a heartbeat, and capacities of the machines.

    The first four are counted and measured.  `engine_us` and `worker_us` are CPU microseconds of a
    whole process for a task; `broker_ops` is the number of operations per second of one broker (a
    message in, a message out or a call of the ledger), and `network` its bytes per second.
    """

    messages: float
    calls: float
    bytes: float
    beat_us: float
    beat_bytes: float
    engine_us: float
    worker_us: float
    broker_ops: float
    network: float = 125e6
    slots: int = 4


def questions(workers: int, *, hurry: bool) -> float:
    """Return the queries per second that one engine sends to all workers."""
    return 1 / tracker.seconds_between_questions(workers, scaling.PERIOD, hurry=hurry)


def beats(engines: int, workers: int, slots: int, *, hurry: bool = False) -> float:
    """Return the messages per second that do not belong to tasks.

    These are heartbeats of workers to each engine with requests there, queries with their replies,
    and echoes.
    """
    heartbeats = workers / scaling.PERIOD * min(engines, slots)
    asked = engines * questions(workers, hurry=hurry) * 2 * workers
    return heartbeats + asked + engines / scaling.PERIOD


def shortest(costs: Costs, engines: int, workers: int) -> dict[str, float]:
    """Return for each resource the mean task duration in seconds below which it limits the fleet.

    The value is infinite if heartbeats alone exceed the capacity.
    """
    slots = costs.slots * workers
    idle = beats(engines, workers, costs.slots)
    told = min(engines, costs.slots) / engines
    heard = workers / scaling.PERIOD * told + questions(workers, hurry=False) * workers
    # Share of the resource for each task, and the share that is left for tasks.
    of = {
        "an engine's CPU": (costs.engine_us * 1e-6 / engines, 1 - heard * costs.beat_us * 1e-6),
        "the broker": (
            (costs.messages * 2 + costs.calls) / costs.broker_ops,
            1 - idle * 2 / costs.broker_ops,
        ),
        "the network": (
            costs.bytes * 2 / costs.network,
            1 - idle * costs.beat_bytes * 2 / costs.network,
        ),
        "a worker's CPU": (costs.worker_us * 1e-6 / workers, 1.0),
    }
    return {
        name: slots * task / left if left > 0 else math.inf for name, (task, left) in of.items()
    }


def first(found: dict[str, float]) -> str:
    """Return the resource that first becomes the limit as tasks get shorter."""
    return max(found, key=lambda name: found[name])


def report(rows: Sequence[dict[str, float]], sizes: dict[str, float], costs: Costs) -> list[str]:
    """Return the report as text."""
    last = rows[-1]
    lines = [
        (
            f"{last['requests']:,.0f} requests on {last['workers']:,.0f} workers"
            f" ({costs.slots} slots each): {last['wall']:.0f} s here ({last['cpu']:.0f} s of CPU)"
            f" for {last['simulated']:,.0f} simulated ones, {last['peak_mb']:,.0f} MB (fleet,"
            " broker and ledger included);"
            f" {last['lost']:,.0f} workers lost, {last['sent_again']:,.0f} requests sent again"
        ),
        (
            f"the engine keeps {sizes['worker_bytes']:,.0f} bytes for a worker,"
            f" {sizes['request_bytes']:,.0f} for a request that waits"
        ),
        "",
        f"{'measured and counted, by workers':<44}"
        + "".join(f"{row['workers']:>10,.0f}" for row in rows)
        + "  exponent",
    ]
    for what, text in COSTS.items():
        values = "".join(f"{row[what]:>10,.1f}" for row in rows)
        growth = f"{exponent(rows, what):>10.2f}" if len(rows) > 1 else ""
        lines.append(f"{text:<44}{values}{growth}")
    kinds = (*OF_A_REQUEST, *OF_A_BEAT)
    sized = ", ".join(f"{kind} {last[f'bytes of {kind}']:,.0f}" for kind in kinds)
    lines += ["", f"bytes of a message: {sized}", ""]
    return lines + _loads(costs) + [""] + _limits(costs)


#: Sizes for the extrapolation.
FLEETS: Final = (10, 1000, 100_000)
ENGINES: Final = (1, 10, 100)


def told(rows: Sequence[dict[str, float]], sizes: dict[str, float], costs: Costs) -> dict[str, Any]:
    """Return the report as JSON values."""
    return {
        "rows": [*rows],
        "footprint": sizes,
        "exponents": {what: exponent(rows, what) for what in COSTS},
        "costs": asdict(costs),
        "beats": [
            {"engines": engines, "workers": workers,
             "calm": beats(engines, workers, costs.slots),
             "hurry": beats(engines, workers, costs.slots, hurry=True)}
            for engines in ENGINES for workers in FLEETS
        ],
        "limits": [
            {"engines": engines, "workers": workers, "first": first(found),
             "rate": costs.slots * workers / max(found.values()),
             # JSON has no infinity.
             "seconds": {name: one if one < math.inf else None for name, one in found.items()}}
            for workers in FLEETS for engines in ENGINES
            for found in [shortest(costs, engines, workers)]
        ],
    }  # fmt: skip


def _loads(costs: Costs) -> list[str]:
    lines = [
        (
            "messages a second at a broker, computed: beats, questions, answers and echoes (in"
            " parentheses: while engines wait for workers)"
        ),
        f"{'engines':>10}" + "".join(f"{n:>20,} workers" for n in FLEETS),
    ]
    for engines in ENGINES:
        cells = [
            f"{beats(engines, n, costs.slots):,.0f}"
            f" ({beats(engines, n, costs.slots, hurry=True):,.0f})"
            for n in FLEETS
        ]
        lines.append(f"{engines:>10}" + "".join(f"{cell:>28}" for cell in cells))
    return lines


def _limits(costs: Costs) -> list[str]:
    lines = [
        (
            f"what is full first, computed with {costs.engine_us:.0f} µs of an engine and"
            f" {costs.worker_us:.0f} µs of a worker for a task, a broker of"
            f" {costs.broker_ops:,.0f} operations/s and {costs.network * 8e-9:.0f} Gbit/s: the mean"
            " seconds of a task from which on all slots are busy"
        ),
    ]
    for workers in FLEETS:
        for engines in ENGINES:
            shortest_period = shortest(costs, engines, workers)
            each = ", ".join(f"{name} {seconds:,.3g}" for name, seconds in shortest_period.items())
            rate = costs.slots * workers / max(shortest_period.values())
            lines.append(
                f"{workers:>9,} workers, {engines:>3} engines: {first(shortest_period)}"
                f" (at {rate:,.0f} tasks/s); {each}"
            )
    return lines


def costs_of(row: dict[str, float], known: prices.Prices, ops: float | None = None) -> Costs:
    """Return the costs; `ops` is the broker's capacity, by default computed from its CPU time per
    task.
    """
    return Costs(
        messages=row["messages"],
        calls=row["calls"],
        bytes=row["bytes"],
        beat_us=row["beat_us"],
        beat_bytes=row["beat_bytes"],
        engine_us=known.engine_us,
        worker_us=known.worker_us,
        broker_ops=ops or (row["messages"] * 2 + row["calls"]) / (known.broker_us * 1e-6),
    )


def _told(plan: scaling.Plan) -> Callable[[int, float], None]:
    said = time.monotonic()

    def progress(done: int, seconds: float) -> None:
        nonlocal said
        if time.monotonic() - said < 5:
            return
        said = time.monotonic()
        print(
            f"{plan.workers:,} workers: {done:,}/{plan.requests:,} requests, {seconds:.0f} s,"
            f" some {seconds * (plan.requests - done) / max(done, 1):.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    return progress


def main(given: Sequence[str]) -> None:
    workers, requests, open = int(given[0]), int(given[1]), float(given[2])
    plan = scaling.Plan(workers, requests, open=open)
    json.dump(measure(plan, _told(plan)), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])

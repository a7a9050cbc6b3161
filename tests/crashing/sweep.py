"""The sweep: one kill at each crash point, after which another process continues."""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crashing import children, engines, judging, stores, workers
from tests.crashing.children import Kill
from tests.seams.stores import left_in

FLOWS = ("main", "undone")
WORKFLOWS = ("stepped-1", "stepped-2")

#: Maximum number of seconds between two saves in a process that resumes without anything to wait
#: for. : Leases and lost workers need longer; slow hosts do not.
PROMPT = 9.0
#: Maximum number of seconds in which an engine that resumes without a worker should be killed.
ALONE_SECONDS = 6.0


@dataclass(frozen=True)
class Case:
    """A kill at a point, with a store and a kind of engine."""

    store: str
    engine: str
    kills: tuple[Kill, ...] = ()
    worker: Kill | None = None
    flows: tuple[str, ...] = FLOWS
    durability: str = "each"
    options: tuple[tuple[str, Any], ...] = ()
    #: Whether the first engine is killed together with the worker, at any point.
    both: bool = False

    @property
    def lax(self) -> bool:
        """Return whether the store can lag behind visible effects."""
        return self.durability != "each"

    def __str__(self) -> str:
        what = ", then ".join(map(str, self.kills or (self.worker or "nothing",)))
        settings = [*self.options, *([("durability", self.durability)] if self.lax else [])]
        more = "".join(f" {name}={value}" for name, value in settings)
        return f"{self.store} x {self.engine}{more}, killed at {what}"


@dataclass
class Bench:
    """The resources that all cases of one process share."""

    folder: Path
    stores: stores.Stores
    expected: Mapping[str, judging.FlowHistory]
    limits: Mapping[str, Any] = field(default_factory=dict)
    #: The worker that is not killed; it uses `broker`.
    worker: int | None = None
    number: int = 0

    @property
    def broker(self) -> Path:
        return self.folder / "broker"

    def hired(self) -> int:
        if self.worker is None:
            url = f"filesystem://{self.broker}"
            self.worker = workers.start(url, self.folder / "worker.log")
        return self.worker


@contextlib.contextmanager
def bench(
    folder: Path,
    databases: dict[str, str],
    expected: Mapping[str, judging.FlowHistory],
    limits: Mapping[str, Any],
) -> Iterator[Callable[[Case], dict[str, Any]]]:
    """Yield a function that runs one case."""
    folder.mkdir(parents=True)
    prepared = Bench(folder, stores.Stores(folder, databases), expected, limits)
    try:
        yield lambda case: run(case, prepared)
    finally:
        if prepared.worker is not None:
            children.stop(prepared.worker)


def run(case: Case, prepared: Bench) -> dict[str, Any]:
    """Run a case. Return its problems and figures."""
    prepared.number += 1
    folder = prepared.folder / f"case-{prepared.number}"
    folder.mkdir()
    began = time.monotonic()
    broker = prepared.broker
    if case.engine == "worker-based":
        if case.worker is None and case.kills:
            prepared.hired()
        else:
            broker = folder / "broker"
    # Without a kill of a worker, the expiry is long, so that a busy machine loses none.
    expiry = 30.0 if case.worker is None else 2.0
    work = engines.Work(
        folder,
        prepared.stores.conf(case.store, f"case-{prepared.number}"),
        {
            **engines.options(case.engine, broker, expiry),
            "durability": case.durability,
            **dict(case.options),
        },
        case.flows,
        limits=prepared.limits,
    )
    before = _inside(broker, case)
    own = case.engine == "worker-based" and broker != prepared.broker
    observed = _with_worker(case, work, broker) if own else _engines(case, work)
    problems = observed.problems
    if not observed.failed:
        problems += _judge(case, work, prepared.expected, observed.cuts)
        if case.engine == "worker-based":
            problems += _left(broker, case, before)
        problems += [f"the store still has {left}" for left in left_in(work.conf)]
        problems += children.Clean.problems({path.name: path for path in folder.glob("*.log")})
    if not problems:
        shutil.rmtree(folder)
    effects = [effect for flow in case.flows for effect in work_effects(work, flow, observed)]
    return {
        "case": str(case),
        "point": (case.kills or (case.worker or Kill("nothing"),))[-1].point,
        "reached": observed.reached,
        "problems": [f"{case}: {problem} (in {folder})" for problem in problems],
        "runs": len(effects),
        "again": len(effects) - len(set(effects)),
        "seconds": time.monotonic() - began,
        "hits": observed.hits,
        "resumed_hits": observed.resumed_hits,
        "worker_hits": observed.worker_hits,
        "config": [case.store, case.engine],
        "kills": [[kill.point, kill.hit] for kill in case.kills],
    }


@dataclass
class Observations:
    """The observations of a case."""

    problems: list[str] = field(default_factory=list)
    cuts: list[dict[str, judging.Cut]] = field(default_factory=list)
    #: Whether a process ended with an error; then the other checks are skipped.
    failed: bool = False
    #: Whether all kills happened.
    reached: bool = False
    hits: dict[str, int] = field(default_factory=dict)
    resumed_hits: dict[str, int] = field(default_factory=dict)
    worker_hits: dict[str, int] = field(default_factory=dict)
    effects: dict[str, list[str]] = field(default_factory=dict)


def _last_line(work: engines.Work, number: int) -> str:
    """Return the last line of the log of a process."""
    lines = work.path(f"engine-{number}.log").read_text(encoding="utf-8").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")


def work_effects(work: engines.Work, flow: str, observed: Observations) -> list[str]:
    return [f"{flow} {effect}" for effect in observed.effects.get(flow, ())]


def _engines(
    case: Case, work: engines.Work, watch: Callable[[int], int] | None = None
) -> Observations:
    """Run one incarnation after another until one finishes."""
    observed = Observations()
    counts: list[dict[str, int]] = []
    for number, kill in enumerate([*case.kills, None]):
        pid = engines.live(work, number, kill)
        code = watch(pid) if watch else children.wait(pid)
        if code == -signal.SIGKILL and kill is not None:
            counts.append({flow: len(work.effects(flow)) for flow in work.flows})
            continue
        observed.reached = len(counts) == len(case.kills)
        if code:
            observed.problems.append(
                f"process {number} ended with {code}: {_last_line(work, number)}"
            )
            observed.failed = True
        elif number and (idle := engines.rest(work, number)) > PROMPT:
            observed.problems.append(f"process {number} did nothing for {idle:.1f} s")
        observed.hits = engines.hits(work, number)
        if counts:
            observed.resumed_hits = observed.hits
        break
    for number, count in enumerate(counts, 1):
        observed.cuts.append(engines.cuts(work, number, count))
    observed.effects = {flow: work.effects(flow) for flow in work.flows}
    return observed


def _with_worker(case: Case, work: engines.Work, broker: Path) -> Observations:
    """Run the case with its own worker. If that is killed, another worker replaces it: at once, or
    after the second engine has ended, if the first one is killed together with the worker.
    """
    url, hits = f"filesystem://{broker}", work.path("worker-hits")
    hired = [workers.start(url, work.path("worker-0.log"), hits, case.worker)]
    died = False

    def watch(engine: int) -> int:
        nonlocal died
        is_alone = died and len(hired) == 1
        processes = [engine] if is_alone else [engine, hired[-1]]
        files = {os.pidfd_open(pid): pid for pid in processes}

        def replace() -> None:
            hired.append(workers.start(url, work.path("worker-1.log")))
            files[os.pidfd_open(hired[-1])] = hired[-1]

        try:
            while True:
                ready = select.select(list(files), [], [], ALONE_SECONDS if is_alone else None)[0]
                if is_alone:
                    replace()
                    is_alone = False
                for file in ready:
                    code = children.wait(pid := files.pop(file))
                    os.close(file)
                    if pid == engine:
                        return code
                    died = True
                    if case.both and len(hired) == 1:
                        os.kill(engine, signal.SIGKILL)
                    else:
                        replace()
        finally:
            for file in files:
                os.close(file)

    try:
        observed = _engines(case, work, watch)
    finally:
        code = children.stop(hired[-1])
    if code:
        observed.problems.append(f"the worker ended with {code}")
    observed.worker_hits = engines.read_json(hits) or {}
    if case.worker is not None:
        observed.reached = died and (observed.reached or not case.kills)
    return observed


def _judge(
    case: Case,
    work: engines.Work,
    expected: Mapping[str, judging.FlowHistory],
    cuts: Sequence[Mapping[str, judging.Cut]],
) -> list[str]:
    end = engines.end(work) or {}
    lost = case.worker is not None and not case.both
    rules = judging.Rules(case.engine == "worker-based", lost, ahead=not case.lax)
    problems = []
    for flow in (*case.flows, "bystander"):
        mine = [cut[flow] for cut in cuts if flow in cut]
        observed = judging.FlowHistory(flow, work.effects(flow), end.get(flow), mine)
        problems += judging.problems(observed, expected[flow], rules)
    return problems


def _inside(broker: Path, case: Case) -> set[str]:
    """Return the content of a broker that should not exist between two flows."""
    paths = workers.left_in(broker, ended=case.worker is None and not case.kills)
    if case.worker is not None:
        # The next process that opens the ledger deletes the entries of dead workers.
        paths = [path for path in paths if not path.startswith(_OF_DEAD_WORKERS)]
    return {*paths, *workers.reply_queues(broker)}


_OF_DEAD_WORKERS = ("beat of ", "holder ", "connection ")


def _left(broker: Path, case: Case, before: set[str]) -> list[str]:
    """Return the remaining content of a broker, with time for the worker to acknowledge."""
    try:
        children.until(lambda: _inside(broker, case) <= before, 30.0, "")
    except TimeoutError:
        return [f"the broker still has {left}" for left in sorted(_inside(broker, case) - before)]
    return []


#: Points with many hits that are tested at more of them.
_RICH = {"storage.before-save": 8}


def hits_to_try(name: str, count: int, chance: random.Random, thorough: bool) -> list[int]:
    """Return the hits of a point at which a kill is tested."""
    hits = {1}
    if thorough and count >= 2:
        hits.add(2)
    if thorough and count >= 4:
        hits.update(chance.randint(3, count) for _ in range(_RICH.get(name, 1)))
    return sorted(hits)

"""One chaos run: start brokers, engines and workers, inject faults, stop them, and check the
result.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.chaos import audit, checking, clocks, crew, engines, ledgers, media, workers
from tests.chaos.checking import FinalState, History, Verdict
from tests.chaos.flows import KINDS
from tests.crashing import children
from tests.crashing import engines as crashing
from wbengine._text import data_formats
from wbengine.persistence import backends

#: Seconds between two polls.
TICK = 0.01
#: Maximum number of seconds in which processes start to work.
START = 60.0


@dataclass
class Plan:
    """The processes and flows of a run. Times are in seconds."""

    transport: str
    seed: int = 0
    ledger: str | None = None
    workers: int = 4
    slots: int = 4
    engines: int = 3
    #: Number of flows that run at the same time in each engine process.
    threads: int = 3
    kinds: tuple[str, ...] = KINDS
    width: int = 12
    seconds: float = 0.05
    long: float = 2.0
    #: Seconds of silence after which a worker is lost.
    expiry: float = 5.0
    #: Seconds within which all flows must end after the last fault.
    patience: float = 150.0
    control: bool = False
    #: Builds of workers and engines at the start; None: they are forks of this process.
    builds: tuple[Path | None, Path | None] = (None, None)


@dataclass
class Stage:
    """The processes, clocks and records that a mode of fault injection uses."""

    plan: Plan
    folder: Path
    medium: media.Medium
    crew: crew.Crew
    clocks: clocks.Clocks
    chance: random.Random
    reader: audit.Reader
    began: float = field(default_factory=time.monotonic)
    lines: list[audit.Line] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    #: Flows that began and did not end.
    running: set[str] = field(default_factory=set)
    notes: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _over: set[str] = field(default_factory=set)
    _told: float = 0.0
    _moved: float = field(default_factory=time.monotonic)

    def tick(self, seconds: float = TICK) -> list[audit.Line]:
        """Wait, poll the processes, and return the new lines of the audit file."""
        time.sleep(seconds)
        self.crew.poll()
        more = self.reader.more()
        now = time.monotonic()
        if more:
            self.lines += more
            self.counts.update(line.what for line in more)
            for line in more:
                self._note(line)
            self._moved = now
        if now - self._told > 10:
            self._told = now
            self.say()
        return more

    def _note(self, line: audit.Line) -> None:
        flow = line.name.partition(".")[0]
        if line.what == audit.FLOW:
            self.running.discard(flow)
            self._over.add(flow)
        elif flow not in self._over:  # a worker can still execute a task that the engine gave up
            self.running.add(flow)

    def wait(self, seconds: float) -> None:
        """Wait this many seconds, with polls."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.tick(min(TICK, left))

    @property
    def stuck(self) -> bool:
        """Return whether there was no progress for too long. Before the first fault, allow for a
        slow
        machine.
        """
        patience = self.plan.patience if self.crew.faults else max(self.plan.patience, START)
        return time.monotonic() - self._moved > patience

    def say(self) -> None:
        faults = Counter(fault.kind for fault in self.crew.faults)
        counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(faults.items()))
        print(
            f"{time.monotonic() - self.began:5.0f} s  {self.counts[audit.FLOW]} flows and"
            f" {self.counts[audit.ENDED]} tasks ended; {counts or 'no fault yet'}",
            flush=True,
        )

    def fault(self, kind: str, until: float = 0.0) -> None:
        """Record a fault that affects no process of the crew."""
        now = time.monotonic()
        self.crew.faults.append(checking.Fault(kind, now, 0, until or now))


Act = Callable[[Stage], None]


def run(plan: Plan, folder: Path, act: Act) -> tuple[Verdict, Stage]:
    """Run the plan with the faults of `act`. Return the verdict and the stage."""
    crashing.preload(["dir", "sqlite"])
    if plan.control:
        importlib.import_module("tests.chaos.control")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "audit"
    audit.begin(path)
    try:
        with (
            media.medium(plan.transport, folder) as medium,
            ledgers.place(plan.ledger, folder) as ledger,
            contextlib.closing(audit.Reader(path)) as reader,
        ):
            stage = _set(plan, folder, medium, ledger.url, reader)
            try:
                return _play(stage, act, ledger), stage
            finally:
                stage.crew.end()
    finally:
        audit.end()


def _set(
    plan: Plan, folder: Path, medium: media.Medium, ledger: str | None, reader: audit.Reader
) -> Stage:
    wall_clocks = clocks.Clocks(plan.workers + plan.engines)
    # A new program does not share the memory of the clocks.
    shared_clocks = None if any(plan.builds) else wall_clocks
    where = {"url": medium.url, **({"ledger": ledger} if ledger is not None else {})}
    settings = workers.WorkerSettings(folder, where, plan.slots, shared_clocks, plan.control)
    options = {
        **where,
        "worker_expiry": plan.expiry,
        "max_resends": 500,
    }
    works = [
        engines.Work(
            folder,
            number,
            ("sqlite", "dir")[number % 2],
            options,
            plan.threads,
            plan.kinds,
            plan.width,
            plan.seconds,
            plan.long,
            shared=number % 3 == 2,
            clocks=shared_clocks,
            clock=plan.workers + number,
            control=plan.control,
        )
        for number in range(plan.engines)
    ]
    processes = crew.Crew(settings, plan.workers, works, plan.builds)
    return Stage(plan, folder, medium, processes, wall_clocks, random.Random(plan.seed), reader)


def _play(stage: Stage, act: Act, ledger: ledgers.Place) -> Verdict:
    stage.crew.begin()
    act(stage)
    (stage.folder / "enough").touch()
    stage.medium.mend()
    stage.crew.heal()
    healed = time.monotonic()
    while not stage.crew.done and time.monotonic() - healed < stage.plan.patience:
        stage.tick()
    stage.notes["seconds until all had ended"] = round(time.monotonic() - healed, 1)
    if not stage.crew.done:
        stage.crew.write_stacks()
        stage.problems.append(f"engines do not end within {stage.plan.patience:.0f} s")
    done = stage.crew.done
    stage.crew.dismiss()
    stage.crew.end()
    stage.tick()
    if any(stage.plan.builds):
        _note_builds(stage)
    left = _left(stage, ledger) if done else []
    history = History(
        stage.lines,
        list(_kept(stage)),
        stage.crew.faults,
        ledger=ledger.url is not None or stage.plan.transport != "amqp",
        expiry=stage.plan.expiry,
        left=[] if stage.plan.control else left,
    )
    verdict = checking.judge(history)
    verdict.problems[:0] = stage.problems
    if not stage.plan.control:  # TaskFlow logs errors, and does not end at SIGTERM
        verdict.problems[:0] = stage.crew.problems
        verdict.problems += _noise(stage)
    return verdict


def _note_builds(stage: Stage) -> None:
    lines, builds = stage.lines, stage.crew.builds
    stage.notes["requests by format"] = dict(
        Counter(str(line.format) for line in lines if line.what == audit.PUBLISHED)
    )
    starts = Counter(builds[line.pid] for line in lines if line.what == audit.STARTED)
    stage.notes["tasks by build"] = {build.name: count for build, count in starts.items() if build}


def _noise(stage: Stage) -> list[str]:
    """Return each kind of log line that is always an error, with its count."""
    counts: Counter[str] = Counter()
    for problem in children.Clean.problems(stage.crew.logs(stage.folder)):
        _, _, line = problem.partition(" says: ")
        if not line.startswith(" "):
            counts[re.sub(r"[0-9a-f]*\d[0-9a-f]*", "N", line)] += 1
    return [f"logs say {count} times: {line}" for line, count in counts.most_common()]


def _left(stage: Stage, ledger: ledgers.Place) -> list[str]:
    """Return the objects that should have been deleted.

    Objects of killed processes, or objects that could not be deleted without a broker, must expire.
    """
    # The builds of `tests.chaos.builds` do not change the tables of folders.
    with mock.patch.object(data_formats, "FOLDER", data_formats.Format("folder", 1, (1, 2))):
        left = [*stage.medium.left(), *ledger.left()]
    pids = {str(fault.pid) for fault in stage.crew.faults if fault.kills and fault.pid}
    dead = re.compile(rf"-({'|'.join(pids)})-[0-9a-f]+" if pids else "(?!)")
    hurt = any(fault.kills or not fault.pid for fault in stage.crew.faults)
    if stage.plan.builds[0] != stage.plan.builds[1]:
        # Workers cannot read the queries of engines. A rejected request would be a lost task.
        rejected = [one for one in left if "/rejected/" in one.what]
        stage.notes["messages that were rejected"] = len(rejected)
        left = [one for one in left if one not in rejected]
    unexplained = [one for one in left if not (hurt and one.expires) and not dead.search(one.what)]
    if len(left) > len(unexplained):
        stage.notes["left by the killed, to expire"] = len(left) - len(unexplained)
    return [one.what for one in unexplained]


def _kept(stage: Stage) -> Iterator[FinalState]:
    """Yield the stored state of all flows."""
    for process in stage.crew.engines:
        assert process.work is not None
        if stage.plan.control:
            from tests.chaos import control

            yield from control.kept(process.work)
            continue
        with (
            backends.backend(process.work.conf) as backend,
            contextlib.closing(backend.get_connection()) as connection,
        ):
            for book in connection.get_logbooks():
                for detail in book:
                    full = connection.get_flow_details(detail.uuid)
                    results = {atom.name: atom.results for atom in full if atom.state == "SUCCESS"}
                    yield FinalState(full.name, full.state, results)


def ignored(stage: Stage) -> Counter[str]:
    """Return the number of replies that finished engines ignored, by reason."""
    counts: Counter[str] = Counter()
    for path in stage.folder.glob("engine-*.counts"):
        for line in path.read_text(encoding="utf-8").splitlines():
            counts.update(json.loads(line))
    return counts

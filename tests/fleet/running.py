"""One run of a fleet, from the first worker to the check of remaining objects."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crashing import children
from tests.fleet.hosts import EXCHANGE
from tests.support import brokers, python, workers

ROOT = Path(__file__).resolve().parents[2]

#: Maximum memory of an idle worker in megabytes.
MOST_MEMORY = 60.0
#: Maximum number of seconds until all engines have discovered all workers.
PATIENCE = 60.0


@dataclass
class Plan:
    transport: str
    workers: int = 64
    engines: int = 20
    #: Number of tasks in the flow of each engine.
    tasks: int = 200
    #: Number of workers that stop, and that are added.
    change: int = 10
    #: Seconds without any work.
    idle: float = 60.0
    #: Number of workers that are started by the command, to measure the memory of one.
    alone: int = 2


@dataclass
class Report:
    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def check(self, right: object, problem: str) -> None:
        if not right:
            self.problems.append(problem)


class Host:
    """A process of `hosts`."""

    def __init__(self, *arguments: str) -> None:
        self._process = python.start(
            ["-m", "tests.fleet.hosts", *arguments],
            real=True,  # the tool measures its memory
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
        )  # fmt: skip

    def ask(self, **order: Any) -> Any:
        """Send an order and return its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def memory_of(pid: int) -> tuple[float, float]:
    """Return the resident and the proportional memory of a process in megabytes."""
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        sizes[name] = int(value.split()[0]) / 1024
    return sizes["Rss"], sizes["Pss"]


def seconds_of(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def place(kind: str) -> Iterator[brokers.Place]:
    """Yield a part of a private broker."""
    server = brokers.redis() if kind == "redis" else brokers.rabbitmq()
    with server as broker, broker.place() as url:
        yield url


def run(plan: Plan, folder: Path, url: brokers.Place | None = None) -> Report:
    """Run the plan on the broker `url`, or on a private broker."""
    if url is None:
        with place(plan.transport) as own:
            return run(plan, folder, own)
    report = Fleet(plan, folder, url).play()
    left = url.left()
    report.check(not left, f"the broker is left with {left}")
    return report


class Fleet:
    def __init__(self, plan: Plan, folder: Path, url: str) -> None:
        self._plan = plan
        self._folder = folder
        self._url = url
        self._pids: list[int] = []
        self.report = Report()

    def play(self) -> Report:
        """Run all steps. All processes have ended afterwards."""
        hired = Host("workers", self._url, str(self._folder))
        with contextlib.closing(hired):
            began = time.monotonic()
            self._pids = hired.ask(start=self._plan.workers)
            engines = Host("engines", self._url, str(self._folder), str(self._plan.engines))
            with contextlib.closing(engines):
                self._meet(engines, began)
                self._work(engines)
                self._rest(engines)
                self._work(engines)
                self._change(hired, engines)
                self._work(engines)
                self._end(engines)
            codes = hired.ask(stop=self._pids)
            self.report.check(not any(codes), f"workers ended with {codes}")
        logs = {path.name: path for path in self._folder.glob("*.log")}
        self.report.problems += children.Clean.problems(logs)
        return self.report

    def _meet(self, engines: Host, began: float) -> None:
        count = self._plan.workers
        reply = engines.ask(do="wait", workers=count, seconds=PATIENCE)
        self.report.figures["seconds until all were known"] = round(time.monotonic() - began, 2)
        self.report.check(
            all(one["missing"] == 0 and one["more"] == 1 for one in reply),
            f"wait_for_workers({count}) says {reply}",
        )
        self._see(engines, "at first")

    def _see(self, engines: Host, when: str) -> None:
        reply = engines.ask(do="look", pids=self._pids, seconds=PATIENCE)
        wrong = [one["known"] for one in reply if not one["right"]]
        self.report.check(not wrong, f"{when} engines know {wrong} of {len(self._pids)} workers")
        self.report.figures[f"seconds until known {when}"] = round(
            max(one["seconds"] for one in reply), 2
        )

    def _work(self, engines: Host) -> None:
        plan = self._plan
        reply = engines.ask(do="run", tasks=plan.tasks)
        wrong = [one for one in reply if (one["state"], one["results"]) != ("SUCCESS", plan.tasks)]
        self.report.check(not wrong, f"flows ended otherwise: {wrong[:3]}")
        took = max(one["seconds"] for one in reply)
        self.report.figures.setdefault("tasks per second", []).append(
            round(plan.tasks * plan.engines / took) if took else 0
        )
        self.report.figures.setdefault("slowest flow, seconds", []).append(round(took, 2))

    def _rest(self, engines: Host) -> None:
        """Measure the costs without any work."""
        figures, plan = self.report.figures, self._plan
        time.sleep(min(2.0, plan.idle))
        before, used = sum(engines.ask(do="count")), sum(map(seconds_of, self._pids))
        began = time.monotonic()
        time.sleep(plan.idle)
        took = time.monotonic() - began
        heard = sum(engines.ask(do="count")) - before
        used = sum(map(seconds_of, self._pids)) - used
        figures["messages per second that all engines hear, idle"] = round(heard / took, 1)
        figures["processor of all workers, idle, percent"] = round(100 * used / took, 1)
        sizes = [memory_of(pid) for pid in self._pids]
        worst = max(rss for rss, _ in sizes)
        figures["MB of an idle worker, most"] = round(worst, 1)
        figures["MB of an idle worker, its share, mean"] = round(
            sum(pss for _, pss in sizes) / len(sizes), 1
        )
        self.report.check(worst < MOST_MEMORY, f"an idle worker has {worst:.1f} MB")
        if plan.alone:
            self._alone(engines)

    def _alone(self, engines: Host) -> None:
        """Measure workers that the command started, which share no memory with other processes."""
        arguments = ("--exchange", EXCHANGE, "--topic", "alone", "--tasks", "tests.fleet.tasks",
                     "--url", self._url, "--concurrency", "2")  # fmt: skip
        with workers.workers(self._folder, *arguments, count=self._plan.alone) as processes:
            # After its discovery, a worker has loaded all modules and handles signals.
            count = self._plan.workers + self._plan.alone
            known = engines.ask(do="wait", workers=count, seconds=PATIENCE)
            missing = max(one["missing"] for one in known)
            self.report.check(not missing, f"{missing} workers by themselves are not known")
            worst = max(memory_of(one.process.pid)[0] for one in processes)
            codes = [one.stop() for one in processes]
        self.report.figures["MB of a worker by itself"] = round(worst, 1)
        self.report.check(worst < MOST_MEMORY, f"a worker by itself has {worst:.1f} MB")
        self.report.check(not any(codes), f"workers by themselves ended with {codes}")

    def _change(self, hired: Host, engines: Host) -> None:
        """Stop some workers, add as many, then do both at once."""
        few = self._plan.change
        if not few:
            return
        gone, self._pids = self._pids[:few], self._pids[few:]
        codes = hired.ask(stop=gone)
        self.report.check(not any(codes), f"workers ended with {codes}")
        self._see(engines, f"when {few} had stopped")
        self._pids += hired.ask(start=few)
        self._see(engines, f"when {few} had come")
        gone, remaining = self._pids[:few], self._pids[few:]
        self._pids = remaining + hired.ask(start=few)
        hired.ask(stop=gone)
        self._see(engines, f"when {few} came and {few} stopped")

    def _end(self, engines: Host) -> None:
        refused = [one for one in engines.ask(do="end") if one]
        self.report.check(not refused, f"engines refused messages: {refused}")

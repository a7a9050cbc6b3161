"""Commands at each moment: a conductor waits at a crash point until a command to its flow was sent.

Then it continues, or it gets SIGKILL or SIGTERM and another conductor starts. A command that was
accepted must be carried out or refused with a reason.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.crashing import audit, children, engines, spreading, tasks, workers
from wbengine import engines as flows
from wbengine import exceptions, operations, states, task
from wbengine._concurrency import crash_points
from wbengine.conductors import service
from wbengine.conductors.backends import impl_executor
from wbengine.jobs.backends import impl_sql
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base

ENGINES: Final = ("serial", "parallel", "worker-based")
SENT: Final = ("cancel", "suspend", "signal", "pause")
AFTERWARDS: Final = ("continue", "SIGTERM", "SIGKILL")

#: Moments at which no process runs the flow.
UNSTARTED: Final = "unstarted"
PARKED: Final = "parked"
MOMENTS_WITHOUT_RUN: Final = (UNSTARTED, PARKED)

_SIGNAL: Final = "go"
_STEPS: Final = ("one", "two", "three")
#: Seconds for a command while its flow waits at a crash point, perhaps in a transaction.
_SEND_SECONDS: Final = 0.25
_PATIENCE: Final = 40.0
#: Seconds after which no task of a paused type starts, and for which this is observed.
_PAUSE_SECONDS: Final = 2.0
_PAUSED: Final = "tests.crashing.tasks.Step"


def flow() -> linear_flow.Flow:
    """Return a flow that waits for a signal before its last task."""
    one, two, three = (tasks.Step(name) for name in _STEPS)
    wait = task.WaitFor(_SIGNAL, timeout=3600, provides="found")
    return linear_flow.Flow("commanded").add(one, two, wait, three)


@dataclass(frozen=True)
class Moment:
    """The `hit`-th time that a conductor reaches a point; `MOMENTS_WITHOUT_RUN` have no hit."""

    point: str
    hit: int = 1

    def __str__(self) -> str:
        return f"{self.point}#{self.hit}"


@dataclass(frozen=True)
class Case:
    engine: str
    command: str
    moment: Moment
    afterwards: str

    def __str__(self) -> str:
        return f"{self.command} at {self.moment}, then {self.afterwards}, {self.engine}"


@dataclass
class Run:
    """A submitted flow and the processes that work on it."""

    folder: Path
    engine: str
    broker: Path
    backend: base.Backend = field(init=False)
    handle: flows.FlowHandle = field(init=False)
    pids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backend = backends.fetch(f"sqlite:///{self.folder}/flows.db")
        inputs = {"audit": str(self.folder / "audit"), "nap": 0.0, "round": 0}
        self.handle = flows.submit(flow, inputs=inputs, backend=self.backend)

    def conduct(self, hook: Callable[[str], None] | None = None) -> int:
        """Start a conductor in a process; it calls `hook` at its crash points."""
        options = engines.options(self.engine, self.broker)

        def work() -> None:
            engines.limit({"wbengine.persistence._lease_renewer:POLL_SECONDS": 0.2})
            service.ConductorService.POLL_SECONDS = 0.3  # type: ignore[misc]
            impl_executor.ExecutorConductor.CLAIM_SECONDS = 1.0
            conducting = service.ConductorService(
                backends.fetch(f"sqlite:///{self.folder}/flows.db"),
                engine=options.pop("engine"),
                engine_options=options,
            )
            signal.signal(signal.SIGTERM, lambda number, frame: conducting.stop())
            crash_points.install(hook)
            conducting.run()

        log = self.folder / f"conductor-{len(self.pids)}.log"
        self.pids.append(children.fork(work, log, patience=300))
        return self.pids[-1]

    @property
    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        for pid in self.pids:
            children.kill(pid)
        self.backend.close()

    def is_parked(self) -> bool:
        with contextlib.closing(self.backend.get_connection()) as connection:
            flow_detail = connection.get_flow_details(self.handle.id, lazy=True)
        return flow_detail.is_parked and self._free_jobs() == [False]

    def _free_jobs(self) -> list[bool]:
        """Return for each job whether it can be claimed, or None if it is claimed."""
        board = impl_sql.SQLJobBoard("observed", persistence=self.backend)
        board.connect()
        free = {job.uuid for job in board.iterjobs(only_unclaimed=True)}
        owned = {job.uuid for job in board.iterjobs() if board.find_owner(job) is not None}
        return [job.uuid in free for job in board.iterjobs() if job.uuid not in owned]

    def is_suspended(self) -> bool:
        """Return whether a command suspended the flow and nothing can continue it."""
        with contextlib.closing(self.backend.get_connection()) as connection:
            flow_detail = connection.get_flow_details(self.handle.id, lazy=True)
            is_free = connection.get_lease(self.handle.id) is None
            has_command = bool(connection.commands([self.handle.id]))
        board = impl_sql.SQLJobBoard("observed", persistence=self.backend)
        board.connect()
        return (
            flow_detail.is_suspended_by_command and is_free and not (has_command or board.job_count)
        )

    def begun(self) -> set[str]:
        """Return the names of the atoms with an attempt."""
        with contextlib.closing(self.backend.get_connection()) as connection:
            flow_detail = connection.get_flow_details(self.handle.id)
        return {record.name for record in flow_detail if record.attempt}

    def send(self, command: str) -> str | None:
        """Send a command. Return None if it is accepted, or the reason of its refusal."""
        try:
            if command == "signal":
                self.handle.signal(_SIGNAL, "found")
            elif command == "pause":
                operations.pause_tasks(self.backend, _PAUSED)
            elif command == "cancel":
                operations.cancel(self.backend, self.handle.id, reason="not wanted")
            else:
                operations.suspend(self.backend, self.handle.id, reason="later")
        except (exceptions.InvalidState, exceptions.Duplicate) as error:
            return f"{type(error).__name__}: {error}"
        return None


class Stop:
    """Stops the thread that reaches a moment, until it is released."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._reached, self._tell = os.pipe()
        self._wait, self._release = os.pipe()

    def hook(self, point: str) -> None:
        with self._lock:
            self._counts[point] += 1
            is_here = Moment(point, self._counts[point]) == self._moment
        if is_here:
            os.write(self._tell, b"x")
            os.read(self._wait, 1)

    def is_reached(self) -> bool:
        os.set_blocking(self._reached, False)
        try:
            return bool(os.read(self._reached, 1))
        except BlockingIOError:
            return False

    def release(self) -> None:
        os.write(self._release, b"x")

    def close(self) -> None:
        for file in (self._reached, self._tell, self._wait, self._release):
            os.close(file)


def count(folder: Path, engine: str, broker: Path) -> Counter[str]:
    """Return how often a conductor reaches each point while it runs the flow to its end."""
    file = folder / "hits"
    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def hook(point: str) -> None:
        with lock:
            counts[point] += 1
            engines.write_json(file, counts)

    run = Run(folder, engine, broker)
    try:
        run.conduct(hook)
        children.until(run.is_parked, _PATIENCE, "the flow is not parked")
        run.send("signal")
        children.until(lambda: run.handle.state == states.SUCCESS, _PATIENCE, "it does not end")
        children.until(lambda: not run._free_jobs(), _PATIENCE, "the job stays")
        return Counter(engines.read_json(file))
    finally:
        run.close()


def moments(counts: Counter[str], chance: random.Random, depth: int) -> list[Moment]:
    """Return the moments without a run, and at most `depth` hits of each point."""
    found = [Moment(name) for name in MOMENTS_WITHOUT_RUN]
    for point, number in sorted(counts.items()):
        hits = {1, number}
        others = [hit for hit in range(1, number + 1) if hit not in hits]
        hits.update(chance.sample(others, max(0, min(depth - len(hits), len(others)))))
        found += [Moment(point, hit) for hit in sorted(hits)[:depth]]
    return found


def perform(case: Case, folder: Path, broker: Path) -> dict[str, Any]:
    """Run a case. Return whether it was reached, and how the command ended."""
    run, stop = Run(folder, case.engine, broker), Stop(case.moment)
    try:
        if case.moment.point == UNSTARTED:
            is_reached, refusal = True, run.send(case.command)
            run.conduct()
        else:
            pid = run.conduct(stop.hook)
            is_reached = _reach(case, run, stop)
            refusal = _send(case, run, stop, pid) if is_reached else "not reached"
        ended = "refused at once" if is_reached else "not reached"
        if is_reached and refusal is None:
            ended = _judge_pause(run) if case.command == "pause" else _judge(case, run)
        return {
            "case": str(case), "reached": is_reached, "refusal": refusal, "result": ended,
            "problem": ended if ended.startswith("LOST") else None,
        }  # fmt: skip
    finally:
        run.close()
        stop.close()


def _reach(case: Case, run: Run, stop: Stop) -> bool:
    """Wait for the moment; send the signal that the flow needs to reach it."""
    is_signalled = case.command == "signal"
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if stop.is_reached():
            return True
        if not is_signalled and run.is_parked():
            if case.moment.point == PARKED:
                return True
            run.send("signal")
            is_signalled = True
        elif is_signalled and case.command == "signal" and run.is_parked():
            return case.moment.point == PARKED
        elif run.handle.state == states.SUCCESS and not run._free_jobs():
            return stop.is_reached()
        time.sleep(0.01)
    raise TimeoutError(f"{case}: the flow does not end")


def _send(case: Case, run: Run, stop: Stop, pid: int) -> str | None:
    """Send the command from another process, and then do with the conductor what the case says."""
    reply = run.folder / "reply"
    sender = children.fork(
        lambda: engines.write_json(reply, run.send(case.command)), run.folder / "sender.log"
    )
    with contextlib.suppress(TimeoutError):  # The moment may be in a transaction.
        children.until(reply.exists, _SEND_SECONDS, "")
    if case.afterwards == "SIGKILL":
        children.kill(pid)
        run.pids.remove(pid)
        run.conduct()
    else:
        if case.afterwards == "SIGTERM":
            os.kill(pid, signal.SIGTERM)
            run.conduct()
        stop.release()
    children.until(reply.exists, _PATIENCE, "the command is not sent")
    children.wait(sender)
    refusal: str | None = engines.read_json(reply)
    return refusal


def _judge(case: Case, run: Run) -> str:
    """Return how an accepted command ended; 'LOST ...' if it was lost."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        state = run.handle.state
        if case.command == "suspend" and run.is_suspended():
            return _resume(case, run)
        if state in states.FLOW_ENDED:
            break
        time.sleep(0.02)
    else:
        return f"LOST: the flow is {state}, {_history(run)}"
    effects = audit.read(run.folder / "audit")
    if case.command == "cancel" and state == states.REVERTED:
        done = {effect.split()[0] for effect in effects if " execute " in effect}
        undone = {effect.split()[0] for effect in effects if " revert " in effect}
        # A task that may have run is undone too.
        return "carried out" if done <= undone else f"LOST: done {done}, undone {undone}"
    if case.command == "signal" and state == states.SUCCESS:
        return "carried out"
    word = {"cancel": "cancelled", "suspend": "suspended"}.get(case.command, "")
    with contextlib.suppress(TimeoutError):
        children.until(lambda: f"{state}: it was not {word}" in run.logs, 5.0, "")
        return "refused: too late"
    return f"LOST: the flow has ended in {state}, {_history(run)}"


def _judge_pause(run: Run) -> str:
    """Check that no task starts during a pause, also if its flow could continue.

    A call that had begun is not paused: the next conductor may resend it at any time.
    """
    time.sleep(_PAUSE_SECONDS)
    before = audit.read(run.folder / "audit")
    under_way = run.begun() - {effect.split()[0] for effect in before}
    with contextlib.suppress(exceptions.Duplicate, exceptions.InvalidState):
        run.handle.signal(_SIGNAL, "found")
    time.sleep(_PAUSE_SECONDS)
    later = audit.read(run.folder / "audit")[len(before) :]
    if not {effect.split()[0] for effect in later} <= under_way:
        return f"LOST: tasks started after {before}, with {under_way} under way: {later}"
    operations.resume_tasks(run.backend, _PAUSED)
    children.until(lambda: run.handle.state == states.SUCCESS, _PATIENCE, "LOST: it is paused")
    return "carried out"


def _resume(case: Case, run: Run) -> str:
    """Check that a suspended flow continues when it is resumed, and not before."""
    with contextlib.suppress(exceptions.Duplicate):
        run.handle.signal(_SIGNAL, "found")
    if case.engine == "serial":
        operations.resume(run.backend, run.handle.id, engine="serial").run()
        if run.handle.state != states.SUCCESS:
            return f"LOST: a resumed flow is {run.handle.state}, {_history(run)}"
    return "carried out"


def _history(run: Run) -> str:
    with contextlib.closing(run.backend.get_connection()) as connection:
        detail = connection.get_flow_details(run.handle.id, lazy=True)
        stored = connection.commands([run.handle.id])
    changes = [(change.state, change.why) for change in detail.history]
    return f"history {changes}, commands {list(stored.values())}, jobs {run._free_jobs()}"


@dataclass(frozen=True)
class Plan:
    engines: Sequence[str] = ENGINES
    commands: Sequence[str] = SENT
    afterwards: Sequence[str] = AFTERWARDS
    depth: int = 3
    jobs: int = 3
    seed: int = 0
    only: str = ""


def run(plan: Plan, folder: Path) -> int:
    """Run all cases, print the numbers, and return the number of problems."""
    began = time.monotonic()
    engines.preload(["sqlite"])
    chance = random.Random(plan.seed)
    cases = []
    for kind in plan.engines:
        with _bench(folder / f"count-{kind}", [kind]) as broker:
            counts = count(folder / f"count-{kind}", kind, broker)
        found = [each for each in moments(counts, chance, plan.depth) if plan.only in each.point]
        print(f"{kind}: {len(counts)} points, {len(found)} moments", flush=True)
        cases += [
            Case(kind, command, moment, afterwards)
            for moment in found
            for command in plan.commands
            for afterwards in plan.afterwards
            if afterwards == "continue" or moment.point != UNSTARTED
        ]
    chance.shuffle(cases)

    @contextlib.contextmanager
    def enter(number: int) -> Iterator[Callable[[Any], dict[str, Any]]]:
        place = folder / f"process-{number}"
        with _bench(place, plan.engines) as broker:
            yield lambda numbered: _perform_in(place, broker, *numbered)

    results: Counter[tuple[str, str, str]] = Counter()
    problems = 0
    for report in spreading.spread(list(enumerate(cases)), plan.jobs, enter):
        problem = report.get("error") or report["problem"]
        if problem:
            problems += 1
            print(f"PROBLEM {report.get('case', '')}: {problem}", flush=True)
        else:
            case = cases[report["number"]]
            results[case.engine, case.command, report["result"]] += 1
    for key, number in sorted(results.items()):
        print(f"{key[0]:<14}{key[1]:<10}{key[2]:<20}{number:>6}")
    done = sum(number for key, number in results.items() if key[2] == "carried out")
    seconds = time.monotonic() - began
    print(
        f"{len(cases)} cases, {done} commands carried out, {seconds:.0f} s,"
        f" accepted and lost: {problems}"
    )
    return problems


@contextlib.contextmanager
def _bench(folder: Path, kinds: Sequence[str]) -> Iterator[Path]:
    """Yield a broker in a new folder, with a worker if a kind of engine needs one."""
    folder.mkdir(parents=True)
    broker, pid = folder / "broker", None
    if "worker-based" in kinds:
        pid = workers.start(f"filesystem://{broker}", folder / "worker.log")
    try:
        yield broker
    finally:
        if pid is not None:
            children.stop(pid)


def _perform_in(place: Path, broker: Path, number: int, case: Case) -> dict[str, Any]:
    folder = place / f"case-{number}"
    folder.mkdir()
    return {**perform(case, folder, broker), "number": number}

"""Submitted flows, while conductors, workers, brokers and databases are killed or stopped.

The processes are the commands of users: `wbengine serve` and `wbengine worker`. Each flow has
`STEPS` sequential tasks, or is a workflow. The checks use the audit file and the store. With orders
(`tests.chaos.orders`), the kills begin when all flows are complete and a command reverts them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal as signals
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import audit, media, orders, requests, tasks, workflows
from tests.support import python, servers
from wbengine import engines, exceptions, states, task
from wbengine._cli import errors
from wbengine.conductors.backends import impl_executor
from wbengine.jobs import _parked_jobs
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.patterns import linear_flow
from wbengine.persistence import backends
from wbengine.persistence import base as persistence
from wbengine.persistence._bulk_records import RUNNING

STEPS = 5
#: Relative frequency of kills of each kind of process.
WEIGHTS = {"conductor": 5, "worker": 5, "broker": 2, "database": 2, "requester": 2}
#: Number of processes that suspend, resume and retry flows.
REQUESTERS = 2
#: Maximum number of seconds between kills, if no flow makes progress.
LONGEST = 20.0
#: Duration of a claim on a job; no lease of a flow is longer.
CLAIM_SECONDS = impl_executor.ExecutorConductor.CLAIM_SECONDS
#: Shortest and longest stop of a conductor, in claims.
STOPS_IN_CLAIMS = (1.05, 1.5)


@dataclass(frozen=True)
class Plan:
    """The processes and the number of faults."""

    flows: int
    #: Number of kills, or of stops.
    faults: int
    seed: int = 0
    transport: str = "redis"
    #: 'sqlite', 'postgresql' or 'dir'.
    store: str = "sqlite"
    #: Whether the job board is in the broker (a Redis) instead of the store.
    board: bool = False
    #: Whether the flows are workflows (`tests.chaos.workflows`).
    workflows: bool = False
    #: Whether other processes suspend, resume and retry the flows (`tests.chaos.requests`).
    requests: bool = False
    #: Whether the flows are orders that are reverted when they are complete (`tests.chaos.orders`).
    orders: bool = False
    #: Whether the faults are stops of conductors that outlast their claims and leases.
    stops: bool = False
    conductors: int = 3
    #: Number of workers. With 0, the conductors run the tasks.
    workers: int = 3
    simultaneous: int = 8
    #: Seconds of silence after which a worker is lost.
    expiry: float = 5.0
    #: Seconds within which all flows must end after the last kill.
    patience: float = 300.0

    @property
    def runs(self) -> int:
        """Return the minimum number of runs of tasks during the kills, if no flow is lost."""
        if self.orders:
            return orders.effects_to_undo(self.flows)
        return self.flows * (workflows.MIN_RUNS if self.workflows else STEPS)


class Step(task.Task):
    """A task of the flow `flow`, which receives the result of its predecessor."""

    idempotent = True

    def execute(self, flow: str, before: int | None = None) -> int:
        name, asked = f"{flow}.{self.name}", self.request
        assert asked is not None
        audit.note(audit.STARTED, name, asked.id, asked.epoch, asked.attempt)
        tasks.rest(name, 0.01, 0.5)
        audit.note(audit.ENDED, name, asked.id, asked.epoch, asked.attempt)
        return tasks.value(name)


def steps() -> Any:
    result = linear_flow.Flow("steps")
    for number in range(STEPS):
        rebind = {"before": str(number - 1)} if number else None
        result.add(Step(str(number), provides=str(number), rebind=rebind))
    return result


@dataclass
class Stage:
    """The processes of a run, and the counts of kills."""

    plan: Plan
    folder: Path
    medium: media.Medium
    database: servers.KeptServer | None
    store: str
    chance: random.Random
    #: Further environment variables of the processes.
    environment: Mapping[str, str] = field(default_factory=dict)
    running: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)
    #: Numbers of the processes that send requests, by process id.
    _requesters: dict[int, int] = field(default_factory=dict)
    #: Process ids of stopped conductors.
    _stopped: set[int] = field(default_factory=set)
    #: Pending restarts with their times.
    _due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    @property
    def board(self) -> str | None:
        return self.medium.url if self.plan.board else None

    def begin(self) -> None:
        for kind, number in {
            "conductor": self.plan.conductors,
            "worker": self.plan.workers,
        }.items():
            self.running[kind] = []
            for _ in range(number):
                self.start(kind)
        self.running["requester"] = []
        if self.plan.requests:
            for number in range(REQUESTERS):
                self._start_requester(number)

    def _start_requester(self, number: int) -> None:
        process = requests.start(self.store, self.folder, number, REQUESTERS)
        self._requesters[process.pid] = number
        self.running["requester"].append(process)

    def start(self, kind: str) -> None:
        plan = self.plan
        words = ["--url", self.medium.url, "--log-level", "info"]
        if kind == "worker":
            command = ["worker", "default", "--tasks", __name__, "--threads", "4"]
            command += ["--tasks", (orders if self.plan.orders else workflows).__name__]
        else:
            command = ["serve", "--max-simultaneous", str(plan.simultaneous)]
            engine = f"workers://?worker_expiry={plan.expiry:g}&max_resends=500"
            command += ["--engine", engine if plan.workers else "parallel"]
            words += ["--persistence", self.store]
            words += [] if self.board is None else ["--board", self.board]
        with open(self.folder / f"{kind}.log", "ab") as log:
            process = python.start(
                ["-m", "wbengine", *command, *words],
                cwd=servers.REPOSITORY,
                env={**os.environ, **self.environment, audit.VARIABLE: str(self.folder / "audit")},
                stdout=log,
                stderr=log,
                die_with_parent=True,
            )
        self.running[kind].append(process)

    def kill_one(self) -> None:
        """Kill a random process by SIGKILL. It restarts within one or two seconds."""
        kinds = [kind for kind in WEIGHTS if self._can_be_killed(kind)]
        (kind,) = self.chance.choices(kinds, [WEIGHTS[kind] for kind in kinds])
        self.killed[kind] += 1
        back = time.monotonic() + self.chance.choice((0.0, 0.5, 2.0))
        if kind == "broker":
            broker = self.medium.broker
            assert broker is not None
            broker.kill()
            self._due.append((back, broker.mend))
        elif kind == "database":
            assert self.database is not None
            self.database.ask("kill")
            self._due.append((back, self._start_database))
        else:
            victim = self.chance.choice(self.running[kind])
            self.running[kind].remove(victim)
            victim.kill()
            victim.wait()
            number = self._requesters.pop(victim.pid, None)
            if number is None:
                self._due.append((back, lambda: self.start(kind)))
            else:
                self._due.append((back, lambda: self._start_requester(number)))

    def stop_one(self) -> None:
        """Stop a conductor by SIGSTOP. It continues when others may have taken its flows."""
        running = [one for one in self.running["conductor"] if one.pid not in self._stopped]
        victim = self.chance.choice(running)
        self._stopped.add(victim.pid)
        self.killed["conductor stopped"] += 1
        victim.send_signal(signals.SIGSTOP)
        back = time.monotonic() + self.chance.uniform(*STOPS_IN_CLAIMS) * CLAIM_SECONDS

        def resume() -> None:
            victim.send_signal(signals.SIGCONT)
            self._stopped.remove(victim.pid)

        self._due.append((back, resume))

    @property
    def can_be_hurt(self) -> bool:
        """Whether another fault may begin."""
        return not self.plan.stops or len(self._stopped) < len(self.running["conductor"]) - 1

    def hurt(self) -> None:
        """Kill or stop a process."""
        self.stop_one() if self.plan.stops else self.kill_one()

    def _can_be_killed(self, kind: str) -> bool:
        if kind == "broker":
            return self.medium.broker is not None and self.medium.broker.runs
        if kind == "database":
            return self.database is not None and not self._is_due(self._start_database)
        return bool(self.running[kind])

    def revert_orders(self) -> None:
        """Request the reversion of all selected orders by one command, which ends at once."""
        command = ["flow", "revert", *orders.SELECTION, "--yes", "--background"]
        command += ["--persistence", self.store]
        with open(self.folder / "command.log", "ab") as log:
            python.start(
                ["-m", "wbengine", *command], cwd=servers.REPOSITORY, stdout=log, stderr=log
            ).wait()

    def _is_due(self, action: Callable[[], None]) -> bool:
        return any(due == action for _, due in self._due)

    def _start_database(self) -> None:
        for _ in range(100):
            # the children of the old server have to end first
            with contextlib.suppress(servers.ServerMissing):
                assert self.database is not None
                self.database.ask("start")
                return
            time.sleep(0.2)
        raise servers.ServerMissing("the database does not start again")

    def poll(self, all_of_them: bool = False) -> None:
        """Perform the restarts that are due."""
        now = time.monotonic()
        due = [action for at, action in self._due if all_of_them or at <= now]
        self._due = [] if all_of_them else [one for one in self._due if one[0] > now]
        for action in due:
            action()
        for kind, processes in self.running.items():
            for process in [one for one in processes if one.poll() == errors.UNAVAILABLE]:
                # The process started without a broker; a supervisor would restart it.
                processes.remove(process)
                self.start(kind)

    @property
    def is_requesting(self) -> bool:
        """Whether a process still sends requests."""
        return any(process.poll() is None for process in self.running["requester"])

    @property
    def is_reverting(self) -> bool:
        """Whether a command to revert the orders is not carried out yet, or may not be."""
        if not self.environment:
            return False
        try:
            with (
                backends.backend(self.store) as store,
                contextlib.closing(store.get_connection()) as connection,
            ):
                return any(bulk.state == RUNNING for bulk in connection.bulks.latest())
        except exceptions.StorageFailure:
            return True

    def problems(self) -> Iterator[str]:
        for kind, processes in self.running.items():
            for process in processes:
                if process.poll() is not None and (kind, process.returncode) != ("requester", 0):
                    yield f"a {kind} ended by itself with {process.returncode}"

    def end(self) -> None:
        for process in (one for some in self.running.values() for one in some):
            process.kill()
            process.wait()


def run(plan: Plan, folder: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run and return the figures, including `problems`."""
    began = time.monotonic()
    path = folder / "audit"
    path.touch()
    with contextlib.ExitStack() as stack:
        medium = stack.enter_context(media.medium(plan.transport, folder))
        database, uri = None, f"sqlite:///{folder}/flows.sqlite"
        if plan.store == "dir":
            uri = f"dir://{folder}/store"
        if plan.store == "postgresql":
            database = stack.enter_context(servers.keeping("postgresql"))
            server = servers.Server.of("postgresql", database.details)
            server.execute("CREATE DATABASE flows")
            uri = server.url("flows")
        stage = Stage(plan, folder, medium, database, uri, random.Random(plan.seed))
        # No kill reaches this database: a reversion that cannot connect to it would fail.
        bank = orders.Bank(f"sqlite:///{folder}/bank.sqlite") if plan.orders else None
        if bank is not None:
            stage.environment = bank.variables
        reader = stack.enter_context(contextlib.closing(audit.Reader(path)))
        store = stack.enter_context(backends.backend(uri))
        board = stack.enter_context(
            boards.backend("storm", stage.board or "sql", persistence=store)
        )
        uuids = submit(plan, store, board)
        waiting = list(uuids) if plan.workflows else []
        shared = requests.Requests(folder)
        shared.write_flows(uuids)

        def signal(count: int) -> None:
            del waiting[: workflows.send_signals(waiting[:count], store)]

        say(f"{time.monotonic() - began:5.0f} s  {len(uuids)} flows are submitted")
        stack.callback(stage.end)
        stage.begin()
        if bank is not None:
            _wait_for_jobs(stage, board, store)
            reader.more()
            stage.revert_orders()
            say(f"{time.monotonic() - began:5.0f} s  their reversion is requested")
        lines = _hurt(stage, reader, began, say, signal)
        calm = time.monotonic()
        stage.poll(all_of_them=True)
        shared.calm()
        _wait_for_jobs(stage, board, store, lambda: signal(plan.flows))
        settled = time.monotonic() - calm
        problems = list(stage.problems())
        stage.end()
        lines += reader.more()
        retries = shared.retries()
        problems += judge(plan, uuids, lines, store, board, retries, bank)
        effects = orders.count_reversions(uuids.values(), bank.rows()) if bank is not None else {}
    return {
        **effects,
        "seed": plan.seed,
        "transport": plan.transport,
        "conductors": plan.conductors,
        "workers": plan.workers,
        "store": plan.store,
        "board": plan.transport if plan.board else plan.store,
        "flows": len(uuids),
        "kills": dict(stage.killed),
        "retries": sum(number.start for number in retries.values()),
        "runs": sum(line.what == audit.STARTED for line in lines),
        "tasks": plan.runs,
        "seconds": round(time.monotonic() - began, 1),
        "seconds until all had ended": round(settled, 1),
        "problems": len(problems),
        "first problems": problems[:40],
    }


def submit(plan: Plan, store: persistence.Backend, board: jobs.JobBoard) -> dict[str, str]:
    """Submit the flows and return their names by uuid."""
    if plan.workflows:
        return workflows.submit(plan.flows, store, board)
    if plan.orders:
        return orders.submit(plan.flows, store, board)
    names = [f"flow{number}" for number in range(plan.flows)]
    inputs = [{"flow": name} for name in names]
    handles = engines.submit_many(steps, inputs, backend=store, board=board)
    return {handle.id: name for handle, name in zip(handles, names, strict=True)}


def _hurt(
    stage: Stage,
    reader: audit.Reader,
    began: float,
    say: Callable[[str], None],
    signal: Callable[[int], None],
) -> list[audit.Line]:
    """Hurt one process after each equal part of the work, and send an equal part of the signals."""
    plan, lines, reported_at = stage.plan, list[audit.Line](), 0.0
    for number in range(plan.faults):
        goal = (number + 1) / (plan.faults + 2) * plan.runs
        signal(plan.flows // plan.faults)
        longest = time.monotonic() + LONGEST
        while not stage.can_be_hurt or (len(lines) / 2 < goal and time.monotonic() < longest):
            stage.poll()
            if any(stage.problems()):
                return lines
            lines += reader.more()
            time.sleep(stage.chance.uniform(0.01, 0.05))
            if time.monotonic() > reported_at + 10:
                reported_at = time.monotonic()
                done = sum(line.what == audit.ENDED for line in lines)
                say(f"{reported_at - began:5.0f} s  {done} tasks ended; {dict(stage.killed)}")
        stage.hurt()
    return lines


def _wait_for_jobs(
    stage: Stage,
    board: jobs.JobBoard,
    store: persistence.Backend,
    act: Callable[[], object] = lambda: None,
) -> None:
    """Wait for the ends of all flows, requesters and operations on many flows."""
    ends = time.monotonic() + stage.plan.patience
    while time.monotonic() < ends and not any(stage.problems()):
        if not (stage.is_requesting or _left(board, store) or stage.is_reverting):
            return
        stage.poll()
        act()
        time.sleep(0.2)


def _left(board: jobs.JobBoard, store: persistence.Backend) -> int:
    """Return the number of jobs, also of parked flows, or 1 if the board is unreachable."""
    try:
        parked = _parked_jobs.ParkedJobs.of(board, store)
        return board.job_count + (0 if parked is None else parked.board.job_count)
    except exceptions.JobFailure:
        return 1


def judge(
    plan: Plan,
    uuids: Mapping[str, str],
    lines: Sequence[audit.Line],
    store: persistence.Backend,
    board: jobs.JobBoard,
    retries: Mapping[str, range],
    bank: orders.Bank | None,
) -> list[str]:
    """Return the problems.

    Each flow must end once, and once more for each retry, and no saved task may run again.
    """
    problems = []
    if left := _left(board, store):
        problems.append(f"{left} jobs are left on the board")
    with contextlib.closing(store.get_connection()) as connection:
        if plan.workflows:
            return [*problems, *workflows.judge(uuids, lines, connection, retries)]
        if bank is not None:
            return [*problems, *orders.judge(uuids, bank.rows(), connection)]
        return [*problems, *_judge_flows(uuids, lines, connection)]


def _judge_flows(
    uuids: Mapping[str, str], lines: Sequence[audit.Line], connection: persistence.Connection
) -> Iterator[str]:
    yield from _judge_runs(uuids.values(), lines)
    for uuid, name in uuids.items():
        detail = connection.get_flow_details(uuid)
        ends = [one.state for one in detail.history if one.state in states.FLOW_ENDED]
        if detail.state != states.SUCCESS or ends != [states.SUCCESS]:
            yield f"{name} ({uuid}) is in {detail.state}, and ended in {ends}"
        for number in map(str, range(STEPS)):
            if not _is_right(detail, name, number):
                yield f"{name}.{number} has not the right result"


def _is_right(detail: Any, flow: str, step: str) -> bool:
    atoms = {atom.name: atom for atom in detail}
    return step in atoms and atoms[step].results == tasks.value(f"{flow}.{step}")


def _judge_runs(names: Iterable[str], lines: Sequence[audit.Line]) -> Iterator[str]:
    """Yield tasks that ran after a later task of their flow, or twice under one epoch.

    A task begins after the result of its predecessor is saved.
    """
    furthest: dict[str, int] = defaultdict(lambda: -1)
    epochs: Counter[tuple[str, str, int]] = Counter()
    for line in lines:
        if line.what != audit.STARTED:
            continue
        flow, _, number = line.name.rpartition(".")
        if int(number) < furthest[flow]:
            yield f"{line.name} was saved, and ran again at {line.at}"
        furthest[flow] = max(furthest[flow], int(number))
        epochs[line.name, line.request, line.epoch] += 1
    for name in names:
        if furthest[name] != STEPS - 1:
            yield f"{name} came to its step {furthest[name]}"
    for (name, request, epoch), count in epochs.items():
        if count > 1:
            yield f"{name} ran {count} times as epoch {epoch} of request {request}"


def summary(counts: Mapping[str, Any]) -> list[str]:
    kills = ", ".join(f"{count} x {kind}" for kind, count in sorted(counts["kills"].items()))
    where = f"flows in {counts['store']}, jobs in {counts['board']}"
    workers = f"{counts['workers']} workers over {counts['transport']}"
    totals = f"{counts['flows']} flows, {counts['tasks']} tasks, {counts['runs']} runs"
    return [
        *(f"PROBLEM {problem}" for problem in counts["first problems"]),
        f"seed {counts['seed']}: {counts['conductors']} x wbengine serve, {workers}, {where}",
        f"faults: {kills}; all had ended {counts['seconds until all had ended']} s after the last",
        f"{counts['retries']} retries by other processes",
        *(
            f"effects {name}: {counts[name]}"
            for name in ("undone", "missed", "twice")
            if name in counts
        ),
        f"{totals}; {counts['seconds']:.0f} s, {counts['problems']} problems",
    ]

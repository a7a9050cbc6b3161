"""One run of a flow with real processes: an engine and two workers, one of which is killed."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from wbengine import engines, exceptions, operations, states, task
from wbengine._concurrency import crash_points
from wbengine.engines.worker_based import worker as workers
from wbengine.persistence import backends
from wbengine.running import CURRENT
from wbengine.testing._crashing.order import Order
from wbengine.testing._crashing.outcome import Event, Outcome, Subject
from wbengine.testing._crashing.schedules import Action, At, Moment, Schedule
from wbengine.testing._crashing.simulated_run import check_end
from wbengine.testing._crashing.stepping import operation_text, step_name
from wbengine.testing._worlds.world import Operation, World

__all__ = ["can_be_real", "run_real"]

_TOPIC: Final = "crash"
_WORKERS: Final = 2

#: Maximum seconds of a run.
_MAX_SECONDS: Final = 60.0

#: Maximum number of engines, one after the other.
_MAX_ENGINES: Final = 5

#: Seconds without a message after which a worker counts as lost.
_WORKER_EXPIRY: Final = 4.0

#: Interval between two checks of the process of an engine.
_POLL_SECONDS: Final = 0.01

_AFTER_EFFECT: Final = "world.after-effect"

#: The crash point of a moment, and who is killed there.
_POINTS: Final = {
    (Moment.WRITE, Action.KILL): ("storage.before-save", ("engine",)),
    (Moment.SEND, Action.KILL): ("executor.before-open", ("engine",)),
    (Moment.AFTER_EFFECT, Action.LOSE): (_AFTER_EFFECT, ("worker",)),
    (Moment.AFTER_EFFECT, Action.KILL_BOTH): (_AFTER_EFFECT, ("engine", "worker")),
    (Moment.END, Action.LOSE): ("worker.before-finish", ("worker",)),
    (Moment.REPLY, Action.KILL): ("worker.after-finish", ("engine",)),
}


class _Kill(NamedTuple):
    point: str
    hit: int
    victims: tuple[str, ...]


def can_be_real(schedule: Schedule, trace: Sequence[At]) -> bool:
    """Return whether a run with real processes can have the faults of a schedule."""
    return (
        len(schedule.moments) == 1 and not schedule.signals and _kill(schedule, trace) is not None
    )


def _kill(schedule: Schedule, trace: Sequence[At]) -> _Kill | None:
    """Return the kill at the same moment as in a simulated run."""
    ((number, fault),) = schedule.moments
    if number >= len(trace):
        return None
    moment = trace[number].moment
    place = _POINTS.get((moment, fault.action))
    if place is None:
        return None
    return _Kill(place[0], sum(at.moment is moment for at in trace[: number + 1]), place[1])


def run_real(subject: Subject, schedule: Schedule, trace: Sequence[At]) -> Outcome:
    """Run a flow with real processes, and kill some of them at a moment.

    All signals are sent before the flow starts. Time is real.

    :param trace: the moments of the simulated run without faults.
    :raises TimeoutError: if the run does not end within a minute.
    :raises RuntimeError: if a process fails.
    """
    outcome = Outcome(schedule)
    kill = _kill(schedule, trace)
    with contextlib.ExitStack() as stack:
        subject.memory.restore()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wbe-crash-")))
        run = _RealRun(subject, folder, kill)
        for number, world in enumerate(subject.worlds):
            stack.enter_context(world.shared(folder / f"world-{number}", run))
        run.live(outcome)
        check_end(subject, outcome)
    return outcome


@dataclass
class _Process:
    role: str
    pid: int


class _RealRun:
    """The processes of one run. In each of them, it records the operations of worlds."""

    def __init__(self, subject: Subject, folder: Path, kill: _Kill | None) -> None:
        self._subject = subject
        self._folder = folder
        self._kill = kill
        self._conf = {"connection": f"sqlite:///{folder / 'store.db'}"}
        self._role = ""
        self._until = time.monotonic() + _MAX_SECONDS
        self._processes: list[_Process] = []

    def live(self, outcome: Outcome) -> None:
        """Start the processes, and fill the outcome when the flow has ended."""
        try:
            for _ in range(_WORKERS):
                self._start("worker", self._work)
            for number in range(_MAX_ENGINES):
                if number:
                    self._note("process", f"process {number + 1} continues the flow")
                self._wait(self._start("engine", self._run_engine))
                if (self._folder / "end").exists():
                    break
            else:
                outcome.is_endless = True
        finally:
            for process in self._processes:
                self._end(process)
        self._fill(outcome)

    def _fill(self, outcome: Outcome) -> None:
        events = [_event(each, self._subject.worlds) for each in self._read("events")]
        outcome.events.extend(events)
        if any(event.kind == "fault" for event in events):
            outcome.occurred.update(number for number, _ in outcome.schedule.moments)
        outcome.steps.update(event.step for event in events)
        with backends.backend(self._conf) as backend:
            with contextlib.closing(backend.get_connection()) as connection:
                detail = connection.get_flow_details(self._flow_uuid)
            engine = engines.load(self._subject.make(), None, detail, backend=backend)
            outcome.state = str(detail.state)
            compilation = engine._compilation
            assert compilation is not None
            outcome.is_before = Order(compilation.plan).is_before
            if outcome.state == states.SUCCESS:
                engine.prepare()
                outcome.values = engine.storage.fetch_all()
        for message in self._read("end"):
            outcome.error = exceptions.ExecutionFailure(message) if message else None
        lost = any(process.role == "worker" and process.pid < 0 for process in self._processes)
        outcome.has_lost_step = lost and not self._repeats_all
        outcome.events.append(Event("end", f"the flow ended in {outcome.state}"))

    @property
    def _flow_uuid(self) -> str:
        return (self._folder / "flow").read_text("utf-8")

    @property
    def _repeats_all(self) -> bool:
        """Whether all tasks may run again after the loss of their worker."""
        kinds = [each for each in self._subject.tasks if not issubclass(each, task.Workflow)]
        return all(getattr(each, "idempotent", None) for each in kinds)

    # Processes.

    def _start(self, role: str, work: Callable[[], None]) -> _Process:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads of the test
            pid = os.fork()
        if pid:
            process = _Process(role, pid)
            self._processes.append(process)
            if role == "engine":
                (self._folder / "engine").write_text(str(pid), "utf-8")
            return process
        code = 1
        try:
            self._begin(role)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)

    def _begin(self, role: str) -> None:
        """Prepare a new process: its output goes to a file, and it has crash points."""
        self._role = role
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        log = os.open(self._log(role), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        logging.root.handlers[:] = [logging.StreamHandler(sys.stderr)]
        crash_points.install(self._hit)

    def _log(self, role: str) -> Path:
        return self._folder / f"{role}.log"

    def _wait(self, process: _Process) -> None:
        """Wait for the end of an engine.

        :raises TimeoutError: if it takes too long.
        :raises RuntimeError: if it failed.
        """
        while True:
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > self._until:
                raise TimeoutError(f"A run with real processes did not end: {self._logs()}")
            time.sleep(_POLL_SECONDS)
        process.pid = -1
        if os.waitstatus_to_exitcode(status) not in (0, -signal.SIGKILL):
            raise RuntimeError(f"The process of an engine failed: {self._logs()}")

    def _logs(self) -> str:
        logs = (self._log(role) for role in ("engine", "worker"))
        return "\n".join(log.read_text("utf-8")[-2000:] for log in logs if log.exists())

    def _end(self, process: _Process) -> None:
        """End a process. Afterwards, its pid is negative if it was killed at a crash point."""
        if process.pid < 0:
            return
        pid, _ = os.waitpid(process.pid, os.WNOHANG)
        if pid:
            process.pid = -1
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)

    def _work(self) -> None:
        """Run a worker."""
        offered = [each for each in self._subject.tasks if not issubclass(each, task.Workflow)]
        worker = workers.Worker(
            "default", _TOPIC, offered, url=self._url, threads_count=2, max_idle_time=_MAX_SECONDS
        )
        worker.run(display_banner=False)

    @property
    def _url(self) -> str:
        return f"filesystem://{self._folder / 'broker'}"

    def _run_engine(self) -> None:
        """Run the flow from its beginning, or continue it."""
        options: dict[str, Any] = {
            "engine": "worker-based",
            "url": self._url,
            "topics": [_TOPIC],
            "worker_expiry": _WORKER_EXPIRY,
            "transition_timeout": _MAX_SECONDS,
        }
        subject, flow_file = self._subject, self._folder / "flow"
        with backends.backend(self._conf) as backend:
            if flow_file.exists():
                with contextlib.closing(backend.get_connection()) as connection:
                    detail = connection.get_flow_details(self._flow_uuid)
                if detail.state in (states.SUCCESS, states.REVERTED):
                    self._append("end", "")
                    return
                engine = engines.load(subject.make(), None, detail, backend=backend, **options)
            else:
                inputs = copy.deepcopy(subject.inputs)
                engine = engines.load(subject.make(), inputs, backend=backend, **options)
                uuid = engine._flow_detail.uuid
                for each in subject.signals:
                    operations.signal(backend, uuid, each.name, each.value)
                flow_file.write_text(uuid, "utf-8")
            message = ""
            try:
                engine.run()
            except Exception as error:  # the failure of the flow
                message = f"{type(error).__name__}: {error}"
            self._append("end", message)

    # Crash points and operations.

    def _hit(self, point: str) -> None:
        kill = self._kill
        if kill is None or point != kill.point or not (self._folder / "flow").exists():
            return
        if self._count(point) != kill.hit:
            return
        self._note("fault", f"{' and '.join(kill.victims)} killed (SIGKILL) at {point}")
        if "engine" in kill.victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((self._folder / "engine").read_text("utf-8")), signal.SIGKILL)
        if self._role in kill.victims:
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()  # Other threads run until the process ends; not this one.

    def _count(self, point: str) -> int:
        """Count a hit of a crash point in all processes."""
        with (self._folder / "hits").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(".")
            file.flush()
            return file.tell()

    def before(self, world: World, kind: str, key: str, line: str) -> None:
        """Do nothing."""

    def after(self, operation: Operation) -> None:
        """Record an operation."""
        call = CURRENT.get()
        is_step = call is not None and not isinstance(call.task, task.Workflow)
        name, execution = "", ("", 0, "")
        if call is not None and is_step:
            name, execution = step_name(call), (call.uuid, call.attempt, call.action)
        world = self._subject.worlds.index(operation.world)
        fields = operation.kind, operation.key, operation.result, operation.line
        self._append(
            "events",
            [
                "operation",
                name,
                execution,
                world,
                fields,
                operation.is_accepted,
                operation.replaced,
            ],
        )
        if is_step:
            self._hit(_AFTER_EFFECT)

    def _note(self, kind: str, text: str) -> None:
        self._append("events", [kind, text])

    def _append(self, name: str, value: Any) -> None:
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(value)}\n")

    def _read(self, name: str) -> Iterator[Any]:
        path = self._folder / name
        if path.exists():
            yield from map(json.loads, path.read_text("utf-8").splitlines())


def _event(fields: Sequence[Any], worlds: Sequence[World]) -> Event:
    if len(fields) == 2:
        kind, text = fields
        return Event(kind, text)
    _, step, (uuid, attempt, action), world, (kind, key, result, line), is_accepted, replaced = (
        fields
    )
    operation = Operation(worlds[world], kind, key, result, line, is_accepted, tuple(replaced))
    execution = uuid, attempt, action
    return Event("operation", operation_text(operation), step, execution, line, operation)

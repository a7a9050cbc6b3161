"""Invariants of the simulated world."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.broker import Message
from tests.simulation.engines import MAX_RESENDS
from tests.simulation.evidence import Evidence
from tests.simulation.store import ENDED, RUNNING
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import worker_commands
from wbengine.types.failure import Failure

if TYPE_CHECKING:
    from tests.seams.tracker import Request
    from tests.simulation.engines import Engine
    from tests.simulation.fleet import Worker
    from tests.simulation.processes import Process
    from tests.simulation.store import Atom
    from tests.simulation.world import World

#: Seconds after which an undisturbed worker cannot be lost: three heartbeat periods and a poll of
#: the finder.
TRUSTED = 25.0

#: Seconds within which an undelayed reply arrives.
PROMPT: Final = 1.0

#: Failures that tasks may have.
FAILURES = frozenset(
    (
        "Cancelled",
        "Expired",
        "NeverStarted",
        "NotEncodable",
        "RequestTimeout",
        "RuntimeError",
        "WorkerLost",
    )
)


class Violation(AssertionError):
    """An invariant is violated."""


class Judge:
    """Checks the invariants; each method is called for the event in its name."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.reopened: Counter[str] = Counter()
        self.settled: dict[tuple[str, str, int], Any] = {}
        self.saved: dict[tuple[str, int], Any] = {}
        self.events: set[tuple[str, str, int, int]] = set()
        #: Rows of engines that died before they could drop them; only a sweep deletes them.
        self.undropped: set[str] = set()
        #: Number of events by kind.
        self.seen: Counter[str] = Counter()
        self.tasks: dict[str, Any] = {}
        self.atoms: dict[str, Atom] = {}
        #: Time of the last start of each request.
        self.began: dict[str, float] = {}
        #: Requests that were resent because workers of their queue were lost.
        self.gambled: set[str] = set()
        #: Number of engines that resumed each request.
        self.lives: Counter[str] = Counter()
        #: Highest epoch that workers were told not to start, and the time of the last such message.
        self.outdated: dict[str, tuple[int, float]] = {}
        #: Requests whose delayed copy ran although another copy was sent, without a fault of the
        #: program.
        self.turned_up: set[str] = set()

    def evidence(self, engine: Engine) -> Evidence:
        return Evidence(engine)

    def fail(self, text: str) -> None:
        raise Violation(text)

    def repeats(self, task: Any) -> bool:
        """Return True if a task is idempotent under the setting."""
        if task.idempotent is None:
            return self.world.setting.on_worker_lost == "resend"
        return bool(task.idempotent)

    # Runs.

    def on_take(self, worker: Worker, message: Message) -> None:
        if worker.core.running >= worker.slots:
            self.fail(f"{worker.name} takes {message}, and runs {worker.core.running} already")

    def on_run(self, worker: Worker, job: Any) -> None:
        before = self.runs[job.id]
        atom = self.atoms[job.id]
        # A restored server does not contain this claim.
        forgotten = self.seen["set back"] and not self.sound(worker)
        if (
            self.world.ledger is not None
            and not forgotten
            and (atom.uuid, job.attempt) in self.saved
        ):
            self.fail(f"{job} begins, and its end was saved before")
        unknown = self.unknown(job, before) if self.world.ledger is None else 0
        max_runs = 1 + MAX_RESENDS + unknown
        if len(before) >= max_runs * (1 + self.lives[job.id]):
            self.fail(f"{job} runs without end: {before}")
        self.seen["runs"] += 1
        if self.world.ledger is None and self.turns_up(worker, job):
            self.seen["turned up late"] += 1
            self.turned_up.add(job.id)
        if any(epoch == job.epoch for epoch, _ in before):
            self.fail(f"{job.id} ran twice under epoch {job.epoch}: {before}, {worker.name}")
        if before:
            self.seen["runs again"] += 1
            task = self.tasks[job.id]
            if self.world.ledger is not None:
                if not self.repeats(task):
                    self.fail(f"{task} is not idempotent, and ran again: {before}, {job.epoch}")
                if len(before) > self.reopened[job.id] + self.seen["set back"]:
                    self.fail(f"{task} ran again, and nobody took it from its holder: {before}")
            elif not self.repeats(task):
                # A worker that was lost with its queue may have started requests without a reply,
                # and a silent worker may have received them; a frozen worker could not be queried.
                heard = self.world.workers.get(before[-1][1])
                excused = job.id in self.gambled or job.id in self.turned_up
                excused = excused or not self.sound(worker)
                if not excused and heard is not None and self.sound(heard):
                    self.fail(f"{task} is not idempotent, and ran again: {before}, {job.epoch}")
                self.seen["runs again, not idempotent"] += 1
        before.append((job.epoch, worker.name))
        self.began[job.id] = self.world.now

    def unknown(self, job: Any, before: list[tuple[int, str]]) -> int:
        """Return the number of runs on workers that the engine does not know to be lost.

        Without a ledger the engine cannot count workers that died before it discovered them.
        """
        engines = [e for e in self.world.engines.values() if e.uuid == job.reply_to]
        gone = {name for engine in engines for name in engine.evidence.gone}
        return sum(name not in gone for _, name in before)

    def turns_up(self, worker: Worker, job: Any) -> bool:
        """Return True if the copy was delayed where no query reached it until another copy was
        sent.

        The worker must be new or disturbed since, so that it could not receive the cancellation.
        """
        number, at = self.outdated.get(job.id, (0, 0.0))
        refusal = worker.core.refuses(job)
        return job.receipt.tampered and number >= job.epoch and not refusal and worker.blemish >= at

    def on_reopen(self, engine: Engine, request: Request) -> None:
        self.reopened[request.id] += 1
        if not self.repeats(request.invocation.task):
            self.fail(f"{request} is not idempotent, and taken from its holder")

    # Results.

    def on_settled(self, engine: Engine, request: Request, outcome: invocation.Outcome) -> None:
        call = request.invocation
        key = (engine.name, request.id, call.epoch)
        if key in self.settled:
            self.fail(f"{request} was settled twice: {self.settled[key]}, {outcome.value}")
        self.settled[key] = outcome.value
        if not request.over:
            self.fail(f"{request} was settled, and did not end")
        value = outcome.value
        if isinstance(value, int):
            self.seen["results"] += 1
            if not any(epoch == value for epoch, _ in self.runs[request.id]):
                self.fail(f"{request} has a result of epoch {value}, which never ran")
            engine.evidence.results(request, value)
        else:
            kind = next(iter(value)).rsplit(".", 1)[-1]
            self.seen[kind] += 1
            if kind not in FAILURES:
                self.fail(f"{request} failed in a way that nobody meant: {value.pformat(True)}")
            self._on_failure(engine, request, value)

    def _on_failure(self, engine: Engine, request: Request, failure: Failure) -> None:
        """Check that no running request is failed, and that no request times out while its workers
        are
        busy.
        """
        if failure.check(exc.WorkerLost) is not None:
            for worker in self.world.workers.values():
                runs = any(job.id == request.id for job in worker.running)
                known = worker.name == request.worker and not request.invocation.recovered
                # The engine must first lose the worker or receive a contradicting reply from it.
                if runs and worker.awake and known and worker.name not in engine.evidence.gone:
                    self.fail(f"{request} is given up, and {worker.name} runs it")
                runs = runs and self.sound(worker)
                if not runs or self.world.now - engine.blemish <= TRUSTED:
                    continue
                # Without a ledger the request may have waited until it was failed; its worker
                # replies to the sender until the resuming engine queries it.
                young = TRUSTED if request.invocation.recovered else PROMPT
                if engine.line is not None or self.world.now - self.began[request.id] > young:
                    self.fail(f"{request} is given up, and {worker.name} runs it")
        if failure.check(exc.RequestTimeout) is None:
            return
        if failure.check(exc.NeverStarted) is not None and self.runs[request.id]:
            self.fail(f"{request} ran, and is said to have never been started")
        for queue, messages in self.world.broker.queues.items():
            if queue != request.queue or not self.served(queue, engine):
                continue
            for message in messages:
                # Recent messages are excluded: the message may have been lost or delayed before.
                fresh = self.world.now - message.due < 10.0
                if message.envelope.correlation_id == request.id and not fresh:
                    self.fail(f"{request} timed out although its workers are only busy")

    def served(self, queue: str, engine: Engine) -> bool:
        """Return True if a queue has undisturbed workers and the engine is undisturbed, too."""
        world = self.world
        if world.now - engine.blemish < TRUSTED:
            return False
        return any(
            queue in worker.queues.values() and self.sound(worker) and worker.serves
            for worker in world.workers.values()
        )

    def sound(self, process: Process) -> bool:
        alive = process.awake and process.connected and self.world.broker.up
        return alive and self.world.now - process.blemish > TRUSTED

    def on_outcome(
        self, engine: Engine, call: invocation.Invocation, outcome: invocation.Outcome
    ) -> None:
        pass

    def on_saved(
        self, atom: Atom, call: invocation.Invocation, outcome: invocation.Outcome
    ) -> None:
        key = (atom.uuid, call.attempt)
        if key in self.saved:
            self.fail(f"{key} ended twice: {self.saved[key]}, {outcome.value}")
        if atom.state != RUNNING or atom.attempt != call.attempt:
            self.fail(f"{key} was saved while it was {atom.state}, attempt {atom.attempt}")
        self.saved[key] = outcome.value

    def on_event(self, engine: Engine, atom: Atom, attempt: int, number: int) -> None:
        self.seen["events"] += 1
        key = (engine.name, atom.uuid, attempt, number)
        if key in self.events:
            self.fail(f"event {key} was told twice")
        self.events.add(key)

    # Workers.

    def on_lost(self, engine: Engine, lost: list[tuple[Any, str]]) -> None:
        engine.evidence.loses(lost)
        if any(e is not engine and e.uuid == engine.uuid for e in self.world.engines.values()):
            return  # a frozen engine receives messages for its successor
        if self.world.now - engine.shared <= TRUSTED:
            return  # this was the case until recently
        for name, _ in lost:
            worker = self.world.workers.get(name)
            if worker is None or worker.dead or worker.stopping:
                continue
            self.seen["lost, and alive"] += 1
            if self.sound(worker):
                self.fail(f"{engine.name} lost {worker.name}, which lives and beats")

    # The broker.

    def on_published(self, process: Process, envelope: env.Envelope) -> None:
        self.seen["published"] += 1
        if envelope.type == worker_commands.CANCEL:
            for request_id, number in worker_commands.Cancellation.from_message(envelope).requests:
                self.outdated[request_id] = number, self.world.now

    # Checks after each step and at the end.

    def books(self) -> None:
        """Check that each live request is tracked, and no other one."""
        for engine in self.world.engines.values():
            for request in [] if engine.dead else engine.tracker.inconsistent_requests():
                self.fail(f"{request} is astray: {request.described()}")

    def end(self) -> None:
        """Check that all work ended and nothing is left after the world was healed."""
        world = self.world
        self.books()
        for flow in world.store.flows.values():
            for atom in flow.atoms:
                if atom.state != ENDED:
                    self.fail(f"{atom} of {flow.name} never ended: {world.whereabouts(atom)}")
        for engine in world.engines.values():
            leftovers = None if engine.dead else engine.tracker.leftovers()
            if leftovers:
                self.fail(f"{engine.name} keeps {leftovers}")
        if world.ledger is not None:
            left = set(world.ledger._rows) - self.undropped
            if left:
                self.fail(f"rows are left: {[world.ledger._rows[id] for id in left]}")
        for worker in world.workers.values():
            if not worker.dead and (worker.core.running or worker.unacked or worker.running):
                self.fail(f"{worker.name} never ends: {worker.unacked}, {worker.running}")
        for queue, messages in world.broker.queues.items():
            wrong = [m for m in messages if m.kind == pr.REQUEST]
            if wrong:
                self.fail(f"requests are left in {queue}: {wrong}")

    def lost_message(self, message: Message) -> None:
        self.seen[f"lost {message.kind}"] += 1

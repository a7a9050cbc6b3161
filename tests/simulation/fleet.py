"""A simulated worker with a real `Server` and tasks that only take time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.seams import ledgers, server
from tests.simulation.broker import Message
from tests.simulation.processes import PAUSE, Letter, Process
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import notices, worker_commands
from wbengine.types.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.world import World

PERIOD = 5.0

#: Seconds after which the request of a running task is acknowledged early.
LONG = 30.0

#: Seconds that a RUNNING reply may be delayed; it is omitted if the task ends before.
UNHURRIED: Final = 0.005

#: Number of unpublished replies per slot above which slots are not released.
BEHIND: Final = 8


class Worker(Process):
    """A worker process in one thread."""

    def __init__(
        self, world: World, name: str, ahead: float, offer: list[Any], topics: list[str], slots: int
    ) -> None:
        super().__init__(world, name, ahead)
        tasks = [cls.__name__ for cls in offer]
        self.queues = {topic: server.queue_name(topic, tasks) for topic in topics}
        self.slots = slots
        self.core = server.Server(
            name,
            topics,
            server.offer(offer),
            slots,
            ledger=self.line.digest if self.line is not None else None,
        )
        self.running: dict[server.Job, float] = {}
        #: Jobs to start, each with the end of the time in which its claim certainly holds.
        self.starts: deque[tuple[server.Job, float]] = deque()
        #: Claimed job -> end of the time in which its claim certainly holds.
        self.fresh: dict[server.Job, float] = {}
        #: Delayed RUNNING replies with their due times, and by job.
        self.unhurried: deque[tuple[float, Letter]] = deque()
        self.untold: dict[server.Job, Letter] = {}
        #: Unacknowledged messages that occupy no slot.
        self.released: set[Message] = set()
        #: Results that could not be stored, with the times of the next attempts.
        self.unstored: deque[tuple[float, server.Job, env.Envelope]] = deque()
        self.next_beat = self.now
        self.renewed = -100.0
        self.stopping = False
        #: True if the worker was started to heal the world.
        self.heals = False
        self.declare()
        self.announce(notices.READY)

    def declare(self) -> None:
        broker = self.world.broker
        broker.declare(self.name, (self.name, env.ALL_WORKERS))
        broker.consume(self.name, self)
        for queue in self.queues.values():
            broker.declare(queue, (queue,))
            if not (self.stopping or self.core.suspended):
                broker.consume(queue, self)

    @property
    def serves(self) -> bool:
        """Return True if the worker accepts requests."""
        return not (self.stopping or self.core.suspended)

    def takes(self, queue: str) -> bool:
        if self.dead or not self.connected:
            return False
        if self.frozen and not self.world.broker.model.pushes:
            return False
        if queue == self.name:
            return True
        unacked = sum(message not in self.released for message in self.unacked)
        return self.serves and unacked + len(self.stale) < self.slots

    def take(self, message: Message) -> None:
        if message.kind == pr.REQUEST:
            self.world.judge.on_take(self, message)
            if self.world.setting.claiming and self.world.ledger is not None:
                id, epoch = message.envelope.correlation_id or "", message.headers[hd.WBE_EPOCH]
                message.claim = self.world.ledger.claim(id, epoch, self.name)
                message.taken = self.now
                if message.claim.verdict == ledgers.GRANTED:
                    self.world.ledger.renew(self.name)  # in the same step
            super().take(message)
        else:
            self.inbox.append(message)

    # Messages.

    def receive(self, message: Message) -> None:
        envelope = message.envelope
        if message.kind == pr.REQUEST:
            pr.Request.validate(envelope.body)
            if message.redelivered:
                envelope = replace(envelope, redelivered=True)
            claimed = message.claim is not None
            now = self.clock.time()
            self.do(self.core.on_request(envelope, message, now, claimed=claimed))
        elif message.kind == worker_commands.CONTROL:
            worker_commands.SCHEMAS[worker_commands.CONTROL].check(envelope.body)
            self.obey(envelope.body["do"])
        else:
            # A query to all workers is not addressed to this one.
            in_person = message.kind == worker_commands.ASK and hd.WBE_ASK in envelope.headers
            self.do(self.core.hear(envelope, PERIOD, in_person=in_person))

    # Effects.

    def perform(self, effect: Any) -> None:
        match effect:
            case server.PublishNotice(message):
                self.post(Letter(message), first=True)
            case server.PublishEvent(job, message, unhurried):
                self.tell_of(job, Letter(message), unhurried)
            case server.Answer(job, message):
                self.send_end(job, message)
            case server.Acknowledge(receipt):
                self.acknowledge(receipt)
            case server.Claim(job):
                self.claim(job)
            case server.Run(job):
                self.run(job)
            case server.Finish(job, message) if not self.world.broker.model.ours:
                self.finish(job, message)
            case server.Finish(job, message):
                self.send_end(job, message, partial(self.store, job, env.freeze(message)))
            case server.Check(job):
                self.check(job)
            case server.Interrupt(job):
                if job in self.running:
                    self.running[job] = min(self.running[job], self.world.now + 0.2)
            case server.Release(job):
                self.release(job)
            case server.Return(job, fresh):
                self.give_back(job, fresh)
            case server.Drain():
                self.stop()
            case _:
                raise AssertionError(f"nobody performs {effect!r}")

    def claim(self, job: server.Job) -> None:
        assert self.line is not None
        claim = job.receipt.claim
        self.fresh[job] = (self.now if claim is None else job.receipt.taken) + PERIOD
        try:
            if claim is None:
                self.renew()
                claim = self.line.claim(job.id, job.epoch, self.name)
        except exc.LedgerFailure:
            self.core.forget(job)
            del self.fresh[job]
            self.requeue(job.receipt)
            self.goes_on = self.world.now + PAUSE
            return
        effects = self.core.on_claim(job, claim)
        if not any(isinstance(effect, server.Run) for effect in effects):
            self.fresh.pop(job, None)
        self.do(effects)

    def run(self, job: server.Job) -> None:
        self.starts.append((job, self.fresh.pop(job, math.inf)))

    def has_work(self) -> bool:
        return bool(self.starts) or super().has_work()

    def others(self) -> bool:
        if not self.starts:
            return False
        job, fresh = self.starts.popleft()
        if job.claimed and self.now > fresh:
            self.do(self.core.on_unstarted(job))
        else:
            self.world.judge.on_run(self, job)
            self.running[job] = self.world.now + job.arguments["seconds"]
            if job.task.endswith("Bad"):
                self.world.strike(self, "kill")
        return True

    def check(self, job: server.Job) -> None:
        assert self.line is not None
        try:
            row = self.line.state(job.id)
        except exc.LedgerFailure:
            self.starts.append((job, self.now - 1))  # the row is read again
            return
        effects = self.core.on_checked(job, row)
        if any(isinstance(effect, server.Run) for effect in effects):
            self.starts.append((job, self.now + PERIOD))
            effects = [effect for effect in effects if not isinstance(effect, server.Run)]
        self.do(effects)

    def store(self, job: server.Job, frozen: bytes) -> bool:
        """Store the result of a job; return True if its reply is to be sent.  May be called
        repeatedly.
        """
        assert self.line is not None
        if not self.core.is_storing(job):
            return True
        fenced = False
        try:
            if not self.line.finish(job.id, job.epoch, self.name, frozen):
                row = self.line.state(job.id)
                done = row is not None and row.state == ledgers.ROW_DONE
                fenced = row is not None and not (done and row.epoch == job.epoch)
        except exc.LedgerFailure:
            pass
        effects = self.core.on_stored(job, fenced=fenced)
        self.do([effect for effect in effects if not isinstance(effect, server.Answer)])
        return not fenced

    def finish(self, job: server.Job, message: env.Envelope) -> None:
        """Store the result in a separate ledger when it is reachable, then send the reply."""
        assert self.line is not None
        if self.line.ails:
            self.unstored.append((self.world.now + PAUSE, job, message))
            try:
                self.line.finish(job.id, job.epoch, self.name, env.freeze(message))
            except exc.LedgerFailure:
                pass  # the call may have been applied
        elif self.store(job, env.freeze(message)):
            self.send_end(job, message)
        else:
            self.withdraw_running(job)

    def release(self, job: server.Job) -> None:
        assert self.line is not None
        released = False
        try:
            released = self.line.release(job.id, job.epoch, self.name)
        except exc.LedgerFailure:
            pass
        if not released:
            self.fresh[job] = -math.inf
        self.do(self.core.on_released(job, released))

    def give_back(self, job: server.Job, fresh: bool) -> None:
        message = job.receipt
        if not fresh:
            self.requeue(message)
            return
        again = replace(message.envelope, redelivered=False)
        self.post(Letter(again, after=lambda: self.acknowledge(message)))

    def tell_of(self, job: server.Job, letter: Letter, unhurried: bool) -> None:
        if unhurried:
            self.untold[job] = letter
            self.unhurried.append((self.world.now + UNHURRIED, letter))
        else:
            self.withdraw_running(job)
            self.post(letter)

    def send_end(self, job: server.Job, made: env.Envelope, *steps: Callable[[], bool]) -> None:
        self.withdraw_running(job)
        self.post(Letter(made, *steps, after=lambda: self.answered(job)))

    def withdraw_running(self, job: server.Job) -> None:
        running = self.untold.pop(job, None)
        if running is not None:
            running.withdrawn = True

    def hasten(self) -> None:
        """Send delayed RUNNING replies that are due."""
        while self.unhurried and self.unhurried[0][0] <= self.world.now:
            self.post(self.unhurried.popleft()[1])

    def answered(self, job: server.Job) -> None:
        if self.world.broker.model.ours:
            self.later(self.settle, job)
        else:
            self.settle(job)

    def settle(self, job: server.Job) -> None:
        self.acknowledge(job.receipt)
        self.released.discard(job.receipt)
        self.core.on_answered(job)

    # Tasks.

    def end(self, job: server.Job, how: str = "value") -> None:
        """End a task; its result is the epoch of its run."""
        if self.running.pop(job, None) is None:
            return
        value: Any = job.epoch
        if how == "failure":
            value = Failure.from_exception(RuntimeError("no"))
        elif how == "unsendable":
            value = object()
        self.do(self.core.on_finished(job, invocation.Outcome(value)))
        if self.world.broker.model.ours and len(self.letters) < BEHIND * self.slots:
            self.released.add(job.receipt)

    def tell(self, job: server.Job, number: int) -> None:
        self.do(self.core.on_event(job, "update", {"n": number}))

    # Time.

    def due(self) -> float | None:
        earliest = self.next_beat - self.now + self.world.now + 1e-6
        for at in self.running.values():
            earliest = min(earliest, at)
        if self.unhurried:
            earliest = min(earliest, self.unhurried[0][0])
        if self.unstored:
            earliest = min(earliest, self.unstored[0][0])
        return max(earliest, self.world.now)

    def on_time(self) -> None:
        now = self.world.now
        self.hasten()
        for job in [job for job, at in self.running.items() if at <= now]:
            self.end(job)
        while self.unstored and self.unstored[0][0] <= now:
            self.finish(*self.unstored.popleft()[1:])
        if self.world.broker.model.redelivers:
            self.acknowledge_early()
        if self.now >= self.next_beat:
            self.next_beat = self.now + PERIOD
            self.do(self.core.beat(PERIOD))
            if self.core.holding and self.line is not None:
                try:
                    self.renew()
                except exc.LedgerFailure:
                    pass
        busy = self.running or self.core.running or self.unacked or self.stale or self.starts
        if self.stopping and not busy:
            self.do(self.core.die(self.clock.time(), PERIOD))
            self.work()
            self.world.end(self)

    def acknowledge_early(self) -> None:
        """Acknowledge requests of long tasks early; their slots stay occupied."""
        late = self.world.now - LONG
        for job in self.running:
            message = job.receipt
            if message.taker is self and self.world.judge.began[job.id] <= late:
                message.taker = None
                self.unacked.pop(message)
                self.stale[message] = None
                self.world.judge.seen["acknowledged early"] += 1

    def renew(self) -> None:
        assert self.line is not None
        if self.now - self.renewed >= PERIOD / 2:
            self.line.renew(self.name)
            self.renewed = self.now

    def announce(self, state: str) -> None:
        self.do(self.core.announce([env.ALL_ENGINES], state, PERIOD))

    def stop(self) -> None:
        """Shut down warm: accept no requests and stop after the running tasks."""
        if not self.stopping:
            self.stopping = True
            self.next_beat = self.now  # check soon
            self.take_nothing()
            self.do(self.core.drain(self.clock.time(), PERIOD))

    def take_nothing(self) -> None:
        for queue in self.queues.values():
            line = self.world.broker.consumers.get(queue)
            if line and self in line:
                line.remove(self)

    def obey(self, what: str) -> None:
        self.blemished()  # requests that waited for it meanwhile were not served
        if what == worker_commands.DRAIN:
            self.stop()
        elif what == worker_commands.SUSPEND:
            self.take_nothing()
            self.do(self.core.suspend(PERIOD))
        elif not self.stopping:
            self.do(self.core.resume(PERIOD))
            self.declare()

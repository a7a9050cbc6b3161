"""A fleet of any size and one engine with any number of requests, on a simulated clock.

The request tracker, the servers of workers and the ledger are real.  The broker consists of
lists, and the only faults are lost workers.  `Fleet.run` counts operations and measures the CPU
time of the engine's parts without the garbage collector, whose cost depends on the whole process.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tests.seams import ledgers, server, tracker
from tests.simulation.kinds import One, Six, Two
from tests.simulation.meters import Meter
from wbengine._calls import invocation
from wbengine._concurrency.manual_clock import ManualClock
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import notices

#: Simulated seconds of a step; messages arrive in the step after they were sent.
STEP: Final = 0.1
#: Heartbeat period in seconds and in steps.
PERIOD: Final = 5.0
STEPS_OF_A_PERIOD: Final = round(PERIOD / STEP)

TOPICS: Final = ("audio", "mail", "text", "video")
OFFERS: Final = ((One, Two), (Two, Six), (One, Two, Six))
KINDS: Final = (One(name="one"), Two(name="two"), Two(name="again"), Six(name="six"))

#: Durations of tasks in turn: 4 s on average; the first one ends in the step of its start.
SECONDS: Final = (0.0, 1.0, 4.0, 2.0, 8.0, 9.0)

ENGINE: Final = "engine"


@dataclass(frozen=True)
class Plan:
    """`open`: maximum number of open requests of the engine per slot.

    `lost`: share of the workers, including replacements, that are lost.
    """

    workers: int
    requests: int
    slots: int = 4
    open: float = 4.0
    lost: float = 0.01
    expiry: float = 60.0
    #: Shorter than most waits, so that the engine checks the progress of the queue for each
    #: request.
    timeout: float = 10.0


class Worker:
    """A real `Server` with tasks that only take time."""

    __slots__ = ("core", "gone", "name", "queue", "unacked")

    def __init__(self, number: int, slots: int, digest: str) -> None:
        offer = OFFERS[number % len(OFFERS)]
        topic = TOPICS[number // len(OFFERS) % len(TOPICS)]
        self.name = f"worker-{number}"
        self.queue = server.queue_name(topic, [cls.__name__ for cls in offer])
        self.core = server.Server(self.name, [topic], _OFFERED[offer], slots, digest)
        self.unacked = 0
        self.gone = False


_OFFERED: Final = {offer: server.offer(offer) for offer in OFFERS}


class Receipt:
    """The receipt of a message that a worker received."""

    __slots__ = ("worker",)

    def __init__(self, worker: Worker) -> None:
        self.worker = worker


class Notice:
    """A message with headers, like those of kombu."""

    __slots__ = ("headers",)

    def __init__(self, headers: dict[str, Any]) -> None:
        self.headers = headers


class Fleet:
    """The whole fleet in one thread."""

    def __init__(self, plan: Plan, progress: Callable[[int, float], None] | None = None) -> None:
        self.plan = plan
        self.meter = Meter()
        self.clock = ManualClock(1000.0)
        self.step = 0
        self._progress = progress
        self.ledger = ledgers.in_memory(self.clock)
        self.tracker = tracker.Tracker(
            ENGINE,
            self.clock,
            do=self._on_news,
            say=self._say,
            lost=self._on_lost,
            ledger=self.ledger,
            timeout=plan.timeout,
            expiry=plan.expiry,
            on_worker_lost="resend",
            max_resends=100,
        )
        # Workers, waiting requests by queue, and workers with free slots by queue.
        self.workers: dict[str, Worker] = {}
        self._numbers = itertools.count()
        self._phases: list[list[Worker]] = [[] for _ in range(STEPS_OF_A_PERIOD)]
        self._queues: dict[str, deque[env.Envelope]] = {}
        self._idle: dict[str, deque[Worker]] = {}
        # Task ends by step, and messages to the engine and to workers.
        self._ends: dict[int, list[tuple[Worker, Any]]] = {}
        self._answers: list[env.Envelope] = []
        self._notices: list[env.Envelope] = []
        self._said: list[env.Envelope] = []
        self._round_due = 0.0
        # The purpose that was measured before lost workers were noticed.
        self._before = ""
        self._ended: list[invocation.Invocation] = []
        self._takes = itertools.cycle(SECONDS)
        self.submitted = self.succeeded = self.failed = 0

    @property
    def _now(self) -> float:
        return self.clock.monotonic()

    # Course of a run.

    def run(self) -> None:
        """Run until all requests have ended."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            self._run()
        finally:
            self.meter.part("")
            if enabled:
                gc.enable()

    def _run(self) -> None:
        plan, started = self.plan, time.monotonic()
        for _ in range(plan.workers):
            self.join()
        losses = self._losses()
        while self.succeeded + self.failed < plan.requests:
            self.clock.advance(STEP)
            self.step += 1
            self.meter.part("workers")
            if self.succeeded >= next(iter(losses), math.inf):
                losses.pop(0)
                self._lose()
                self.join()
            self._work()
            self._serve()
            if self.step > STEPS_OF_A_PERIOD * 100 + 100 * plan.requests:
                raise AssertionError(f"{len(self.tracker)} requests do not end")
            if self._progress is not None and self.step % 20 == 0:
                self._progress(self.succeeded + self.failed, time.monotonic() - started)

    def _losses(self) -> list[int]:
        """Return the numbers of completed requests after which a worker is lost; queues keep a
        worker.
        """
        plan = self.plan
        count = min(round(plan.lost * plan.workers), plan.workers - len(OFFERS) * len(TOPICS))
        return [plan.requests // 4 + n * plan.requests // 4 // max(1, count) for n in range(count)]

    def join(self) -> None:
        number = next(self._numbers)
        worker = Worker(number, self.plan.slots, self.ledger.digest)
        self.workers[worker.name] = worker
        self._phases[number % STEPS_OF_A_PERIOD].append(worker)
        self._queues.setdefault(worker.queue, deque())
        idle = self._idle.setdefault(worker.queue, deque())
        idle.extend([worker] * self.plan.slots)
        self._do(worker, worker.core.announce([env.ALL_ENGINES], notices.READY, PERIOD))

    def _lose(self) -> None:
        """Lose the oldest worker with its running tasks."""
        name = next(iter(self.workers))
        self.workers.pop(name).gone = True
        self.meter.counts["workers lost"] += 1

    # Workers.

    def _work(self) -> None:
        for worker, job in self._ends.pop(self.step, ()):
            if not worker.gone:
                outcome = invocation.Outcome(job.epoch, worker.name, self._now, self._now)
                self._do(worker, worker.core.on_finished(job, outcome))
        said, self._said = self._said, []
        for message in said:
            everybody = message.routing_key == env.ALL_WORKERS
            to = self.workers.get(message.routing_key)
            for worker in list(self.workers.values()) if everybody else (to,) if to else ():
                self._hear(worker, message)
        for queue, waiting in self._queues.items():
            idle = self._idle[queue]
            while waiting and idle:
                worker = idle.popleft()
                if not worker.gone:
                    self._take(worker, waiting.popleft())
        phase = self._phases[self.step % STEPS_OF_A_PERIOD]
        phase[:] = [worker for worker in phase if not worker.gone]
        for worker in phase:
            self.ledger.renew(worker.name)
            self._do(worker, worker.core.beat(PERIOD))

    def _hear(self, worker: Worker, message: env.Envelope) -> None:
        in_person = message.routing_key != env.ALL_WORKERS
        self._do(worker, worker.core.hear(message, PERIOD, in_person=in_person))

    def _take(self, worker: Worker, request: env.Envelope) -> None:
        worker.unacked += 1
        effects = worker.core.on_request(request, Receipt(worker), self.clock.time(), claimed=True)
        self._do(worker, effects)

    def _do(self, worker: Worker, effects: Iterable[server.Effect]) -> None:
        core, counts = worker.core, self.meter.counts
        for effect in effects:
            match effect:
                case server.PublishNotice(message) | server.PublishEvent(_, message):
                    self._post(message)
                case server.Answer(job, message):
                    self._post(message)
                    core.on_answered(job)
                    self._acknowledge(job.receipt)
                case server.Claim(job):
                    counts["ledger calls of workers"] += 1
                    claim = self.ledger.claim(job.id, job.epoch, worker.name)
                    self._do(worker, core.on_claim(job, claim))
                case server.Run(job):
                    self._start(worker, job)
                case server.Finish(job, message):
                    counts["ledger calls of workers"] += 1
                    fenced = not self.ledger.finish(
                        job.id, job.epoch, worker.name, env.freeze(message)
                    )
                    self._do(worker, core.on_stored(job, fenced=fenced))
                case server.Acknowledge(receipt):
                    self._acknowledge(receipt)
                case _:
                    raise AssertionError(f"nobody performs {effect!r}")

    def _start(self, worker: Worker, job: Any) -> None:
        seconds = next(self._takes)
        if seconds:
            self._ends.setdefault(self.step + round(seconds / STEP), []).append((worker, job))
            return
        # RUNNING is not published if the task has already ended.
        running = self._answers.pop()
        assert running.body["state"] == pr.RUNNING
        self.meter.messages[pr.RUNNING] -= 1
        self._do(worker, worker.core.on_finished(job, invocation.Outcome(0, worker.name)))

    def _acknowledge(self, receipt: Receipt) -> None:
        self.meter.counts["acknowledgements"] += 1
        receipt.worker.unacked -= 1
        self._idle[receipt.worker.queue].append(receipt.worker)

    def _post(self, made: env.Envelope) -> None:
        if made.type == pr.RESPONSE:
            state = made.body["state"]
            self.meter.sent(state if state == pr.RUNNING else "answer", made)
            self._answers.append(made)
        else:
            state = made.headers[hd.WBE_STATE]
            self.meter.sent("beat" if state == notices.BEAT else "announcement", made)
            self._notices.append(made)

    # The engine.

    def _serve(self) -> None:
        meter = self.meter
        self.tracker.turn(ENGINE)
        meter.part("beats")
        self.serve_notices()
        meter.part("answers")
        answers, self._answers = self._answers, []
        for answer in answers:
            answer.body = env.parse(answer.encoded)
            pr.Response.validate(answer.body)
            self._apply(self.tracker.hear_answer(answer, None))
        if self._ended:
            ended, self._ended = self._ended, []
            self._apply(self.tracker.saved(ended))
        meter.part("submit")
        self.submit()
        meter.part("ticks")
        self._apply(self.tracker.tick())
        if self._now >= self._round_due:
            meter.part("rounds")
            meter.counts["rounds"] += 1
            self._round_due = self.tracker.round()

    def serve_notices(self) -> None:
        """Process notifications of workers."""
        notices, self._notices = self._notices, []
        for notice in notices:
            if self._is_news(notice):
                self.meter.part("joins")
                self._hear_notice(notice)
                self.meter.part("beats")
            else:
                self._hear_notice(notice)

    def _hear_notice(self, notice: env.Envelope) -> None:
        body = env.parse(notice.encoded)
        pr.Notify.validate(body, response=True)
        self.tracker.hear_worker(body, Notice(notice.headers))

    def _is_news(self, notice: env.Envelope) -> bool:
        return not self.tracker.knows(notice.headers[hd.WBE_WORKER])

    def _say(self, message: env.Envelope) -> None:
        """Send a message of the engine to workers or to itself."""
        if message.routing_key == ENGINE:
            self.meter.messages["echo"] += 1
            self.tracker.hear_itself()
            return
        self.meter.sent("question", message)
        self._said.append(message)

    def submit(self) -> None:
        plan = self.plan
        max_open = round(plan.open * plan.slots * plan.workers)
        count = min(max_open - len(self.tracker), plan.requests - self.submitted)
        for number in range(self.submitted, self.submitted + count):
            # A core creates this object, too.
            call = invocation.Invocation(
                KINDS[number % len(KINDS)],
                invocation.EXECUTE,
                str(uuid.UUID(int=number)),
                arguments={"seconds": 1.0},
                flow_uuid=f"flow-{number // 1000}",
            )
            self._apply(self.tracker.submit(call, self._done))
        self.submitted += max(0, count)

    def _done(self, call: invocation.Invocation, outcome: invocation.Outcome) -> None:
        if outcome.failed:
            self.failed += 1
        else:
            self.succeeded += 1
        self._ended.append(call)

    def _on_lost(self, workers: list[tuple[Any, str]]) -> None:
        self._before = self.meter.part("losses")
        self.meter.counts["workers noticed as lost"] += len(workers)

    def _on_news(self, effects: list[tracker.Effect]) -> None:
        """Apply the effects of notifications of workers."""
        self._apply(effects)
        if self._before:
            self.meter.part(self._before)
            self._before = ""

    def _apply(self, effects: Iterable[tracker.Effect]) -> None:
        for effect in effects:
            match effect:
                case tracker.Publish():
                    if self.tracker.publishing(effect):
                        self._publish(effect)
                case tracker.Settle():
                    effect.deliver()
                case tracker.Acknowledge():
                    self.meter.counts["acknowledgements"] += 1
                case tracker.Drop(request_id):
                    self._count_call()
                    self.ledger.drop(request_id)
                case _:
                    self._see_to(effect)

    def _publish(self, effect: tracker.Publish) -> None:
        if not effect.request.opened:
            self._count_call()
            self.tracker.open(effect)
        self.meter.sent("request", effect.message)
        self._queues[effect.message.routing_key].append(effect.message)

    def _see_to(self, effect: tracker.Effect) -> None:
        self.meter.counts[f"{type(effect).__name__} effects"] += 1
        match effect:
            case tracker.Withdraw(request):
                self._count_call()
                self._apply(self.tracker.revoked(request, self.tracker.revoke(request, ours=True)))
            case tracker.LookUp(request, lost):
                self._count_call(2)
                self._apply(self.tracker.found(request, self.tracker.look(request), lost))
            case tracker.TakeBack():
                self._count_call()
                self._apply(self.tracker.take_back(effect))
            case tracker.Ask(message) | tracker.Cancel(message):
                self.meter.sent("question", message)
                self._said.append(message)
            case _:
                raise AssertionError(f"nobody performs {effect!r}")

    def _count_call(self, calls: int = 1) -> None:
        self.meter.counts["ledger calls of the engine"] += calls

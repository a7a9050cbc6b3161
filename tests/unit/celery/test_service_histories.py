"""Random histories of a worker: whatever happens in whatever order, its promises hold.

A made-up broker delivers messages, again after connections are lost, and in two copies now and
then; tasks end in all ways; people revoke, suspend and drain; processes crash.  Each history is
known by its seed.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, deque
from typing import Any

import pytest

from wbengine import exceptions, invocation
from wbengine.interop.celery import retrying
from wbengine.interop.celery.protocol import codec, results, serializers
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.steps import Send
from wbengine.interop.celery.protocol.wire import Wire
from wbengine.interop.celery.worker import deeds, holding, mapping, remembering, service
from wbengine.interop.celery.worker.jobs import Job, Past
from wbengine.types.failure import Failure

from . import errands

START = 1_700_000_000.0
ADD = f"{errands.__name__}.add"
SAFE = f"{errands.__name__}.safe"
TASKS = mapping.Tasks([errands])
ACCEPTED = serializers.Accepted()

#: What a message may be besides one of a task that is offered: share, and what becomes of it.
ODD = {"java": 0.03, "lua": 0.03, "unknown": 0.03, "garbage": 0.03}


def time_of(moment: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(moment, dt.timezone.utc)


class Receipt:
    """One delivery of one message over one connection."""

    def __init__(self, entry: Entry, connection: int) -> None:
        self.entry = entry
        self.connection = connection


class Entry:
    """A message in the broker, until it is settled."""

    def __init__(self, wire: Wire, kind: str, fresh: bool) -> None:
        self.wire = wire
        self.kind = kind
        self.fresh = fresh
        self.redelivered = False
        #: The name of its note.
        self.note = ""
        self.settled = False


class History:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now = START
        self.slots = rng.choice([1, 1, 2, 4])
        self.ahead = rng.choice([0, 0, 1, 3])
        self.max_held = rng.choice([1, 3, 100])
        self.max_hold = rng.choice([None, 20.0])
        self.budget = rng.choice([None, None, None, 5])
        #: Whether what came over one connection can be settled over another.
        self.keeps = rng.random() < 0.5
        # Nobody remembers after a crash what a second copy of a message is.
        self.crashing = rng.random() < 0.3
        self.crashes = 0
        self.core = self.make()
        # The broker.
        self.queue: deque[Entry] = deque()
        self.connection = 0
        self.unsettled: dict[Entry, Receipt] = {}
        self.elsewhere = 0
        # The pool and the sender.
        self.pool: list[Any] = []
        self.cancelled: set[Job] = set()
        self.duties: deque[Any] = deque()
        self.asked: list[Any] = []
        self.marks: list[Job] = []
        # What was seen.
        self.runs: Counter[tuple[str, int]] = Counter()
        self.ends: Counter[tuple[str, int]] = Counter()
        self.given: Counter[tuple[str, int]] = Counter()
        self.copies: Counter[tuple[str, int]] = Counter()
        self.published: dict[tuple[str, int], TaskMessage | None] = {}
        self.revoked: set[str] = set()
        self.stopped = False
        self.taking = True
        self.number = 0

    def make(self) -> service.Service:
        return service.Service(
            TASKS,
            self.slots,
            accepted=ACCEPTED,
            worker="w",
            langs={"java": "java"},
            ahead=self.ahead,
            max_held=self.max_held,
            max_hold=self.max_hold,
            telling=self.rng.random() < 0.5,
            admit=self.admit,
        )

    def crash(self) -> None:
        """Its process dies, and another one begins, which knows nothing."""
        self.crashes += 1
        self.pool.clear()
        self.cancelled.clear()
        self.duties.clear()
        self.asked.clear()
        self.marks.clear()
        self.revoked.clear()
        self.taking = True
        self.core = self.make()
        self.lose_connection(dead=True)

    def admit(self) -> bool:
        if self.budget is None:
            return True
        self.budget -= 1
        return self.budget >= 0

    # What goes into the queue.

    def publish(self) -> None:
        rng = self.rng
        self.number += 1
        id = f"t{self.number}"
        kind = next((name for name, share in ODD.items() if rng.random() < share), "task")
        task = rng.choice([ADD, ADD, SAFE]) if kind != "unknown" else "proj.unknown"
        message = TaskMessage(
            task,
            id,
            [],
            lang=kind if kind in ("java", "lua") else "py",
            eta=time_of(self.now + rng.uniform(1, 60)) if rng.random() < 0.3 else None,
            expires=time_of(self.now + rng.uniform(-5, 60)) if rng.random() < 0.2 else None,
            ignore_result=rng.random() < 0.2,
            errbacks=[{"task": f"{errands.__name__}.sorry"}] if rng.random() < 0.2 else (),
        )
        wire = codec.encode(message, 1 if kind == "task" and rng.random() < 0.2 else 2)
        if kind == "garbage":
            wire.body = b"\x00garbage"
        self.published[id, 1] = message
        self.copies[id, 1] = 2 if rng.random() < 0.05 and not self.crashing else 1
        for _ in range(self.copies[id, 1]):
            self.queue.append(Entry(wire, kind, True))

    # What the shell does.

    def apply(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case deeds.Run(job):
                    self.begin(job)
                case deeds.Cancel(job):
                    self.cancelled.add(job)
                case deeds.Acknowledge(receipt) | deeds.Reject(receipt):
                    self.settle(receipt)
                case deeds.Redirect(receipt, wire, queue):
                    assert queue == "java"
                    assert wire is receipt.entry.wire
                    self.elsewhere += 1
                    self.settle(receipt)
                case deeds.Requeue(receipt):
                    if receipt.connection == self.connection and not receipt.entry.settled:
                        del self.unsettled[receipt.entry]
                        receipt.entry.redelivered = True
                        self.queue.append(receipt.entry)
                case deeds.Mark(job):
                    assert not self.stopped, "nothing begins after it was told to end"
                    assert self.taking, "nor while it is suspended"
                    assert job.receipt.connection == self.connection or self.keeps
                    self.marks.append(job)
                case deeds.Inquire(ids):
                    self.asked.append(ids)
                case deeds.End() | deeds.GiveBack():
                    self.duties.append(effect)
                case deeds.Note() | deeds.Tell():
                    pass
                case _:
                    raise AssertionError(effect)

    def begin(self, job: Any) -> None:
        if job.informing is not None:  # the errbacks of what ran
            assert self.runs[job.key] or self.crashes
            self.pool.append(job)
            return
        if job.note == "":  # what is being noted when it is told so has begun
            assert not self.stopped, "nothing runs after it was told to end"
            assert self.taking, "nor while it is suspended"
        assert len(self.core.jobs.begun) <= self.slots
        assert job.eta is None or job.eta <= self.now, "too early"
        assert job.expires is None or job.expires >= self.now, "too late"
        assert job.id not in self.revoked, "nobody wanted it"
        idempotent = bool(job.endpoint.task_cls.idempotent)
        # Who dies while giving back leaves two copies, which nobody can tell apart then.
        copies = self.crashes and self.given[job.key]
        assert not self.runs[job.key] or idempotent or copies, "twice"
        self.runs[job.key] += 1
        self.pool.append(job)

    def is_lost(self, receipt: Receipt) -> bool:
        return receipt.connection != self.connection and not self.keeps

    def settle(self, receipt: Receipt) -> None:
        if receipt.connection != self.connection or receipt.entry.settled:
            return
        receipt.entry.settled = True
        self.unsettled.pop(receipt.entry, None)

    def work(self) -> None:
        """The sender does the first of its duties."""
        effect = self.duties.popleft()
        job = effect.job
        if isinstance(effect, deeds.GiveBack) and self.is_lost(job.receipt):
            pass  # it comes again
        elif isinstance(effect, deeds.GiveBack):
            self.given[job.key] += 1
            copy = Entry(job.wire, "task", True)
            self.queue.append(copy)
            if self.rng.random() < 0.3 and self.taking and not self.stopped:
                self.deliver(copy)  # before it is told that this was done
        else:
            self.ends[job.key] += 1
            assert (effect.result is None) == (job.message.ignore_result or not effect.state)
            if effect.result is not None:
                assert effect.result.encoded
            for step in effect.steps:
                assert isinstance(step, Send)
                message = step.message
                if effect.state == results.FAILURE:  # an errback of what did not run here
                    assert message.task.endswith(".sorry") and job.informing is None
                    continue
                assert effect.state == results.RETRY
                assert (message.id, message.retries) == (job.id, job.message.retries + 1)
                self.published[message.id, message.retries + 1] = message
                self.copies[message.id, message.retries + 1] += 1
                self.queue.append(Entry(codec.encode(message), "task", True))
        if self.crashing and self.rng.random() < 0.02:
            self.crash()
            return
        receipt = job.receipt
        self.settle(receipt)
        if self.rng.random() < 0.2:
            self.lose_connection()
        while self.rng.random() < 0.3 and self.taking and not self.stopped:
            self.deliver()  # perhaps a copy of it
        self.apply(self.core.on_done(job, receipt))

    # What the broker does.

    def deliver(self, entry: Entry | None = None) -> None:
        if entry is None:
            if not self.queue or len(self.unsettled) >= self.core.prefetch:
                return
            entry = self.queue[0]
        self.queue.remove(entry)
        receipt = self.unsettled[entry] = Receipt(entry, self.connection)
        past = Past.BEGUN if entry.note else Past.NONE
        if entry.redelivered and not entry.note and not self.keeps:
            past = Past.GIVEN
        note = "" if self.keeps else entry.note
        self.apply(self.core.on_message(entry.wire, receipt, "q", past, self.now, note))

    def lose_connection(self, dead: bool = False) -> None:
        if self.keeps and not dead:
            return  # what came over it is settled over the next one
        self.connection += 1
        for entry in reversed(list(self.unsettled)):
            entry.redelivered = True
            self.queue.appendleft(entry)
        self.unsettled.clear()
        if not self.keeps:
            self.marks.clear()
            self.core.on_disconnected()

    def mark(self) -> None:
        """The broker notes what begins."""
        job = self.marks.pop(0)
        entry = job.receipt.entry
        assert not entry.settled
        entry.note = job.note
        if self.rng.random() < 0.1:
            self.lose_connection()  # nobody hears of it, unless it can be asked again
        if self.keeps or job.receipt.connection == self.connection:
            self.apply(self.core.on_marked([job], self.now))

    # What tasks do.

    def finish(self) -> None:
        job = self.pool.pop(self.rng.randrange(len(self.pool)))
        how = self.rng.choice(["value", "value", "error", "again", "requeue", "ignore", "odd"])
        if job.informing is not None:
            self.apply(self.core.on_finished(job, [], self.now))
            return
        if job in self.cancelled:
            how = self.rng.choice(["value", "cancelled"])
        failure = Failure.from_exception(ValueError("no"))
        value: Any = {
            "value": 3,
            "error": failure,
            "again": retrying.Again(self.now + self.rng.uniform(0, 30), failure),
            "requeue": retrying.Refusal(failure, requeue=True),
            "ignore": retrying.Refusal(failure, ignored=True),
            "odd": object(),
            "cancelled": Failure.from_exception(exceptions.Cancelled("so")),
        }[how]
        if how == "requeue" and job in self.core.jobs.begun.values():
            self.runs[job.key] -= 1  # it asked for that
        outcome = value if how == "error" else invocation.Outcome(value)
        self.apply(self.core.on_finished(job, outcome, self.now))

    # What people do.

    def revoke(self) -> None:
        ids = [f"t{self.rng.randint(1, self.number + 2)}" for _ in range(2)]
        self.revoked.update(ids)
        self.apply(self.core.revoke(ids, self.rng.random() < 0.5, self.now))

    def suspend(self) -> None:
        self.taking = False
        self.apply(self.core.suspend(self.now))

    def resume(self) -> None:
        self.taking = True
        self.apply(self.core.resume(self.now))

    def stop(self) -> None:
        self.stopped = True
        self.apply(self.core.drain(self.now))

    def answer(self) -> None:
        """Nobody else is there."""
        ids = self.asked.pop()
        assert not self.asked, "one question at a time"
        told = {id: [("active", {})] for id in ids if self.rng.random() < 0.1}
        self.apply(self.core.on_answers(told, self.now))

    def step(self) -> None:
        rng = self.rng
        choices: list[tuple[Any, float]] = [
            (self.publish, 3),
            (self.deliver, 8),
            (self.pass_time, 3),
        ]
        if self.duties:
            choices.append((self.work, 6))
        if self.asked:
            choices.append((self.answer, 6))
        if self.pool:
            choices.append((self.finish, 4))
        if self.marks:
            choices.append((self.mark, 12))
        if self.number:
            choices.append((self.revoke, 0.3))
        choices.append((self.lose_connection, 0.3))
        choices.append((self.crash, 0.1 * self.crashing))
        choices.append((self.suspend if self.taking else self.resume, 0.2 if self.taking else 2))
        chosen = rng.choices([choice for choice, _ in choices], [weight for _, weight in choices])
        chosen[0]()
        self.check()

    def pass_time(self) -> None:
        self.now += self.rng.expovariate(0.3)
        due = self.core.next_due()
        if due is not None and due <= self.now:
            self.apply(self.core.on_due(self.now))
        after = self.core.next_due()
        assert after is None or after > self.now

    def check(self) -> None:
        jobs = self.core.jobs
        assert len(jobs.begun) + len(jobs.noting) <= self.slots
        held = len(jobs.held)
        assert len(self.core._timetable._heap) <= 2 * held + 128
        assert set(jobs.begun).isdisjoint(jobs.waiting) and set(jobs.held).isdisjoint(jobs.begun)
        if not (jobs.waiting and self.budget is not None):
            assert not jobs.waiting or self.core.running == self.slots
        # Whatever the service was given is in its hands, or settled.
        groups = (jobs.begun, jobs.noting, jobs.waiting, jobs.held, jobs.leaving, jobs.doubtful)
        mine = {id(job.receipt) for group in groups
                for job in group.values()}  # fmt: skip
        mine |= {id(job.receipt) for job in jobs.returning}
        for entry, receipt in self.unsettled.items():
            assert id(receipt) in mine, f"{entry.wire.headers.get('id')} is forgotten"

    def close(self) -> None:
        """Drain, and let everything come to its end."""
        self.stop()
        for _ in range(10_000):
            if self.marks:
                self.mark()
            elif self.duties:
                self.work()
            elif self.pool:
                self.finish()
            else:
                break
            self.check()
        assert not self.core.busy
        assert not self.unsettled
        waiting = Counter(self.key_of(entry) for entry in self.queue)
        assert self.crashes or waiting <= self.copies, "what was given back is there twice"
        for key in self.published:
            message = self.published[key]
            gone = message is not None and message.lang != "py"
            assert self.ends[key] or key in waiting or gone, f"{key} is lost"
            assert self.ends[key] <= 1 + self.given[key] + self.crashes, f"{key} ended twice"

    @staticmethod
    def key_of(entry: Entry) -> tuple[Any, int]:
        if "id" in entry.wire.headers:
            return entry.wire.headers["id"], entry.wire.headers.get("retries", 0) + 1
        message = codec.decode(entry.wire, ACCEPTED)
        return message.id, message.retries + 1


@pytest.mark.parametrize("block", range(20))
def test_promises_hold_in_random_histories(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        history = History(seed)
        try:
            for _ in range(history.rng.randint(20, 150)):
                history.step()
            history.close()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_what_is_remembered_is_bounded() -> None:
    known = remembering.Remembered(10)
    for number in range(10):
        known.note(number)
    known.note(0)
    known.note(10)
    assert len(known) == 10 and 0 in known and 1 not in known and 10 in known
    revoked = remembering.Revoked()
    revoked.add(map(str, range(remembering.REVOKED + 10)))
    revoked.add_stamps({"who": list(range(20_000))})
    assert len(revoked.ids) == remembering.REVOKED
    assert not revoked.covers("5", {}) and revoked.covers("15", {})
    assert revoked.covers("x", {"who": 19_999}) and not revoked.covers("x", {"who": 1})
    assert not revoked.covers("x", {"why": 19_999, "who": {}})


def test_a_timetable_forgets_what_is_removed() -> None:
    def job_of(id: str, due: float) -> Job:
        job = Job(id, 1, TaskMessage("t", id), Wire(), None, "q", 0.0)
        job.due = due
        return job

    held: dict[Any, Job] = {}
    table = holding.Timetable(held)
    for number in range(1000):
        job = job_of(f"{number}", 5.0)
        table.add(job)
        table.remove(job)
    assert len(table._heap) < 100
    first, second = job_of("a", 5.0), job_of("a", 9.0)
    table.add(first)
    table.remove(first)
    table.add(second)
    assert table.next() == 9.0
    assert table.due(8.0) == [] and table.due(9.0) == [second] and not held

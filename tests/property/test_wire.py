"""The wire, without wires: one real book, real servers, a real ledger, and a hostile network.

Messages may be doubled, delayed and delivered in any order; RUNNING and EVENT answers may be lost;
workers stop, vanish with what they hold, or are thought lost while they live; the clock moves.
The engine dies, with what it did not save, and another one goes on with what it left.
"""

from __future__ import annotations

import enum
import itertools
import os
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from wbengine import exceptions as exc
from wbengine import invocation, task
from wbengine._clock import ManualClock
from wbengine.engines.worker_based import asking, endpoint, entries, requests, rows, server
from wbengine.engines.worker_based import effects as fx
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import types as finders
from wbengine.engines.worker_based.ledger import memory
from wbengine.types.failure import Failure

ENGINE = "engine"
PERIOD = 5.0
TIMEOUT = 60.0
#: Histories of each kind that are tried; `WBENGINE_HISTORIES=N` tries others, and more.
MOST = int(os.environ.get("WBENGINE_HISTORIES", "120"))
#: A holder that was silent for so long is dead for whoever goes on with its work.
EXPIRY = 40.0


class One(task.Task):
    def execute(self, number: int) -> int:
        return number


class Two(task.Task):
    idempotent = True

    def execute(self, number: int) -> int:
        return -number


OFFERS = ([One], [Two], [One, Two])


@dataclass
class Delivery:
    """A message with all that kombu would tell of it; its own receipt."""

    envelope: env.Envelope
    to: str
    headers: dict[str, Any] = field(default_factory=dict)
    acknowledged: int = 0


class Frozen(enum.Enum):
    """Where an engine stops that publishes a request: it asks whether the flow is its own, opens
    the row, asks once more, and publishes.
    """

    BEFORE_OPEN = 1
    BEFORE_QUESTION = 2
    BEFORE_PUBLISH = 3


@dataclass
class Worker:
    """A server core, the requests it was given and has not acknowledged, and what it runs."""

    core: server.Server
    queue: str
    unacknowledged: list[Delivery] = field(default_factory=list)
    running: dict[tuple[str, int], server.Job] = field(default_factory=dict)


class Network(RuleBasedStateMachine):
    """The shells of both sides, reduced to one thread; the bag of messages is the broker."""

    with_ledger = True
    transition_timeout: float | None = TIMEOUT

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(start=1000.0)
        self.ledger = memory.MemoryLedger(self.clock) if self.with_ledger else None
        self.lives = 0
        self.live()
        self.bag: list[Delivery] = []
        self.outbox: list[fx.Dispatch] = []
        self.workers: dict[str, Worker] = {}
        self.ids = itertools.count(1)
        self.ran: list[tuple[str, int]] = []
        self.calls: dict[str, invocation.Invocation] = {}
        self.outcomes: dict[str, list[Any]] = {}
        self.states: dict[str, str] = {}
        self.withdrawn: set[str] = set()
        self.retired: set[str] = set()
        self.told: list[tuple[str, Any]] = []
        self.steps = 0
        self.epochs: dict[str, int] = {}
        self.unread: list[Delivery] = []
        # What engines that are frozen were about to publish, and the rows that they made too late.
        self.frozen: list[tuple[Frozen, fx.Dispatch]] = []
        self.late: set[str] = set()

    def live(self) -> None:
        """An engine begins.

        Where there is a ledger, under a name of its own: everybody has to be told it anew.
        """
        self.lives += 1
        self.name = f"{ENGINE}-{self.lives}" if self.with_ledger else ENGINE
        self.finder = finders.ProxyWorkerFinder(
            self.name, self, (), on_change=self.on_workers, clock=self.clock
        )
        self.book = requests.RequestBook(
            self.name,
            self.finder,
            transition_timeout=self.transition_timeout,
            ledger=self.ledger.digest if self.ledger is not None else None,
        )
        self.rows = rows.Rows(self.ledger, EXPIRY) if self.ledger is not None else None

    # The engine's shell.

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def publish(self, message: Any, routing_key: str, **options: Any) -> None:
        """What the finder asks; the network has no delays for that."""
        headers = options.get("headers", {})
        if routing_key == self.name:
            self.finder.process_response({}, Delivery(env.Envelope("", {}), ENGINE, headers))
            return
        for worker in list(self.workers.values()):
            question = env.Envelope(pr.NOTIFY, {}, reply_to=self.name, headers=headers)
            self.perform(worker, worker.core.on_notify(question, PERIOD))

    def on_workers(self, gained: set[str], lost: list[finders.TopicWorker]) -> None:
        self.apply(self.book.on_lost(lost, self.now) + self.book.on_gained(gained, self.now))

    def apply(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Dispatch():
                    self.outbox.append(effect)
                case fx.Settle(entry, outcome):
                    if isinstance(outcome.value, int):
                        fits = entry.floor <= outcome.value <= entry.epoch
                        assert fits, "an old epoch's answer was taken"
                    self.outcomes.setdefault(entry.invocation.uuid, []).append(outcome.value)
                case fx.Tell(entry, _, details):
                    self.told.append((entry.invocation.uuid, details["n"]))
                case fx.Acknowledge(receipt):
                    if receipt is not None:
                        receipt.acknowledged += 1
                case fx.Drop(request_id):
                    if self.ledger is not None:
                        self.ledger.drop(request_id)
                case fx.Revoke(entry):
                    revoked = self.rows is None or self.rows.revoke(entry)
                    self.apply(self.book.on_revoked(entry, revoked, self.now))
                case fx.Inspect(entry, lost):
                    self.inspect(entry, lost)
                case fx.Reopen(entry, epoch):
                    assert self.rows is not None
                    done, answer = self.rows.reopen(entry, epoch)
                    assert done
                    self.apply(self.book.on_reopened(entry, answer, self.now))
                case fx.Ask(question):
                    asking.validate(question.body)
                    everybody = question.routing_key == env.ALL_WORKERS
                    to = list(self.workers) if everybody else [question.routing_key]
                    self.bag += [Delivery(question, name, question.headers) for name in to]

    def inspect(self, entry: Any, lost: str | None) -> None:
        assert self.rows is not None
        self.apply(self.book.on_row(entry, self.rows.look(entry), self.now, lost))

    def write(self) -> None:
        """What the publisher's thread does."""
        while self.outbox:
            dispatch = self.outbox.pop(0)
            entry = dispatch.entry
            if not (entry.live and entry.epoch == dispatch.epoch):
                continue
            if self.rows is not None:
                self.open(dispatch)
                entry.opened = True
            self.send(dispatch)

    def open(self, dispatch: fx.Dispatch) -> None:
        assert self.ledger is not None and self.rows is not None
        opens = self.ledger if dispatch.epoch == 1 else self.rows
        opens.open(dispatch.entry.id, dispatch.epoch)

    def send(self, dispatch: fx.Dispatch) -> None:
        envelope = dispatch.envelope
        self.bag.append(Delivery(envelope, envelope.routing_key, envelope.headers))

    def hear(self, delivery: Delivery) -> None:
        answer = delivery.envelope
        if answer.type == pr.NOTIFY:
            self.finder.process_response(answer.body, delivery)
        else:
            pr.Response.validate(answer.body)
            self.unread.append(delivery)
            self.apply(self.book.on_response(answer, delivery, self.now))

    # A worker's shell.

    def perform(self, worker: Worker, effects: list[server.Effect]) -> None:
        for effect in effects:
            match effect:
                case server.Claim(job):
                    assert self.ledger is not None
                    claim = self.ledger.claim(job.id, job.epoch, worker.core.identity)
                    self.perform(worker, worker.core.on_claim(job, claim))
                case server.Run(job):
                    self.ran.append((job.id, job.epoch))
                    worker.running[job.id, job.epoch] = job
                case server.Finish(job, frozen):
                    assert self.ledger is not None
                    self.ledger.finish(job.id, job.epoch, worker.core.identity, frozen)
                    self.perform(worker, worker.core.on_stored(job))
                case server.Reply(job, envelope, terminal):
                    self.bag.append(Delivery(envelope, envelope.routing_key, envelope.headers))
                    if terminal:
                        assert job is not None
                        worker.unacknowledged.remove(job.receipt)
                case server.Acknowledge(receipt):
                    worker.unacknowledged.remove(receipt)

    def give(self, worker: Worker, delivery: Delivery) -> None:
        pr.Request.validate(delivery.envelope.body)
        worker.unacknowledged.append(delivery)
        self.perform(worker, worker.core.on_request(delivery.envelope, delivery))

    def takers(self, queue: str) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.queue == queue]

    def gone(self, identity: str) -> None:
        """The process ended: the broker gives what it had not acknowledged to others."""
        worker = self.workers.pop(identity)
        for delivery in worker.unacknowledged:
            again = env.Envelope(
                delivery.envelope.type,
                delivery.envelope.body,
                routing_key=delivery.to,
                correlation_id=delivery.envelope.correlation_id,
                reply_to=delivery.envelope.reply_to,
                headers=delivery.headers,
                redelivered=True,
            )
            self.bag.append(Delivery(again, delivery.to, delivery.headers))

    # What may happen.

    @initialize(
        offers=st.lists(st.sampled_from(OFFERS), min_size=1, max_size=3),
        kinds=st.lists(st.sampled_from([One, Two]), min_size=1, max_size=4),
    )
    def begin_busy(self, offers: Any, kinds: Any) -> None:
        """Most of what is interesting needs somebody who works, and something to do."""
        self.begin()
        for offer in offers:
            self.start_worker(offer, 1)
        self.quiet_engine()
        for kind in kinds:
            self.submit(kind, 0)
        self.write()

    def begin(self) -> None:
        self.finder.maybe_publish()

    @rule(kind=st.sampled_from([One, Two]), priority=st.integers(0, 9))
    def submit(self, kind: Any, priority: int) -> None:
        number = next(self.ids)
        call = invocation.Invocation(
            kind(f"task-{number}"),
            "execute",
            f"atom-{number}",
            arguments={"number": number},
            events=lambda *_: None,
            priority=priority,
        )
        self.calls[call.uuid] = call
        self.epochs[call.uuid] = 1
        self.apply(self.book.submit(call, lambda *_: None, self.now))

    @rule()
    def publish_requests(self) -> None:
        self.write()

    @rule(offer=st.sampled_from(OFFERS), slots=st.integers(1, 3))
    def start_worker(self, offer: Any, slots: int) -> None:
        identity = f"worker-{next(self.ids)}"
        queue = "q." + "".join(cls.__name__ for cls in offer)
        core = server.Server(
            identity,
            {"q": queue},
            endpoint.endpoints_of(offer),
            slots,
            ledger=self.ledger.digest if self.ledger is not None else None,
        )
        self.workers[identity] = worker = Worker(core, queue)
        self.perform(worker, core.announce(["all"], env.READY, PERIOD))

    @precondition(lambda self: self.bag)
    @rule(data=st.data())
    def deliver(self, data: Any) -> None:
        index = data.draw(st.integers(0, len(self.bag) - 1))
        self.deliver_one(index, data.draw(st.integers(0, 7)))

    @precondition(lambda self: self.bag)
    @rule(data=st.data(), count=st.integers(2, 8))
    def deliver_several(self, data: Any, count: int) -> None:
        self.write()
        for _ in range(min(count, len(self.bag))):
            self.deliver(data)

    def deliver_one(self, index: int, choice: int = 0) -> bool:
        delivery = self.bag[index]
        if self.is_for_engine(delivery):
            del self.bag[index]
            if delivery.to in (self.name, "all"):
                self.hear(delivery)
            return True
        if delivery.envelope.type == asking.ASK:
            del self.bag[index]
            if (asked := self.workers.get(delivery.to)) is not None:
                question = delivery.envelope
                pairs = asking.read(question.body)
                self.perform(asked, asked.core.on_ask(pairs, question.reply_to))
            return True
        takers = self.takers(delivery.to)
        if takers:
            del self.bag[index]
            self.give(takers[choice % len(takers)], delivery)
        return bool(takers)

    @precondition(lambda self: self.bag)
    @rule(data=st.data())
    def double(self, data: Any) -> None:
        delivery = data.draw(st.sampled_from(self.bag))
        if self.ledger is not None or delivery.envelope.type != pr.REQUEST:
            # Without a ledger nothing can hold two workers back from the same message.
            self.bag.append(Delivery(delivery.envelope, delivery.to, delivery.headers))

    @precondition(lambda self: any(map(_may_be_lost, self.bag)))
    @rule(data=st.data())
    def lose_message(self, data: Any) -> None:
        self.bag.remove(data.draw(st.sampled_from(list(filter(_may_be_lost, self.bag)))))

    @precondition(lambda self: any(worker.running for worker in self.workers.values()))
    @rule(data=st.data(), how=st.sampled_from(["value", "failure", "unsendable"]))
    def finish(self, data: Any, how: str) -> None:
        busy = [worker for worker in self.workers.values() if worker.running]
        worker = data.draw(st.sampled_from(busy))
        self.end(worker, data.draw(st.sampled_from(list(worker.running))), how)

    def end(self, worker: Worker, key: tuple[str, int], how: str = "value") -> None:
        job = worker.running.pop(key)
        value: Any = key[1]
        if how == "failure":
            value = Failure.from_exception(RuntimeError("no"))
        elif how == "unsendable":
            value = object()
        self.perform(worker, worker.core.on_finished(job, invocation.Outcome(value)))

    @precondition(lambda self: any(worker.running for worker in self.workers.values()))
    @rule(data=st.data())
    def tell(self, data: Any) -> None:
        busy = [worker for worker in self.workers.values() if worker.running]
        worker = data.draw(st.sampled_from(busy))
        job = data.draw(st.sampled_from(list(worker.running.values())))
        self.perform(worker, worker.core.on_event(job, "update", {"n": next(self.ids)}))

    @precondition(lambda self: self.workers and self.steps % 3 == 0)
    @rule(data=st.data())
    def kill_worker(self, data: Any) -> None:
        self.gone(data.draw(st.sampled_from(sorted(self.workers))))

    @precondition(lambda self: self.workers and self.steps % 3 == 0)
    @rule(data=st.data())
    def stop_worker(self, data: Any) -> None:
        identity = data.draw(st.sampled_from(sorted(self.workers)))
        worker = self.workers[identity]
        for key in list(worker.running):
            self.end(worker, key)
        self.perform(worker, worker.core.announce(["all"], env.STOPPED))
        self.gone(identity)

    @precondition(lambda self: self.workers and self.steps % 3 == 0)
    @rule(data=st.data())
    def mistake_for_lost(self, data: Any) -> None:
        """A worker that lives is silent for long (it was frozen, or the network was)."""
        identity = data.draw(st.sampled_from(sorted(self.workers)))
        worker = self.workers.pop(identity)
        for _ in range(5):
            self.pass_time(PERIOD)
            self.quiet_engine()
        self.workers[identity] = worker

    @rule(steps=st.sampled_from([1, 1, 1, 2, 4]))
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.pass_time(PERIOD)

    @precondition(lambda self: self.steps % 7 == 0)
    @rule(seconds=st.floats(1.0, 100.0))
    def freeze_engine(self, seconds: float) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for identity, worker in list(self.workers.items()):
            self.perform(worker, worker.core.beat(PERIOD))
            if self.ledger is not None and worker.running:
                self.ledger.renew(identity)
        self.finder.maybe_publish()
        self.finder.clean()
        self.apply(self.book.tick(self.now))

    @precondition(lambda self: any(map(self.may_retire, self.calls)))
    @rule(data=st.data())
    def retire(self, data: Any) -> None:
        self.save(data.draw(st.sampled_from(list(filter(self.may_retire, self.calls)))))

    def save(self, uuid: str) -> None:
        self.retired.add(uuid)
        self.apply(self.book.retired([self.calls[uuid]]))

    def may_retire(self, uuid: str) -> bool:
        return uuid in self.outcomes and uuid not in self.retired

    @precondition(lambda self: self.steps % 5 == 0)
    @rule()
    def withdraw(self) -> None:
        self.write()
        for entry in self.book.unstarted():
            if not entry.dispatched or self.rows is None or self.rows.revoke(entry):
                self.withdrawn.add(entry.invocation.uuid)
                self.book.forget(entry)

    @precondition(lambda self: self.calls and self.steps % 3 == 0)
    @rule(
        data=st.data(),
        seconds=st.sampled_from([0, 0, 5, 45]),
        saves=st.booleans(),
        freezes=st.sampled_from([None, None, *Frozen]),
    )
    def kill_engine(
        self, data: Any, seconds: int, saves: bool, freezes: Frozen | None = None
    ) -> None:
        """With it dies what it did not save; and it may have saved, and done nothing after that.

        Or it is frozen while it publishes something, until its lease is another's.
        """
        if freezes is not None and self.ledger is not None:
            self.freeze(freezes)
        if saves and (ended := list(filter(self.may_retire, self.calls))):
            self.retired.add(data.draw(st.sampled_from(ended)))
        saved = {uuid: self.outcomes[uuid] for uuid in self.retired}
        self.outcomes = saved
        self.states.clear()
        self.told.clear()
        self.outbox.clear()
        if not self.with_ledger:  # the next one reads the same queue
            self.bag += [each for each in self.unread if not each.acknowledged]
        self.unread.clear()
        for _ in range(seconds // int(PERIOD)):
            self.clock.advance(PERIOD)
            for identity, worker in self.workers.items():
                if self.ledger is not None and worker.running:
                    self.ledger.renew(identity)
        self.live()
        self.begin()
        self.go_on()

    def freeze(self, how: Frozen) -> None:
        for dispatch in self.outbox:
            if dispatch.entry.live and dispatch.entry.epoch == dispatch.epoch:
                if how != Frozen.BEFORE_OPEN:
                    self.open(dispatch)
                self.frozen.append((how, dispatch))
                return

    @precondition(lambda self: self.frozen)
    @rule()
    def thaw(self) -> None:
        """It goes on, and finds out that the flow is not its own as soon as it looks at that."""
        how, dispatch = self.frozen.pop()
        if how == Frozen.BEFORE_OPEN:
            assert self.ledger is not None
            self.ledger.open(dispatch.entry.id, dispatch.epoch)
            self.late.add(dispatch.entry.id)
        elif how == Frozen.BEFORE_PUBLISH:
            self.send(dispatch)

    def go_on(self) -> None:
        """What the lifecycle, and the engine, do with what is stored."""
        self.book.heir = not self.with_ledger
        if self.rows is not None:
            ended = [entries.request_id(uuid, "execute", 1) for uuid in self.retired]
            self.rows.sweep(ended)
        for uuid, call in self.calls.items():
            if uuid in self.retired or uuid in self.withdrawn:
                continue
            self.epochs[uuid] = max(self.lives * 1024, self.epochs[uuid] + 1024)
            again = invocation.Invocation(
                call.task,
                "execute",
                uuid,
                arguments=call.arguments,
                events=call.events,
                priority=call.priority,
                epoch=self.epochs[uuid],
                recovered=True,
            )
            self.calls[uuid] = again
            self.apply(self.book.recover(again, lambda *_: None, self.now))
        self.apply(self.book.ask())

    # What must hold.

    @invariant()
    def runs_once_per_epoch(self) -> None:
        self.steps += 1  # what destroys most is possible only at some of them
        assert len(set(self.ran)) == len(self.ran), self.ran

    @invariant()
    def runs_once_with_a_ledger(self) -> None:
        twice = {
            entries.request_id(uuid, "execute", 1)
            for uuid, call in self.calls.items()
            if call.task.idempotent
        }
        if self.ledger is not None:
            ids = [request_id for request_id, _ in self.ran if request_id not in twice]
            assert len(set(ids)) == len(ids), self.ran

    @invariant()
    def ends_once(self) -> None:
        for uuid, values in self.outcomes.items():
            assert len(values) == 1
            assert uuid not in self.withdrawn

    @invariant()
    def ends_stay(self) -> None:
        for entry in self.book._entries.values():
            before = self.states.get(entry.id, entry.state)
            assert before not in pr.STOP_STATES or before == entry.state
            self.states[entry.id] = entry.state

    @invariant()
    def events_are_told_once(self) -> None:
        assert len(set(self.told)) == len(self.told)

    @invariant()
    def every_live_request_is_somewhere(self) -> None:
        for entry in self.book._entries.values():
            if entry.live:
                assert entry.shelf is not None, entry.request
            else:
                assert entry.shelf is None, entry.request

    def teardown(self) -> None:
        """The network heals, a worker for everything comes, time passes: all is over."""
        self.heal()
        missing = set(self.calls) - self.withdrawn - set(self.outcomes)
        assert not missing, [self.calls[uuid].ticket.request for uuid in missing]
        for uuid in list(self.calls):
            if self.may_retire(uuid):
                self.save(uuid)
        while self.frozen:
            self.thaw()
        self.heal()
        if self.ledger is not None:
            for request_id in self.late:
                self.ledger.revoke(request_id)  # swept one day
            assert not self.ledger._rows
        assert len(self.book) == 0
        book = self.book
        shelves = (book._waiting, book._backlog, book._sent, book._held, book._left)
        assert not any(shelves)
        assert not self.book._backlog._heaps
        assert not self.book._alarms
        assert not self.book._sent._reached
        assert not any(worker.core.running for worker in self.workers.values())
        assert not any(worker.unacknowledged for worker in self.workers.values())
        self.runs_once_per_epoch()
        self.runs_once_with_a_ledger()
        self.ends_once()

    def heal(self) -> None:
        self.start_worker([One, Two], 2)
        for _ in range(2 * int(TIMEOUT / PERIOD) + 20):
            self.quiet()
            self.pass_time(PERIOD)
            self.quiet()

    def quiet_engine(self) -> None:
        """The engine hears all that was said to it."""
        while any(map(self.is_for_engine, self.bag)):
            index = next(i for i, each in enumerate(self.bag) if self.is_for_engine(each))
            self.deliver_one(index)

    @staticmethod
    def is_for_engine(delivery: Delivery) -> bool:
        """Also those to one that died: nobody reads them."""
        return delivery.to == "all" or delivery.to.startswith(ENGINE)

    def quiet(self) -> None:
        self.write()
        moved = True
        while moved:
            moved = False
            for index in range(len(self.bag) - 1, -1, -1):
                moved |= self.deliver_one(index)
            for worker in self.workers.values():
                for key in list(worker.running):
                    self.end(worker, key)
                    moved = True
            self.write()


def _may_be_lost(delivery: Delivery) -> bool:
    kind = delivery.envelope.type
    return kind in (pr.NOTIFY, asking.ASK) or (
        kind == pr.RESPONSE and delivery.envelope.body["state"] not in pr.STOP_STATES
    )


class WithoutLedger(Network):
    with_ledger = False


class Crowded(Network):
    """Few requests fit into the broker at once."""

    def __init__(self) -> None:
        super().__init__()
        self.book._capacity = lambda queue: 2  # type: ignore[method-assign]


@pytest.mark.parametrize("machine", [Network, WithoutLedger, Crowded])
def test_any_history_ends_well(machine: type[Network]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine, settings=settings(max_examples=MOST, stateful_step_count=40, deadline=None)
    )


def test_lost_worker_is_named() -> None:
    """The history of a worker that dies between its claim and its first word."""
    network = Network()
    network.begin()
    network.start_worker([One], 1)
    network.start_worker([One], 1)
    network.quiet()
    network.submit(One, 0)
    network.write()
    (request,) = [d for d in network.bag if not network.is_for_engine(d)]
    network.bag.clear()
    dead, _ = sorted(network.workers)
    network.give(network.workers[dead], request)
    network.bag.clear()
    network.gone(dead)
    for _ in range(10):
        network.quiet()
        network.pass_time(PERIOD)
    ((failure,),) = network.outcomes.values()
    assert failure.check(exc.WorkerLost)
    assert dead in failure.exception_str


def test_worker_that_nobody_knew_is_lost_too() -> None:
    """It answered, it died, and none of its announcements was ever heard."""
    network = Network()
    network.begin()
    network.start_worker([One], 1)
    network.quiet()
    network.start_worker([One], 1)
    network.bag.clear()
    _, unknown = sorted(network.workers)
    network.submit(One, 0)
    network.write()
    (request,) = network.bag
    network.bag.clear()
    network.give(network.workers[unknown], request)
    network.gone(unknown)
    for _ in range(10):
        network.quiet()
        network.pass_time(PERIOD)
    ((failure,),) = network.outcomes.values()
    assert failure.check(exc.WorkerLost)
    assert unknown in failure.exception_str


def test_answer_that_overtook_its_workers_goodbye_is_not_needed() -> None:
    """The goodbye comes first, the row says that the request is done: that is its outcome."""
    network = Network()
    network.begin()
    network.start_worker([One], 1)
    network.quiet()
    network.submit(One, 0)
    network.write()
    network.deliver_one(0)
    network.quiet_engine()
    (identity,) = network.workers
    network.end(network.workers[identity], next(iter(network.workers[identity].running)))
    (late,) = network.bag
    network.bag.clear()
    network.perform(
        network.workers[identity],
        network.workers[identity].core.announce(["all"], env.STOPPED),
    )
    network.quiet_engine()
    assert list(network.outcomes.values()) == [[1]]
    network.hear(late)
    assert network.book.ignored["late"] == 1


def test_answer_of_an_old_epoch_is_dropped() -> None:
    """Without a ledger: a worker is taken for lost before it was heard, and answers later."""
    network = WithoutLedger()
    network.begin()
    network.start_worker([One], 1)
    network.quiet()
    network.submit(One, 0)
    network.write()
    network.deliver_one(0)
    (old,) = network.workers
    said = network.bag[:]
    network.bag.clear()
    frozen = network.workers.pop(old)
    for _ in range(4):
        network.pass_time(PERIOD)
    network.end(frozen, next(iter(frozen.running)), "failure")
    network.start_worker([One], 1)
    network.quiet_engine()
    network.write()
    for delivery in said:
        network.hear(delivery)
    assert network.book.ignored["old_epoch"] == 2
    network.quiet()
    assert list(network.outcomes.values()) == [[2]]
    assert [epoch for _, epoch in network.ran] == [1, 2]

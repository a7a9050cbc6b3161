"""An engine of the simulated world: a real book and finder, flows that it owns, and its store."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from tests.seams.stores import EPOCHS_PER_RUN
from tests.simulation.broker import Message
from tests.simulation.processes import Letter, Process
from tests.simulation.store import ENDED, PENDING, RENEWAL, RUNNING, Atom, Flow
from wbengine import exceptions as exc
from wbengine import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based.messages import asking, cancelling
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import book, ledger_rows
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.types.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.world import World

#: Clocks that count from different moments round differently.
TICK = 1e-6

#: A holder that was silent for so long is dead for whoever goes on with its work.
EXPIRY = 60.0


class Engine(Process):
    """The shells of an executor and of the engines that share it, in one thread.

    `own`: it runs one flow, and can take the name of the executor that ran it before.
    """

    def __init__(self, world: World, name: str, ahead: float, *, own: bool) -> None:
        super().__init__(world, name, ahead)
        self.own = own
        #: Its name on the wire: that of the executor before, if it may take that.
        self.uuid = name
        self.flows: dict[str, int] = {}
        self.disowned = False
        self.began = False
        self.results: deque[tuple[Atom, invocation.Invocation, Any]] = deque()
        self.withheld: list[Message] = []
        #: What its next write to the store does: "applied" or "lost", and both fail.
        self.ails = ""
        self.undropped: set[str] = set()
        #: When another one listened under its name last.
        self.shared = -math.inf
        self.round_due = 0.0
        #: What it listens on: another one after each time without.
        self.channel: object = None
        self.renewal = self.now + RENEWAL
        self.rows = ledger_rows.Rows(self.line, EXPIRY) if self.line is not None else None
        self.finder = types.ProxyWorkerFinder(
            name,
            self,
            (),
            worker_expiry=EXPIRY,
            on_change=self.on_workers,
            on_ids=lambda name, ids: self.do(self.book.on_ids(name, ids, self.now)),
            holds=lambda name: self.book.holds(name),
            clock=self.clock,
        )
        self.book = book.RequestBook(
            name,
            self.finder,
            transition_timeout=world.timeout,
            ledger=self.digest,
            terms=world.terms,
            wall=self.clock.time,
        )
        if world.capacity is not None:
            self.book._capacity = lambda queue: world.capacity  # type: ignore[method-assign, assignment, return-value]
        self.evidence = world.judge.evidence(self)

    @property
    def digest(self) -> str | None:
        return self.line.digest if self.line is not None else None

    def begin(self) -> None:
        """It is on the wire from now on, under the name that it has by now."""
        self.began = True
        self.declare()

    def succeed(self, uuid: str) -> None:
        self.uuid = self.finder.uuid = uuid
        self.book.inherit(uuid)

    def declare(self) -> None:
        broker = self.world.broker
        broker.declare(self.uuid, (self.uuid, env.ALL_ENGINES))
        broker.consume(self.uuid, self)
        self.channel = object()

    def takes(self, queue: str) -> bool:
        asleep = self.frozen and not self.world.broker.model.pushes
        return self.connected and not (self.dead or asleep)

    # Flows.

    def own_flow(self, flow: Flow) -> None:
        """Take a flow, go on with what was begun, and submit the rest."""
        world = self.world
        if self.own and flow.executor is not None and not world.broker.model.ours:
            self.succeed(flow.executor)
        if not self.began:
            self.begin()
        self.flows[flow.name] = world.store.take(flow, self, world.now)
        resumed, used = flow.known is not None, list(flow.known or ())
        self.book.expect(flow.name, tuple(used))
        if self.own and not world.broker.model.ours:
            flow.executor = self.uuid
        flow.known = [*used, *({self.digest} - {*used})]
        if resumed and self.rows is not None:
            ended = [id for atom in flow.atoms for id in atom.ids()]
            if self.line is not None and self.line.ails:
                world.judge.undropped.update(ended)  # they are swept one day
            self.rows.sweep(ended)
        for atom in flow.atoms:
            if atom.state == RUNNING:
                atom.epoch = max(flow.fence, atom.epoch + EPOCHS_PER_RUN)
                self.evidence.recovers(atom.request_id)
                self.world.judge.lives[atom.request_id] += 1
                self.do(self.book.recover(self.call(flow, atom, True), self.done, self.now))
        if self.book.unasked:
            self.do(self.book.ask())
        for atom in flow.atoms:
            if atom.state == PENDING:
                self.submit(flow, atom)
        if flow.ended:
            self.todo.append(lambda: self.let_go(flow))

    def submit(self, flow: Flow, atom: Atom) -> None:
        """What the store knows is never less than what was sent."""

        def begin() -> None:
            atom.state, atom.attempt, atom.epoch = RUNNING, atom.attempt + 1, 1
            self.world.judge.atoms[atom.request_id] = atom

        if self.write(flow, begin):
            call = self.call(flow, atom, False)
            self.do(self.book.submit(call, self.done, self.now))

    def call(self, flow: Flow, atom: Atom, recovered: bool) -> invocation.Invocation:
        return invocation.Invocation(
            atom.task,
            "execute",
            atom.uuid,
            atom.attempt,
            arguments=atom.arguments,
            events=self.told(atom),
            flow_uuid=flow.name,
            priority=atom.priority,
            epoch=atom.epoch,
            recovered=recovered,
        )

    def told(self, atom: Atom) -> invocation.EventSink:
        attempt, engine = atom.attempt, self

        def events(_: str, details: dict[str, Any]) -> None:
            engine.world.judge.on_event(engine, atom, attempt, details["n"])

        return events

    def cancel(self, call: invocation.Invocation) -> None:
        atom = self.world.store.atoms[call.uuid]
        call.cancelled = atom.cancelled = True
        self.do(self.book.cancel([call], self.now))

    def done(self, call: invocation.Invocation, outcome: invocation.Outcome) -> None:
        self.world.judge.on_outcome(self, call, outcome)
        self.results.append((self.world.store.atoms[call.uuid], call, outcome))

    def write(self, flow: Flow, change: Any) -> bool:
        """Write to the store; where that fails, the flow is nobody's."""
        epoch = self.flows.get(flow.name)
        if epoch is None:
            return False
        try:
            self.world.store.check(flow, self, epoch)
            how, self.ails = self.ails, ""
            if how != "lost":
                change()
            if how:
                flow.owner = None
                raise exc.StorageFailure("it may have been written, or not")
        except (exc.LeaseLost, exc.StorageFailure):
            self.give_up(flow)
            return False
        return True

    def give_up(self, flow: Flow) -> None:
        """Forget a flow, as it is: somebody else goes on with it."""
        del self.flows[flow.name]
        self.book.disown(flow.name)
        if not self.flows:
            self.do_chores()
            self.world.end(self)

    def has_work(self) -> bool:
        return bool(self.results) or super().has_work()

    def others(self) -> bool:
        if not self.results:
            return False
        atom, call, outcome = self.results.popleft()
        flow = self.world.store.flows[call.flow_uuid]
        if flow.name not in self.flows:
            return True
        failed = isinstance(outcome.value, Failure)
        again = failed and call.attempt <= atom.retries and not atom.cancelled

        def save() -> None:
            self.world.judge.on_saved(atom, call, outcome)
            atom.outcome = outcome.value
            atom.state = PENDING if again else ENDED

        if self.write(flow, save):
            self.todo.append(lambda: self.retire(flow, atom, call))
        return True

    def retire(self, flow: Flow, atom: Atom, call: invocation.Invocation) -> None:
        if flow.name not in self.flows:
            return
        self.do(self.book.retired([call]))
        if atom.state == PENDING:
            self.submit(flow, atom)
        elif flow.ended:
            self.todo.append(lambda: self.let_go(flow))

    def let_go(self, flow: Flow) -> None:
        if flow.name in self.flows and not self.owns(flow.name):
            self.give_up(flow)
        elif self.flows.pop(flow.name, None) is not None:
            self.book.expect(flow.name, None)
            flow.owner, flow.finished = None, True
            if self.own:
                self.drop_again()
                self.do_chores()
                self.world.end(self)

    def owns(self, flow: str) -> bool:
        """The guard of a flow."""
        found = self.world.store.flows[flow]
        return found.owner is self and found.epoch == self.flows.get(flow)

    def suspend(self) -> None:
        """Take back what nobody started, and leave the rest to another."""
        for entry in self.book.unstarted():
            call = entry.invocation
            ours = self.owns(call.flow_uuid)
            if self.book.is_left(entry):
                continue
            if not entry.sendings or (ours and self.rows and self.rows.revoke(entry)):
                self.book.forget(entry)
                atom = self.world.store.atoms[call.uuid]
                if self.digest is not None or not call.recovered:
                    atom.state = PENDING if ours else atom.state  # its number stays used
        for name in list(self.flows):
            flow = self.world.store.flows[name]
            if flow.owner is self:
                flow.owner = None
            self.give_up(flow)

    # What comes.

    def take(self, message: Message) -> None:
        if message.kind == pr.RESPONSE:
            super().take(message)
        else:
            self.inbox.append(message)

    def reads(self) -> bool:
        """Whether the answers that come are for it, and not for whoever has its name by now."""
        if not self.own or self.world.broker.model.ours:
            return True
        return all(map(self.owns, self.flows))

    def receive(self, message: Message) -> None:
        answer = message.envelope
        self.finder.turn(self.now, self.channel)
        if message.kind == pr.NOTIFY:
            if self.world.count % 16 == 0:  # schemas are slow
                pr.Notify.validate(answer.body, response=bool(answer.body))
            self.evidence.hears(message)
            self.finder.process_response(answer.body, message)
            return
        pr.Response.validate(answer.body)
        if self.reads():
            self.evidence.answers(answer)
            self.do(self.book.on_response(answer, message, self.now))

    def on_workers(self, gained: set[str], lost: list[types.TopicWorker]) -> None:
        if lost:
            self.world.judge.on_lost(self, lost)
        # Sets are in another order in each process: a seed would not tell what happens.
        lost = sorted(lost, key=lambda worker: (str(worker.identity), worker.topic))
        effects = self.book.on_lost(lost, self.now)
        self.do(effects + self.book.on_gained(sorted(gained), self.now))

    def publish(self, message: Any, routing_key: str, **options: Any) -> None:
        """What the finder says."""
        made = env.Envelope(
            message.TYPE,
            message.to_dict(),
            routing_key=routing_key,
            reply_to=options.get("reply_to"),
            headers=options["headers"],
        )
        self.post(Letter(made), first=True)

    # Its clock.

    def due(self) -> float | None:
        if not self.began:
            return None
        alarm = self.book.next_alarm()
        found = min(self.round_due, self.renewal)
        if alarm is not None:
            found = min(found, alarm)
        return max(found - self.now + TICK, 0.0) + self.world.now

    def on_time(self) -> None:
        now = self.now
        if self.connected and self.world.broker.up:  # else it tries to connect, in its loop
            self.finder.turn(self.now, self.channel)
        if now >= self.renewal:
            self.renewal = now + RENEWAL
            self.renew()
        if self.dead or not self.began:
            return
        if now >= self.round_due:
            self.finder.maybe_publish()
            self.finder.clean()
            self.do(self.book.review(now))
            self.drop_again()
            self.finder.hurry = self.book.stalled(now)
            self.round_due = self.finder.next_due() or now
        self.do(self.book.tick(now))

    def renew(self) -> None:
        for name in list(self.flows):
            flow = self.world.store.flows[name]
            if self.owns(name):
                flow.until = self.world.now + 15.0
            else:
                self.give_up(flow)

    # What is to be done.

    def perform(self, effect: Any) -> None:
        match effect:
            case fx.Dispatch():
                self.dispatch(effect)
            case fx.Settle(entry, outcome):
                self.world.judge.on_settled(self, entry, outcome)
                entry.done(entry.invocation, outcome)
            case fx.Tell(entry, event_type, details):
                entry.invocation.events(event_type, details)
            case fx.Acknowledge(receipt) if self.world.broker.model.ours:
                self.later(self.acknowledge, receipt)
            case fx.Acknowledge(receipt):
                self.acknowledge(receipt)
            case fx.Drop(request_id):
                self.later(self.drop, request_id)
            case fx.Revoke(entry):
                ours = self.rows is not None and self.owns(entry.invocation.flow_uuid)
                revoked = self.rows is None or (ours and self.rows.revoke(entry))
                self.do(self.book.on_revoked(entry, revoked, self.now))
            case fx.Inspect(entry, lost):
                assert self.rows is not None
                seen = self.rows.look(entry)
                # One that vanished had been taken, too.
                vanished = seen.state is None and entry.opened
                if seen.holder is not None or seen.result is not None or vanished:
                    self.evidence.serves(entry)
                self.do(self.book.on_row(entry, seen, self.now, lost))
            case fx.Reopen(entry, epoch):
                self.reopen(entry, epoch)
            case fx.Conclude(entry, holder, failure):
                ours = self.rows is not None and self.owns(entry.invocation.flow_uuid)
                if ours and self.rows is not None and self.rows.conclude(entry, holder, failure):
                    self.do(self.book.on_concluded(entry, failure, self.now))
            case fx.Ask(question):
                asking.validate(question.body)
                self.evidence.asks([id for id, _ in asking.read(question.body)])
                self.post(Letter(question))
            case fx.Cancel(order):
                cancelling.validate(order.body)
                self.post(Letter(order))
            case _ if callable(effect):
                effect()
            case _:
                raise AssertionError(f"nobody performs {effect!r}")

    def drop(self, request_id: str) -> None:
        if self.line is not None:
            try:
                self.line.drop(request_id)
            except exc.LedgerFailure:
                self.undropped.add(request_id)

    def drop_again(self) -> None:
        """Rows that could not be removed; nobody else knows of them."""
        found, self.undropped = sorted(self.undropped), set()
        for request_id in found:
            self.drop(request_id)

    def reopen(self, entry: Any, epoch: int) -> None:
        assert self.rows is not None
        if not self.owns(entry.invocation.flow_uuid):
            return
        self.world.judge.on_reopen(self, entry, epoch)
        done, answer = self.rows.reopen(entry, epoch)
        if done:
            self.do(self.book.on_reopened(entry, answer, self.now))

    def dispatch(self, effect: fx.Dispatch) -> None:
        entry = effect.entry
        self.evidence.dispatches(effect)

        def wanted() -> bool:
            if not self.owns(entry.invocation.flow_uuid):
                return False
            current: bool = entry.live and entry.epoch == effect.epoch
            if current:
                entry.sendings, entry.sent_at = entry.sendings + 1, self.now
            return current

        def opened() -> bool:
            assert self.line is not None
            if not self.owns(entry.invocation.flow_uuid):
                self.world.judge.undropped.add(entry.id)  # it is swept one day
            if entry.opened:
                return True
            (self.line.open if effect.epoch == 1 else self.line.offer)(entry.id, effect.epoch)
            entry.opened = True
            known = wanted()
            if not known and self.owns(entry.invocation.flow_uuid):
                self.line.revoke(entry.id, effect.epoch)
            return known

        def unrouted() -> None:
            self.evidence.fails(entry, "unrouted")
            self.do(self.book.on_unrouted(entry, effect.epoch, self.now))

        def uncertain() -> None:
            self.evidence.fails(entry, "unconfirmed")
            self.do(self.book.on_unconfirmed(entry, effect.epoch, self.now))

        steps = (wanted, opened) if self.line is not None else (wanted,)
        self.post(
            Letter(
                effect.envelope,
                *steps,
                unrouted=unrouted,
                uncertain=uncertain if self.line is None else None,
            )
        )

"""A simulated engine with a real request tracker, its flows and its store."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from tests.seams import tracker
from tests.seams.stores import EPOCHS_PER_RUN
from tests.simulation.broker import Message
from tests.simulation.processes import PAUSE, Letter, Process
from tests.simulation.store import ENDED, PENDING, RENEWAL, RUNNING, Atom, Flow
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.types.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.world import World

#: Maximum number of resends after lost workers.
MAX_RESENDS = 3

#: Tolerance for rounding between clocks with different offsets.
TICK = 1e-6


class Engine(Process):
    """An executor and the engines that share it, in one thread.

    `own`: the executor runs one flow and may take over the name of the flow's previous executor.
    """

    def __init__(self, world: World, name: str, ahead: float, *, own: bool) -> None:
        super().__init__(world, name, ahead)
        self.own = own
        #: The name on the broker: the name of the previous executor, if it may take it over.
        self.uuid = name
        self.flows: dict[str, int] = {}
        self.disowned = False
        self.began = False
        self.results: deque[tuple[Atom, invocation.Invocation, Any]] = deque()
        self.withheld: list[Message] = []
        #: Fault of the next write to the store: "applied" or "lost"; both raise an exception.
        self.ails = ""
        self.undropped: set[str] = set()
        #: Pending operations on rows, and the last answer of the ledger.
        self.orders: deque[Any] = deque()
        self.asked: tuple[Any, Any, Any] | None = None
        #: Requests whose rows are created together with publishing, and effects that wait for that.
        self.opening: set[str] = set()
        self.made: set[tuple[str, int]] = set()
        self.postponed: list[Any] = []
        #: Time at which another executor last listened under this name.
        self.shared = -math.inf
        self.round_due = 0.0
        #: Current channel; each reconnection creates a new one.
        self.channel: object = None
        self.renewal = self.now + RENEWAL
        self.tracker = tracker.Tracker(
            name,
            self.clock,
            do=self.do,
            say=lambda message: self.post(Letter(message), first=True),
            lost=lambda workers: world.judge.on_lost(self, workers),
            ledger=self.line,
            timeout=world.setting.timeout,
            on_worker_lost=world.setting.on_worker_lost,
            max_resends=MAX_RESENDS,
            capacity=world.setting.capacity,
            # True if the ledger is not part of the broker.
            separate_ledger=self.line is not None and not world.broker.model.ours,
        )
        self.evidence = world.judge.evidence(self)

    @property
    def digest(self) -> str | None:
        return self.line.digest if self.line is not None else None

    def begin(self) -> None:
        """Start to listen on the broker under the current name."""
        self.began = True
        self.declare()

    def succeed(self, uuid: str) -> None:
        self.uuid = uuid
        self.tracker.inherit(uuid)

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
        """Acquire a flow, recover its started requests and submit the others."""
        world = self.world
        if self.own and flow.executor is not None and not world.broker.model.ours:
            self.succeed(flow.executor)
        if not self.began:
            self.begin()
        self.flows[flow.name] = world.store.take(flow, self, world.now)
        resumed, used = flow.known is not None, list(flow.known or ())
        here = self.line.identity if self.line is not None else None
        same = [self.digest if each == here else None for each in used]
        self.tracker.expect(flow.name, same)
        if self.own and not world.broker.model.ours:
            flow.executor = self.uuid
        if world.setting.one_step:
            flow.until = math.inf
        flow.known = [*used, *({here} - {*used})]
        if resumed and self.line is not None:
            ended = [id for atom in flow.atoms for id in atom.ids()]
            if self.line.ails:
                world.judge.undropped.update(ended)  # the rows are swept later
            self.tracker.sweep(ended)
        for atom in flow.atoms:
            if atom.state == RUNNING:
                atom.epoch = max(flow.fence, atom.epoch + EPOCHS_PER_RUN)
                self.evidence.recovers(atom.request_id)
                self.world.judge.lives[atom.request_id] += 1
                self.do(self.tracker.submit(self.call(flow, atom, True), self.done))
        self.do(self.tracker.ask())
        for atom in flow.atoms:
            if atom.state == PENDING:
                self.submit(flow, atom)
        if flow.ended:
            self.todo.append(lambda: self.let_go(flow))

    def submit(self, flow: Flow, atom: Atom) -> None:
        """Save the start of an atom before its request is published."""

        def begin() -> None:
            atom.state, atom.attempt, atom.epoch = RUNNING, atom.attempt + 1, 1
            self.world.judge.atoms[atom.request_id] = atom

        if self.write(flow, begin):
            self.do(self.tracker.submit(self.call(flow, atom, False), self.done))

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
        atom.cancelled = True
        call.cancellation.cancel()
        self.do(self.tracker.cancel(call))

    def done(self, call: invocation.Invocation, outcome: invocation.Outcome) -> None:
        self.world.judge.on_outcome(self, call, outcome)
        self.results.append((self.world.store.atoms[call.uuid], call, outcome))

    def write(self, flow: Flow, change: Any) -> bool:
        """Write to the store; if that fails, give up the flow."""
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
        """Drop a flow without changing it: another engine resumes it."""
        del self.flows[flow.name]
        self.tracker.disown(flow.name)
        if not self.flows:
            self.do_chores()
            self.world.end(self)

    def has_work(self) -> bool:
        asks = self.orders or self.asked is not None
        return bool(self.results or asks) or super().has_work()

    def others(self) -> bool:
        # Alternate with the publishing thread.
        if (self.orders or self.asked is not None) and (
            self.world.count % 3 or not self.publish_next()
        ):
            self.ask_ledger()
            return True
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
        self.do(self.tracker.saved([call]))
        if atom.state == PENDING:
            self.submit(flow, atom)
        elif flow.ended:
            self.todo.append(lambda: self.let_go(flow))

    def let_go(self, flow: Flow) -> None:
        if flow.name in self.flows and not self.owns(flow.name):
            self.give_up(flow)
        elif self.flows.pop(flow.name, None) is not None:
            self.tracker.expect(flow.name, None)
            flow.owner, flow.finished = None, True
            if self.own:
                self.drop_again()
                self.do_chores()
                self.world.end(self)

    def owns(self, flow: str) -> bool:
        """Return True if this engine owns the flow."""
        flow_record = self.world.store.flows[flow]
        return flow_record.owner is self and flow_record.epoch == self.flows.get(flow)

    def suspend(self) -> None:
        """Withdraw unstarted requests and give up the other ones."""
        for request in self.tracker.unstarted():
            call = request.invocation
            ours = self.owns(call.flow_uuid)
            if self.tracker.give_back(request, ours=ours):
                atom = self.world.store.atoms[call.uuid]
                if self.digest is not None or not call.recovered:
                    atom.state = PENDING if ours else atom.state  # the attempt number stays used
        for name in list(self.flows):
            flow = self.world.store.flows[name]
            if flow.owner is self:
                flow.owner = None
            self.give_up(flow)

    # Messages.

    def take(self, message: Message) -> None:
        if message.kind == pr.RESPONSE:
            super().take(message)
        else:
            self.inbox.append(message)

    def reads(self) -> bool:
        """Return True if received replies are for this engine, not for a new owner of its name."""
        if not self.own or self.world.broker.model.ours:
            return True
        return all(map(self.owns, self.flows))

    def receive(self, message: Message) -> None:
        answer = message.envelope
        self.tracker.turn(self.channel)
        if message.kind == pr.NOTIFY:
            if self.world.count % 16 == 0:  # validating schemas is slow
                pr.Notify.validate(answer.body, response=bool(answer.body))
            self.evidence.hears(message)
            self.tracker.hear_worker(answer.body, message)
            return
        pr.Response.validate(answer.body)
        if self.reads():
            self.evidence.answers(answer)
            self.do(self.tracker.hear_answer(answer, message))

    # Time.

    def due(self) -> float | None:
        if not self.began:
            return None
        alarm = self.tracker.next_alarm()
        earliest = min(self.round_due, self.renewal)
        if alarm is not None:
            earliest = min(earliest, alarm)
        return max(earliest - self.now + TICK, 0.0) + self.world.now

    def on_time(self) -> None:
        now = self.now
        if self.connected and self.world.broker.up:  # otherwise its loop tries to connect
            self.tracker.turn(self.channel)
        if now >= self.renewal:
            self.renewal = now + RENEWAL
            self.renew()
        if self.dead or not self.began:
            return
        if now >= self.round_due:
            self.round_due = self.tracker.round()
            self.drop_again()
        self.do(self.tracker.tick())

    def renew(self) -> None:
        for name in list(self.flows):
            flow = self.world.store.flows[name]
            if self.world.setting.one_step:
                continue
            if self.owns(name):
                flow.until = self.world.now + 15.0
            else:
                self.give_up(flow)

    # Effects.

    def perform(self, effect: Any) -> None:
        match effect:
            case tracker.Publish():
                self.publish(effect)
            case tracker.Settle(request, outcome):
                self.world.judge.on_settled(self, request, outcome)
                effect.deliver()
            case tracker.NotifyEvent(request, event, details):
                request.invocation.events(event, details)
            case tracker.Acknowledge(receipt) if self.world.broker.model.ours:
                self.later(self.acknowledge, receipt)
            case tracker.Acknowledge(receipt):
                self.acknowledge(receipt)
            case tracker.Drop(request_id) if self.world.setting.one_step:
                self.drop(request_id)  # in a thread that does not wait for publishing threads
            case tracker.Drop(request_id):
                self.later(self.drop, request_id)
            case tracker.Withdraw() | tracker.LookUp():
                self.orders.append(effect)
            case tracker.TakeBack(request):
                if self.owns(request.invocation.flow_uuid):
                    self.world.judge.on_reopen(self, request)
                    self.do(self.tracker.take_back(effect))
            case tracker.Conclude(request):
                if self.owns(request.invocation.flow_uuid):
                    self.do(self.tracker.conclude(effect))
            case tracker.DeadLetter():
                pass  # the flow continues without it
            case tracker.Ask(message, asked):
                self.evidence.asks(asked)
                self.post(Letter(message))
            case tracker.Cancel(message):
                self.post(Letter(message))
            case _ if callable(effect):
                effect()
            case _:
                raise AssertionError(f"nobody performs {effect!r}")

    def ask_ledger(self) -> None:
        """Do one step of the thread for rows: a call of the ledger, or the processing of its
        answer.

        Other work can happen between the two steps.
        """
        if self.asked is None:
            effect = self.orders.popleft()
            request, stage = effect.request, effect.request.stage
            if isinstance(effect, tracker.Withdraw):
                ours = self.owns(request.invocation.flow_uuid)
                self.asked = effect, stage, self.tracker.revoke(request, ours=ours)
            else:
                self.asked = effect, stage, self.tracker.look(request)
            return
        (effect, stage, request_ids), self.asked = self.asked, None
        request = effect.request
        if isinstance(effect, tracker.Withdraw):
            if request_ids and request.epoch != stage[0]:
                self.orders.appendleft(effect)  # the request was resent in the meantime
            else:
                self.do(self.tracker.revoked(request, request_ids))
        elif self.is_opening(request):
            self.postponed.append(effect)
        elif request.stage != stage:
            self.orders.append(effect)  # the request was being published
        else:
            if request_ids.taken:
                self.evidence.serves(request)
            if request_ids.vanished:
                self.evidence.fails(request, "row vanished")
            self.do(self.tracker.found(request, request_ids, effect.lost))

    def is_opening(self, request: Any) -> bool:
        """Return True while the row is created in one step with publishing."""
        return request.id in self.opening

    def look(self, request: Any) -> None:
        """Run postponed effects when it is known whether the row exists or when the result is not
        needed.
        """
        self.opening.discard(request.id)
        self.orders.extend(self.postponed)
        self.postponed.clear()

    def drop(self, request_id: str) -> None:
        if self.line is not None:
            try:
                self.line.drop(request_id)
            except exc.LedgerFailure:
                self.undropped.add(request_id)

    def drop_again(self) -> None:
        """Retry to drop rows, which no other process would drop."""
        request_ids, self.undropped = sorted(self.undropped), set()
        for request_id in request_ids:
            self.drop(request_id)

    def publish(self, effect: tracker.Publish) -> None:
        request = effect.request
        # An engine that lost the flow does not publish: `wanted` withdraws the message.
        if self.owns(request.invocation.flow_uuid):
            self.evidence.publishes(effect)

        def wanted() -> bool:
            return self.owns(request.invocation.flow_uuid) and self.tracker.publishing(effect)

        def opened() -> bool:
            assert self.line is not None
            if not self.owns(request.invocation.flow_uuid):
                self.world.judge.undropped.add(request.id)  # the row is swept later
            if request.opened:
                return True
            self.tracker.open(effect)
            known = wanted()
            if not known and self.owns(request.invocation.flow_uuid):
                self.line.revoke(request.id, effect.epoch)
            return known

        def unrouted() -> None:
            self.evidence.fails(request, "unrouted")
            self.do(self.tracker.unrouted(effect))

        def uncertain() -> None:
            self.evidence.fails(request, "unconfirmed")
            self.do(self.tracker.unconfirmed(effect))

        def begun() -> bool:
            if not wanted():
                self.look(request)
                return False
            self.opening.add(request.id)
            return True

        def write() -> bool | None:
            """Create the row and publish in one step of the server; the call or its answer can be
            lost.
            """
            assert self.line is not None
            if self.doubtful and self.goes_on < self.world.now:
                self.goes_on = self.world.now + PAUSE  # the call is in flight for this time
                return None
            how, self.doubtful = self.doubtful, ""
            routed = True
            # the server deduplicates repeated calls of a session
            if how != "lost" and (request.id, effect.epoch) not in self.made:
                self.made.add((request.id, effect.epoch))
                self.line.ledger.open(request.id, effect.epoch)
                routed = self.world.broker.publish(effect.message, self.world.now)
            if how:
                self.put_down()
                return None
            self.tracker.opened(effect)
            self.look(request)
            return routed

        if self.world.setting.one_step and not request.opened:
            self.post(Letter(effect.message, begun, unrouted=unrouted, write=write))
            return
        steps = (wanted, opened) if self.line is not None else (wanted,)
        self.post(
            Letter(
                effect.message,
                *steps,
                unrouted=unrouted,
                uncertain=uncertain if self.line is None else None,
            )
        )

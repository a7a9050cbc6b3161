"""Pass messages of workers and times to the tracker of an executor, and perform its effects.

Messages and times are handled in the consumer's thread. Effects are performed in the thread whose
event caused them. The sender calls the hooks in the thread that publishes: that of an engine, of
the sender or of the consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine._concurrency.clocks import SYSTEM
from wbengine.engines.worker_based import dispatcher
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._connections import consumer_loop, dead_letters
from wbengine.engines.worker_based._connections.sender import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based._discovery.finder import ProxyWorkerFinder
from wbengine.engines.worker_based._discovery.roster import TopicWorker
from wbengine.engines.worker_based._engine_side.ledger_operations import LedgerWriter
from wbengine.engines.worker_based._engine_side.locked_tracker import FlowGuards, LockedTracker
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests.request_state import TrackedRequest
from wbengine.engines.worker_based.proxy import Proxy
from wbengine.transports._broker import Broker

LOG = logging.getLogger(__name__)

#: Timeout in seconds to connect to the broker for dead letters.
DEAD_LETTER_TIMEOUT_SECONDS: Final = 5.0


class Publishing(DeliveryHooks):
    """Publishes a request after its row is opened, unless the request has ended."""

    mandatory = True

    def __init__(self, requests: LockedTracker, guards: FlowGuards, writer: LedgerWriter) -> None:
        self._requests = requests
        self._tracker = requests.tracker
        self._guards = guards
        self._writer = writer

    @property
    def repeats(self) -> bool:
        # With a ledger, a duplicate message is harmless.
        return self._writer.ledger is not None

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        wanted_messages: dict[int, OutgoingMessage] = {}
        for message in messages:
            message.withdrawn = not self._begin(message.correlation)
            if not message.withdrawn:
                wanted_messages[id(message.correlation)] = message
                for observer in self._tracker.observers:
                    observer.publishing(message.correlation.tracked, message.envelope)
        # Requests may have ended while their rows were opened.
        for effect in self._writer.open([each.correlation for each in wanted_messages.values()]):
            if not self._begin(effect, 0):
                wanted_messages[id(effect)].withdrawn = True
                self._writer.revoke_opened(effect)

    def _begin(self, effect: fx.Dispatch, times: int = 1) -> bool:
        """Return whether a request is still needed; if so, count `times` more publishings."""
        return self._guards.owns(effect.tracked.flow) and self._count(effect, times)

    def _count(self, effect: fx.Dispatch, times: int = 1) -> bool:
        """Do the same as `_begin` for a flow that this engine owns."""
        tracked = effect.tracked
        with self._requests.lock:
            is_wanted = tracked.live and tracked.epoch == effect.epoch
            if is_wanted:
                tracked.publish_count, tracked.sent_at = (
                    tracked.publish_count + times,
                    SYSTEM.monotonic(),
                )
            return is_wanted

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        for observer in self._tracker.observers:
            for message in messages:
                observer.published(message.correlation.tracked, None)

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        for observer in self._tracker.observers:
            observer.published(message.correlation.tracked, error)
        self._requests.report(self._tracker.on_unsent, message.correlation.tracked, error)

    def unrouted(self, message: OutgoingMessage) -> None:
        effect = message.correlation
        self._requests.report(self._tracker.on_unrouted, effect.tracked, effect.epoch)

    def uncertain(self, message: OutgoingMessage) -> None:
        effect = message.correlation
        self._requests.report(self._tracker.on_unconfirmed, effect.tracked, effect.epoch)


class OpeningPublishing(Publishing):
    """Opens the rows of requests in one step with publishing."""

    writes = True

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        for message in messages:
            tracked = message.correlation.tracked
            if not tracked.live or tracked.epoch != message.correlation.epoch:
                message.withdrawn = True
                self._writer.permit_inspection((tracked.id,))
                continue
            for observer in self._tracker.observers:
                observer.publishing(tracked, message.envelope)

    def write(self, broker: Broker, messages: Sequence[OutgoingMessage]) -> Iterable[bool]:
        pairs = [(message.correlation, message) for message in messages]
        return self._writer.publish(broker, pairs, self._count)


class AskPublishing(DeliveryHooks):
    """Publishes asks and cancellations unless the executor is disowned.

    A message whose `correlation` is a flow is published only if this engine owns the flow.
    """

    def __init__(self, guards: FlowGuards) -> None:
        self._guards = guards

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        for message in messages:
            flow = message.correlation
            message.withdrawn = self._guards.disowned or not (
                flow is None or self._guards.owns(flow)
            )


class TrackerEvents:
    """Connects the tracker of an executor with its workers, its timers and its engines.

    The proxy and the finder call its methods, so call `connect` after they are created.

    :param on_notify: called with the headers of each NOTIFY, after the finder has processed it.
    """

    def __init__(
        self,
        exchange: str,
        interop: str | None,
        guards: FlowGuards,
        on_notify: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._exchange = exchange
        self._interop = interop
        self._guards = guards
        self._on_notify = on_notify
        self._ask_hooks = AskPublishing(guards)
        # Time of the next NOTIFY and check for lost workers.
        self._round_due = 0.0

    def connect(
        self,
        requests: LockedTracker,
        proxy: Proxy,
        finder: ProxyWorkerFinder,
        writer: LedgerWriter,
    ) -> None:
        self._requests = requests
        self._tracker = requests.tracker
        self._proxy = proxy
        self._finder = finder
        self._writer = writer
        self._publishing = Publishing(requests, self._guards, writer)
        self._opening = OpeningPublishing(requests, self._guards, writer)

    def reset(self) -> None:
        """Forget all workers and due times, so that the executor can start again."""
        self._finder.reset()
        self._round_due = 0.0

    # Messages and timers.

    def handlers(self) -> dict[str, dispatcher.Handler]:
        return {
            pr.NOTIFY: dispatcher.Handler(self._on_announcement, _validate_notify),
            pr.RESPONSE: dispatcher.Handler(self.on_response, pr.Response.validate, owns_ack=True),
        }

    def _on_announcement(self, data: Any, message: Any) -> None:
        self._finder.process_response(data, message)
        # This must be last: a caller of `ping` then reads the state of the finder.
        self._on_notify(message.headers or {})

    def on_response(self, data: Any, message: Any) -> None:
        if not self._guards.reads_replies():
            # Another executor has this name, and receives the message later.
            return
        # The message object remains in memory until its outcome is saved.
        message.body = b""
        reply = Reply.from_message(env.received(data, message))
        self._requests.report(self._tracker.on_reply, reply, message)

    def on_workers(self, gained: set[str], lost: list[TopicWorker]) -> None:
        now = SYSTEM.monotonic()
        with self._requests.lock:
            effects = self._tracker.on_workers_lost(lost, now)
            effects += self._tracker.on_workers_gained(gained, now)
        self._requests.apply(effects)
        for worker in lost:
            if isinstance(worker.identity, str):
                self._proxy.consumer.delete_private_queue(worker.identity)

    def on_heartbeat(self, worker: str, ids: Collection[str]) -> None:
        self._requests.report(self._tracker.on_heartbeat, worker, ids)

    def holds(self, worker: str) -> bool:
        return self._tracker.holds(worker)

    def on_wait(self) -> float:
        """Handle what is due, and return the time of the next call.

        The consumer calls this between messages.
        """
        now = SYSTEM.monotonic()
        if self._finder.reception.record_loop_iteration(now, self._proxy.consumer.channel):
            self._finder.record_outage(now)
        searching = self._tracker.is_searching
        if searching and not self._finder.schedule.is_searching:
            self._round_due = now
        self._finder.schedule.is_searching = searching
        if now >= self._round_due:
            with self._requests.lock:
                effects = self._tracker.on_round(now)
                self._finder.schedule.needs_reports = self._tracker.needs_reports(now)
            self._requests.apply(effects)
            self._writer.retry_drops()
            self._finder.maybe_publish()
            self._finder.clean()
            self._round_due = self._finder.next_due()
        with self._requests.lock:
            effects = self._tracker.on_timer(now)
        if effects:
            self._requests.apply(effects)
        with self._requests.lock:
            timer = self._tracker.next_timer()
        return self._round_due if timer is None else min(timer, self._round_due)

    def wake_for(self, due: float | None) -> None:
        """Wake the consumer's thread if a timer that is due then precedes its next check."""
        if due is not None and due - SYSTEM.monotonic() < consumer_loop.DRAIN_SECONDS:
            self._proxy.consumer.call_soon(_nothing)

    # Effects.

    def perform(self, effect: fx.Effect) -> None:
        # The most frequent effects first; `match` would be slower.
        if isinstance(effect, fx.Dispatch):
            self._proxy.send(self.message(effect), defer=True)
        elif isinstance(effect, fx.Settle):
            effect.tracked.done(effect.tracked.invocation, effect.outcome)
        elif isinstance(effect, fx.Acknowledge):
            if effect.receipt is not None:
                self._proxy.consumer.ack_later(effect.receipt)
        elif isinstance(effect, fx.RecordStart | fx.RecordClaim | fx.RecordIncident):
            effect.report()
        elif isinstance(effect, fx.ForwardEvent):
            _forward_event(effect.tracked, effect.event_type, effect.details)
        elif isinstance(effect, fx.Drop):
            self._writer.drop(effect.request_id)
        else:
            self._recover(effect)

    def message(self, effect: fx.Dispatch) -> OutgoingMessage:
        opens = self._writer.opens_while_publishing(effect)
        hooks = self._opening if opens else self._publishing
        return OutgoingMessage(effect.envelope, hooks, effect)

    def _recover(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Revoke() | fx.Inspect() | fx.Reopen() | fx.Conclude():
                self._writer.perform(effect)
            case fx.MoveToDeadLetters(letter):
                self._proxy.call_later(self._dead_letter, letter)
            case fx.Ask() | fx.Cancel() if self._interop is not None:
                pass  # TaskFlow's workers do not support it.
            case fx.Ask(message):
                self._proxy.send(OutgoingMessage(message, self._ask_hooks), defer=True)
            case fx.Cancel(message, flow):
                self._proxy.send(OutgoingMessage(message, self._ask_hooks, flow), defer=True)

    def _dead_letter(self, letters: Sequence[env.Envelope]) -> None:
        try:
            with dead_letters.DeadLetters(
                self._proxy.target, self._exchange, DEAD_LETTER_TIMEOUT_SECONDS, self._proxy.signer
            ) as dead_queue:
                for letter in letters:
                    dead_queue.put(letter)
        except exc.TransportFailure as error:
            LOG.warning("%d requests cannot be moved to the dead letters: %s", len(letters), error)


def _forward_event(tracked: TrackedRequest, event_type: str, details: dict[str, Any]) -> None:
    events = tracked.invocation.events
    if events is None:
        return
    try:
        events(event_type, details)
    except Exception:
        LOG.exception("failed to pass on event %s of %r", event_type, tracked)


def _nothing() -> None:
    return None


def _validate_notify(data: Any) -> None:
    pr.Notify.validate(data, response=bool(data))

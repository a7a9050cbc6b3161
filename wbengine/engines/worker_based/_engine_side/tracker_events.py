"""Pass messages of workers and times to the tracker of an executor, and perform its effects.

Messages and times are handled in the consumer's thread. Effects are performed in the thread whose
event caused them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine._concurrency.clocks import SYSTEM
from wbengine.engines.worker_based import dispatcher
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._connections import consumer_loop, dead_letters
from wbengine.engines.worker_based._connections.sender import OutgoingMessage
from wbengine.engines.worker_based._discovery.finder import ProxyWorkerFinder
from wbengine.engines.worker_based._discovery.roster import TopicWorker
from wbengine.engines.worker_based._engine_side.ledger_operations import LedgerWriter
from wbengine.engines.worker_based._engine_side.locked_tracker import FlowGuards, LockedTracker
from wbengine.engines.worker_based._engine_side.publishing import (
    AskPublishing,
    OpeningPublishing,
    Publishing,
)
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages.replies import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests.request_state import TrackedRequest
from wbengine.engines.worker_based.proxy import Proxy

LOG = logging.getLogger(__name__)

#: Timeout in seconds to connect to the broker for dead letters.
DEAD_LETTER_TIMEOUT_SECONDS: Final = 5.0


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

    def on_wait(self) -> None:
        """Handle what is due. The consumer calls this between messages."""
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

    def until(self) -> float | None:
        """Return the time of the next `on_wait`."""
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

"""Publish the messages of an executor, unless they are outdated or another engine owns the flow.

The sender calls these hooks in the thread that publishes: that of an engine, of the sender or of
the consumer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wbengine._concurrency.clocks import SYSTEM
from wbengine.engines.worker_based._connections.sender import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based._engine_side.ledger_operations import LedgerWriter
from wbengine.engines.worker_based._engine_side.locked_tracker import FlowGuards, LockedTracker
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.transports._broker import Broker


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

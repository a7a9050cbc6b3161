"""What an executor does before and after it publishes a request, or a question."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from wbengine._clock import SYSTEM
from wbengine.engines.worker_based.connections.outgoing import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based.engine_side.guards import FlowGuards
from wbengine.engines.worker_based.engine_side.ledger_writer import LedgerWriter
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.tracker import RequestTracker


class Publishing(DeliveryHooks):
    """Sees to it that a request is published only if it is wanted, and has its row by then.

    `writer` is that of the executor once it has started.  `report` tells the tracker, and performs
    its effects.
    """

    mandatory = True

    def __init__(
        self,
        tracker: RequestTracker,
        lock: threading.RLock,
        guards: FlowGuards,
        writer: LedgerWriter,
        report: Callable[..., None],
    ) -> None:
        self._tracker = tracker
        self._lock = lock
        self._guards = guards
        self._writer = writer
        self._report = report

    @property
    def repeats(self) -> bool:
        # Where there is a ledger, one message too many does no harm.
        return self._writer.ledger is not None

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        wanted: dict[int, OutgoingMessage] = {}
        for message in messages:
            message.withdrawn = not self._begin(message.correlation)
            if not message.withdrawn:
                wanted[id(message.correlation)] = message
                for observer in self._tracker.observers:
                    observer.publishing(message.correlation.tracked, message.envelope)
        # The next owner of the flow finds the row, if it looks from now on.  One that looked
        # before, while this process was frozen, may be done with the request by now.
        for effect in self._writer.open([each.correlation for each in wanted.values()]):
            if not self._begin(effect):
                wanted[id(effect)].withdrawn = True
                self._writer.take_back(effect)

    def _begin(self, effect: fx.Dispatch) -> bool:
        """Whether a request is still to be published; it is being, if so."""
        tracked = effect.tracked
        if not self._guards.owns(tracked.flow):
            return False
        with self._lock:
            wanted = tracked.live and tracked.epoch == effect.epoch
            if wanted:
                tracked.sendings, tracked.sent_at = tracked.sendings + 1, SYSTEM.monotonic()
            return wanted

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        for observer in self._tracker.observers:
            for message in messages:
                observer.published(message.correlation.tracked, None)

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        for observer in self._tracker.observers:
            observer.published(message.correlation.tracked, error)
        self._report(self._tracker.on_unsent, message.correlation.tracked, error)

    def unrouted(self, message: OutgoingMessage) -> None:
        effect = message.correlation
        self._report(self._tracker.recovery.on_unrouted, effect.tracked, effect.epoch)

    def uncertain(self, message: OutgoingMessage) -> None:
        effect = message.correlation
        self._report(self._tracker.recovery.on_unconfirmed, effect.tracked, effect.epoch)


class Questions(DeliveryHooks):
    """Lets questions and orders go out only as long as the executor was not disowned."""

    def __init__(self, guards: FlowGuards) -> None:
        self._guards = guards

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        for message in messages:
            message.withdrawn = self._guards.disowned

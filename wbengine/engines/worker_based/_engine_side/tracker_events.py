"""Pass messages of workers and times to the tracker of an executor.

Messages and times are handled in the consumer's thread. The tracker is also used by threads of
engines, which submit calls, by the threads that publish, and by the ledger's thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

from wbengine import exceptions as exc
from wbengine._concurrency.clocks import SYSTEM
from wbengine.engines.worker_based import dispatcher
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._discovery.finder import ProxyWorkerFinder
from wbengine.engines.worker_based._discovery.roster import TopicWorker
from wbengine.engines.worker_based._engine_side.pings import Pings
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests.tracker import RequestTracker
from wbengine.engines.worker_based.proxy import Proxy

LOG = logging.getLogger(__name__)

Check = Callable[[], object]


class FlowGuards:
    """The checks of an executor's flows, which raise LeaseLost if another engine owns the flow.

    Do not call checks under a lock of the executor: a check can report the loss of the flow,
    which takes other locks.
    """

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        # Check of the flow whose next owner may take over the executor's name; None if it may not.
        self._sole: Check | None = None
        #: Whether the executor has lost all its flows. It then reads and acknowledges no messages.
        self.disowned = False

    def add(self, flow: str, check: Check | None, *, sole: bool) -> None:
        if check is not None:
            self._checks[flow] = check
            self._sole = check if sole else None

    def remove(self, flow: str) -> None:
        self._checks.pop(flow, None)
        self._sole = None

    @property
    def flows(self) -> Collection[str]:
        return self._checks.keys()

    def owns(self, flow: str | None) -> bool:
        """Return whether no other engine owns the flow; True for None."""
        return _passes(self._checks.get(flow or ""))

    def reads_replies(self) -> bool:
        """Return whether received replies are for this executor, not for a new owner of its name.

        The new owner is an executor that took over the only flow of this one.
        """
        return not self.disowned and _passes(self._sole)


def _passes(check: Check | None) -> bool:
    try:
        if check is not None:
            check()
    except exc.LeaseLost:
        return False
    return True


class LockedTracker:
    """The request tracker of an executor, and the only lock that protects it.

    Hold `lock` while you use `tracker`. Release it before you apply the effects, because they
    publish, write to the ledger and call engines.

    :param perform: performs one effect, in the thread that reports the event.
    """

    def __init__(self, tracker: RequestTracker, perform: Callable[[fx.Effect], None]) -> None:
        self.tracker = tracker
        self.lock = threading.RLock()
        self._perform = perform

    def report(self, on_event: Callable[..., list[fx.Effect]], *arguments: object) -> None:
        """Pass an event and the time to a method of the tracker, and apply its effects."""
        with self.lock:
            effects = on_event(*arguments, SYSTEM.monotonic())
        self.apply(effects)

    def apply(self, effects: Iterable[fx.Effect]) -> None:
        for effect in effects:
            try:
                self._perform(effect)
            except Exception:  # The remaining effects belong to other requests.
                LOG.exception("failed to perform %s", type(effect).__name__)


class TrackerEvents:
    """Connects the tracker of an executor with its workers and its timers.

    The proxy and the finder call its methods, so call `connect` after they are created.

    :param pings: receives the headers of each NOTIFY, after the finder has processed it.
    """

    def __init__(self, guards: FlowGuards, pings: Pings) -> None:
        self._guards = guards
        self._pings = pings
        # Time of the next NOTIFY and check for lost workers.
        self._round_due = 0.0

    def connect(
        self,
        requests: LockedTracker,
        proxy: Proxy,
        finder: ProxyWorkerFinder,
        on_round: Callable[[], None],
    ) -> None:
        """Set what the events are passed to. `on_round` is called in each round of heartbeats."""
        self._requests = requests
        self._tracker = requests.tracker
        self._proxy = proxy
        self._finder = finder
        self._on_round = on_round

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
        self._pings.record_reply(message.headers or {})

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
            self._on_round()
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


def _validate_notify(data: Any) -> None:
    pr.Notify.validate(data, response=bool(data))

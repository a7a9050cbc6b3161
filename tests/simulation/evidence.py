"""Reasons, other than time, for which an engine may resend a request."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd

if TYPE_CHECKING:
    from tests.seams.tracker import Publish, Request
    from tests.simulation.broker import Message
    from tests.simulation.engines import Engine


class Sent:
    """State of one request of one engine."""

    __slots__ = ("asked", "epochs", "queue", "reasons", "since")

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.reasons: set[str] = set()
        self.since = 0.0
        self.asked = False
        self.queue = ""


class Evidence:
    """Evidence that one engine has received."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sent: dict[str, Sent] = defaultdict(Sent)
        # Workers that were ever considered lost.
        self.gone: set[Any] = set()
        # Worker -> times at which it reported a free slot.
        self.free: dict[str, list[float]] = defaultdict(list)
        # Worker -> whether it reported that it drains or is suspended.
        self.rests: dict[str, bool] = {}
        # Queue -> positions of requests that were received, and the times.
        self.served: dict[str, list[tuple[tuple[int, int], float]]] = defaultdict(list)

    # Received evidence.

    def recovers(self, request_id: str) -> None:
        self.sent[request_id].reasons.add("recovered")

    def hears(self, message: Message) -> None:
        headers = message.headers
        identity = headers.get(hd.WBE_WORKER)
        if identity is None or hd.WBE_SLOTS not in headers:
            return
        if hd.WBE_LIFE in headers:
            self.rests[identity] = headers[hd.WBE_LIFE]["state"] not in ("idle", "busy")
        if headers[hd.WBE_RUNNING] < headers[hd.WBE_SLOTS]:
            self.free[identity] = [*self.free[identity][-4:], self.engine.world.now]

    def answers(self, answer: env.Envelope) -> None:
        sent = self.sent.get(answer.correlation_id or "")
        request = self.engine.tracker.request(answer.correlation_id or "")
        if request is not None:
            self.serves(request)
        if sent is not None:
            if hd.WBE_LOST in answer.headers and not self.is_outdated(sent, request, answer):
                sent.reasons.add("lost")
            if hd.WBE_ASK in answer.headers:
                sent.reasons.add("told")

    def is_outdated(self, sent: Sent, request: Request | None, answer: env.Envelope) -> bool:
        """Return True if the reply concerns an earlier message than the one that now waits."""
        waits = request is not None and not request.began
        return waits and any(answer.number(hd.WBE_EPOCH) < epoch for epoch in sent.epochs)

    def serves(self, request: Request) -> None:
        """Record that a worker received a request from its queue."""
        if request.queue is not None:
            self.served[request.queue].append((request.place, self.engine.world.now))

    def loses(self, lost: list[tuple[Any, str]]) -> None:
        names, queues = {name for name, _ in lost}, {queue for _, queue in lost}
        self.gone |= names
        for request in self.engine.tracker.requests():
            if request.queue in queues or request.worker in names:
                self.sent[request.id].reasons.add("workers gone")

    def fails(self, request: Request, how: str) -> None:
        self.sent[request.id].reasons.add(how)

    def asks(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.sent[request_id].asked = True

    # Publishing.

    def publishes(self, effect: Publish) -> None:
        request, world = effect.request, self.engine.world
        sent = self.sent[request.id]
        world.judge.tasks[request.id] = request.invocation.task
        if sent.epochs:
            reasons = set(sent.reasons)
            if self.idle(sent.queue, sent.since):
                reasons.add("idle")
            if self.engine.line is not None and self.passed(request, sent):
                reasons.add("passed")
            if self.engine.line is not None and self.leaves(sent.queue, effect.message.routing_key):
                reasons.add("rests")
            if not reasons:
                world.judge.fail(f"{request} is sent again, and only time has passed")
            for reason in reasons:
                world.judge.seen[f"sent again: {reason}"] += 1
            if effect.epoch < sent.epochs[-1]:
                world.judge.fail(f"{request} is sent again under an older epoch")
            same = effect.epoch == sent.epochs[-1] and "unrouted" not in reasons
            if same and self.engine.line is None:
                world.judge.fail(f"{request} is sent again under the same epoch")
            if world.ledger is not None and reasons <= {"idle", "passed", "rests"} and same:
                row = world.ledger.state(request.id)
                if row is None or row.state != "open":
                    world.judge.fail(f"{request} is sent again, and its row is {row}")
            searched = world.ledger is None and reasons <= {"idle", "unconfirmed"}
            if searched and not sent.asked:
                world.judge.fail(f"{request} is sent again, and nobody was asked for it")
            if "workers gone" in reasons:
                world.judge.gambled.add(request.id)
        sent.reasons.clear()
        sent.asked = False
        sent.since, sent.queue = world.now, effect.message.routing_key
        sent.epochs.append(effect.epoch)

    def idle(self, queue: str, since: float) -> bool:
        """Return True if each known worker of a queue reported a free slot twice."""
        known = self.engine.tracker.workers_of(queue)
        if known is None:
            return True
        return all(len([at for at in self.free[name] if at >= since]) >= 2 for name in known)

    def leaves(self, old: str, new: str) -> bool:
        """Return True if each worker of a queue accepts no requests, and one of another does."""
        before, after = map(self.engine.tracker.workers_of, (old, new))
        return bool(before and after and all(map(self.rests.get, before))) and not all(
            map(self.rests.get, after)
        )

    def passed(self, request: Request, sent: Sent) -> bool:
        """Return True if a request behind it in the queue was received, at least 10 s after it was
        sent.
        """
        if self.engine.world.now - sent.since <= 10.0:
            return False
        served = self.served[request.queue or ""]
        return any(place > request.place and at > sent.since for place, at in served)

    def results(self, request: Request, value: int) -> None:
        """Check that a result has the last epoch, or one that was accepted when the flow was
        resumed.
        """
        sent = self.sent[request.id]
        if value in request.accepted:
            if not sent.epochs or value == sent.epochs[-1]:
                return
            if 0 in request.accepted or self.engine.line is not None:
                return
        self.engine.world.judge.fail(
            f"{request} has the result of epoch {value}, and was sent under {sent.epochs}"
        )

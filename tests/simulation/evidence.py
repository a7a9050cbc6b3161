"""Why an engine may send a request once more: what it was told, apart from the time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from wbengine.engines.worker_based.messages import envelope as env

if TYPE_CHECKING:
    from tests.simulation.broker import Message
    from tests.simulation.engines import Engine
    from wbengine.engines.worker_based.requests import effects as fx


class Sent:
    """What is known of one request of one engine."""

    __slots__ = ("asked", "epochs", "queue", "reasons", "since")

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.reasons: set[str] = set()
        self.since = 0.0
        self.asked = False
        self.queue = ""


class Evidence:
    """The evidence that one engine has."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sent: dict[str, Sent] = defaultdict(Sent)
        # Who was ever taken for lost.
        self.gone: set[Any] = set()
        # By worker, when it told that it had a free slot.
        self.free: dict[str, list[float]] = defaultdict(list)
        # By queue, the places in its line that were served, and when.
        self.served: dict[str, list[tuple[tuple[int, int], float]]] = defaultdict(list)

    # What it is told.

    def recovers(self, request_id: str) -> None:
        self.sent[request_id].reasons.add("recovered")

    def hears(self, message: Message) -> None:
        headers = message.headers
        identity = headers.get(env.WBE_WORKER)
        if identity is None or env.WBE_SLOTS not in headers:
            return
        if headers[env.WBE_RUNNING] < headers[env.WBE_SLOTS]:
            self.free[identity] = [*self.free[identity][-4:], self.engine.world.now]

    def answers(self, answer: env.Envelope) -> None:
        sent = self.sent.get(answer.correlation_id or "")
        entry = self.engine.book._entries.get(answer.correlation_id or "")
        if entry is not None:
            self.serves(entry)
        if sent is not None:
            if env.WBE_LOST in answer.headers:
                sent.reasons.add("lost")
            if env.WBE_ASK in answer.headers:
                sent.reasons.add("told")

    def serves(self, entry: Any) -> None:
        """Somebody took a request out of its line."""
        if entry.queue is not None:
            self.served[entry.queue].append((entry.place, self.engine.world.now))

    def loses(self, lost: list[Any]) -> None:
        queues = {worker.queue for worker in lost}
        names = {worker.identity for worker in lost}
        self.gone |= names
        for entry in self.engine.book._entries.values():
            if entry.queue in queues or entry.worker in names:
                self.sent[entry.id].reasons.add("workers gone")

    def fails(self, entry: Any, how: str) -> None:
        self.sent[entry.id].reasons.add(how)

    def asks(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.sent[request_id].asked = True

    # What it does.

    def dispatches(self, effect: fx.Dispatch) -> None:
        entry, world = effect.entry, self.engine.world
        sent = self.sent[entry.id]
        world.judge.tasks[entry.id] = entry.invocation.task
        if sent.epochs:
            reasons = set(sent.reasons)
            if self.idle(sent.queue, sent.since):
                reasons.add("idle")
            if self.engine.line is not None and self.passed(entry, sent):
                reasons.add("passed")
            if not reasons:
                world.judge.fail(f"{entry.request} is sent again, and only time has passed")
            for reason in reasons:
                world.judge.seen[f"sent again: {reason}"] += 1
            if effect.epoch < sent.epochs[-1]:
                world.judge.fail(f"{entry.request} is sent again under an older epoch")
            same = effect.epoch == sent.epochs[-1] and "unrouted" not in reasons
            if same and self.engine.line is None:
                world.judge.fail(f"{entry.request} is sent again under the same epoch")
            if world.ledger is not None and reasons <= {"idle", "passed"} and same:
                row = world.ledger.state(entry.id)
                if row is None or row.state != "open":
                    world.judge.fail(f"{entry.request} is sent again, and its row is {row}")
            searched = world.ledger is None and reasons <= {"idle", "unconfirmed"}
            if searched and not sent.asked:
                world.judge.fail(f"{entry.request} is sent again, and nobody was asked for it")
            if "workers gone" in reasons:
                world.judge.gambled.add(entry.id)
        sent.reasons.clear()
        sent.asked = False
        sent.since, sent.queue = world.now, effect.envelope.routing_key
        sent.epochs.append(effect.epoch)

    def idle(self, queue: str, since: float) -> bool:
        """Whether all workers of a queue that are known told twice that they had a free slot."""
        known = self.engine.finder._roster.queues.get(queue)
        if known is None:
            return True
        return all(
            len([at for at in self.free[worker.identity] if at >= since]) >= 2
            for worker in known.members.values()
        )

    def passed(self, entry: Any, sent: Sent) -> bool:
        """Whether what stood behind it in the line was served, and not just now."""
        if self.engine.world.now - sent.since <= 10.0:
            return False
        served = self.served[entry.queue]
        return any(place > entry.place and at > sent.since for place, at in served)

    def results(self, entry: Any, value: int) -> None:
        """A result must be of the last epoch, or of one that it found when it took the flow on."""
        sent = self.sent[entry.id]
        if entry.floor <= value <= entry.epoch:
            if not sent.epochs or value == sent.epochs[-1]:
                return
            if entry.floor == 0 or self.engine.line is not None:
                return
        self.engine.world.judge.fail(
            f"{entry.request} has the result of epoch {value}, and was sent under {sent.epochs}"
        )

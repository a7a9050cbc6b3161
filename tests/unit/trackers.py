"""Request tracker with a simulated fleet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wbengine import task
from wbengine._calls import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._discovery import finder
from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests import tracker
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.engines.worker_based._requests.request_state import TrackedRequest

T0 = 1000.0


WALL = 1_800_000_000.0


class Job(task.Task):
    def execute(self, **arguments: Any) -> Any:
        return None


JOB = f"{__name__}.Job"


class Fleet:
    """Replacement for the finder with workers that the test controls."""

    period = 5.0
    patience = 15.0

    def __init__(self) -> None:
        self.offered: dict[str, list[str]] = {}
        self.all_slots: dict[str, int] = {}
        self.all_free: dict[str, int] = {}
        self.plain: set[str] = set()
        self.resting: set[str] = set()
        self.watched: list[tuple[str, float]] = []
        # Number of reports, and of reports with a free slot, from each worker of a queue.
        self.spoke: dict[str, int] = {}
        self.idle: dict[str, int] = {}
        self.outage = 0.0
        self.gone = (0.0, 0.0)

    def set(self, queue: str, slots: int, free: int, *classes: str) -> None:
        self.all_slots[queue], self.all_free[queue] = slots, free
        for name in classes:
            self.offered.setdefault(name, []).append(queue)

    def end(self, queue: str) -> None:
        self.all_slots.pop(queue)
        self.all_free.pop(queue)
        for queues in self.offered.values():
            if queue in queues:
                queues.remove(queue)

    def queue_for(self, task_cls: str, waiting: Any) -> str | None:
        queues = self.queues(task_cls)
        return min(queues, key=lambda each: (self.rests(each), waiting(each)), default=None)

    def queues(self, task_cls: str) -> list[str]:
        return self.offered.get(task_cls, [])

    def slots(self, queue: str) -> int:
        return self.all_slots.get(queue, 0)

    def rests(self, queue: str) -> bool:
        return queue in self.resting

    is_avoided = finder.ProxyWorkerFinder.is_avoided

    def free(self, queue: str) -> int:
        return self.all_free.get(queue, 0)

    def uses_extended_protocol(self, queue: str) -> bool:
        return queue not in self.plain

    def watch(self, identity: str, silence: float = 0.0) -> None:
        self.watched.append((identity, silence))

    def report_rounds(self, queue: str, since: float) -> int:
        return self.spoke.get(queue, 0)

    def free_slot_rounds(self, queue: str, since: float) -> int:
        return self.idle.get(queue, 0)

    def outage_seconds(self, since: float, now: float) -> float:
        start, end = self.gone
        return self.outage + max(0.0, min(end, now) - max(start, since))

    topic_patterns: tuple[str, ...] = ()

    def topics(self) -> list[str]:
        return sorted(self.all_slots)

    def tasks(self) -> list[str]:
        return sorted(name for name, queues in self.offered.items() if queues)

    why_unserved = finder.ProxyWorkerFinder.why_unserved


class Bench:
    """Tracker with a fleet. `ledger=None`: no ledger; `plain`: TaskFlow's workers."""

    def __init__(
        self,
        *,
        ledger: str | None = "ledger-1",
        timeout: float | None = 60.0,
        plain: bool = False,
        workers: bool = True,
        **options: Any,
    ) -> None:
        self.fleet: Any = Fleet()
        if workers:
            self.fleet.set("q", 1, 1, JOB)
        self.tracker = tracker.RequestTracker(
            "engine",
            self.fleet,
            transition_timeout=timeout,
            plain=plain,
            options=RequestOptions(max_message_size=10_000, **options),
            wall=lambda: WALL,
        )
        self.tracker.use_ledger(ledger)
        self.number = 0

    def call(self, kind: Any = Job, **options: Any) -> invocation.Invocation:
        self.number += 1
        options.setdefault("action", "execute")
        return invocation.Invocation(
            kind(f"task-{self.number}"), uuid=f"atom-{self.number}", **options
        )

    def submit(self, now: float = T0, **options: Any) -> tuple[TrackedRequest, list[fx.Effect]]:
        call = self.call(**options)
        effects = self.tracker.submit(call, lambda *_: None, now)
        return call.ticket, effects

    def pending(self, now: float = T0, **options: Any) -> TrackedRequest:
        entry, effects = self.submit(now, **options)
        assert [type(effect) for effect in effects] == [fx.Dispatch]
        entry.opened, entry.sent_at = True, now
        return entry

    def running(self, worker: str = "w1", **options: Any) -> TrackedRequest:
        entry = self.pending(**options)
        self.answer(entry, pr.RUNNING, {}, worker=worker)
        assert entry.state == pr.RUNNING
        return entry

    def answer(
        self,
        entry: TrackedRequest,
        state: str,
        data: dict[str, Any],
        *,
        worker: str | None = "w1",
        receipt: Any = "receipt",
    ) -> list[fx.Effect]:
        reply = Reply(entry.id, state, data, extended=False)
        if worker is not None:
            reply = Reply(entry.id, state, data, worker=worker, epoch=1, seq=1)
        return self.tracker.on_reply(reply, receipt, T0)

    def succeed(self, entry: TrackedRequest, result: Any = 3, **options: Any) -> list[fx.Effect]:
        return self.answer(entry, pr.SUCCESS, {"result": result}, **options)


def settled(effects: Iterable[fx.Effect]) -> list[invocation.Outcome]:
    return [effect.outcome for effect in effects if isinstance(effect, fx.Settle)]


def failures(effects: Iterable[fx.Effect], kind: type[Exception]) -> list[str]:
    values = [outcome.value for outcome in settled(effects)]
    assert all(value.check(kind) for value in values), values
    return [value.exception_str for value in values]

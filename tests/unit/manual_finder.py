"""Worker finder with a manual clock, and its messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wbengine._concurrency.manual_clock import ManualClock
from wbengine._text import data_formats
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import notices


@dataclass
class Message:
    headers: dict[str, Any]


@dataclass
class World:
    """Finder that records its queries and notifications."""

    topics: tuple[str, ...] = ()
    expiry: float | None = 60
    periodicity: float = 5.0
    clock: ManualClock = field(default_factory=lambda: ManualClock(start=50.0))
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    gained: list[set[str]] = field(default_factory=list)
    lost: list[types.TopicWorker] = field(default_factory=list)
    named: list[tuple[str, set[str]]] = field(default_factory=list)
    holders: set[str] | None = None
    interop: bool = False

    def __post_init__(self) -> None:
        self.finder = types.ProxyWorkerFinder(
            "me",
            self,
            self.topics,
            self.periodicity,
            self.expiry,
            interop=self.interop,
            queue_name=lambda topic, tasks: f"{topic}.{'-'.join(tasks)[:20]}",
            on_change=self.changed,
            on_ids=lambda worker, ids: self.named.append((worker, set(ids))),
            has_requests=self.holders.__contains__ if self.holders is not None else lambda _: False,
            clock=self.clock,
        )

    def publish(self, message: Any, key: str, reply_to: Any = None, **options: Any) -> None:
        self.asked.append((key, options["headers"]))

    def changed(self, gained: set[str], lost: list[types.TopicWorker]) -> None:
        if gained:
            self.gained.append(gained)
        self.lost += lost

    def hear(
        self,
        worker: str | None = "w1",
        topic: str = "t",
        tasks: tuple[str, ...] = ("a",),
        state: str | None = notices.READY,
        period: float | None = 5.0,
        slots: Any = 4,
        running: Any = 0,
        **more: Any,
    ) -> None:
        headers: dict[str, Any] = dict(more)
        if worker is not None:
            headers |= {
                hd.WBE_VERSION: hd.VERSION,
                hd.WBE_WORKER: worker,
                hd.WBE_STATE: state,
                hd.WBE_SLOTS: slots,
                hd.WBE_RUNNING: running,
            }
            if period is not None:
                headers[hd.WBE_PERIOD] = period
            headers.setdefault(hd.WBE_FORMATS, [data_formats.MESSAGE.written])
        self.finder.process_response({"topic": topic, "tasks": list(tasks)}, Message(headers))

    def echo(self) -> None:
        self.finder.process_response({}, Message({hd.WBE_ECHO: "me"}))

    def iterate(self, now: float, channel: Any = None) -> None:
        """Record an iteration of the engine's loop on a channel."""
        if self.finder.reception.record_loop_iteration(now, channel):
            self.finder.record_outage(now)

    def live(self, seconds: float, *alive: str) -> None:
        """Advance the clock; in each period send an echo and the heartbeats of `alive`."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.finder.maybe_publish()
            self.echo()
            for worker in alive:
                self.hear(worker, state=notices.BEAT, tasks=())
            self.finder.clean()
            self.clock.advance(self.finder.period)
        self.finder.maybe_publish()
        self.echo()
        self.finder.clean()

    @property
    def names(self) -> set[Any]:
        return {worker.identity for worker in self.finder.workers()}

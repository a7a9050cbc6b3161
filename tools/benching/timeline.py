"""Parts of the time of one hop of a chain, in the engine and in the worker.

The functions below are recorded in both processes. A hop begins and ends when the engine submits a
task. From its end, the critical path is followed backwards: through a thread to its last wait, from
there to the call that ended the wait, in another thread or in the other process, and so on. Each
microsecond of the path belongs to the innermost recorded function, or to the way between a call and
the end of the wait. Work beside the path does not count.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tools.benching import bare, cases, private_brokers
from tools.benching.drivers import recording
from tools.benching.driving import Driver, Failed
from tools.benching.systems import System

CASE = cases.RUN["chain"][0]
WARM_UP_DIVISOR = 4
#: Chains of one repetition, with and without recording.
RUNS = 5
#: Fraction of the hops that count, the fastest ones: other programs of the machine interrupt the
#: others.
FASTEST = 0.1

ENGINE, WORKER = SIDES = ("engine", "worker")
HAND_OVER, BROKER, OTHER = "hand-over between threads", "broker", "other"

_WIRE = "wbengine.engines.worker_based"
#: A hop begins with this call.
SUBMIT = f"{_WIRE}.executor:WorkerTaskExecutor.submit_many"
#: Part -> functions.
PARTS: dict[str, tuple[str, ...]] = {
    "encode": (
        f"{_WIRE}.protocol:Request.encode",
        "wbengine._text.json_text:encode",
        f"{_WIRE}._worker_side.jobs:ReplyFactory.succeeded",
        "wbengine.transports._amqp.amqp_confirms:PublisherConfirms.prepare",
        f"{_WIRE}._connections.sender:OutgoingMessage.encode",
        "wbengine.transports._redis.redis_broker:RedisBroker.publish_with",
    ),
    "decode": (
        f"{_WIRE}.protocol:Request.decode",
        f"{_WIRE}.protocol:Request.validate",
        f"{_WIRE}.protocol:Response.validate",
        f"{_WIRE}._worker_side.jobs:Offer.decode",
        f"{_WIRE}._messages.envelope:body_of",
        f"{_WIRE}._messages.envelope:received",
        f"{_WIRE}._messages.request_messages:RequestMessage.from_message",
        f"{_WIRE}._messages.request_messages:Reply.from_message",
        f"{_WIRE}._messages.request_messages:Reply.value",
        "wbengine.transports._amqp.amqp_connection:AmqpConnection.read",
        "wbengine.transports._broker:Consumer.hold",
        "wbengine.transports._redis.redis_broker:RedisBroker._end_wait",
    ),
    "decisions": (
        f"{_WIRE}._requests.tracker:RequestTracker.submit",
        f"{_WIRE}._requests.tracker:RequestTracker.on_reply",
        f"{_WIRE}._requests.tracker:RequestTracker.on_saved",
        f"{_WIRE}.server:Server.on_request",
        f"{_WIRE}.server:Server.on_claim",
        f"{_WIRE}.server:Server.on_finished",
        f"{_WIRE}.server:Server.on_stored",
        f"{_WIRE}.server:Server.on_answered",
    ),
    "shells of engine and worker": (
        SUBMIT,
        f"{_WIRE}.executor:WorkerTaskExecutor.retire",
        f"{_WIRE}._engine_side.tracker_events:TrackerEvents.on_response",
        f"{_WIRE}._engine_side.tracker_events:TrackerEvents.on_wait",
        f"{_WIRE}.worker:Worker._on_wait",
        f"{_WIRE}._worker_side.task_runner:TaskRunner.take",
        f"{_WIRE}._worker_side.task_runner:TaskRunner.finish_in_one_step",
        f"{_WIRE}._worker_side.task_runner:TaskRunner._on_outcome",
        "wbengine._concurrency.thread_pools:Pool._run_call",
    ),
    "connections": (
        f"{_WIRE}.proxy:Proxy.send",
        f"{_WIRE}.proxy:Proxy._on_message",
        f"{_WIRE}._connections.consumer_loop:ConsumerLoop.answer",
        "wbengine.transports._broker:Broker.drain",
        "wbengine.transports._amqp.amqp_link:AmqpLink.drain",
        f"{_WIRE}._connections.sender:Sender._publish",
        "wbengine.transports._amqp.amqp_confirms:ReplyPublisher.answer",
        "wbengine.transports._folder.folder_broker:FileBroker.publish_many",
        "wbengine.transports._folder.folder_broker:FileBroker._finish",
        "wbengine.transports._folder.folder_broker:FileBroker.take_many",
    ),
    "task": (f"{_WIRE}.endpoint:Endpoint.begin",),
    "run loop and records": (
        "wbengine._runtime.run:Run._analyze",
        "wbengine._runtime.run:Run._schedule",
        "wbengine._runtime.saving:Saver.save",
    ),
    "ledger": (
        f"{_WIRE}._engine_side.ledger_operations:LedgerWriter.open",
        f"{_WIRE}._engine_side.ledger_operations:LedgerWriter.publish",
        f"{_WIRE}._engine_side.ledger_operations:LedgerWriter.drop",
        "wbengine.transports._redis.redis_ledger:RedisLedger.open_and_publish",
    ),
    HAND_OVER: (
        "wbengine._runtime.run:Run._wait",
        "wbengine._runtime.run:Run._done",
        "wbengine._concurrency.thread_pools:Pool._take_call",
        "wbengine._concurrency.thread_pools:Pool.submit",
    ),
    BROKER: (
        "wbengine.transports._redis.redis_link:Link.send_all",
        "wbengine.transports._redis.redis_link:Link.receive",
        "wbengine.transports._redis.redis_link:BlockingWait._ready",
        "wbengine.transports._amqp.amqp_socket:AmqpSocket.flush",
        "wbengine.transports._amqp.amqp_socket:AmqpSocket.fill",
        "wbengine.transports._amqp.amqp_connection:AmqpConnection._poll_for",
        "wbengine.transports._folder.folder_tables:Folder._do",
        "wbengine.transports._folder.fifos:notify",
        "wbengine.transports._folder.fifos:QueueFifos.wait",
    ),
    "lock waits": recording.LOCKS,
}
#: Wait of a thread -> the call of another thread that ends it.
WAITS = {
    "wbengine._runtime.run:Run._wait": "wbengine._runtime.run:Run._done",
    "wbengine._concurrency.thread_pools:Pool._take_call": (
        "wbengine._concurrency.thread_pools:Pool.submit"
    ),
}
#: Waits for a message of the other process.
RECEIVES = frozenset({
    "wbengine.transports._redis.redis_link:BlockingWait._ready",
    "wbengine.transports._amqp.amqp_connection:AmqpConnection._poll_for",
    "wbengine.transports._folder.fifos:QueueFifos.wait",
})  # fmt: skip
#: Function that publishes -> the call in it that sends the message.
SENDS = {
    "wbengine.transports._redis.redis_broker:RedisBroker.publish_with": (
        "wbengine.transports._redis.redis_link:Link.send_all"
    ),
    f"{_WIRE}._connections.sender:Sender._publish": (
        "wbengine.transports._amqp.amqp_socket:AmqpSocket.flush"
    ),
    "wbengine.transports._amqp.amqp_confirms:ReplyPublisher.answer": (
        "wbengine.transports._amqp.amqp_socket:AmqpSocket.flush"
    ),
    "wbengine.transports._folder.folder_broker:FileBroker.publish_many": (
        "wbengine.transports._folder.fifos:notify"
    ),
    "wbengine.transports._folder.folder_broker:FileBroker._finish": (
        "wbengine.transports._folder.fifos:notify"
    ),
}

_PART = {name: part for part, names in PARTS.items() for name in names}
FUNCTIONS = (*_PART,)


def check() -> None:
    """Check that all functions of the table exist.

    :raises LookupError: if one does not; the error names it.
    """
    for name in FUNCTIONS:
        recording.find(name)


#: Nanoseconds of one hop by (side, part).
Hop = Counter[tuple[str, str]]


class Call(NamedTuple):
    """A recorded call; times in nanoseconds."""

    function: str
    thread: int
    start: int
    end: int


class Signal(NamedTuple):
    """A call that ends the wait of another thread."""

    start: int
    thread: Thread


class Thread:
    """The calls of one thread: its innermost functions over time, its waits and its signals."""

    def __init__(self, side: str, calls: Iterable[Call]) -> None:
        self.side = side
        #: Call that ends waits, or `BROKER` -> its times.
        self.signals: list[tuple[str, int]] = []
        self.waits: list[Call] = []
        self._pieces: list[tuple[int, int, str]] = []
        stack: list[Call] = []
        at = 0
        for call in sorted(calls, key=lambda call: (call.start, -call.end)):
            at = self._advance(stack, at, call.start)
            self._note(call, stack)
            stack.append(call)
        self._advance(stack, at, max((call.end for call in stack), default=0))
        self._ends = [piece[1] for piece in self._pieces]
        self.waits.sort(key=lambda wait: wait.end)
        self._wait_ends = [wait.end for wait in self.waits]

    def _advance(self, stack: list[Call], at: int, until: int) -> int:
        while stack:
            end = min(stack[-1].end, until)
            if end > at:
                self._pieces.append((at, end, _PART[stack[-1].function]))
                at = end
            if stack[-1].end > until:
                break
            stack.pop()
        return max(at, until)

    def _note(self, call: Call, callers: Sequence[Call]) -> None:
        if call.function in WAITS or call.function in RECEIVES:
            self.waits.append(call)
        if call.function in WAITS.values():
            self.signals.append((call.function, call.start))
        if any(SENDS.get(caller.function) == call.function for caller in callers):
            self.signals.append((BROKER, call.start))

    def last_wait(self, at: int) -> Call | None:
        """Return the last wait that ended at this time or before."""
        count = bisect.bisect_right(self._wait_ends, at)
        return self.waits[count - 1] if count else None

    def parts(self, start: int, end: int) -> Iterator[tuple[str, int]]:
        """Yield the parts of a time, with their nanoseconds."""
        first = at = start
        for number in range(bisect.bisect_right(self._ends, first), len(self._pieces)):
            begin, until, part = self._pieces[number]
            begin, until = max(begin, at), min(until, end)
            if begin >= end:
                break
            yield OTHER, begin - at
            yield part, until - begin
            at = until
        yield OTHER, end - at


class Paths:
    """The critical paths of the hops of a run."""

    def __init__(self, calls: Mapping[str, Sequence[Call]]) -> None:
        by_thread: dict[tuple[str, int], list[Call]] = {}
        for side in SIDES:
            for call in calls[side]:
                by_thread.setdefault((side, call.thread), []).append(call)
        self._threads = {key: Thread(key[0], own) for key, own in by_thread.items()}
        self._signals: dict[tuple[str, str], list[Signal]] = {}
        for thread in self._threads.values():
            for kind, start in thread.signals:
                self._signals.setdefault((thread.side, kind), []).append(Signal(start, thread))
        for signals in self._signals.values():
            signals.sort(key=lambda signal: signal.start)
        self._submits = sorted(
            (call for call in calls[ENGINE] if call.function == SUBMIT),
            key=lambda call: call.start,
        )

    def hops(self, runs: int, tasks: int) -> list[Hop]:
        """Return the hops of the last `runs` chains of `tasks` tasks."""
        submits = self._submits[-runs * tasks :]
        return [
            self._hop(first.start, last)
            for number, (first, last) in enumerate(itertools.pairwise(submits), 1)
            if number % tasks  # not between two chains
        ]

    def _hop(self, since: int, last: Call) -> Hop:
        spent: Hop = Counter()
        thread, at = self._threads[ENGINE, last.thread], last.start
        while at > since:
            wait = thread.last_wait(at)
            resumed = max(since, wait.end if wait is not None else since)
            for part, took in thread.parts(resumed, at):
                spent[thread.side, part] += took
            at = resumed
            if wait is None or at == since:
                break
            signal = self._signal(thread, wait)
            if signal is None:
                spent[thread.side, OTHER] += at - since
                break
            began = max(since, signal.start)
            part = BROKER if wait.function in RECEIVES else HAND_OVER
            spent[thread.side, part] += at - began
            thread, at = signal.thread, began
        return spent

    def _signal(self, thread: Thread, wait: Call) -> Signal | None:
        """Return the last call before the end of a wait that can have ended it."""
        if wait.function in RECEIVES:
            sender = WORKER if thread.side == ENGINE else ENGINE
            signals = self._signals.get((sender, BROKER), [])
        else:
            signals = self._signals.get((thread.side, WAITS[wait.function]), [])
        count = bisect.bisect_right(signals, wait.end, key=lambda signal: signal.start)
        return signals[count - 1] if count else None


@dataclass(frozen=True)
class Timeline:
    """A hop on one medium. Times are means of the fastest tenth of the hops, in microseconds."""

    medium: str
    #: Number of recorded hops.
    hops: int
    #: Hop without recording, and the median of all such hops.
    hop: float
    median: float
    #: Fraction by which recording makes a hop longer.
    overhead: float
    #: Round trip or commit without wbengine.
    limit: float
    #: Side -> part -> time on the critical path.
    parts: dict[str, dict[str, float]]

    @property
    def explained(self) -> float:
        """Fraction of the recorded hop that belongs to a part."""
        total = sum(sum(parts.values()) for parts in self.parts.values())
        return 1 - sum(parts.get(OTHER, 0.0) for parts in self.parts.values()) / total

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"explained": round(self.explained, 4)}


def measure(
    system: System, python: str, medium: str, where: private_brokers.PrivateBrokers,
    divide: int, repeat: int, patience: float,
) -> Timeline:  # fmt: skip
    """Record chains on one medium, in turn with chains of which only the hops are recorded.

    :raises Failed: if a chain does not end.
    """
    case = CASE.smaller(divide)
    plain: list[Hop] = []
    recorded: list[Hop] = []
    for _ in range(repeat):
        for found, hops in zip(
            (plain, recorded), _run(system, python, medium, where, case, patience), strict=True
        ):
            found += hops
    with where.fresh(medium) as place:
        limit = bare.measure(medium, place)
    parts: dict[str, dict[str, float]] = {side: {} for side in SIDES}
    counted = _fastest(recorded)
    for side, part in sorted({key for hop in counted for key in hop}):
        parts[side][part] = _microseconds(hop[side, part] for hop in counted)
    hop, with_recording = (
        _microseconds(map(Counter.total, _fastest(hops))) for hops in (plain, recorded)
    )
    median = round(statistics.median(map(Counter.total, plain)) / 1000, 1)
    overhead = round(with_recording / hop - 1, 4)
    return Timeline(medium, len(recorded), hop, median, overhead, limit, parts)


def _run(
    system: System, python: str, medium: str, where: private_brokers.PrivateBrokers,
    case: cases.Case, patience: float,
) -> list[list[Hop]]:  # fmt: skip
    """Return the hops of chains of which only the hops are recorded, and of recorded ones."""
    recordings = ((SUBMIT,), FUNCTIONS)
    with contextlib.ExitStack() as last:
        places = [last.enter_context(where.fresh(medium)) for _ in recordings]
        with contextlib.ExitStack() as drivers_end:
            drivers = [
                drivers_end.enter_context(
                    contextlib.closing(Driver(system, python, {**place, "record": names}))
                )
                for place, names in zip(places, recordings, strict=True)
            ]
            for driver in drivers:
                driver.run(case.name, case.smaller(WARM_UP_DIVISOR).sizes, patience)
            for driver in drivers * RUNS:
                driver.run(case.name, case.sizes, patience)
        return [
            Paths(_read(Path(place["folder"]), names)).hops(RUNS, case.tasks)
            for place, names in zip(places, recordings, strict=True)
        ]


def _read(folder: Path, names: Sequence[str]) -> dict[str, list[Call]]:
    """Return the calls that both processes have written.

    :raises Failed: if one of them did not write them.
    """
    try:
        texts = {side: (folder / f"{side}.calls").read_text(encoding="utf-8") for side in SIDES}
    except FileNotFoundError as error:
        raise Failed(f"a process did not write its recorded calls: {error.filename}") from None
    return {
        side: [Call(names[number], *times) for number, *times in json.loads(text)]
        for side, text in texts.items()
    }


def _fastest(hops: Sequence[Hop]) -> list[Hop]:
    return sorted(hops, key=Counter.total)[: max(1, round(len(hops) * FASTEST))]


def _microseconds(nanoseconds: Iterable[int]) -> float:
    return round(statistics.fmean(nanoseconds) / 1000, 1)

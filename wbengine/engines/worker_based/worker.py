"""A worker: the process on a remote host that runs tasks for whoever asks."""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import os
import platform
import re
import socket
import threading
import time
import uuid as uuids
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any, Final

from futurist import periodics

from wbengine import __version__, _names, invocation, loops
from wbengine import exceptions as exc
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import asking, dispatcher, endpoint, proxy, server, topology
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.outbox import Parcel
from wbengine.engines.worker_based.slots import default_slots, make_pool
from wbengine.types import failure as ft

__all__ = ["Worker", "default_slots"]

LOG = logging.getLogger(__name__)

#: Seconds between two beats, unless an engine asks for more frequent ones.
PERIOD: Final = 5.0

#: Seconds between two looks at whether a beat is due: engines may ask for more frequent ones.
BEAT_RESOLUTION: Final = 0.25

#: Seconds before a request goes back to its queue whose ledger could not be asked.
LEDGER_PAUSE: Final = 0.5

#: So much of its topic is in the name of a queue, which cannot be longer than a topic.
_TOPIC_SHOWN: Final = 100

_BANNER: Final = """\
wbengine {version}, worker {identity}
  broker    {uri}
  exchange  {exchange}
  topics    {topics}
  tasks     {tasks}
  slots     {slots} {kind}
  process   {pid} on {host}, Python {python}
"""


class Worker:
    """Take requests for `tasks` from `topic` (or several, the first served first), and run them.

    `tasks` are task classes, modules, or names of either.  They run in `executor` if one is given,
    else in `processes_count` child processes, else in `threads_count` threads.  `ledger` is the
    place of the ledger that it shares with its engines, unless it is the broker's own.

    `run` blocks until `stop` is called (from any thread, or a signal handler's thread), or, with
    `max_idle_time`, until nothing was to be done for that many seconds.  A stopped worker takes
    nothing new, finishes what runs, says goodbye and deletes its private queue.
    """

    def __init__(
        self,
        exchange: str,
        topic: str | Sequence[str],
        tasks: Iterable[Any],
        executor: futures.Executor | None = None,
        threads_count: int | None = None,
        url: str | None = None,
        transport: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
        retry_options: Mapping[str, Any] | None = None,
        *,
        processes_count: int | None = None,
        max_idle_time: float | None = None,
        interop: str | None = None,
        ledger: str | None = None,
    ) -> None:
        self._topics = tuple(
            _names.check_label("topic", name)
            for name in ((topic,) if isinstance(topic, str) else topic)
        )
        self._exchange = exchange
        self._offered = endpoint.endpoints_of(endpoint.find_tasks(tasks))
        self._pool, self._slots, self._kind = make_pool(executor, threads_count, processes_count)
        # Children have loops of their own.
        self._loop = None if processes_count is not None else loops.Loop()
        self._max_idle_time = max_idle_time
        self.identity = _identity()
        self._interop = topology.check_interop(interop)
        self._place = ledgers.check_place(ledger, "worker")
        self._queues = {
            name: name if interop else _queue(exchange, name, self._offered)
            for name in self._topics
        }
        self._proxy = self._make_proxy(url, transport, transport_options, retry_options)
        self._ledger: ledgers.base.Ledger | None = None
        self._lock = threading.RLock()
        self._server = server.Server(self.identity, self._queues, self._offered, self._slots)
        self._period = PERIOD
        self._next_beat = 0.0
        # When the ledger was last told that this worker lives.
        self._renewed = -math.inf
        self._announced = False
        self._last_busy = time.monotonic()
        self._draining = threading.Event()
        self._unacked = 0
        self._done = threading.Event()

    def _make_proxy(self, *broker: Any) -> proxy.Proxy:
        handlers = {
            pr.NOTIFY: dispatcher.Handler(self._on_notify, pr.Notify.validate),
            pr.REQUEST: dispatcher.Handler(self._on_request, pr.Request.validate, owns_ack=True),
            asking.ASK: dispatcher.Handler(self._on_ask, asking.validate),
        }
        made = proxy.Proxy(
            self.identity,
            self._exchange,
            handlers,
            self._on_wait,
            *broker,
            bindings=(env.ALL_WORKERS,),
            interop=self._interop,
        )
        # TaskFlow's engines ask who is there on the request queue itself, which may never be full.
        made.take_from(tuple(self._queues.values()), 0 if self._interop else self._slots)
        return made

    # What it is.

    @property
    def banner(self) -> str:
        """Who this is, where it listens, and what it does, for people."""
        names = list(self._offered)
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        details = self._proxy.connection_details
        return _BANNER.format(
            version=__version__,
            identity=self.identity,
            uri=details["uri"],
            exchange=self._exchange,
            topics=", ".join(self._topics),
            tasks=", ".join(names[:5]) + more,
            slots=self._slots,
            kind=self._kind,
            pid=os.getpid(),
            host=socket.gethostname(),
            python=platform.python_version(),
        )

    @property
    def queues(self) -> dict[str, str]:
        """The queue of each topic."""
        return dict(self._queues)

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks ended (by state) and how many messages were not run (by reason)."""
        with self._lock:
            return dict(self._server.counts)

    # Its life.

    def run(
        self, display_banner: bool = True, banner_writer: Callable[[str], Any] | None = None
    ) -> None:
        """Work until told to stop.

        :raises TransportFailure: the broker cannot be reached.
        :raises LedgerFailure: nor the ledger that was named.
        """
        if display_banner:
            write = banner_writer or (lambda text: LOG.info("%s", text.rstrip()))
            write(self.banner)
        self._ledger = ledgers.choose(self._place, self._proxy.target, "worker")
        self._server.ledger = self._ledger.digest if self._ledger is not None else None
        self._pool.start()
        # A lambda: futurist sets attributes on what it calls, a bound method takes none.
        beats = periodics.PeriodicWorker(
            [(periodics.periodic(BEAT_RESOLUTION)(lambda: self._beat()), (), {})]
        )
        beating = threading.Thread(target=beats.start, name="wbengine-beats", daemon=True)
        ending = threading.Thread(target=self._end, name="wbengine-drain", daemon=True)
        beating.start()
        ending.start()
        try:
            self._proxy.start()
        finally:
            self._draining.set()
            self._done.set()
            beats.stop()
            self._pool.stop()
            if self._loop is not None:
                self._loop.stop()
            ending.join()
            if self._ledger is not None:
                self._ledger.close()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the worker takes requests; False if time ran out."""
        return self._proxy.wait(timeout)

    def stop(self) -> None:
        """Take nothing new, finish what runs, and end `run`.  Returns at once; idempotent."""
        if not self._draining.is_set():
            LOG.info("taking nothing new, finishing %d running tasks", self._server.running)
            self._draining.set()

    def abandon(self) -> None:
        """Give up what runs: say goodbye, so that engines need not wait for silence.

        Running threads cannot be ended; the caller ends the process.
        """
        self._announce(env.STOPPED)
        self._proxy.flush(1.0)
        self._pool.stop(wait=False, kill=True)

    def _end(self) -> None:
        """Wait for `stop`, then for what runs, and then end the proxy (a thread of its own)."""
        self._draining.wait()
        self._proxy.stop_taking()
        while not self._done.wait(0.01):
            with self._lock:
                if not self._server.running and not self._unacked:
                    break
        self._announce(env.STOPPED)
        self._proxy.stop()

    # What comes.

    def _on_notify(self, data: Any, message: Any) -> None:
        question = env.received(data, message)
        asked = question.seconds(env.WBE_PERIOD)
        if asked is not None:
            self._period = min(self._period, max(env.LEAST_PERIOD, asked))
        with self._lock:
            effects = self._server.on_notify(question, self._period)
        self._apply(effects)

    def _on_request(self, data: Any, message: Any) -> None:
        self._last_busy = time.monotonic()
        request = env.received(data, message)
        with self._lock:
            self._unacked += 1
            effects = self._server.on_request(request, message)
        self._apply(effects)

    def _on_ask(self, data: Any, message: Any) -> None:
        reply_to = env.received(data, message).reply_to
        with self._lock:
            effects = self._server.on_ask(asking.read(data), reply_to)
        self._apply(effects)

    def _on_wait(self) -> None:
        if not self._announced:
            self._announced = True
            self._announce(env.READY)
        if self._max_idle_time is None or self._draining.is_set():
            return
        now = time.monotonic()
        with self._lock:
            busy = bool(self._server.running or self._unacked)
        if busy:
            self._last_busy = now
        elif now - self._last_busy >= self._max_idle_time:
            LOG.info("nothing to do for %.1f s", now - self._last_busy)
            self.stop()

    def _announce(self, state: str) -> None:
        if self._interop:
            return  # TaskFlow's engines ask; nobody listens to what they did not ask for
        with self._lock:
            effects = self._server.announce([env.ALL_ENGINES], state, self._period)
        self._apply(effects)

    def _beat(self) -> None:
        now = time.monotonic()
        if not self._interop and self._proxy.is_running and now >= self._next_beat:
            self._next_beat = now + self._period
            with self._lock:
                effects = self._server.beat(self._period)
                busy = self._server.running
            self._apply(effects)
            if busy and self._ledger is not None:
                self._renew(now)

    def _renew(self, now: float) -> None:
        assert self._ledger is not None
        if now - self._renewed >= self._period / 2:
            self._ledger.renew(self.identity)
            self._renewed = now

    # What is to be done.

    def _apply(self, effects: Iterable[server.Effect]) -> None:
        for effect in effects:
            match effect:
                case server.Claim(job):
                    self._claim(job)
                case server.Run(job):
                    self._run(job)
                case server.Reply(job, envelope, terminal):
                    self._reply(job, envelope, terminal)
                case server.Finish(job, frozen):
                    self._finish(job, frozen)
                case server.Acknowledge(receipt):
                    self._acknowledge(receipt)

    def _claim(self, job: server.Job) -> None:
        assert self._ledger is not None
        crashpoint("worker.before-claim")
        try:
            # After a long rest its last beat is old: who looks at the row would take it for dead.
            self._renew(time.monotonic())
            claim = self._ledger.claim(job.id, job.epoch, self.identity)
        except Exception:
            with self._lock:
                self._server.forget(job)
                self._unacked -= 1
            # Whatever ails the ledger, asking it again at once would only burn the processor.
            self._draining.wait(LEDGER_PAUSE)
            job.receipt.requeue()
            raise
        crashpoint("worker.after-claim")
        with self._lock:
            effects = self._server.on_claim(job, claim)
        self._apply(effects)

    def _run(self, job: server.Job) -> None:
        assert job.endpoint is not None
        try:
            self._pool.submit(
                job.endpoint.run,
                (job.unit, self._loop),
                functools.partial(self._ran, job),
                functools.partial(self._told, job),
            )
        except Exception as error:  # a given executor may be shut down by whoever gave it
            self._ran(job, ft.Failure.from_exception(error))

    def _told(self, job: server.Job, event_type: str, details: dict[str, Any]) -> None:
        with self._lock:
            effects = self._server.on_event(job, event_type, details)
        self._apply(effects)

    def _ran(self, job: server.Job, value: Any) -> None:
        outcome = value if isinstance(value, invocation.Outcome) else invocation.Outcome(value)
        with self._lock:
            effects = self._server.on_finished(job, outcome)
        self._apply(effects)

    def _reply(self, job: server.Job | None, envelope: env.Envelope, terminal: bool) -> None:
        parcel = Parcel(envelope)
        if job is None:
            self._proxy.send(parcel, first=True)
            return
        if terminal:
            if job.running is not None and job.ours:
                # Nobody needs to hear that it runs any more, except TaskFlow's state machine.
                job.running.withdrawn = True
            parcel.after = functools.partial(self._acknowledge, job.receipt)
            parcel.failed = lambda _: self._acknowledge(job.receipt)
        elif envelope.body["state"] == pr.RUNNING:
            job.running = parcel
        self._proxy.send(parcel)

    def _finish(self, job: server.Job, frozen: bytes) -> None:
        assert self._ledger is not None
        crashpoint("worker.before-finish")
        try:
            if not self._ledger.finish(job.id, job.epoch, self.identity, frozen):
                LOG.warning("request %s was given up by its engine while it ran here", job.id)
        except exc.LedgerFailure as error:  # the engine is answered all the same
            LOG.warning("the answer to request %s cannot be stored: %s", job.id, error)
        crashpoint("worker.after-finish")
        with self._lock:
            effects = self._server.on_stored(job)
        self._apply(effects)

    def _acknowledge(self, receipt: Any) -> None:
        self._proxy.ack(receipt)
        with self._lock:
            self._unacked -= 1
        self._last_busy = time.monotonic()


def _identity() -> str:
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:60] or "host"
    return f"{host}-{os.getpid()}-{uuids.uuid4().hex[:8]}"


def _queue(exchange: str, topic: str, names: Iterable[str]) -> str:
    """The queue of all workers that offer these tasks on this topic of this exchange.

    It begins with the topic, for people; other exchanges of the same broker have queues of theirs.
    """
    text = "\n".join((exchange, topic, *sorted(names)))
    return f"{topic[:_TOPIC_SHOWN]}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"

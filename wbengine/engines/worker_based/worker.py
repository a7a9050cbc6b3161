"""The worker: a process that runs the tasks of engines."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wbengine import _payloads, pools
from wbengine import exceptions as exc
from wbengine._concurrency import conditions, event_loop, threads
from wbengine._introspection import object_names
from wbengine._security import keys as key_files
from wbengine._text import data_formats
from wbengine.engines.worker_based import dispatcher, endpoint, proxy, server
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based._connections import connecting, consumer_loop, topology
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import worker_commands
from wbengine.engines.worker_based._messages import worker_life as lives
from wbengine.engines.worker_based._worker_side import (
    describing,
    heartbeat,
    reporting,
    task_runner,
    task_sources,
)
from wbengine.engines.worker_based._worker_side import observers as watched
from wbengine.engines.worker_based._worker_side.jobs import Job
from wbengine.engines.worker_based._worker_side.slots import default_slots, make_pool
from wbengine.transports._ledger import STALE_AFTER_SECONDS

if TYPE_CHECKING:
    from wbengine.engines.worker_based._discovery import snapshots

__all__ = ["FailedRequest", "Life", "Worker", "default_slots"]

FailedRequest = reporting.FailedRequest
Life = lives.Life

LOG = logging.getLogger(__name__)

#: Maximum seconds to wait until no more requests arrive after a stop.
STOP_TIMEOUT_SECONDS: Final = 5.0

#: Seconds without a message after which the broker is unavailable. The consumer reconnects earlier.
SILENCE_SECONDS = 30.0

#: Seconds without work after which a worker with `burst` ends.
BURST_SECONDS: Final = 2.0

#: Maximum seconds between two checks of the idle time. A longer gap restarts it: the broker was
#: unavailable, or the process was paused.
MAX_GAP_SECONDS: Final = 3.0

#: Seconds between two checks of the drain timeout.
_CHECK_SECONDS: Final = 0.25


class IdleShutdown:
    """Detects idle times longer than `max_seconds` (None: no limit; with `burst`: a short one).

    All times are on one monotonic clock. Not thread-safe.
    """

    def __init__(self, max_seconds: float | None, now: float, *, burst: bool = False) -> None:
        self.max_seconds = BURST_SECONDS if burst and max_seconds is None else max_seconds
        #: Time of the last work. The owner sets it too.
        self.since = now
        self._last_check = now

    def is_over(self, now: float, busy: bool) -> bool:
        """Return whether the idle time is exceeded. Call this at least once per second.

        :param busy: whether there is work, or the worker may not receive any.
        """
        if busy or now - self._last_check > MAX_GAP_SECONDS:
            self.since = now
        self._last_check = now
        return self.max_seconds is not None and now - self.since >= self.max_seconds


def check_limits(
    max_tasks: int | None, max_idle_time: float | None, drain_timeout: float | None
) -> None:
    """Check the limits of a worker's lifetime.

    :raises ValueError: if a limit is not valid; the error names it.
    """
    if max_tasks is not None and (type(max_tasks) is not int or max_tasks < 1):
        raise ValueError(f"max_tasks must be a whole number of at least 1, got {max_tasks!r}")
    for name, value in (("max_idle_time", max_idle_time), ("drain_timeout", drain_timeout)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 <= value < math.inf):
            raise ValueError(f"{name} must be 0 or more seconds, got {value!r}")


class Worker:
    """A process that receives requests for `tasks` from a `topic`, or several, and runs them.

    It prefers requests of earlier topics. `run` blocks until the worker ends: because of `stop`
    (from any thread, or the thread of a signal handler), a `drain` command, `max_tasks` started
    tasks, or `max_idle_time` seconds without work (`burst`: 2). The worker then receives no more
    requests, requeues those that have not started, finishes running tasks, announces its end and
    deletes its private queue. Tasks that still run after `drain_timeout` seconds are abandoned.

    :param tasks: task classes, modules, or names of either.
    :param executor: runs the tasks instead of a pool.
    :param pool: 'threads', 'processes' or 'solo' (in the thread that calls `run`), with
        `concurrency` slots. `processes_count` and `threads_count` are short forms.
    :param max_tasks_per_child: number of tasks after which a child process is replaced.
    :param max_memory_per_child: bytes of memory above which a child process is replaced.
    :param ledger: the place of the ledger, the same as that of the engines; `'none'`: no ledger.
        Default: the broker's ledger. A broker that has a ledger uses no other one.
    :param result_ttl: seconds for which unused results are kept in the ledger.
    :param code_version: version of the tasks, which the worker reports.
    :param name: first part of the `identity` (1 to 60 of A-Z a-z 0-9 -; default: the host name).
    :param keys: the file with the keys that sign messages (None: `$WBENGINE_KEYS`). Without keys,
        messages are not signed, and all messages are accepted.
    :param payloads: the folder or bucket of large values, the same as that of the engines (None:
        `$WBENGINE_PAYLOADS`; `'none'`: they are in the messages).
    :param exception_handlers: called in order with each failure of a task (see `reporting`).
    :param source: an additional source of tasks (see `task_sources`). With a source, there may be
        no topics. The worker then has no engines and needs only the broker of the source.
    :param observers: receive the events of the requests from the topics.
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
        pool: str | None = None,
        concurrency: int | None = None,
        max_tasks_per_child: int | None = None,
        max_memory_per_child: int | None = None,
        burst: bool = False,
        max_tasks: int | None = None,
        max_idle_time: float | None = None,
        drain_timeout: float | None = None,
        exception_handlers: Iterable[Any] = (),
        source: task_sources.TaskSource | None = None,
        observers: Iterable[watched.Observer] = (),
        interop: str | None = None,
        ledger: str | None = None,
        name: str | None = None,
        result_ttl: float | None = STALE_AFTER_SECONDS,
        keys: str | Path | key_files.Keyring | None = None,
        code_version: str | None = None,
        payloads: str | None = None,
    ) -> None:
        self._topics = describing.topics(topic)
        self._exchange = exchange
        self._offered = endpoint.endpoints_of(endpoint.find_tasks(tasks))
        endpoint.check_databases(self._offered.values())
        for each in self._offered.values() if interop is None else ():
            each.payloads = _payloads.opened(payloads)
        self._source = source or task_sources.TaskSource()
        check_limits(max_tasks, max_idle_time, drain_timeout)
        handlers = reporting.find_handlers(exception_handlers)
        self._pool, self._slots, self._kind = make_pool(
            executor,
            threads_count,
            processes_count,
            kind=pool,
            concurrency=concurrency,
            max_calls=max_tasks_per_child,
            max_memory=max_memory_per_child,
        )
        self.preload(endpoint.modules(self._offered.values()))
        # The loop of async tasks; child processes have their own loops.
        self._loop = None if isinstance(self._pool, pools.ProcessPool) else event_loop.EventLoop()
        #: Identifies the worker in replies, views and metrics.
        self.identity = describing.identity(name)
        if code_version is not None:
            object_names.check_code("code_version", code_version)
        self._interop = topology.check_interop(interop, ledger, keys)
        self._keys = key_files.keyring(keys, key_files.WORKER) if self._topics else None
        self._queues = {
            name: name if self._interop else env.queue_name(exchange, name, self._offered)
            for name in self._topics
        }
        self._idle = IdleShutdown(max_idle_time, time.monotonic(), burst=burst)
        # Whether it receives no requests, because it has just returned some that others accept.
        self._leaves_requests = False
        # Without topics, the worker gets a private broker in memory.
        if source is not None and not self._topics:
            url = f"memory://{self.identity}"
            transport = transport_options = retry_options = None
        self._proxy = self._make_proxy(url, transport, transport_options, retry_options)
        self._open_ledger = self._ledger_at(ledger, result_ttl)
        self._beats = heartbeat.Beats(self.identity, self._beat)
        self._reports = reporting.Reports(self.identity, handlers)
        self._server = server.Server(
            self.identity,
            self._topics,
            self._offered,
            self._slots,
            max_tasks=max_tasks,
            birth=time.time(),
            plain=self._interop is not None,
            observers=tuple(observers),
            code_version=code_version,
        )
        self._runner = task_runner.TaskRunner(
            self._server,
            self._proxy,
            self._pool,
            self._loop,
            self._reports,
            self._beats,
            on_drain=self._stop_taking,
        )
        #: Set if the task source cannot continue.
        self.failed = conditions.Event()
        self._attach_handlers()
        self._drain_timeout = drain_timeout
        self._draining = conditions.Event()
        self._done = conditions.Event()
        #: Set if running tasks were abandoned because of `drain_timeout`.
        self.gave_up = conditions.Event()
        self.ended = conditions.Event()

    def consumed_queues(self) -> Sequence[str]:
        """Return the queues of all topics for each format of requests that this release reads."""
        if self._interop:
            return self._topics
        return [
            env.queue_name(self._exchange, topic, self._offered, version)
            for topic in self._topics
            for version in data_formats.MESSAGE.read
        ]

    def _attach_handlers(self) -> None:
        control = dispatcher.Handler(
            self._on_control, worker_commands.SCHEMAS[worker_commands.CONTROL].check
        )
        handlers = self._runner.handlers() | {worker_commands.CONTROL: control}
        self._proxy.dispatcher.type_handlers.update(handlers)
        self._source.attach(
            task_sources.WorkerContext(
                self.identity,
                self._pool,
                self._loop,
                self._slots,
                self._runner.admit,
                self._stop_taking,
                self.failed.set,
                self._reports,
            )
        )
        self._server.heartbeat.extra_tasks = lambda: self._source.current

    def _on_control(self, data: Any, message: Any) -> None:
        actions = {
            worker_commands.SUSPEND: self.suspend,
            worker_commands.RESUME: self.resume,
            worker_commands.DRAIN: self.stop,
            worker_commands.STOP: self.halt,
        }
        LOG.info("received the command %s", data["do"])
        actions[data["do"]]()

    def _make_proxy(self, *broker: Any) -> proxy.Proxy:
        new_proxy = proxy.Proxy(
            self.identity,
            self._exchange,
            None,
            self._on_wait,
            *broker,
            bindings=(env.ALL_WORKERS,),
            interop=self._interop,
            keys=self._keys,
        )
        # 0: no limit. TaskFlow's engines also send NOTIFY to the request queue.
        new_proxy.consume_shared(self.consumed_queues(), 0 if self._interop else self._slots)
        return new_proxy

    # Lifecycle.

    def run(
        self, display_banner: bool = True, banner_writer: Callable[[str], Any] | None = None
    ) -> None:
        """Work until stopped.

        :raises TransportFailure: if the broker cannot be reached.
        :raises LedgerFailure: if the ledger cannot be reached.
        """
        if display_banner:
            write = banner_writer or (lambda text: LOG.info("%s", text.rstrip()))
            write(self.banner)
        try:
            self._work()
        except BaseException as error:
            self._proxy.consumer.fail(error)
            raise

    def _work(self) -> None:
        try:
            self._open_ledger()
        except (exc.LedgerFailure, exc.TransportFailure):
            if self._draining.is_set():  # The worker was stopped while it waited for the ledger.
                return
            raise
        self._pool.start()
        self._proxy.consumer.call_soon(self._introduce)
        ending = threads.Thread(target=self._end, name="wbengine-drain", daemon=True)
        self._beats.start()
        ending.start()
        try:
            self._source.start()
            self._serve()
        finally:
            self._draining.set()
            self._done.set()
            self._runner.close()
            self._close_source()
            self._beats.stop()
            self._pool.stop(wait=not self.gave_up.is_set(), kill=self.gave_up.is_set())
            if self._loop is not None:
                self._loop.stop()
            ending.join()
            if self._runner.ledger is not None:
                self._runner.ledger.close()

    def _ledger_at(self, ledger: str | None, result_ttl: float | None) -> Callable[[], None]:
        """Return the function that opens the ledger. The options are checked at once."""
        target, place = self._proxy.target, None
        # Without topics, the ledger is that of the source.
        if self._topics and not self._interop:
            place = ledgers.check_for(ledger, target)
        checked_ttl = ledgers.check_result_ttl(result_ttl)

        def open_ledger() -> None:
            opened = connecting.call_with_retries(
                lambda: ledgers.choose(place, target, "worker", result_ttl=checked_ttl),
                target.retry,
                self._draining,
                within=consumer_loop.CONNECT_TIMEOUT_SECONDS,
                on_failure=connecting.log_reasons("cannot open the ledger (%s), retrying"),
            )
            if opened is not None and target.has_rows:
                opened.renew(self.identity)  # A claim requires a heartbeat.
                target.rows.ledger, target.rows.holder = opened, self.identity
            self._beats.ledger = opened
            self._runner.ledger, self._runner.has_rows = opened, target.has_rows
            self._server.ledger = opened.digest if opened is not None else None

        return open_ledger

    def _serve(self) -> None:
        if not isinstance(self._pool, pools.SoloPool):
            self._proxy.start()
            return
        errors: list[BaseException] = []
        broker = threads.Thread(
            target=self._serve_beside, args=(errors,), name="wbengine-broker", daemon=True
        )
        broker.start()
        self._pool.serve()
        broker.join()
        if errors:
            raise errors[0]

    def _serve_beside(self, errors: list[BaseException]) -> None:
        try:
            self._proxy.start()
        except BaseException as error:
            errors.append(error)
        finally:
            self._pool.stop(wait=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the worker receives requests; return False on timeout.

        :raises TransportFailure, LedgerFailure: if `run` raised them.
        """
        return self._proxy.wait(timeout) and self._source.wait_ready(timeout)

    def suspend(self) -> None:
        """Receive no requests until `resume`, and requeue unstarted ones. Idempotent."""
        self._proxy.consumer.pause_requests()
        self._source.suspend()
        self._runner.report(self._server.suspend, self._beats.period)

    def resume(self) -> None:
        """Receive requests again. Idempotent; no effect after `stop`."""
        if not self._draining.is_set():
            self._runner.report(self._server.resume, self._beats.period)
            self._proxy.consumer.resume_requests()
            self._source.resume()

    def stop(self) -> None:
        """Receive no more requests, finish running tasks, end `run`. Does not wait; idempotent."""
        if not self._draining.is_set():
            LOG.info("accepting no more tasks, finishing %d running tasks", self._running)
            self._draining.set()

    def halt(self) -> None:
        """Like `stop`, but abandon running tasks at once. Idempotent; permitted after `stop`."""
        self._drain_timeout = 0.0
        self.stop()

    @property
    def _running(self) -> int:
        return self._server.running + self._source.running

    def _stop_taking(self) -> None:
        # This must precede `stop`: requests that arrive now are requeued.
        self._proxy.consumer.pause_requests()
        self.stop()

    def abandon(self) -> None:
        """Abandon running tasks and announce the end, in at most 2 seconds.

        The announcement saves engines the wait for missing heartbeats. Running threads cannot be
        stopped, so the caller must end the process.
        """
        LOG.warning("abandoning %d running tasks: stopped a second time", self._running)
        self.gave_up.set()
        given_up = self._give_up()
        self._proxy.flush(1.0)
        self._pool.stop(wait=False, kill=True)
        # Requeueing these messages has no use: their rows have an owner, and their queue may be
        # deleted.
        self._proxy.consumer.ack_many([job.receipt for job in given_up if job.ledger])
        self._close_source(0.5)
        self._proxy.stop(0.0)
        self._proxy.consumer.join(0.5)

    def _end(self) -> None:
        self._draining.wait()
        if not self._done.is_set():
            stopped = conditions.Event()
            self._proxy.consumer.pause_requests()
            # By then, the delivered requests have reached the runner, and the drain waits for them.
            self._proxy.consumer.call_soon(stopped.set)
            self._source.drain()
            self._runner.report(self._server.drain, time.time(), self._beats.period)
            stopped.wait(STOP_TIMEOUT_SECONDS)
            if not self._wait_idle() and not self._done.is_set():
                LOG.warning(
                    "abandoning %d tasks that still run after %g s",
                    self._running, self._drain_timeout,
                )  # fmt: skip
                self._give_up()
                self.gave_up.set()
        self._announce_end()
        self._proxy.stop()
        self.ended.set()

    def _wait_idle(self) -> bool:
        since = time.monotonic()
        while True:
            limit, now = self._drain_timeout, time.monotonic()
            until = math.inf if limit is None else since + limit
            check_at = min(until, now + _CHECK_SECONDS)
            if self._runner.wait_idle(max(0.0, check_at - now)) and self._source.wait_idle(
                max(0.0, check_at - time.monotonic())
            ):
                return True
            if self._done.is_set() or now >= until:
                return False

    def _give_up(self) -> list[Job]:
        """Announce the end to the engines, then abandon running tasks; return these tasks."""
        with self._runner.lock:
            jobs = self._server.begun
        self._announce_end()
        self._reports.flush()  # The process may end at any time.
        for job in jobs:
            self._runner.cancel(job)
        self._source.give_up()
        return jobs

    def _close_source(self, timeout: float = 5.0) -> None:
        try:
            self._source.close(timeout)
        except Exception:
            LOG.exception("%s cannot be closed", self._source)

    def _announce_end(self) -> None:
        self._runner.report(self._server.shut_down, time.time(), self._beats.period)

    def _introduce(self) -> None:
        introduce = self._server.heartbeat.announce_tasks
        self._runner.report(introduce, env.ALL_ENGINES, self._beats.period)

    # State and snapshots; in any thread.

    @property
    def banner(self) -> str:
        """The startup banner."""
        about_keys = (("keys", "none" if self._keys is None else str(self._keys)),)
        return describing.banner(
            self.identity,
            self._proxy.connection_details["uri"],
            self._exchange,
            self._topics,
            list(self._offered),
            f"{self._slots} {self._kind}",
            (*(about_keys if self._topics else ()), *self._source.description),
        )

    @property
    def queues(self) -> dict[str, str]:
        """The queue of each topic."""
        return dict(self._queues)

    @property
    def counts(self) -> dict[str, int]:
        """Number of completed tasks by state, and of messages that were not run by reason."""
        with self._runner.lock:
            return {**self._server.counts, **self._proxy.untrusted}

    @property
    def life(self) -> lives.Life:
        """The reported state of this worker."""
        with self._runner.lock:
            return self._server.life

    @property
    def is_solo(self) -> bool:
        """Whether tasks run in the thread that called `run`."""
        return isinstance(self._pool, pools.SoloPool)

    @property
    def system(self) -> str:
        """The messaging system, such as `rabbitmq`."""
        return self._proxy.target.system

    @property
    def heard(self) -> float:
        """Time of the broker's last message on the monotonic clock; -infinity if not connected.

        The worker sends messages to itself, so an available broker delivers one about every 10
        seconds. For brokers in memory and in folders, this is the present time.
        """
        return self._proxy.consumer.last_message_at

    @property
    def trouble(self) -> str | None:
        """The reason why the worker receives no requests now; None if it does."""
        if self._draining.is_set():
            return "the worker is stopping"
        if self._server.suspended:
            return "the worker is suspended"
        silence = time.monotonic() - self.heard
        if math.isinf(silence):
            return "the worker is not connected to the broker"
        if silence > SILENCE_SECONDS:
            return f"the broker has sent nothing for {silence:.0f} s"
        if self._proxy.is_blocked:
            return "the broker accepts no messages: it is short of memory or disk"
        if not self._source.wait_ready(0):
            return "the worker is not connected to the broker of Celery"
        return None

    @property
    def snapshot(self) -> snapshots.WorkerSnapshot:
        """The state of this worker."""
        from wbengine.engines.worker_based._discovery import snapshots

        now = time.monotonic()
        with self._runner.lock:
            life, running = self._server.life, self._running
        return snapshots.WorkerSnapshot(
            self.identity,
            tuple(self._topics),
            tuple(self._queues.values()),
            tuple(self._offered),
            self._slots,
            min(self._slots, running),
            max(0.0, time.time() - (now - self.heard)),
            life,
        )

    def responds(self, within: float) -> bool:
        """Return whether the lock of the worker is available within this time."""
        if not self._runner.lock.acquire(timeout=within):
            return False
        self._runner.lock.release()
        return True

    def observe_tasks(self, observer: reporting.TaskObserver) -> None:
        """Add an observer of the tasks of other sources."""
        self._reports.observers = (*self._reports.observers, observer)

    def preload(self, modules: Iterable[str]) -> None:
        """Make child processes import modules before their first task. Call this before `run`."""
        if isinstance(self._pool, pools.ProcessPool):
            self._pool.preload(modules)

    def observe_loop(self, callback: Callable[[float], object]) -> None:
        """Call `callback(last_message_at)` in each iteration of the receiving loop, in its thread.

        An iteration takes at most one second while the worker is connected.
        """
        self._proxy.consumer.on_iteration = callback

    # Periodic work.

    def _on_wait(self) -> float | None:
        now = time.monotonic()
        running_due = self._runner.send_running(now)
        if self._idle.max_seconds is None:
            return running_due
        self._idle.since = max(
            self._idle.since, self._runner.last_request_at, self._source.last_task_at
        )
        busy = self._runner.busy or self._server.suspended or self._source.busy
        if self._idle.is_over(now, busy) and not self._draining.is_set():
            LOG.info("stopping: idle for %.1f s", now - self._idle.since)
            self.stop()
        return running_due

    def _beat(self, now: float) -> None:
        self._reports.flush()
        if self._interop or not self._proxy.is_running:
            return
        with self._runner.lock:
            effects = self._server.heartbeat.beat(self._beats.period)
            returned = self._server.return_unaccepted()
            holding = self._server.holding
        if returned:
            # Until the next heartbeat: otherwise this worker could receive them again first.
            self._proxy.consumer.pause_requests()
        elif self._leaves_requests and not (self._server.suspended or self._draining.is_set()):
            self._proxy.consumer.resume_requests()
        self._leaves_requests = bool(returned)
        self._runner.apply(effects + returned)
        if holding:
            self._beats.renew(now)

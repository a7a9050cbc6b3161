"""A worker: the process on a remote host that runs the tasks of engines."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wbengine import keys as key_files
from wbengine import pools
from wbengine.concurrency import event_loop
from wbengine.engines.worker_based import dispatcher, endpoint, proxy, server
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.connections import topology
from wbengine.engines.worker_based.messages import commands
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import life as lives
from wbengine.engines.worker_based.worker_side import (
    describing,
    heartbeat,
    reporting,
    task_runner,
    task_sources,
)
from wbengine.engines.worker_based.worker_side import observers as watched
from wbengine.engines.worker_based.worker_side.jobs import Job
from wbengine.engines.worker_based.worker_side.slots import default_slots, make_pool

if TYPE_CHECKING:
    from wbengine.engines.worker_based.discovery import snapshots

__all__ = ["Worker", "default_slots"]

LOG = logging.getLogger(__name__)

#: Seconds that it takes at most to stop taking; without a broker there is nothing to take.
STOP_TIMEOUT: Final = 5.0

#: Seconds after which a broker that said nothing is taken for gone: by then its consumer, which
#: speaks to itself when it hears nothing, connects anew.
SILENCE = 30.0

#: Seconds that `burst` waits, with empty queues and idle slots, before it ends.
BURST: Final = 2.0

#: Seconds between two looks that mean that nothing could have come meanwhile: the broker was away,
#: or this process was stopped.
GAP: Final = 3.0

#: Seconds after which a wait for the end of what runs looks whether it may last so long.
_LOOK: Final = 0.25


class IdleShutdown:
    """Whether nothing was to be done for `most` seconds; None: it may be so for ever, or with
    `burst` for a moment.

    All times are those of one monotonic clock.  Not thread-safe.
    """

    def __init__(self, most: float | None, now: float, *, burst: bool = False) -> None:
        self.most = BURST if burst and most is None else most
        #: When something was to be done last; set from outside.
        self.since = now
        self._looked = now

    def is_over(self, now: float, busy: bool) -> bool:
        """A look, at least once a second; `busy`: something is being done, or may not be."""
        if busy or now - self._looked > GAP:
            self.since = now
        self._looked = now
        return self.most is not None and now - self.since >= self.most

    def idle(self, now: float) -> float:
        """Seconds since something was to be done."""
        return now - self.since


def check_limits(
    max_tasks: int | None, max_idle_time: float | None, drain_timeout: float | None
) -> None:
    """See that what limits the life of a worker makes sense.

    :raises ValueError: one does not; it says which.
    """
    if max_tasks is not None and (type(max_tasks) is not int or max_tasks < 1):
        raise ValueError(f"max_tasks must be a whole number of at least 1, not {max_tasks!r}")
    for name, value in (("max_idle_time", max_idle_time), ("drain_timeout", drain_timeout)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 <= value < math.inf):
            raise ValueError(f"{name} must be seconds, not {value!r}")


class Worker:
    """Take requests for `tasks` from `topic` (or several, the first served first), and run them.

    `tasks` are task classes, modules, or names of either.  They run in `executor` if one is given,
    else in a pool of one kind (`pool`: 'threads', 'processes', or 'solo': in the thread that calls
    `run`) with `concurrency` slots; `processes_count` and `threads_count` are such pools too.  A
    child process is replaced after `max_tasks_per_child` tasks, or when it uses more than
    `max_memory_per_child` bytes.  `ledger` is the place of the ledger that it shares with its
    engines, unless it is the broker's own; `'none'`: it does without, as they must then.
    `result_ttl` is how many seconds results stay there that nobody wants any more.

    `run` blocks until the worker ends: `stop` was called (from any thread, or a signal handler's
    thread), somebody told it to `drain`, it began `max_tasks` tasks, or nothing was to be done for
    `max_idle_time` seconds (`burst`: 2).  It then takes nothing new, hands back what did not begin,
    finishes what runs, says goodbye and deletes its private queue.  What still runs
    `drain_timeout` seconds later is given up.

    `name` is what its `identity` begins with (1 to 60 of A-Z a-z 0-9 -; default: the host's).

    `keys` is the file of the keys that messages are signed with (None: `$WBENGINE_KEYS`; without
    any they are not signed, and all are believed).

    `exception_handlers` are called, in order, with each failure of a task (see `reporting`).

    `source` brings tasks in another way (see `task_sources`); with one it may have no topic: then
    it meets no engines, and needs no broker but the source's.  `observers` are told what becomes
    of the requests of its topics.
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
        result_ttl: float | None = ledgers.base.STALE_AFTER,
        keys: str | Path | key_files.Keyring | None = None,
    ) -> None:
        self._topics = describing.topics(topic)
        self._exchange = exchange
        self._offered = endpoint.endpoints_of(endpoint.find_tasks(tasks))
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
        self._loop = self._prepare_pool()
        self.identity = describing.identity(name)
        self._interop = topology.check_alone(interop, ledger)
        topology.check_unsigned(interop, keys)
        self._keys = key_files.keyring(keys, key_files.WORKER) if self._topics else None
        self._open_ledger = self._ledger_at(ledger, result_ttl)
        self._queues = self._name_queues()
        self._idle = IdleShutdown(max_idle_time, time.monotonic(), burst=burst)
        self._running_due: float | None = None
        if source is not None and not self._topics:  # it meets nobody, at a place of its own
            url = f"memory://{self.identity}"
            transport = transport_options = retry_options = None
        self._proxy = self._make_proxy(url, transport, transport_options, retry_options)
        self._beats = heartbeat.Beats(self.identity, self._beat)
        self._server, self._runner = self._make_core(max_tasks, handlers, observers)
        #: Set when its task source cannot go on.
        self.failed = threading.Event()
        self._attend()
        self._drain_timeout = drain_timeout
        self._draining = threading.Event()
        self._done = threading.Event()
        #: Set when it gave up what ran, because `drain_timeout` was over; and when all is told.
        self.gave_up = threading.Event()
        self.ended = threading.Event()

    def _prepare_pool(self) -> event_loop.EventLoop | None:
        """The loop of what is async; child processes have their own, and import what they need."""
        if not isinstance(self._pool, pools.ProcessPool):
            return event_loop.EventLoop()
        self._pool.preload(endpoint.modules(self._offered.values()))
        return None

    def _name_queues(self) -> dict[str, str]:
        if self._interop:
            return {name: name for name in self._topics}
        return {name: env.queue_name(self._exchange, name, self._offered) for name in self._topics}

    def _make_core(
        self,
        max_tasks: int | None,
        handlers: Iterable[reporting.ExceptionHandler],
        observers: Iterable[watched.Observer],
    ) -> tuple[server.Server, task_runner.TaskRunner]:
        self._reports = reporting.Reports(self.identity, handlers)
        core = server.Server(
            self.identity,
            self._queues,
            self._offered,
            self._slots,
            max_tasks=max_tasks,
            birth=time.time(),
            plain=self._interop is not None,
            observers=tuple(observers),
        )
        runner = task_runner.TaskRunner(
            core,
            self._proxy,
            self._pool,
            self._loop,
            self._reports,
            self._beats,
            on_drain=self._stop_taking,
        )
        return core, runner

    def _attend(self) -> None:
        control = dispatcher.Handler(self._on_control, commands.SCHEMAS[commands.CONTROL].check)
        handlers = self._runner.handlers() | {commands.CONTROL: control}
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
        self._server.heartbeat.besides = lambda: self._source.current

    def _on_control(self, data: Any, message: Any) -> None:
        orders = {
            commands.SUSPEND: self.suspend,
            commands.RESUME: self.resume,
            commands.DRAIN: self.stop,
            commands.STOP: self.halt,
        }
        LOG.info("told to %s", data["do"])
        orders[data["do"]]()

    def _make_proxy(self, *broker: Any) -> proxy.Proxy:
        made = proxy.Proxy(
            self.identity,
            self._exchange,
            None,
            self._on_wait,
            *broker,
            bindings=(env.ALL_WORKERS,),
            until=lambda: self._running_due,
            interop=self._interop,
            keys=self._keys,
        )
        # TaskFlow's engines ask who is there on the request queue itself, which may never be full.
        made.take_from(tuple(self._queues.values()), 0 if self._interop else self._slots)
        return made

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
        try:
            self._work()
        except BaseException as error:
            self._proxy.consumer.give_up(error)
            raise

    def _work(self) -> None:
        self._open_ledger()
        self._pool.start()
        self._proxy.consumer.call_soon(self._introduce)
        ending = threading.Thread(target=self._end, name="wbengine-drain", daemon=True)
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
        """What opens the ledger; whether that makes sense is known before."""
        place = None if self._interop else ledgers.check_place(ledger)
        kept = ledgers.check_result_ttl(result_ttl)

        def open_ledger() -> None:
            target = self._proxy.target
            found = ledgers.choose(place, target, "worker", result_ttl=kept)
            ledgers.fuse(found, target, self.identity)
            self._runner.ledger = self._beats.ledger = found
            self._runner.separate_ledger = ledgers.is_separate(found, place, target)
            self._server.ledger = found.digest if found is not None else None

        return open_ledger

    def _serve(self) -> None:
        """Until the proxy ends: in this thread, unless that is where tasks run."""
        if not isinstance(self._pool, pools.SoloPool):
            self._proxy.start()
            return
        errors: list[BaseException] = []
        broker = threading.Thread(
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
        """Wait until the worker takes requests; False if time ran out.

        :raises TransportFailure, LedgerFailure: as `run` did.
        """
        return self._proxy.wait(timeout) and self._source.wait_ready(timeout)

    def suspend(self) -> None:
        """Take nothing new until `resume`; what did not begin is handed back.  Idempotent."""
        self._proxy.consumer.stop_taking()
        self._source.suspend()
        self._runner.report(self._server.suspend, self._beats.period)

    def resume(self) -> None:
        """Take what comes again.  Idempotent; not after `stop`."""
        if not self._draining.is_set():
            self._runner.report(self._server.resume, self._beats.period)
            self._proxy.consumer.take_again()
            self._source.resume()

    def stop(self) -> None:
        """Take nothing new, finish what runs, and end `run`.  Returns at once; idempotent."""
        if not self._draining.is_set():
            LOG.info("taking nothing new, finishing %d running tasks", self._running)
            self._draining.set()

    def halt(self) -> None:
        """As `stop`, but what runs is given up at once.  Idempotent; also after `stop`."""
        self._drain_timeout = 0.0
        self.stop()

    @property
    def _running(self) -> int:
        return self._server.running + self._source.running

    def _stop_taking(self) -> None:
        self._proxy.consumer.stop_taking()  # at once: what comes now is handed back
        self.stop()

    def abandon(self) -> None:
        """Give up what runs: say goodbye, so that engines need not wait for silence, and leave
        nothing behind; within 2 seconds, whatever became of the broker.

        Running threads cannot be ended; the caller ends the process.
        """
        LOG.warning("giving up %d tasks that still run: told to end again", self._running)
        self.gave_up.set()
        given_up = self._give_up()
        self._proxy.flush(1.0)
        self._pool.stop(wait=False, kill=True)
        # Their rows say who had them: nobody is to have them again, and whoever does not run them
        # elsewhere removes the queue that they would go back to.
        self._proxy.consumer.ack_many([job.receipt for job in given_up if job.ledger])
        self._close_source(0.5)
        self._proxy.stop(0.0)
        self._proxy.consumer.join(0.5)

    def _end(self) -> None:
        """Wait for `stop`, then for what runs, and then end the proxy (a thread of its own)."""
        self._draining.wait()
        if not self._done.is_set():
            stopped = threading.Event()
            self._proxy.consumer.stop_taking()
            # What was delivered by then has been handed out, and is waited for.
            self._proxy.consumer.call_soon(stopped.set)
            self._source.drain()
            self._runner.report(self._server.drain, time.time(), self._beats.period)
            stopped.wait(STOP_TIMEOUT)
            if not self._wait_idle() and not self._done.is_set():
                LOG.warning(
                    "giving up %d tasks that still run after %g s",
                    self._running, self._drain_timeout,
                )  # fmt: skip
                self._give_up()
                self.gave_up.set()
        self._die()
        self._proxy.stop()
        self.ended.set()

    def _wait_idle(self) -> bool:
        """Wait until nothing is under way; False: the `drain_timeout`, which may become less while
        it waits, is over, or the proxy has ended.
        """
        since = time.monotonic()
        while True:
            limit, now = self._drain_timeout, time.monotonic()
            until = math.inf if limit is None else since + limit
            look = min(until, now + _LOOK)
            if self._runner.wait_idle(max(0.0, look - now)) and self._source.wait_idle(
                max(0.0, look - time.monotonic())
            ):
                return True
            if self._done.is_set() or now >= until:
                return False

    def _give_up(self) -> list[Job]:
        """Engines are told first: what tasks make of it is not told any more."""
        with self._runner.lock:
            jobs = self._server.begun
        self._die()
        self._reports.tell()  # the process may end at any moment
        for job in jobs:
            self._runner.cancel(job)
        self._source.give_up()
        return jobs

    def _close_source(self, timeout: float = 5.0) -> None:
        try:
            self._source.close(timeout)
        except Exception:
            LOG.exception("%s cannot be closed", self._source)

    def _die(self) -> None:
        self._runner.report(self._server.die, time.time(), self._beats.period)

    def _introduce(self) -> None:
        introduce = self._server.heartbeat.introduce
        self._runner.report(introduce, env.ALL_ENGINES, self._beats.period)

    # What is shown of it; from any thread.

    @property
    def banner(self) -> str:
        """Who this is, where it listens, and what it does, for people."""
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
        """How many tasks ended (by state) and how many messages were not run (by reason)."""
        with self._runner.lock:
            return {**self._server.counts, **self._proxy.untrusted}

    @property
    def life(self) -> lives.Life:
        """What it tells of itself."""
        with self._runner.lock:
            return self._server.life

    @property
    def is_solo(self) -> bool:
        """Whether tasks run in the thread that called `run`."""
        return isinstance(self._pool, pools.SoloPool)

    @property
    def system(self) -> str:
        """What carries its messages, such as `rabbitmq`."""
        return self._proxy.target.system

    @property
    def heard(self) -> float:
        """When it last heard its broker, on the monotonic clock; never, while it is not connected.

        One that can be reached says something every 10 seconds or so, if only what the worker sends
        to itself.  Brokers in this process, and folders, are always heard.
        """
        return self._proxy.consumer.heard

    @property
    def trouble(self) -> str | None:
        """Why it takes no requests now; None: it does."""
        if self._draining.is_set():
            return "it ends"
        if self._server.suspended:
            return "it is suspended"
        silence = time.monotonic() - self.heard
        if math.isinf(silence):
            return "it is not connected to its broker"
        if silence > SILENCE:
            return f"its broker has been silent for {silence:.0f} s"
        if self._proxy.is_blocked:
            return "its broker takes no messages: it is short of memory or disk"
        return None if self._source.wait_ready(0) else "it is not connected to the broker of Celery"

    @property
    def snapshot(self) -> snapshots.WorkerSnapshot:
        """What engines know of it, and when it heard its broker last."""
        from wbengine.engines.worker_based.discovery import snapshots

        now = time.monotonic()
        with self._runner.lock:
            life, running = self._server.life, self._server.running + self._source.running
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
        """Whether it is able to do anything: False where its lock is kept for `within` s."""
        if not self._runner.lock.acquire(timeout=within):
            return False
        self._runner.lock.release()
        return True

    def observe_tasks(self, observer: reporting.TaskObserver) -> None:
        """Tell `observer` of the tasks that other sources bring, from now on."""
        self._reports.observers = (*self._reports.observers, observer)

    def preload(self, modules: Iterable[str]) -> None:
        """Have children, if tasks run there, import these too before their first one; to be called
        before `run`."""
        if isinstance(self._pool, pools.ProcessPool):
            self._pool.preload(modules)

    def tell_turns(self, turned: Callable[[float], object]) -> None:
        """Have `turned(heard)` called in each turn of the loop that takes what comes, at least once
        a second while it is connected, in its thread.
        """
        self._proxy.consumer.turned = turned

    # From time to time.

    def _on_wait(self) -> None:
        now = time.monotonic()
        self._running_due = self._runner.tell_running(now)
        if self._idle.most is None:
            return
        self._idle.since = max(self._idle.since, self._runner.taken, self._source.taken)
        busy = self._runner.busy or self._server.suspended or self._source.busy
        if self._idle.is_over(now, busy) and not self._draining.is_set():
            LOG.info("nothing to do for %.1f s", self._idle.idle(now))
            self.stop()

    def _beat(self, now: float) -> None:
        self._reports.tell()  # what no broker was told of
        if self._interop or not self._proxy.is_running:
            return
        with self._runner.lock:
            effects = self._server.heartbeat.beat(self._beats.period)
            holding = self._server.holding
        self._runner.apply(effects)
        if holding:
            self._beats.renew(now)

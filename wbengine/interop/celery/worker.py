"""Celery's own worker in the process of ours: its messages are tasks for our pool.

Receipt, retries, results, what follows from a task, revoking, rate limits, remote control and
events are Celery's; slots, limits, child processes and logs are those of our worker, which the
requests of its topics share.
"""

from __future__ import annotations

import datetime as dt
import inspect
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import celery
from celery import signals
from kombu import serialization
from kombu.utils.url import maybe_sanitize_url

from wbengine import _names, pools
from wbengine import exceptions as exc
from wbengine.engines.worker_based import endpoint as endpoints
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.worker_side import task_sources
from wbengine.interop.celery import claims, dispatcher, internals, jobs, request, results
from wbengine.transports import reasons
from wbengine.transports import registry as transports

__all__ = ["CeleryWorker", "app_of", "find_tasks", "retention", "visit"]

LOG = logging.getLogger("wbengine.celery")

#: Name the broker and the result backend of workers that are told none.
BROKER_VARIABLE: Final = "WBENGINE_CELERY_BROKER"
BACKEND_VARIABLE: Final = "WBENGINE_CELERY_RESULT_BACKEND"
CONFIG_VARIABLE: Final = "CELERY_CONFIG_MODULE"

#: Celery's own variables, which go before its settings.
_BROKERS: Final = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")
_BACKEND: Final = "CELERY_RESULT_BACKEND"

#: Transports that only ours know how to share with engines: Celery's clients are not there.
_OURS: Final = ("", "filesystem", "memory", "dir")

#: Seconds in which a broker that is there is reached.
_CONNECT: Final = 10.0

#: Seconds that a message may be out without being acknowledged, as brokers have it that are told
#: nothing else: a Redis gives it to others then, a RabbitMQ closes the channel.
_VISIBILITY: Final = 3600.0
_CONSUMER_TIMEOUT: Final = 1800.0

#: What Celery logs of each task is logged by our worker.
_LOUD: Final = {"celery.worker.strategy": logging.WARNING, "celery.app.trace": logging.CRITICAL}


class CeleryWorker(task_sources.TaskSource):
    """Hosts Celery's worker: takes the messages of `queues` for tasks of ours, known by their
    names.

    `node` is its name for monitors and remote control.  `owned` are the claims that keep a task
    from running twice; without them nothing does.  `telling`: events are published.
    """

    def __init__(
        self,
        app: celery.Celery,
        queues: Iterable[str],
        tasks: Mapping[str, endpoints.Endpoint],
        *,
        node: str,
        owned: claims.Claims | None = None,
        telling: bool = False,
    ) -> None:
        self.node = node
        self._app = app
        self._queues = list(dict.fromkeys(queues))
        self._tasks = tasks
        self._claims = owned
        self._telling = telling
        self._ready = threading.Event()
        self._closing = False
        #: Nothing is to begin: what comes goes back.
        self._suspended = False
        self._changed = threading.Condition()
        self._jobs: set[jobs.Job] = set()
        self._thread: threading.Thread | None = None
        self._threads: futures.ThreadPoolExecutor
        self._host: jobs.Host
        self._worker: Any

    def __str__(self) -> str:
        return f"Celery's worker at {self.shown}"

    @property
    def shown(self) -> str:
        """The URL of its broker, without passwords."""
        return str(self._app.connection_for_read().as_uri())

    # For its worker.

    def attach(self, context: task_sources.WorkerContext) -> None:
        if isinstance(context.pool, pools.ProcessPool):
            known = self._tasks.values()
            context.pool.preload({request.__name__, *endpoints.modules(known)})
        driver = str(self._app.connection_for_read().transport.driver_type)
        system = "rabbitmq" if driver == "amqp" else driver
        self._host = jobs.Host(context, self._claims, system)
        self._app.Task.Request = internals.HostedRequest  # of all tasks, Celery's own as well
        for name, endpoint in self._tasks.items():
            _register(self._app, name, endpoint, self._host)
        signals.before_task_publish.connect(_add_trace_headers)

    def start(self) -> None:
        """
        :raises TransportFailure: its broker cannot be reached.
        :raises LedgerFailure: nor the ledger.
        """
        try:
            with self._app.connection_for_read() as connection:
                connection.ensure_connection(max_retries=1, timeout=_CONNECT)
        except Exception as error:
            raise exc.TransportFailure(
                f"the broker of Celery at {self.shown} cannot be reached: {reasons.explain(error)}"
            ) from error
        if self._claims is not None:
            self._claims.open(self._host.context.identity)
        internals.prepare(self._app, self.node)
        slots = self._host.context.slots
        self._threads = futures.ThreadPoolExecutor(slots, "wbengine-celery", self._app.set_current)

        class Pool(internals.HostedPool):
            host = self

        self._worker = self._app.WorkController(
            app=self._app,
            hostname=self.node,
            pool=Pool,
            consumer_cls=internals.HostedConsumer,
            queues=self._queues,
            concurrency=slots,
            task_events=self._telling or None,
            ready_callback=self._on_ready,
        )
        self._thread = threading.Thread(target=self._work, name="wbengine-celery", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        self._app.set_current()
        self._worker.start()
        if self._closing:
            return
        if self._worker.exitcode:
            LOG.error("Celery's worker gave up (its error is above): this worker ends, and fails")
            self._host.context.fail()
        else:  # a monitor told it to end
            LOG.info("Celery's worker ended")
        self._host.context.stop()

    def _on_ready(self, consumer: object) -> None:
        self._ready.set()
        if self._suspended:  # since before
            self._consume(False)

    def wait_ready(self, timeout: float | None = None) -> bool:
        return self._ready.wait(timeout)

    @property
    def description(self) -> Sequence[tuple[str, str]]:
        return [
            ("celery", f"{', '.join(self._queues)} at {self.shown}"),
            ("results", self._app.backend.as_uri()),
            ("node", self.node),
        ]

    @property
    def busy(self) -> bool:
        return bool(self._jobs) or internals.is_busy() or not self._ready.is_set()

    @property
    def running(self) -> int:
        return len(self._running())

    @property
    def current(self) -> list[tuple[str, str, float]]:
        return [(job.id, job.name, job.started or 0.0) for job in self._running()]

    def _running(self) -> list[jobs.Job]:
        with self._changed:
            return [job for job in self._jobs if job.started is not None]

    def suspend(self) -> None:
        self._suspended = True
        self._consume(False)

    def resume(self) -> None:
        self._suspended = False
        self._consume(True)

    def drain(self) -> None:
        self.suspend()

    def _consume(self, wanted: bool) -> None:
        if self._ready.is_set():
            internals.change_queues(self._worker, self._queues, wanted)

    def give_up(self) -> None:
        self._suspended = True
        for job in self._running():
            job.give_up()

    def wait_idle(self, timeout: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs, timeout)

    def close(self, timeout: float = 5.0) -> None:
        until = time.monotonic() + timeout
        self._closing = self._suspended = True
        if self._thread is not None and self._thread.is_alive():
            if self._ready.is_set():
                internals.flush(self._worker, timeout / 2)
            internals.shut_down()
            self._thread.join(max(0.0, until - time.monotonic()))
        if self._claims is not None:
            self._claims.close()

    # For the pool of Celery's worker.

    def submit(self, delivery: internals.HostedRequest) -> jobs.Job:
        """Run a task; called in the thread of Celery's loop, with one of its slots.

        The job's `terminate` is called when it is revoked as it runs.
        """
        job = jobs.Job(delivery, self._host)
        self._take(job)
        return job

    def _take(self, job: jobs.Job) -> None:
        self.taken = time.monotonic()
        with self._changed:
            self._jobs.add(job)
        self._threads.submit(self._serve, job)

    def _serve(self, job: jobs.Job) -> None:
        again_in = None
        try:
            if self._suspended:
                job.hand_back()
            else:
                again_in = job.serve()
        except Exception:
            LOG.exception("task %s[%s] of Celery's cannot be settled", job.name, job.id)
        with self._changed:
            self._jobs.discard(job)
            self._changed.notify_all()
        job.delivery.loop.release_slot()
        if again_in is not None:
            job.delivery.loop.take_slot_later(again_in, self._take, job)

    def stop_jobs(self) -> None:
        """Wait for the tasks that run, unless they were given up."""
        self._suspended = True
        self._threads.shutdown(wait=not any(job.given_up for job in self._running()))


# Its tasks. ---------------------------------------------------------------------------------------


def find_tasks(
    items: Iterable[object] = (), mapped: Iterable[str] = ()
) -> dict[str, endpoints.Endpoint]:
    """The tasks that a worker runs for Celery's clients, by the names that those call them.

    `items` are task classes, `@task` functions, modules, or names of either.  Each is known by its
    full name (`proj.tasks.add`), which is what Celery calls a function by default, and by the name
    that it was given (`@task(name='add')`).  `mapped` are further names, each as
    `'name=module:task'`; these go before all others.

    :raises ValueError: one of `mapped` is not of that form, a name would stand for two tasks, or an
        item holds no tasks.
    :raises ImportError: a name cannot be imported.
    """
    found: dict[str, endpoints.Endpoint] = {}

    def add(name: str, endpoint: endpoints.Endpoint) -> None:
        before = found.setdefault(name, endpoint)
        if before != endpoint:
            raise ValueError(f"Celery task {name!r} would be both {before} and {endpoint}")

    for text in mapped:
        name, _, place = (part.strip() for part in text.partition("="))
        if not (name and place):
            raise ValueError(f"{text!r} is not of the form 'name=module:task'")
        tasks = endpoints.find_tasks([place])
        if len(tasks) != 1:
            raise ValueError(f"{place!r} is a module: name one task of it, as 'module:task'")
        add(name, endpoints.Endpoint(tasks[0]))
    explicit = frozenset(found)
    for cls in endpoints.find_tasks(items):
        endpoint = endpoints.Endpoint(cls)
        for name in {endpoint.name, _given_name(endpoint)} - explicit:
            add(name, endpoint)
    return found


def _given_name(endpoint: endpoints.Endpoint) -> str:
    """The name of a task that is given none when it is made."""
    try:
        return endpoint.generate().name
    except Exception:  # each of its calls fails with it
        return endpoint.name


def _register(app: celery.Celery, name: str, endpoint: endpoints.Endpoint, host: jobs.Host) -> None:
    """Make a task of Celery's that runs one of ours.

    What is idempotent is acknowledged when it has ended; with a ledger, all is: what may not run
    twice does not.  What lost its process is given back by its job, and not by Celery, which cannot
    tell that from a body that raises `WorkerLost` itself.
    """
    cls = endpoint.task_cls
    again = bool(cls.idempotent)
    soft, hard = cls.timelimit or (None, None)

    def body(*args: Any, **kwargs: Any) -> Any:
        return jobs.call(host, app.tasks[name], endpoint, args, kwargs)

    body.__name__ = cls.__name__
    body.__doc__ = cls.__doc__
    # Celery looks at the arguments of errbacks, and of tasks that are sent by their functions.
    setattr(body, "__signature__", _signature(cls))  # noqa: B010
    app.task(
        body,
        name=name,
        typing=False,
        idempotent=again,
        acks_late=again or host.owned is not None or app.conf.task_acks_late,
        reject_on_worker_lost=False,
        soft_time_limit=soft,
        time_limit=hard,
        max_retries=getattr(cls, "max_retries", 3),
        default_retry_delay=getattr(cls, "default_retry_delay", 180),
    )
    for limit in ("time_limit", "soft_time_limit"):  # perhaps of settings, or annotations
        value = getattr(app.tasks[name], limit)
        if not (value is None or (isinstance(value, int | float) and value >= 0)):
            raise ValueError(
                f"{limit} of Celery task {name!r} must be seconds, not {value!r}: see task_{limit},"
                " task_annotations"
            )


def _signature(cls: type[Any]) -> inspect.Signature:
    found = inspect.signature(cls.execute)
    parameters = [one for one in found.parameters.values() if one.name != "self"]
    return found.replace(parameters=parameters)


def _add_trace_headers(headers: dict[str, Any] | None = None, **_: Any) -> None:
    """What follows from a task belongs to its trace."""
    job = jobs.CURRENT.get()
    if job is not None and headers is not None:
        for name, value in job.trace_headers.items():
            headers.setdefault(name, value)


# What the options of the command say. -------------------------------------------------------------


def visit(options: SimpleNamespace) -> tuple[CeleryWorker | None, Any]:
    """The source of Celery's tasks, and the observer of the worker's requests, as asked for.

    :raises ValueError: an option makes no sense; it says which, and what would.
    :raises ImportError: a task cannot be imported.
    """
    if not all(options.celery_queue):
        raise ValueError("the name of a Celery queue must not be empty")
    app, node = app_of(options), node_name(options.celery_name)
    for name, level in _LOUD.items():
        if (log := logging.getLogger(name)).level == logging.NOTSET:
            log.setLevel(level)
    told = None
    if options.events:
        told = dispatcher.Dispatcher(app, node, alive=not options.celery_queue)
    if not options.celery_queue:
        return None, told
    made = CeleryWorker(
        app,
        options.celery_queue,
        find_tasks(options.tasks, options.celery_task),
        node=node,
        owned=_claims_of(app, options),
        telling=told is not None,
    )
    return made, told


def app_of(options: SimpleNamespace) -> celery.Celery:
    """Celery's app, as its configuration and our options have it.

    :raises ValueError: an option makes no sense, or the broker is not said.
    :raises ImportError: there is no such module.
    """
    app = celery.Celery("wbengine")
    module = options.celery_config or os.environ.get(CONFIG_VARIABLE)
    if module:
        try:
            app.config_from_object(module, force=True)
        except Exception as error:  # it is anybody's code
            raise ValueError(f"--celery-config {module!r} cannot be read: {_why(error)}") from error
    conf = app.conf
    named = options.celery_broker or os.environ.get(BROKER_VARIABLE)
    if named or not conf.broker_read_url:
        url = named or _url(options)
        conf.broker_url, conf.broker_read_url, conf.broker_write_url = url, None, None
        _override(_BROKERS, url)
    backend = options.celery_result_backend or os.environ.get(BACKEND_VARIABLE)
    if backend or not conf.result_backend:
        stored = None if backend == "none" else backend or "rpc://"
        conf.result_backend = stored
        _override([_BACKEND], stored or "")
    if options.celery_accept:
        accepted = options.celery_accept.replace(",", " ").split()
        if not accepted:
            raise ValueError("--celery-accept names nothing: use json, yaml, msgpack or pickle")
        conf.accept_content, conf.result_serializer = accepted, accepted[0]
    _check(app)
    if "pickle" in conf.accept_content:
        LOG.warning("whoever may send to the broker can run any code here: pickles are accepted")
    if conf.broker_connection_retry_on_startup is None:
        conf.broker_connection_retry_on_startup = True
    return app


def node_name(name: str | None = None) -> str:
    """The name of a worker for monitors: `name@host`.

    :raises ValueError: it cannot be one.
    """
    name = name or f"wbengine-{os.getpid()}"
    if not name.isprintable() or " " in name or name.count("@") > 1:
        raise ValueError(f"--celery-name {name!r} is no name of a node: it is like name@host")
    return name if "@" in name else f"{name}@{socket.gethostname()}"


def _override(variables: Iterable[str], value: str) -> None:
    """Have variables of Celery's that are set say what was chosen, as its own command does."""
    for name in variables:
        if name in os.environ:
            os.environ[name] = value


def _url(options: SimpleNamespace) -> str:
    """The URL of our own broker, if it can be Celery's."""
    url = options.url or os.environ.get(transports.URL_VARIABLE)
    if (url or "").partition("://")[0] in _OURS:
        raise ValueError(
            "where is the broker of Celery? name it: --celery-broker redis://… or amqp://…"
        )
    return str(url)


def _claims_of(app: celery.Celery, options: SimpleNamespace) -> claims.Claims | None:
    """Claims in the ledger that is named, else in the Redis of the broker."""
    place = options.ledger or os.environ.get(ledgers.LEDGER_VARIABLE)
    read = app.conf.broker_read_url
    first = (read if isinstance(read, str) else read[0]).partition(";")[0]
    url = urlsplit(results.redis_url(first))
    shared = place is not None
    if not shared and url.scheme in ("redis", "rediss"):
        told = {name: value for name, value in parse_qsl(url.query) if name.startswith("ssl_")}
        query = urlencode({"prefix": "wbengine-celery", **told})
        place = url._replace(query=query).geturl()
    if place is None or place == ledgers.NONE:
        LOG.warning(
            "without a ledger (--ledger) a task may run twice whose message %s delivers twice",
            app.connection_for_read().as_uri(),
        )
        return None
    ledgers.check_place(place)
    ttl: float | None = retention(app)
    if shared:
        ttl = None if options.result_ttl is None else max(options.result_ttl, ttl)
    return claims.Claims(place, ttl, shared=shared, serializer=app.conf.result_serializer)


def retention(app: celery.Celery) -> float:
    """Seconds after which no copy of a message can come any more that has ended."""
    visibility, consumer = _timeouts(app)
    return max(_expires(app), 2 * visibility, consumer)


def _timeouts(app: celery.Celery) -> tuple[float, float]:
    told = dict(app.conf.broker_transport_options)
    known = ("visibility_timeout", _VISIBILITY), ("consumer_timeout", _CONSUMER_TIMEOUT)
    visibility, consumer = (float(told.get(name, usual)) for name, usual in known)
    return visibility, consumer


def _expires(app: celery.Celery) -> float:
    told = app.conf.result_expires
    return told.total_seconds() if isinstance(told, dt.timedelta) else float(told or 0)


def _check(app: celery.Celery) -> None:
    """Read the settings that Celery reads late, and ends with a traceback where they are wrong.

    :raises ValueError: it cannot read one, or an option that stands for it.
    """
    conf, formats = app.conf, "--celery-accept: json, yaml, msgpack or pickle"
    readers: dict[str, tuple[Callable[[], object], str]] = {
        "accept_content": (lambda: _check_formats(conf.accept_content), formats),
        "result_serializer": (lambda: _check_formats([conf.result_serializer]), formats),
        "broker_transport_options": (
            lambda: _timeouts(app), "a mapping; a visibility_timeout is in seconds",
        ),
        "result_expires": (lambda: _expires(app), "seconds, a timedelta, or None"),
        "broker_read_url": (
            lambda: app.connection_for_read().transport, "--celery-broker redis://… or amqp://…",
        ),
        "result_backend": (
            lambda: app.backend, "--celery-result-backend redis://…, rpc://, or others of Celery's",
        ),
    }  # fmt: skip
    for name, (read, right) in readers.items():
        try:
            read()
        except Exception as error:  # whatever Celery, or a library of the backend's, raises
            value = getattr(conf, name)
            shown = maybe_sanitize_url(value) if isinstance(value, str) else value
            text = f"{name} {shown!r} cannot be used ({_why(error)}); right is {right}"
            raise ValueError(text) from error


def _check_formats(names: Iterable[str]) -> None:
    """
    :raises ValueError: kombu reads no such serializer, or content type.
    """
    known = {*serialization.registry.name_to_type, *serialization.registry.type_to_name}
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r} is no serializer{_names.hint(name, known)}")


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"

"""Celery's worker inside a worker of wbengine: its messages run as tasks in the pool of wbengine.

Celery receives messages and handles retries, results, follow-up tasks, revocations, rate limits,
remote control and events. The worker of wbengine provides the slots, limits, child processes and
logs. Its requests use the same slots.
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

from wbengine import exceptions as exc
from wbengine import pools
from wbengine._concurrency import conditions, threads
from wbengine._configuration import default_broker
from wbengine._introspection import object_names
from wbengine.engines.worker_based import endpoint as endpoints
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based._worker_side import task_sources
from wbengine.interop.celery import (
    _execution,
    _internals,
    _monitor_events,
    _request,
    _results,
    _run_claims,
)
from wbengine.transports import _reasons

__all__ = ["CeleryWorker", "app_of", "find_tasks", "retention", "visit"]

LOG = logging.getLogger("wbengine.celery")

#: Environment variables for the default broker and result backend.
BROKER_VARIABLE: Final = "WBENGINE_CELERY_BROKER"
BACKEND_VARIABLE: Final = "WBENGINE_CELERY_RESULT_BACKEND"
CONFIG_VARIABLE: Final = "CELERY_CONFIG_MODULE"

#: Celery's own environment variables, which override its settings.
_CELERY_BROKER_VARIABLES: Final = (
    "CELERY_BROKER_URL",
    "CELERY_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL",
)
_CELERY_BACKEND_VARIABLE: Final = "CELERY_RESULT_BACKEND"

#: Transports that Celery's clients cannot use.
_UNSUPPORTED_TRANSPORTS: Final = ("", "filesystem", "memory", "dir")

_CONNECT_SECONDS: Final = 10.0
#: Pause before Celery's worker is started again.
_RESTART_SECONDS: Final = 1.0

#: Default times after which a broker redelivers an unacknowledged message: Redis delivers it to
#: another consumer, RabbitMQ closes the channel.
_VISIBILITY_SECONDS: Final = 3600.0
_CONSUMER_SECONDS: Final = 1800.0

#: Log levels that silence Celery's log lines about each task; the worker of wbengine logs tasks.
_LOG_LEVELS: Final = {
    "celery.worker.strategy": logging.WARNING,
    "celery.app.trace": logging.CRITICAL,
}


class CeleryWorker(task_sources.TaskSource):
    """Hosts Celery's worker, which consumes `queues` and runs tasks of wbengine by name.

    :param node: the name of the worker for monitors and remote control.
    :param owned: the claims that prevent a task from running twice; None: no prevention.
    """

    def __init__(
        self,
        app: celery.Celery,
        queues: Iterable[str],
        tasks: Mapping[str, endpoints.Endpoint],
        *,
        node: str,
        owned: _run_claims.Claims | None = None,
        sends_events: bool = False,
    ) -> None:
        self.node = node
        self._app = app
        self._queues = list(dict.fromkeys(queues))
        self._tasks = tasks
        self._claims = owned
        self._sends_events = sends_events
        self._ready = conditions.Event()
        self._closing = conditions.Event()
        #: Whether new runs are rejected. Received messages are then requeued.
        self._suspended = False
        #: Whether received messages are requeued because Celery's worker has ended. It may restart.
        self._stopped = False
        self._lock = threading.RLock()
        self._changed = conditions.Condition(self._lock)
        self._jobs: set[_execution.Job] = set()
        self._thread: threading.Thread | None = None
        self._threads: futures.ThreadPoolExecutor
        self._host: _execution.Host
        self._worker: Any

    def __str__(self) -> str:
        return f"the Celery worker at {self.shown}"

    @property
    def shown(self) -> str:
        """The URL of the broker, without passwords."""
        return str(self._app.connection_for_read().as_uri())

    def attach(self, context: task_sources.WorkerContext) -> None:
        if isinstance(context.pool, pools.ProcessPool):
            endpoints_by_name = self._tasks.values()
            context.pool.preload({_request.__name__, *endpoints.modules(endpoints_by_name)})
        driver = str(self._app.connection_for_read().transport.driver_type)
        system = "rabbitmq" if driver == "amqp" else driver
        self._host = _execution.Host(context, self._claims, system)
        self._app.Task.Request = _internals.HostedRequest  # for all tasks, including Celery's own
        for name, endpoint in self._tasks.items():
            _register(self._app, name, endpoint, self._host)
        signals.before_task_publish.connect(_add_trace_headers)

    def start(self) -> None:
        """Start Celery's worker.

        :raises TransportFailure: if the broker cannot be reached.
        :raises LedgerFailure: if the ledger cannot be used.
        """
        try:
            with self._app.connection_for_read() as connection:
                connection.ensure_connection(max_retries=1, timeout=_CONNECT_SECONDS)
        except Exception as error:
            raise exc.TransportFailure(
                f"the broker of Celery at {self.shown} cannot be reached: {_reasons.explain(error)}"
            ) from error
        if self._claims is not None:
            self._claims.open(self._host.context.identity)
        _internals.prepare(self._app, self.node)
        self._worker = self._make_worker()
        self._thread = threads.Thread(target=self._work, name="wbengine-celery", daemon=True)
        self._thread.start()

    def _make_worker(self) -> Any:
        """Return a worker of Celery that has not started, with a pool of its own."""
        slots = self._host.context.slots
        self._threads = futures.ThreadPoolExecutor(slots, "wbengine-celery", self._app.set_current)
        self._stopped = False

        class Pool(_internals.HostedPool):
            host = self

        return self._app.WorkController(
            app=self._app,
            hostname=self.node,
            pool=Pool,
            consumer_cls=_internals.HostedConsumer,
            queues=self._queues,
            concurrency=slots,
            task_events=self._sends_events or None,
            ready_callback=self._on_ready,
        )

    def _work(self) -> None:
        """Run Celery's worker, which also fails on some errors of a lost connection.

        It starts again, unless it never received messages, or the settings forbid it to reconnect.
        """
        self._app.set_current()
        self._worker.start()
        may_restart = self._ready.is_set() and self._app.conf.broker_connection_retry
        while self._worker.exitcode and may_restart and not self._closing.is_set():
            LOG.warning("the Celery worker failed (its error is above): it starts again")
            self._ready.clear()
            _internals.forget_requests()
            self._closing.wait(_RESTART_SECONDS)
            self._worker = self._make_worker()
            self._worker.start()
        if self._closing.is_set():
            return
        if self._worker.exitcode:
            LOG.error(
                "the Celery worker failed (its error is above): this worker stops with an error"
            )
            self._host.context.fail()
        else:  # A monitor requested the shutdown.
            LOG.info("the Celery worker stopped")
        self._host.context.stop()

    def _on_ready(self, consumer: object) -> None:
        self._ready.set()
        if self._suspended:  # suspended before the worker was ready
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
        return bool(self._jobs) or _internals.is_busy() or not self._ready.is_set()

    @property
    def running(self) -> int:
        return len(self._running())

    @property
    def current(self) -> list[tuple[str, str, float]]:
        return [(job.id, job.name, job.started or 0.0) for job in self._running()]

    def _running(self) -> list[_execution.Job]:
        with self._lock:
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
            _internals.change_queues(self._worker, self._queues, wanted)

    def give_up(self) -> None:
        self._suspended = True
        for job in self._running():
            job.give_up()

    def wait_idle(self, timeout: float | None = None) -> bool:
        return self._changed.wait_for(lambda: not self._jobs, timeout)

    def close(self, timeout: float = 5.0) -> None:
        until = time.monotonic() + timeout
        self._suspended = True
        self._closing.set()
        if self._thread is not None and self._thread.is_alive():
            if self._ready.is_set():
                _internals.flush(self._worker, timeout / 2)
            _internals.shut_down()
            self._thread.join(max(0.0, until - time.monotonic()))
        if self._claims is not None:
            self._claims.close()

    def submit(self, delivery: _internals.HostedRequest) -> _execution.Job:
        """Run a task. Call this in the thread of Celery's loop, after acquiring a slot.

        If the running task is revoked, Celery calls the job's `terminate`.
        """
        job = _execution.Job(delivery, self._host)
        self._take(job)
        return job

    def _take(self, job: _execution.Job) -> None:
        self.last_task_at = time.monotonic()
        with self._lock:
            self._jobs.add(job)
        self._threads.submit(self._serve, job)

    def _serve(self, job: _execution.Job) -> None:
        retry_after = None
        try:
            if self._suspended or self._stopped:
                job.requeue()
            else:
                retry_after = job.serve()
        except Exception:
            LOG.exception("the end of Celery task %s[%s] cannot be processed", job.name, job.id)
        with self._lock:
            self._jobs.discard(job)
            self._changed.notify_all()
        job.delivery.loop.release_slot()
        if retry_after is not None:
            job.delivery.loop.take_slot_later(retry_after, self._take, job)

    def stop_jobs(self) -> None:
        """Wait for the running tasks, unless they were given up or cannot be acknowledged."""
        self._stopped = True
        abandoned = self._worker.exitcode or any(job.given_up for job in self._running())
        self._threads.shutdown(wait=not abandoned)


def find_tasks(
    items: Iterable[object] = (), mapped: Iterable[str] = ()
) -> dict[str, endpoints.Endpoint]:
    """Return the tasks that a worker runs for Celery's clients, by name.

    :param items: task classes, `@task` functions, modules, or names of either. Each task gets its
        full name (`proj.tasks.add`), which is Celery's default for functions, and its explicit name
        (`@task(name='add')`).
    :param mapped: additional names in the form `'name=module:task'`; they take precedence.
    :raises ValueError: if an entry of `mapped` has another form, a name refers to two tasks, or an
        item contains no tasks.
    :raises ImportError: if a name cannot be imported.
    """
    tasks_by_name: dict[str, endpoints.Endpoint] = {}

    def add(name: str, endpoint: endpoints.Endpoint) -> None:
        known_endpoint = tasks_by_name.setdefault(name, endpoint)
        if known_endpoint != endpoint:
            raise ValueError(
                f"Celery task {name!r} has two classes, {known_endpoint} and {endpoint}"
            )

    for text in mapped:
        name, _, place = (part.strip() for part in text.partition("="))
        if not (name and place):
            raise ValueError(f"A Celery task must be 'name=module:task', got {text!r}")
        tasks = endpoints.find_tasks([place])
        if len(tasks) != 1:
            raise ValueError(f"{place!r} must be a single task, as in 'module:task'")
        add(name, endpoints.Endpoint(tasks[0]))
    explicit = frozenset(tasks_by_name)
    for cls in endpoints.find_tasks(items):
        endpoint = endpoints.Endpoint(cls)
        for name in {endpoint.name, _given_name(endpoint)} - explicit:
            add(name, endpoint)
    return tasks_by_name


def _given_name(endpoint: endpoints.Endpoint) -> str:
    try:
        return endpoint.generate().name
    except Exception:  # each run fails with the same exception
        return endpoint.name


def _register(
    app: celery.Celery, name: str, endpoint: endpoints.Endpoint, host: _execution.Host
) -> None:
    """Register a Celery task that runs a wbengine task.

    Messages of idempotent tasks, and with a ledger messages of all tasks, are acknowledged at the
    end of the run. If a process is lost, the job requeues the message itself, because Celery cannot
    distinguish this from a task that raises `WorkerLost`.
    """
    cls = endpoint.task_cls
    is_idempotent = bool(cls.idempotent)
    soft, hard = cls.timelimit or (None, None)

    def body(*args: Any, **kwargs: Any) -> Any:
        return _execution.call(host, app.tasks[name], endpoint, args, kwargs)

    body.__name__ = cls.__name__
    body.__doc__ = cls.__doc__
    # Celery inspects the signature of errbacks, and of tasks that are sent through their functions.
    setattr(body, "__signature__", _signature(cls))  # noqa: B010
    app.task(
        body,
        name=name,
        typing=False,
        idempotent=is_idempotent,
        acks_late=is_idempotent or host.owned is not None or app.conf.task_acks_late,
        reject_on_worker_lost=False,
        soft_time_limit=soft,
        time_limit=hard,
        max_retries=getattr(cls, "max_retries", 3),
        default_retry_delay=getattr(cls, "default_retry_delay", 180),
    )
    for limit in ("time_limit", "soft_time_limit"):  # possibly from settings or annotations
        value = getattr(app.tasks[name], limit)
        if not (value is None or (isinstance(value, int | float) and value >= 0)):
            raise ValueError(
                f"{limit} of Celery task {name!r} must be 0 or more seconds, got"
                f" {value!r}: see task_{limit}, task_annotations"
            )


def _signature(cls: type[Any]) -> inspect.Signature:
    signature = inspect.signature(cls.execute)
    parameters = [
        parameter for parameter in signature.parameters.values() if parameter.name != "self"
    ]
    return signature.replace(parameters=parameters)


def _add_trace_headers(headers: dict[str, Any] | None = None, **_: Any) -> None:
    job = _execution.CURRENT.get()
    if job is not None and headers is not None:
        for name, value in job.trace_headers.items():
            headers.setdefault(name, value)


def visit(options: SimpleNamespace) -> tuple[CeleryWorker | None, Any]:
    """Return the source of Celery tasks and the observer of requests, each None unless requested.

    :raises ValueError: if an option is invalid; the message names it and the valid values.
    :raises ImportError: if a task cannot be imported.
    """
    if not all(options.celery_queue):
        raise ValueError("the name of a Celery queue must not be empty")
    app, node = app_of(options), node_name(options.celery_name)
    for name, level in _LOG_LEVELS.items():
        if (log := logging.getLogger(name)).level == logging.NOTSET:
            log.setLevel(level)
    observer = None
    if options.events:
        observer = _monitor_events.Dispatcher(app, node, alive=not options.celery_queue)
    if not options.celery_queue:
        return None, observer
    worker = CeleryWorker(
        app,
        options.celery_queue,
        find_tasks(options.tasks, options.celery_task),
        node=node,
        owned=_claims_of(app, options),
        sends_events=observer is not None,
    )
    return worker, observer


def app_of(options: SimpleNamespace) -> celery.Celery:
    """Return an app of Celery, configured by Celery's settings and `options`.

    :raises ValueError: if an option is invalid, or no broker is configured.
    :raises ImportError: if a module does not exist.
    """
    app = celery.Celery("wbengine")
    module = options.celery_config or os.environ.get(CONFIG_VARIABLE)
    if module:
        try:
            app.config_from_object(module, force=True)
        except Exception as error:  # the module may contain any code
            raise ValueError(
                f"--celery-config {module!r} cannot be read: {_describe(error)}"
            ) from error
    conf = app.conf
    named = options.celery_broker or os.environ.get(BROKER_VARIABLE)
    if named or not conf.broker_read_url:
        url = named or _url(options)
        conf.broker_url, conf.broker_read_url, conf.broker_write_url = url, None, None
        _override(_CELERY_BROKER_VARIABLES, url)
    backend = options.celery_result_backend or os.environ.get(BACKEND_VARIABLE)
    if backend or not conf.result_backend:
        stored = None if backend == "none" else backend or "rpc://"
        conf.result_backend = stored
        _override([_CELERY_BACKEND_VARIABLE], stored or "")
    if options.celery_accept:
        accepted = options.celery_accept.replace(",", " ").split()
        if not accepted:
            raise ValueError("--celery-accept must contain json, yaml, msgpack or pickle")
        conf.accept_content, conf.result_serializer = accepted, accepted[0]
    _check(app)
    if "pickle" in conf.accept_content:
        LOG.warning("any client that can write to the broker can run code here: pickle is accepted")
    if conf.broker_connection_retry_on_startup is None:
        conf.broker_connection_retry_on_startup = True
    return app


def node_name(name: str | None = None) -> str:
    """Return the name of a worker for monitors: `name@host`.

    :raises ValueError: if the name is invalid.
    """
    name = name or f"wbengine-{os.getpid()}"
    if not name.isprintable() or " " in name or name.count("@") > 1:
        raise ValueError(f"--celery-name must be like name@host, got {name!r}")
    return name if "@" in name else f"{name}@{socket.gethostname()}"


def _override(variables: Iterable[str], value: str) -> None:
    for name in variables:
        if name in os.environ:
            os.environ[name] = value


def _url(options: SimpleNamespace) -> str:
    url = options.url or os.environ.get(default_broker.URL_VARIABLE)
    if (url or "").partition("://")[0] in _UNSUPPORTED_TRANSPORTS:
        raise ValueError(
            "The broker of Celery is missing: add --celery-broker redis://… or amqp://…"
        )
    return str(url)


def _claims_of(app: celery.Celery, options: SimpleNamespace) -> _run_claims.Claims | None:
    place = options.ledger or os.environ.get(ledgers.LEDGER_VARIABLE)
    read = app.conf.broker_read_url
    first = (read if isinstance(read, str) else read[0]).partition(";")[0]
    secure = app.conf.broker_use_ssl
    url = urlsplit(_results.with_tls(_results.redis_url(first), "broker_use_ssl", secure))
    shared = place is not None
    if not shared and url.scheme in ("redis", "rediss"):
        ssl_options = {
            name: value for name, value in parse_qsl(url.query) if name.startswith("ssl_")
        }
        query = urlencode({"prefix": "wbengine-celery", **ssl_options})
        place = url._replace(query=query).geturl()
    if place is None or place == ledgers.NONE:
        LOG.warning(
            "without a ledger (--ledger) a task may run twice if %s delivers its message twice",
            app.connection_for_read().as_uri(),
        )
        return None
    ledgers.check_place(place)
    ttl: float | None = retention(app)
    if shared:
        ttl = None if options.result_ttl is None else max(options.result_ttl, ttl)
    conf = app.conf
    return _run_claims.Claims(
        place, ttl, shared=shared, serializer=conf.result_serializer, accept=conf.accept_content
    )


def retention(app: celery.Celery) -> float:
    """Return the time after which no copy of the message of an ended run can arrive."""
    visibility, consumer = _timeouts(app)
    return max(_expires(app), 2 * visibility, consumer)


def _timeouts(app: celery.Celery) -> tuple[float, float]:
    options = dict(app.conf.broker_transport_options)
    settings = ("visibility_timeout", _VISIBILITY_SECONDS), ("consumer_timeout", _CONSUMER_SECONDS)
    visibility, consumer = (float(options.get(name, default)) for name, default in settings)
    return visibility, consumer


def _expires(app: celery.Celery) -> float:
    expires = app.conf.result_expires
    return expires.total_seconds() if isinstance(expires, dt.timedelta) else float(expires or 0)


def _check(app: celery.Celery) -> None:
    """Check settings that Celery reads late and whose errors would end the process.

    :raises ValueError: if a setting, or the option for it, is invalid.
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
            lambda: app.backend, "--celery-result-backend redis://…, rpc://, or others of Celery",
        ),
    }  # fmt: skip
    for name, (read, valid_values) in readers.items():
        try:
            read()
        except Exception as error:  # Celery or a library of the backend may raise any exception
            value = getattr(conf, name)
            shown = maybe_sanitize_url(value) if isinstance(value, str) else value
            text = f"{name} {shown!r} cannot be used ({_describe(error)}); use {valid_values}"
            raise ValueError(text) from error


def _check_formats(names: Iterable[str]) -> None:
    known_names = {*serialization.registry.name_to_type, *serialization.registry.type_to_name}
    for name in names:
        if name not in known_names:
            raise ValueError(f"unknown serializer {name!r}{object_names.hint(name, known_names)}")


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"

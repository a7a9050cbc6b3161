"""`wbengine worker`, and `python -m wbengine.worker`: run a worker until it is told to stop."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import click
from click.core import ParameterSource

from wbengine import __version__
from wbengine import exceptions as exc
from wbengine.cli import base, errors, exposed, fleets, params, signals
from wbengine.cli import context as contexts

__all__ = ["command"]

#: Running tasks were given up, or what the worker hosts cannot go on.
_FAILED: Final = errors.UNHEALTHY

#: Seconds in which the main thread comes back when a worker has ended, if it ever does.
_LAST_WAIT: Final = 2.0

#: They ask for spans and measurements.
_OTEL: Final = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER")

#: The fewest bytes that a child process may be limited to: it needs some to live at all.
_LEAST_MEMORY: Final = 16 * 1024 * 1024
_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


class _Memory(params.Kind):
    """Bytes, or a number with one of the units k m g."""

    name = "SIZE"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        text = str(value).strip().lower()
        found = re.fullmatch(r"([0-9]{1,12})\s*([kmg]?)(?:i?b)?", text, re.ASCII)
        size = int(found[1]) * _UNITS[found[2]] if found is not None else 0
        if size < _LEAST_MEMORY:
            self.fail(
                f"{value!r} is not an amount of memory of at least 16M (such as 200M, 2G, or"
                " bytes)",
                param,
                ctx,
            )
        return size


class _Retention(params.Kind):
    """A duration, or 'never'."""

    name = "DURATION|never"

    def convert(self, value: Any, param: Any, ctx: Any) -> float | None:
        if value == "never":
            return None
        if (seconds := params.duration(str(value))) is None:
            self.fail(f"{value!r} is no duration such as 30, 1.5h or 30d, nor 'never'", param, ctx)
        return seconds


class _Worker(base.Command):
    """It has the log of a worker."""

    log_level = "info"


_SLOTS: Final = ("threads", "processes", "concurrency")
_OF_CELERY: Final = (
    "celery_task", "celery_config", "celery_broker", "celery_result_backend", "celery_accept",
    "celery_name",
)  # fmt: skip

_OPTIONS: Final[tuple[tuple[tuple[str, ...], dict[str, Any]], ...]] = (
    (("--topic",), {"multiple": True, "metavar": "T",
        "help": "Serve this topic (repeatable: the first is served first)."}),
    (("--tasks",), {"multiple": True, "metavar": "MODULE[:NAME]",
        "help": "Offer the tasks of this module, or one of them (repeatable; the current folder is"
        " importable)."}),
    (("--result-ttl",), {"type": _Retention(), "default": 7 * 24 * 3600.0, "metavar": "DURATION",
        "help": "Remove results from the ledger that nobody came back for in this time, or 'never'"
        " (7 days)."}),
    (("-n", "--name"), {"metavar": "NAME",
        "help": "What its name begins with (the name of the host)."}),
    (("--interop",), {"type": click.Choice(("taskflow",)),
        "help": "Speak with engines of another kind."}),
    (("-P", "--pool"), {"type": click.Choice(("threads", "processes", "solo")),
        "help": "Run tasks in threads (default), in processes that can be killed, or one at a time"
        " in the main thread."}),
    (("--threads",), {"type": click.IntRange(1, 1000), "metavar": "N",
        "help": "Short for --pool threads --concurrency N."}),
    (("--processes",), {"type": click.IntRange(1, 1000), "metavar": "N",
        "help": "Short for --pool processes --concurrency N."}),
    (("-c", "--concurrency"), {"type": click.IntRange(1, 1000), "metavar": "N",
        "help": "Run N tasks at once (threads: 4 for each core, at most 32; processes: one for each"
        " core)."}),
    (("--max-tasks-per-child",), {"type": click.IntRange(1), "metavar": "N",
        "help": "Replace each process of the pool after N tasks."}),
    (("--max-memory-per-child",), {"type": _Memory(), "metavar": "SIZE",
        "help": "Kill each process of the pool that uses more memory, such as 500M."}),
    (("--exception-handler",), {"multiple": True, "metavar": "MODULE:FUNC",
        "help": "Call it with each failure of a task (repeatable: in this order, until one returns"
        " False)."}),
    (("--burst",), {"is_flag": True,
        "help": "End once there is nothing left to do for 2 seconds."}),
    (("--max-idle-time",), {"type": params.WAIT, "metavar": "DURATION",
        "help": "End once there is nothing left to do for this time."}),
    (("--max-tasks",), {"type": click.IntRange(1), "metavar": "N", "help": "End after N tasks."}),
    (("--drain-timeout",), {"type": params.DURATION, "metavar": "DURATION",
        "help": "Told to end, give up what still runs after this time (never)."}),
    (("--strict",), exposed.strict("Do not start with")),
    (("--metrics-addr",), {"type": params.ADDRESS, "metavar": "HOST:PORT",
        "help": "Serve /metrics for Prometheus there (port 0: any that is free)."}),
    (("--health-addr",), {"type": params.ADDRESS, "metavar": "HOST:PORT",
        "help": "Serve /livez and /readyz there; may be the same."}),
    (("--heartbeat-file",), {"type": click.Path(path_type=Path), "metavar": "PATH",
        "help": "Touch this file whenever the broker was heard: every 10 seconds or so."}),
    (("--traces",), {"is_flag": True,
        "help": "Trace what it runs by OpenTelemetry, configured by $OTEL_... (also done where"
        " $OTEL_TRACES_EXPORTER or $OTEL_METRICS_EXPORTER name an exporter)."}),
    (("--celery-queue",), {"multiple": True, "metavar": "Q",
        "help": "Take Celery's task messages from this queue (repeatable)."}),
    (("--celery-task",), {"multiple": True, "metavar": "NAME=MODULE:TASK",
        "help": "Run this task under that name of Celery's (repeatable; those of --tasks are known"
        " by their own)."}),
    (("--celery-config",), {"metavar": "MODULE",
        "help": "Celery's settings ($CELERY_CONFIG_MODULE)."}),
    (("--celery-broker",), {"metavar": "URL",
        "help": "Celery's broker (default: $WBENGINE_CELERY_BROKER, else that of the settings, else"
        " that of --url)."}),
    (("--celery-result-backend",), {"metavar": "URL",
        "help": "Where results go: rpc://, the URL of a Redis, or any of Celery's (default:"
        " $WBENGINE_CELERY_RESULT_BACKEND, else that of the settings, else rpc://)."}),
    (("--celery-accept",), {"metavar": "LIST",
        "help": "What messages may be in, of json, yaml, msgpack, pickle; results are in the first"
        " of them (json)."}),
    (("--celery-name",), {"metavar": "NODE",
        "help": "Name of this worker for monitors (wbengine-PID@HOST)."}),
    (("--events",), {"type": click.Choice(("celery",)),
        "help": "Publish events for Celery's monitors."}),
)  # fmt: skip


@base.pass_context
def _run(context: contexts.Context, /, topics: tuple[str, ...], **given: Any) -> int:
    settings = context.settings
    options = SimpleNamespace(**{**vars(settings), **given})
    options.topic = (*options.topic, *topics)
    options.tasks = options.tasks or settings.include
    _check(options)
    if options.strict:
        exposed.refuse(context)
    if options.topic:  # the worker itself would wait longer
        fleets.check(settings, vars(settings))
    try:
        worker, watch, observer = _make(options)
    except exc.TransportFailure:
        raise
    except (ValueError, ImportError, exc.WbengineException) as error:
        raise errors.Failed(errors.line_of(error), errors.USAGE) from error
    except (Exception, SystemExit) as error:  # as of a script that was written to be run
        words = "they end the process " if isinstance(error, SystemExit) else ""
        line = f"the tasks cannot be imported: {words}({type(error).__name__}: {error})"
        raise errors.Failed(line, errors.USAGE) from error
    try:
        if watch is not None:
            watch.begin(worker)
    except OSError as error:
        raise errors.Failed(errors.line_of(error), errors.USAGE) from error
    stop = signals.StopSignals(worker.stop, functools.partial(_give_up, worker))
    back = threading.Event()
    with stop.installed():
        threading.Thread(target=_leave, args=(worker, back), daemon=True).start()
        if observer is not None:
            observer.start()
        try:
            worker.run(display_banner=not settings.quiet, banner_writer=_write)
        finally:
            back.set()
            if observer is not None:
                observer.stop()
            if watch is not None:
                watch.end()
    if worker.gave_up.is_set():
        signals.leave()
    return _FAILED if worker.failed.is_set() else errors.OK


def _check(options: SimpleNamespace) -> None:
    """What is needed depends on what else is given.

    :raises UsageError: something is missing, or is said twice.
    """
    missing = []
    if not (options.topic or options.celery_queue):
        missing.append("--topic (or --celery-queue)")
    if not (options.tasks or (options.celery_task and not options.topic)):
        missing.append("--tasks")
    if missing:
        raise click.UsageError(f"missing: {', '.join(missing)}", click.get_current_context())
    source = click.get_current_context().get_parameter_source
    if not (options.celery_queue or options.events):
        for name in _OF_CELERY:
            if source(name) is ParameterSource.COMMANDLINE:
                words = f"--{name.replace('_', '-')} is of no use without --celery-queue"
                raise click.UsageError(words, click.get_current_context())
    typed = [name for name in (*_SLOTS, "pool") if source(name) is ParameterSource.COMMANDLINE]
    for name in (*_SLOTS, "pool"):  # what is typed goes before what files and the environment say
        if typed and name not in typed:
            setattr(options, name, None)
    said = [name for name in _SLOTS if getattr(options, name) is not None]
    if len(said) > 1:
        words = " and ".join(f"--{name}" for name in said)
        raise click.UsageError(
            f"{words} say the same: leave out all but one", click.get_current_context()
        )


def _leave(worker: Any, back: threading.Event) -> None:
    """Where tasks run in the main thread, that one cannot leave what was given up: all of it, or
    what its hard limit has ended.
    """
    worker.ended.wait()
    if worker.gave_up.is_set():
        back.wait(_LAST_WAIT)  # the broker is to know that we go
        signals.leave()
    elif worker.is_solo and not back.wait(_LAST_WAIT):
        signals.leave(_FAILED if worker.failed.is_set() else errors.OK)


def _make(options: SimpleNamespace) -> tuple[Any, Any, Any]:
    """The worker, and what watches it, and tells Celery's monitors of it, if anything does."""
    from wbengine.engines.worker_based import worker

    sources, observer = _celery(options)
    watch = _watch(options, observer)
    made = worker.Worker(
        options.exchange,
        options.topic,
        options.tasks,
        threads_count=options.threads,
        processes_count=options.processes,
        url=options.url,
        transport=options.transport,
        transport_options=options.transport_options,
        pool=options.pool,
        concurrency=options.concurrency,
        max_tasks_per_child=options.max_tasks_per_child,
        max_memory_per_child=options.max_memory_per_child,
        burst=options.burst,
        max_tasks=options.max_tasks,
        max_idle_time=options.max_idle_time,
        drain_timeout=options.drain_timeout,
        exception_handlers=options.exception_handler,
        sources=sources,
        observer=observer if watch is None else watch.observer,
        interop=options.interop,
        ledger=options.ledger,
        name=options.name,
        result_ttl=options.result_ttl,
        keys=options.keys,
    )
    return made, watch, observer


def _celery(options: SimpleNamespace) -> tuple[Sequence[Any], Any]:
    """What takes the messages of Celery's clients, and what tells its monitors, if they do."""
    if not (options.celery_queue or options.events):
        return (), None
    try:
        from wbengine.interop.celery import worker
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("celery", "billiard"):
            raise
        wanted = "--celery-queue" if options.celery_queue else "--events celery"
        raise ImportError(f"{wanted} needs Celery: pip install 'wbengine[celery]'") from error
    return worker.visit(options)


def _watch(options: SimpleNamespace, observer: Any) -> Any:
    traces = "otlp" if options.traces else None
    if traces is None and any(os.environ.get(name) for name in _OTEL):
        from wbengine.telemetry import providers

        traces = "none" if providers.are_wanted() else None
    wanted = options.metrics_addr, options.health_addr, options.heartbeat_file, traces
    if not any(wanted):
        return None
    from wbengine.telemetry import watching

    return watching.Watch(*wanted, observer)


def _give_up(worker: Any) -> NoReturn:
    try:
        worker.abandon()
    finally:
        signals.leave()


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        pass  # a disk that is full, or a pipe that nobody reads, ends no worker


command = _Worker(
    "worker",
    params=[
        click.Argument(["topics"], metavar="[TOPIC]...", nargs=-1),
        *(click.Option(spellings, **more) for spellings, more in _OPTIONS),
    ],
    callback=_run,
    help="""Run tasks for the flows of worker-based engines, until told to stop.

    The first SIGTERM or Ctrl-C lets it finish what runs; the second one gives that up (exit code 1,
    as when --drain-timeout is over).  Without --tasks, the modules of --include are offered.

    \b
    wbengine worker orders --tasks orders
    """,
)
click.version_option(__version__, prog_name="wbengine", message="%(prog)s %(version)s")(command)

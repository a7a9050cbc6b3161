"""`wbengine worker`, and `python -m wbengine.worker`: run a worker until it is told to stop."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import click
from click.core import ParameterSource

from wbengine import __version__
from wbengine.cli import base, errors, exposed, fleets, options, params, signals
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


def _memory(text: str) -> int:
    """Bytes, of a number with one of the units k m g, or without."""
    found = re.fullmatch(r"([0-9]{1,12})\s*([kmg]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    size = int(found[1]) * _UNITS[found[2]] if found is not None else 0
    if size < _LEAST_MEMORY:
        raise ValueError(
            f"{text!r} is not an amount of memory of at least 16M (such as 200M, 2G, or bytes)"
        )
    return size


def _retention(text: str) -> float | None:
    """A duration, or 'never'."""
    if text == "never":
        return None
    if (seconds := params.duration(text)) is None:
        raise ValueError(f"{text!r} is no duration such as 30, 1.5h or 30d, nor 'never'")
    return seconds


_SLOTS: Final = ("threads", "processes", "concurrency")
#: Options that a worker has under the same name.
_OF_WORKER: Final = (
    "url", "transport", "transport_options", "pool", "concurrency", "max_tasks_per_child",
    "max_memory_per_child", "burst", "max_tasks", "max_idle_time", "drain_timeout", "interop",
    "ledger", "name", "result_ttl", "keys",
)  # fmt: skip
_OF_CELERY: Final = (
    "celery_task", "celery_config", "celery_broker", "celery_result_backend", "celery_accept",
    "celery_name",
)  # fmt: skip


@base.command(
    "worker",
    log_level="info",
    help="""Run tasks for the flows of worker-based engines, until told to stop.

    The first SIGTERM or Ctrl-C lets it finish what runs; the second one gives that up (exit code 1,
    as when --drain-timeout is over).  Without --tasks, the modules of --include are offered.

    \b
    wbengine worker orders --tasks orders
    """,
)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--topic", multiple=True, metavar="T",
    help="Serve this topic (repeatable: the first is served first).")  # fmt: skip
@click.option("--tasks", multiple=True, metavar="MODULE[:NAME]",
    help="Offer the tasks of this module, or one of them (repeatable; the current folder is"
    " importable).")  # fmt: skip
@click.option("--result-ttl", type=params.Parsed("DURATION", _retention), default=7 * 24 * 3600.0,
    help="Remove results from the ledger that nobody came back for in this time, or 'never'"
    " (7 days).")  # fmt: skip
@click.option("-n", "--name", metavar="NAME",
    help="What its name begins with (the name of the host).")  # fmt: skip
@click.option("--interop", type=click.Choice(("taskflow",)),
    help="Speak with engines of another kind.")  # fmt: skip
@click.option("-P", "--pool", type=click.Choice(("threads", "processes", "solo")),
    help="Run tasks in threads (default), in processes that can be killed, or one at a time"
    " in the main thread.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1, 1000), metavar="N",
    help="Short for --pool threads --concurrency N.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1, 1000), metavar="N",
    help="Short for --pool processes --concurrency N.")  # fmt: skip
@click.option("-c", "--concurrency", type=click.IntRange(1, 1000), metavar="N",
    help="Run N tasks at once (threads: 4 for each core, at most 32; processes: one for each"
    " core).")  # fmt: skip
@click.option("--max-tasks-per-child", type=click.IntRange(1), metavar="N",
    help="Replace each process of the pool after N tasks.")  # fmt: skip
@click.option("--max-memory-per-child", type=params.Parsed("SIZE", _memory),
    help="Kill each process of the pool that uses more memory, such as 500M.")  # fmt: skip
@click.option("--exception-handler", multiple=True, metavar="MODULE:FUNC",
    help="Call it with each failure of a task (repeatable: in this order, until one returns"
    " False).")  # fmt: skip
@click.option("--burst", is_flag=True,
    help="End once there is nothing left to do for 2 seconds.")  # fmt: skip
@click.option("--max-idle-time", type=params.WAIT, metavar="DURATION",
    help="End once there is nothing left to do for this time.")  # fmt: skip
@click.option("--max-tasks", type=click.IntRange(1), metavar="N", help="End after N tasks.")
@click.option("--drain-timeout", type=params.DURATION, metavar="DURATION",
    help="Told to end, give up what still runs after this time (never).")  # fmt: skip
@options.STRICT
@click.option("--metrics-addr", type=params.ADDRESS, metavar="HOST:PORT",
    help="Serve /metrics for Prometheus there (port 0: any that is free).")  # fmt: skip
@options.HEALTH
@click.option("--heartbeat-file", type=click.Path(path_type=Path), metavar="PATH",
    help="Touch this file whenever the broker was heard: every 10 seconds or so.")  # fmt: skip
@click.option("--traces", is_flag=True,
    help="Trace what it runs by OpenTelemetry, configured by $OTEL_... (also done where"
    " $OTEL_TRACES_EXPORTER or $OTEL_METRICS_EXPORTER name an exporter).")  # fmt: skip
@click.option("--celery-queue", multiple=True, metavar="Q",
    help="Take Celery's task messages from this queue (repeatable).")  # fmt: skip
@click.option("--celery-task", multiple=True, metavar="NAME=MODULE:TASK",
    help="Run this task under that name of Celery's (repeatable; those of --tasks are known"
    " by their own).")  # fmt: skip
@click.option("--celery-config", metavar="MODULE",
    help="Celery's settings ($CELERY_CONFIG_MODULE).")  # fmt: skip
@click.option("--celery-broker", metavar="URL",
    help="Celery's broker (default: $WBENGINE_CELERY_BROKER, else that of the settings, else"
    " that of --url).")  # fmt: skip
@click.option("--celery-result-backend", metavar="URL",
    help="Where results go: rpc://, the URL of a Redis, or any of Celery's (default:"
    " $WBENGINE_CELERY_RESULT_BACKEND, else that of the settings, else rpc://).")  # fmt: skip
@click.option("--celery-accept", metavar="LIST",
    help="What messages may be in, of json, yaml, msgpack, pickle; results are in the first"
    " of them (json).")  # fmt: skip
@click.option("--celery-name", metavar="NODE",
    help="Name of this worker for monitors (wbengine-PID@HOST).")  # fmt: skip
@click.option("--events", type=click.Choice(("celery",)),
    help="Publish events for Celery's monitors.")  # fmt: skip
@click.version_option(__version__, prog_name="wbengine", message="%(prog)s %(version)s")
def command(context: contexts.Context, /, topics: tuple[str, ...], **given: Any) -> int:
    settings = context.settings
    wanted = SimpleNamespace(**{**vars(settings), **given})
    wanted.topic = (*wanted.topic, *topics)
    wanted.tasks = wanted.tasks or settings.include
    _check(wanted)
    if wanted.strict:
        exposed.refuse(context)
    if wanted.topic:  # the worker itself would wait longer
        fleets.check(settings, vars(settings))
    with errors.making("the tasks cannot be imported"):
        worker, watch, observer = _make(wanted)
    if watch is not None:
        with errors.failing(errors.USAGE, OSError):
            watch.begin(worker)
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


def _check(wanted: SimpleNamespace) -> None:
    """What is needed depends on what else is given.

    :raises UsageError: something is missing, or is said twice.
    """
    missing = []
    if not (wanted.topic or wanted.celery_queue):
        missing.append("--topic (or --celery-queue)")
    if not (wanted.tasks or (wanted.celery_task and not wanted.topic)):
        missing.append("--tasks")
    if missing:
        raise click.UsageError(f"missing: {', '.join(missing)}", click.get_current_context())
    source = click.get_current_context().get_parameter_source
    if not (wanted.celery_queue or wanted.events):
        for name in _OF_CELERY:
            if source(name) is ParameterSource.COMMANDLINE:
                words = f"--{name.replace('_', '-')} is of no use without --celery-queue"
                raise click.UsageError(words, click.get_current_context())
    typed = [name for name in (*_SLOTS, "pool") if source(name) is ParameterSource.COMMANDLINE]
    for name in (*_SLOTS, "pool"):  # what is typed goes before what files and the environment say
        if typed and name not in typed:
            setattr(wanted, name, None)
    said = [name for name in _SLOTS if getattr(wanted, name) is not None]
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


def _make(wanted: SimpleNamespace) -> tuple[Any, Any, Any]:
    """The worker, and what watches it, and tells Celery's monitors of it, if anything does."""
    from wbengine.engines.worker_based import worker

    source, observer = _celery(wanted)
    watch = _watch(wanted)
    observers = [] if observer is None else [observer]
    made = worker.Worker(
        wanted.exchange,
        wanted.topic,
        wanted.tasks,
        threads_count=wanted.threads,
        processes_count=wanted.processes,
        exception_handlers=wanted.exception_handler,
        source=source,
        observers=observers if watch is None else [*observers, *watch.observers],
        **{name: getattr(wanted, name) for name in _OF_WORKER},
    )
    return made, watch, observer


def _celery(wanted: SimpleNamespace) -> tuple[Any, Any]:
    """What takes the messages of Celery's clients, and what tells its monitors, if they do."""
    if not (wanted.celery_queue or wanted.events):
        return None, None
    try:
        from wbengine.interop.celery import worker
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("celery", "billiard"):
            raise
        option = "--celery-queue" if wanted.celery_queue else "--events celery"
        raise ImportError(f"{option} needs Celery: pip install 'wbengine[celery]'") from error
    return worker.visit(wanted)


def _watch(wanted: SimpleNamespace) -> Any:
    traces = "otlp" if wanted.traces else None
    if traces is None and any(os.environ.get(name) for name in _OTEL):
        from wbengine.telemetry import providers

        traces = "none" if providers.are_wanted() else None
    watched = wanted.metrics_addr, wanted.health_addr, wanted.heartbeat_file, traces
    if not any(watched):
        return None
    from wbengine.telemetry import watching

    return watching.Watch(*watched)


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

"""`wbengine worker` and `python -m wbengine.worker`: run a worker until it is stopped."""

from __future__ import annotations

import functools
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import click
from click.core import ParameterSource

from wbengine import __version__
from wbengine._cli import (
    base,
    common_options,
    errors,
    exposed_files,
    fleets,
    log_output,
    output,
    params,
    stop_signals,
)
from wbengine._cli import context as contexts
from wbengine._imports import installing
from wbengine._text import durations

__all__ = ["command"]

#: Exit code if running tasks were given up or the message source of the worker failed.
_FAILED: Final = errors.UNHEALTHY

#: Maximum wait in seconds for the main thread to return after the worker has ended.
_EXIT_WAIT_SECONDS: Final = 2.0

_OTEL_VARIABLES: Final = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER")

#: Minimum memory limit of a child process in bytes: the interpreter itself needs some.
_MIN_MEMORY_BYTES: Final = 16 * 1024 * 1024
_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def _memory(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12})\s*([kmg]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    size = int(match[1]) * _UNITS[match[2]] if match is not None else 0
    if size < _MIN_MEMORY_BYTES:
        raise ValueError(
            f"must be an amount of memory of at least 16M (such as 200M, 2G, or bytes), got"
            f" {text!r}"
        )
    return size


def _retention(text: str) -> float | None:
    if text == "never":
        return None
    if (seconds := durations.seconds(text)) is None:
        raise ValueError(f"must be a duration such as 30, 1.5h or 30d, or 'never', got {text!r}")
    return seconds


_SLOT_OPTIONS: Final = ("threads", "processes", "concurrency")
#: Options that are arguments of `Worker` under the same name.
_WORKER_OPTIONS: Final = (
    "url", "transport", "transport_options", "pool", "concurrency", "max_tasks_per_child",
    "max_memory_per_child", "burst", "max_tasks", "max_idle_time", "drain_timeout", "interop",
    "ledger", "name", "result_ttl", "keys", "code_version",
)  # fmt: skip
_CELERY_OPTIONS: Final = (
    "celery_task", "celery_config", "celery_broker", "celery_result_backend", "celery_accept",
    "celery_name",
)  # fmt: skip


@base.command(
    "worker",
    log_level="info",
    help="""Run a worker.

    The worker executes tasks for worker-based engines until it is stopped. Without --tasks, it
    offers the tasks of the modules in --include.

    After the first SIGTERM or Ctrl-C, the worker finishes its running tasks. A second signal, or
    the end of --drain-timeout, ends it at once with exit code 1. SIGHUP and SIGQUIT stop it like
    SIGTERM. SIGUSR1 logs its running tasks and the tracebacks of its threads.

    \b
    Example:
      wbengine worker orders --tasks orders
    """,
)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--topic", multiple=True, metavar="T",
    help="Accept requests of this topic (repeatable, in order of preference).")  # fmt: skip
@click.option("--tasks", multiple=True, metavar="MODULE[:NAME]",
    help="Offer the tasks of this module, or one task (repeatable). Modules of the current folder"
    " can be imported.")  # fmt: skip
@click.option("--result-ttl", type=params.Parsed("DURATION", _retention), default="7d",
    help="Time after which the ledger deletes a result that no engine has read; 'never' to keep"
    " it.")  # fmt: skip
@click.option("-n", "--name", metavar="NAME",
    help="Beginning of the worker's name.", show_default="the name of the host")  # fmt: skip
@click.option("--interop", type=params.Choice(("taskflow",)),
    help="Serve engines of another project.")  # fmt: skip
@click.option("-P", "--pool", type=params.Choice(("threads", "processes", "solo")),
    show_default="threads",
    help="Execute tasks in threads, in processes that can be killed, or one at a time in the main"
    " thread (solo).")  # fmt: skip
@click.option("--threads", type=click.IntRange(1, 1000), metavar="N",
    help="Same as --pool threads --concurrency N.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1, 1000), metavar="N",
    help="Same as --pool processes --concurrency N.")  # fmt: skip
@click.option("-c", "--concurrency", type=click.IntRange(1, 1000), metavar="N",
    help="Number of slots.",
    show_default="threads: 4 for each core, at most 32; processes: 1 for each core")  # fmt: skip
@click.option("--max-tasks-per-child", type=click.IntRange(1), metavar="N",
    help="Replace each process of the pool after N tasks.")  # fmt: skip
@click.option("--max-memory-per-child", type=params.Parsed("SIZE", _memory),
    help="Kill each process of the pool that uses more memory, such as 500M.")  # fmt: skip
@click.option("--exception-handler", multiple=True, metavar="MODULE:FUNC",
    help="Call this function with each failure of a task (repeatable, in this order, until one"
    " returns False).")  # fmt: skip
@click.option("--burst", is_flag=True,
    help="End after 2 seconds without a request.")  # fmt: skip
@click.option("--max-idle-time", type=params.WAIT, metavar="DURATION",
    help="End after this time without a request.")  # fmt: skip
@click.option("--max-tasks", type=click.IntRange(1), metavar="N", help="End after N tasks.")
@click.option("--drain-timeout", type=params.DURATION, metavar="DURATION",
    help="Maximum wait for running tasks when the worker"
    " ends.", show_default="unlimited")  # fmt: skip
@common_options.CODE_VERSION
@common_options.STRICT
@common_options.METRICS
@common_options.HEALTH
@click.option("--heartbeat-file", type=click.Path(path_type=Path), metavar="PATH",
    help="Touch this file after messages from the broker, about every 10 seconds.")  # fmt: skip
@click.option("--traces", is_flag=True,
    help="Send traces by OpenTelemetry, configured by $OTEL_... ($OTEL_TRACES_EXPORTER or"
    " $OTEL_METRICS_EXPORTER also enable it).")  # fmt: skip
@click.option("--celery-queue", multiple=True, metavar="Q",
    help="Receive Celery's task messages from this queue (repeatable).")  # fmt: skip
@click.option("--celery-task", multiple=True, metavar="NAME=MODULE:TASK",
    help="Offer this task under a name for Celery (repeatable; tasks of --tasks have their own"
    " names).")  # fmt: skip
@click.option("--celery-config", metavar="MODULE",
    help="Module with Celery's settings.", show_default="$CELERY_CONFIG_MODULE")  # fmt: skip
@click.option("--celery-broker", metavar="URL",
    help="URL of Celery's broker.", show_default="$WBENGINE_CELERY_BROKER, that of Celery's"
    " settings, or that of --url")  # fmt: skip
@click.option("--celery-result-backend", metavar="URL",
    help="URL of Celery's result backend: rpc://, a Redis, or another one of Celery.",
    show_default="$WBENGINE_CELERY_RESULT_BACKEND, that of Celery's settings, or"
    " rpc://")  # fmt: skip
@click.option("--celery-accept", metavar="LIST",
    show_default="json",
    help="Accepted formats of messages, of json, yaml, msgpack, pickle. Results have the first"
    " one.")  # fmt: skip
@click.option("--celery-name", metavar="NODE",
    help="Name of this worker in Celery's monitors.", show_default="wbengine-PID@HOST")  # fmt: skip
@click.option("--events", type=params.Choice(("celery",)),
    help="Publish events for Celery's monitors.")  # fmt: skip
@click.version_option(__version__, prog_name="wbengine", message="%(prog)s %(version)s")
def command(context: contexts.Context, /, topics: tuple[str, ...], **options: Any) -> int:
    settings = context.settings
    arguments = SimpleNamespace(**{**vars(settings), **options})
    arguments.topic = (*arguments.topic, *topics)
    arguments.tasks = arguments.tasks or settings.include
    _check(arguments)
    if arguments.strict:
        exposed_files.refuse(context)
    if arguments.topic:  # the worker itself would wait longer
        fleets.check(settings, vars(settings))
    with errors.running_user_code("cannot import the tasks"):
        worker, watch, observer = _create(arguments)
    if watch is not None:
        with errors.failing(errors.USAGE, ImportError, OSError):
            watch.begin(worker)
    give_up = functools.partial(_give_up, worker)
    stop = stop_signals.StopSignals(worker.stop, give_up, lambda: [worker.life])
    back = threading.Event()
    with stop.installed(), log_output.fields(code_version=arguments.code_version):
        threading.Thread(target=_end_process, args=(worker, back), daemon=True).start()
        if observer is not None:
            observer.start()
        try:
            worker.run(
                display_banner=not settings.quiet,
                banner_writer=functools.partial(_write, context, worker),
            )
        finally:
            back.set()
            if observer is not None:
                observer.stop()
            if watch is not None:
                watch.end()
    if worker.gave_up.is_set():
        stop_signals.exit_at_once()
    return _FAILED if worker.failed.is_set() else errors.OK


def _check(arguments: SimpleNamespace) -> None:
    """Check combinations of options.

    :raises UsageError: if an option is missing, or if options exclude each other.
    """
    missing = []
    if not (arguments.topic or arguments.celery_queue):
        missing.append("--topic (or --celery-queue)")
    if not (arguments.tasks or (arguments.celery_task and not arguments.topic)):
        missing.append("--tasks")
    if missing:
        raise click.UsageError(f"missing: {', '.join(missing)}", click.get_current_context())
    source = click.get_current_context().get_parameter_source
    if not (arguments.celery_queue or arguments.events):
        for name in _CELERY_OPTIONS:
            if source(name) is ParameterSource.COMMANDLINE:
                words = f"--{name.replace('_', '-')} can be used only with --celery-queue"
                raise click.UsageError(words, click.get_current_context())
    typed = [
        name for name in (*_SLOT_OPTIONS, "pool") if source(name) is ParameterSource.COMMANDLINE
    ]
    # the command line takes precedence over files and the environment
    for name in (*_SLOT_OPTIONS, "pool"):
        if typed and name not in typed:
            setattr(arguments, name, None)
    used_options = [name for name in _SLOT_OPTIONS if getattr(arguments, name) is not None]
    if len(used_options) > 1:
        words = " and ".join(f"--{name}" for name in used_options)
        raise click.UsageError(f"at most one of {words} can be used", click.get_current_context())


def _end_process(worker: Any, back: threading.Event) -> None:
    """End the process after the worker ended, if its main thread may be stuck in a task.

    In a solo worker, tasks run in the main thread, which cannot leave a task that was given up or
    exceeded its hard time limit. Otherwise, the main thread exports the last spans, and ends the
    process.
    """
    worker.ended.wait()
    may_be_stuck = worker.gave_up.is_set() or worker.is_solo
    if may_be_stuck and not back.wait(_EXIT_WAIT_SECONDS):
        has_failed = worker.gave_up.is_set() or worker.failed.is_set()
        stop_signals.exit_at_once(_FAILED if has_failed else errors.OK)


def _create(arguments: SimpleNamespace) -> tuple[Any, Any, Any]:
    from wbengine.engines.worker_based import worker

    source, observer = _celery(arguments)
    watch = _watch(arguments)
    observers = [] if observer is None else [observer]
    new_worker = worker.Worker(
        arguments.exchange,
        arguments.topic,
        arguments.tasks,
        threads_count=arguments.threads,
        processes_count=arguments.processes,
        exception_handlers=arguments.exception_handler,
        source=source,
        observers=observers if watch is None else [*observers, *watch.observers],
        **{name: getattr(arguments, name) for name in _WORKER_OPTIONS},
    )
    return new_worker, watch, observer


def _celery(arguments: SimpleNamespace) -> tuple[Any, Any]:
    if not (arguments.celery_queue or arguments.events):
        return None, None
    try:
        from wbengine.interop.celery import _embedded_worker
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("celery", "billiard"):
            raise
        option = "--celery-queue" if arguments.celery_queue else "--events celery"
        raise ImportError(installing.needs(option, "Celery", "celery")) from error
    return _embedded_worker.visit(arguments)


def _watch(arguments: SimpleNamespace) -> Any:
    traces = "otlp" if arguments.traces else None
    if traces is None and any(os.environ.get(name) for name in _OTEL_VARIABLES):
        from wbengine.telemetry import _providers

        traces = "none" if _providers.are_requested() else None
    watched = arguments.metrics_addr, arguments.health_addr, arguments.heartbeat_file, traces
    if not any(watched):
        return None
    from wbengine.telemetry import _watching

    return _watching.Watch(*watched)


def _give_up(worker: Any) -> NoReturn:
    try:
        worker.abandon()
    finally:
        stop_signals.exit_at_once()


def _write(context: contexts.Context, worker: Any, banner: str) -> None:
    if context.settings.log_format == "json":
        context.announce(
            f"{worker.identity} accepts requests",
            worker=worker.identity,
            exchange=context.settings.exchange,
            topics=list(worker.queues),
        )
        return
    for line in banner.splitlines():
        output.say(line)
    context.printer.guide("press Ctrl-C to stop after the running tasks, twice to stop at once")

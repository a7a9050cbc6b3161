"""`python -m wbengine.worker --topic t --tasks module`: run a worker until it is told to stop.

With `--celery-queue` it takes the messages of Celery's clients, too, or instead.

The first SIGTERM or SIGINT is a warm shutdown: nothing new is taken, what did not begin is handed
back, what runs is finished (for `--drain-timeout` seconds).  The second one is a cold shutdown.

Exit codes: 0 it ended as asked, with running tasks finished; 1 it gave up running tasks, because it
was told twice, or they took longer than it may drain; 2 wrong usage; 69 the broker or the ledger
cannot be reached.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from wbengine import __version__, _log_lines, _streams, _terminal
from wbengine import exceptions as exc

_PROG: Final = "python -m wbengine.worker"

EX_GAVE_UP: Final = 1
#: What it hosts cannot go on.
EX_FAILED: Final = 1
EX_USAGE: Final = 2
EX_UNAVAILABLE: Final = 69

#: Signals so close to each other, in seconds, are one: supervisors that signal a process and its
#: group deliver it twice.
SAME_SIGNAL: Final = 0.1

#: Seconds in which the main thread comes back when a worker has ended, if it ever does.
_LAST_WAIT: Final = 2.0

#: The kinds of pools (those of `slots`, which this module does not load to say what it takes).
#: They ask for spans and measurements.
_OTEL: Final = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER")
_POOLS: Final = ("threads", "processes", "solo")

#: The fewest bytes that a child process may be limited to: it needs some to live at all.
_LEAST_MEMORY: Final = 16 * 1024 * 1024
_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

_LEVELS: Final = ("debug", "info", "warning", "error", "critical")


def _whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def _wait(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds of at least 0")
    return number


def _life_of_results(text: str) -> float | None:
    if text == "never":
        return None
    try:
        return _wait(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or 'never'") from None


def _memory(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})\s*([kmg]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    size = int(found[1]) * _UNITS[found[2]] if found is not None else 0
    if size < _LEAST_MEMORY:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an amount of memory of at least 16M (such as 200M, 2G, or bytes)"
        )
    return size


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    return key, value


def _address(text: str) -> Any:
    from wbengine.telemetry import serving

    try:
        return serving.address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line: the usage is so long that the reason would drown in it."""

    def error(self, message: str) -> NoReturn:
        self.exit(EX_USAGE, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def parser(prog: str = _PROG) -> argparse.ArgumentParser:
    """The command line of a worker; `prog` is what it is called."""
    made = _Parser(
        prog=prog,
        description="Run tasks for the flows of worker-based engines.",
        epilog="exit codes: 0 ended as asked; 1 running tasks were given up (told to stop twice, or"
        " --drain-timeout was over), or Celery's worker failed; 2 wrong usage; 69 the broker or the"
        " ledger cannot be reached",
    )
    _add_meeting(made.add_argument)
    _add_celery(made.add_argument_group("for clients and monitors of Celery").add_argument)
    _add_pool(made)
    _add_life(made.add_argument)
    _add_watching(made.add_argument_group("for those who watch it").add_argument)
    return made


def _add_meeting(add: Any) -> None:
    """Where to meet engines, and what to do for them."""
    add("--topic", action="append", metavar="T", default=[],
        help="serve this topic (repeatable: the first is served first)")  # fmt: skip
    add("--tasks", action="append", metavar="MODULE[:NAME]", default=[],
        help="offer the tasks of this module, or one of them (repeatable; the current folder"
        " is importable)")  # fmt: skip
    add("--exchange", default="default", metavar="X", help="name of the exchange (%(default)s)")
    add("--url", metavar="U",
        help="the broker (default: $WBENGINE_URL, else a folder of this user)")  # fmt: skip
    add("--transport", metavar="NAME", help="kombu transport, such as filesystem or memory")
    add("--transport-option", action="append", type=_option, default=[], metavar="K=V",
        help="option of the transport (repeatable)")  # fmt: skip
    add("--ledger", metavar="PLACE",
        help="the ledger that the engines use, such as postgresql://user@host/database (default:"
        " $WBENGINE_LEDGER, else the broker's own)")  # fmt: skip
    add("--result-ttl", type=_life_of_results, default=7 * 24 * 3600.0, metavar="S",
        help="seconds after which results are removed from the ledger that nobody came back for,"
        " or 'never' (7 days)")  # fmt: skip
    add("-n", "--name", metavar="NAME",
        help="what its name begins with (default: the name of the host)")  # fmt: skip
    add("--interop", choices=["taskflow"], help="speak with engines of another kind")


def _add_celery(add: Any) -> None:
    """What else to take, and whom to tell."""
    add("--celery-queue", action="append", metavar="Q", default=[],
        help="take Celery's task messages from this queue (repeatable)")  # fmt: skip
    add("--celery-task", action="append", metavar="NAME=MODULE:TASK", default=[],
        help="run this task under that name of Celery's (repeatable; those of --tasks are known by"
        " their own)")  # fmt: skip
    add("--celery-config", metavar="MODULE",
        help="Celery's settings (default: $CELERY_CONFIG_MODULE)")  # fmt: skip
    add("--celery-broker", metavar="U",
        help="Celery's broker (default: $WBENGINE_CELERY_BROKER, else that of the settings, else"
        " that of --url)")  # fmt: skip
    add("--celery-result-backend", metavar="U",
        help="where results go: rpc://, the URL of a Redis, or any of Celery's (default:"
        " $WBENGINE_CELERY_RESULT_BACKEND, else that of the settings, else rpc://)")  # fmt: skip
    add("--celery-accept", metavar="LIST",
        help="what messages may be in, of json, yaml, msgpack, pickle; results are in the first"
        " of them (json)")  # fmt: skip
    add("--celery-name", metavar="NODE",
        help="name of this worker for monitors (default: wbengine-PID@HOST)")  # fmt: skip
    add("--events", choices=["celery"], help="publish events for Celery's monitors")


def _check(made: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """What is needed depends on what else is given."""
    missing = []
    if not (options.topic or options.celery_queue):
        missing.append("--topic (or --celery-queue)")
    if not (options.tasks or (options.celery_task and not options.topic)):
        missing.append("--tasks")
    if missing:
        made.error(f"the following arguments are required: {', '.join(missing)}")


def _add_pool(made: argparse.ArgumentParser) -> None:
    """Where tasks run."""
    add = made.add_argument
    add("-P", "--pool", choices=_POOLS,
        help="run tasks in threads (default), in processes that can be killed, or one at a time in"
        " the main thread")  # fmt: skip
    slots = made.add_mutually_exclusive_group()
    slots.add_argument("--threads", type=_whole, metavar="N",
        help="short for --pool threads --concurrency N")  # fmt: skip
    slots.add_argument("--processes", type=_whole, metavar="N",
        help="short for --pool processes --concurrency N")  # fmt: skip
    slots.add_argument("-c", "--concurrency", type=_whole, metavar="N",
        help="run N tasks at once (threads: 4 for each core, at most 32; processes: one for each"
        " core)")  # fmt: skip
    add("--max-tasks-per-child", type=_count, metavar="N",
        help="replace each process of the pool after N tasks")  # fmt: skip
    add("--max-memory-per-child", type=_memory, metavar="SIZE",
        help="kill each process of the pool that uses more memory, such as 500M")  # fmt: skip
    add("--exception-handler", action="append", default=[], metavar="MODULE:FUNC",
        help="call it with each failure of a task (repeatable: in this order, until one returns"
        " False)")  # fmt: skip


def _add_life(add: Any) -> None:
    """When to end, and what to say."""
    add("--burst", action="store_true", help="end once there is nothing left to do for 2 seconds")
    add("--max-idle-time", type=_seconds, metavar="S",
        help="end once there is nothing left to do for S seconds")  # fmt: skip
    add("--max-tasks", type=_count, metavar="N", help="end after N tasks")
    add("--drain-timeout", type=_wait, metavar="S",
        help="told to end, give up after S seconds what still runs (default: never)")  # fmt: skip
    add("--color", choices=_log_lines.CHOICES, default=_log_lines.AUTO,
        help="colour the log (auto: on a terminal; $NO_COLOR and $FORCE_COLOR count)")  # fmt: skip
    add("--log-level", choices=_LEVELS, default="info", help="least level that is logged")
    add("--quiet", action="store_true", help="no banner, and only warnings in the log")
    add("--version", action="version", version=f"wbengine {__version__}")


def _add_watching(add: Any) -> None:
    """What to serve, and to tell."""
    add("--metrics-addr", type=_address, metavar="HOST:PORT",
        help="serve /metrics for Prometheus there (port 0: any that is free)")  # fmt: skip
    add("--health-addr", type=_address, metavar="HOST:PORT",
        help="serve /livez and /readyz there; may be the same")  # fmt: skip
    add("--heartbeat-file", type=Path, metavar="PATH",
        help="touch this file whenever the broker was heard: every 10 seconds or so")  # fmt: skip
    add("--traces", action="store_true",
        help="trace what it runs by OpenTelemetry, configured by $OTEL_... (also done"
        " where $OTEL_TRACES_EXPORTER or $OTEL_METRICS_EXPORTER name an exporter)")  # fmt: skip


def main(arguments: Sequence[str] | None = None, prog: str = _PROG) -> int:
    """Run the command; returns the exit code."""
    _streams.ensure()
    made = parser(prog)
    options = made.parse_args(arguments)
    _check(made, options)
    level = "warning" if options.quiet and options.log_level == "info" else options.log_level
    _log_lines.install(level, options.color, sys.stderr)
    sys.path.insert(0, os.getcwd())
    try:
        worker, watch, told = _make(options)
    except exc.TransportFailure as error:
        return _unavailable(made, error)
    except (ValueError, ImportError, exc.WbengineException) as error:
        made.error(_one_line(error))
    except Exception as error:
        made.error(f"the tasks cannot be imported: {_one_line(error)}")
    except SystemExit as error:  # as of a script that was written to be run
        made.error(f"the tasks cannot be imported: they end the process (SystemExit: {error})")
    try:
        if watch is not None:
            watch.begin(worker)
    except OSError as error:
        made.error(_one_line(error))
    handler = _Signals(worker)
    handler.install()
    back = threading.Event()
    threading.Thread(target=_leave, args=(worker, back), daemon=True).start()
    if told is not None:
        told.start()
    try:
        worker.run(display_banner=not options.quiet, banner_writer=_write)
    except (exc.TransportFailure, exc.LedgerFailure) as error:
        return _unavailable(made, error)
    finally:
        back.set()
        if told is not None:
            told.stop()
        if watch is not None:
            watch.end()
    if worker.gave_up.is_set():
        _exit()
    return EX_FAILED if worker.failed.is_set() else 0


def _leave(worker: Any, back: threading.Event) -> None:
    """Where tasks run in the main thread, that one cannot leave what was given up: all of it, or
    what its hard limit has ended.
    """
    worker.ended.wait()
    if worker.gave_up.is_set():
        back.wait(_LAST_WAIT)  # the broker is to know that we go
        _exit()
    elif worker.is_solo and not back.wait(_LAST_WAIT):
        _exit(EX_FAILED if worker.failed.is_set() else 0)


def _exit(code: int = EX_GAVE_UP) -> NoReturn:
    """At once: threads that were given up would be waited for."""
    logging.shutdown()
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        # Where its children met; nobody else removes it then.
        folder = getattr(processes.current_process(), "_config", {}).get("tempdir")
        if folder is not None:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
    os._exit(code)


def _unavailable(made: argparse.ArgumentParser, error: exc.WbengineException) -> int:
    _write(f"{made.prog}: error: {_one_line(error)}\n")
    return EX_UNAVAILABLE


def _make(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The worker, and what watches it, and tells Celery's monitors of it, if anything does."""
    # Not on top: each child process of a pool imports this module too, and needs no broker.
    from wbengine.engines.worker_based import worker

    sources, told = _celery(options)
    watch = _watch(options, told)
    made = worker.Worker(
        options.exchange,
        options.topic,
        options.tasks,
        threads_count=options.threads,
        processes_count=options.processes,
        url=options.url,
        transport=options.transport,
        transport_options=dict(options.transport_option),
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
        observer=told if watch is None else watch.observer,
        interop=options.interop,
        ledger=options.ledger,
        name=options.name,
        result_ttl=options.result_ttl,
    )
    return made, watch, told


def _celery(options: argparse.Namespace) -> tuple[Sequence[Any], Any]:
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


def _watch(options: argparse.Namespace, observer: Any) -> Any:
    traces = "otlp" if options.traces else None
    if traces is None and any(os.environ.get(name) for name in _OTEL):
        from wbengine.telemetry import providers

        traces = "none" if providers.are_wanted() else None
    wanted = options.metrics_addr, options.health_addr, options.heartbeat_file, traces
    if not any(wanted):
        return None
    from wbengine.telemetry import watching

    return watching.Watch(*wanted, observer)


class _Signals:
    """First SIGTERM or SIGINT: drain.  Second: give up what runs, exit 1."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._asked: float | None = None

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        # A handler runs between two bytecodes of the main thread, which may hold any lock: all it
        # does is start a thread.
        now = time.monotonic()
        if self._asked is None:
            self._asked = now
            target = self._worker.stop
        elif now - self._asked < SAME_SIGNAL:
            return
        else:
            target = self._give_up
        threading.Thread(target=target, daemon=True).start()

    def _give_up(self) -> NoReturn:
        try:
            self._worker.abandon()
        finally:
            _exit()


def _one_line(error: BaseException) -> str:
    text = _terminal.visible(" ".join(str(error).split()))
    return text or type(error).__name__


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        pass  # a disk that is full, or a pipe that nobody reads, ends no worker


if __name__ == "__main__":
    sys.exit(main())

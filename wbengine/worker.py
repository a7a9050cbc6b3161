"""`python -m wbengine.worker --topic t --tasks module`: run a worker until it is told to stop.

Exit codes: 0 it ended as asked (also after the first SIGTERM or SIGINT, with running tasks
finished), 1 it was told twice and gave up running tasks, 2 wrong usage, 69 the broker or the ledger
cannot be reached.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from wbengine import __version__, _streams
from wbengine import exceptions as exc

EX_USAGE: Final = 2
EX_UNAVAILABLE: Final = 69

#: Seconds that `--burst` waits, with empty queues and idle slots, before it ends.
BURST_IDLE_TIME: Final = 2.0

#: Signals so close to each other, in seconds, are one: supervisors that signal a process and its
#: group deliver it twice.
SAME_SIGNAL: Final = 0.1

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


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line: the usage is so long that the reason would drown in it."""

    def error(self, message: str) -> NoReturn:
        self.exit(EX_USAGE, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The command line of a worker."""
    made = _Parser(
        prog="python -m wbengine.worker",
        description="Run tasks for the flows of worker-based engines.",
        epilog="exit codes: 0 ended as asked; 1 told to stop twice, running tasks were given up;"
        " 2 wrong usage; 69 the broker or the ledger cannot be reached",
    )
    add = made.add_argument
    add("--topic", action="append", metavar="T", required=True,
        help="serve this topic (repeatable: the first is served first)")  # fmt: skip
    add("--tasks", action="append", metavar="MODULE[:NAME]", required=True,
        help="offer the tasks of this module, or one of them (repeatable; the current folder"
        " is importable)")  # fmt: skip
    add("--exchange", default="default", metavar="X", help="name of the exchange (%(default)s)")
    add("--url", metavar="U",
        help="the broker (default: $WBENGINE_URL, else a folder of this user)")  # fmt: skip
    add("--transport", metavar="NAME", help="kombu transport, such as filesystem or memory")
    add("--transport-option", action="append", type=_option, default=[], metavar="K=V",
        help="option of the transport (repeatable)")  # fmt: skip
    slots = made.add_mutually_exclusive_group()
    slots.add_argument("--threads", type=_whole, metavar="N",
        help="run N tasks at once, in threads (default: 4 for each core, at most 32)")  # fmt: skip
    slots.add_argument("--processes", type=_whole, metavar="N",
        help="run N tasks at once, each in a process of its own")  # fmt: skip
    add("--burst", action="store_true", help="end once there is nothing left to do")
    add("--max-idle-time", type=_seconds, metavar="S",
        help=f"with --burst: idle seconds before it ends ({BURST_IDLE_TIME:g})")  # fmt: skip
    add("--ledger", metavar="PLACE",
        help="the ledger that the engines use, such as postgresql://user@host/database (default:"
        " $WBENGINE_LEDGER, else the broker's own)")  # fmt: skip
    add("--interop", choices=["taskflow"], help="speak with engines of another kind")
    add("--log-level", choices=_LEVELS, default="info", help="least level that is logged")
    add("--quiet", action="store_true", help="no banner, and only warnings in the log")
    add("--version", action="version", version=f"wbengine {__version__}")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    _streams.ensure()
    made = parser()
    options = made.parse_args(arguments)
    if options.max_idle_time is not None and not options.burst:
        made.error("--max-idle-time goes with --burst")
    level = "warning" if options.quiet and options.log_level == "info" else options.log_level
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    sys.path.insert(0, os.getcwd())
    try:
        worker = _make(options)
    except exc.TransportFailure as error:
        return _unavailable(made, error)
    except (ValueError, ImportError, exc.WbengineException) as error:
        made.error(_one_line(error))
    except Exception as error:
        made.error(f"the tasks cannot be imported: {_one_line(error)}")
    handler = _Signals(worker)
    handler.install()
    try:
        worker.run(display_banner=not options.quiet, banner_writer=_write)
    except (exc.TransportFailure, exc.LedgerFailure) as error:
        return _unavailable(made, error)
    return 0


def _unavailable(made: argparse.ArgumentParser, error: exc.WbengineException) -> int:
    _write(f"{made.prog}: error: {_one_line(error)}\n")
    return EX_UNAVAILABLE


def _make(options: argparse.Namespace) -> Any:
    # Not on top: each child process of a pool imports this module too, and needs no broker.
    from wbengine.engines.worker_based import worker

    idle = (options.max_idle_time or BURST_IDLE_TIME) if options.burst else None
    return worker.Worker(
        options.exchange,
        options.topic,
        options.tasks,
        threads_count=options.threads,
        processes_count=options.processes,
        url=options.url,
        transport=options.transport,
        transport_options=dict(options.transport_option),
        max_idle_time=idle,
        interop=options.interop,
        ledger=options.ledger,
    )


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
            os._exit(1)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

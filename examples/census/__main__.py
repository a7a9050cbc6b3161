"""The census as a command: `python -m examples.census`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples import kinds
from examples.census import options, page, sources, tasks
from examples.census.measuring import NUMBERS
from wbengine import engines, exceptions, states
from wbengine.engines.worker_based.executor import WorkerTaskExecutor
from wbengine.listeners.progress import ProgressListener
from wbengine.views import flow_status as views

#: The page, next to `tasks.REPORT`.
PAGE = "census.html"

_PROG = "quickstart"
_TOP = 15
_START_TIMEOUT = 60.0  # maximum seconds until all workers are ready
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Unavailable(Exception):
    """No workers are available; the message is one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (see `options`)."""
    try:
        args = options.parse(sys.argv[1:] if argv is None else argv, _PROG)
        tree = sources.standard_library() if args.root is None else sources.folder(args.root)
        _check_modules(args, tree)
    except (options.UsageError, OSError) as error:
        hint = f"; see {_PROG} --help" if isinstance(error, options.UsageError) else ""
        _complain(f"{error}{hint}")
        return options.USAGE
    for number in _SIGNALS[1:]:
        if signal.getsignal(number) != signal.SIG_IGN:  # ignored under nohup
            signal.signal(number, signal.default_int_handler)
    try:
        with _engine(args, tree) as engine:
            return _run(args, engine)
    except (Unavailable, exceptions.TransportFailure) as error:
        _complain(str(error))
        return options.UNAVAILABLE
    except OSError as error:
        _complain(str(error))
        return options.FAILED
    except KeyboardInterrupt:
        _complain("interrupted")
        return options.INTERRUPTED


def _check_modules(args: Namespace, tree: sources.Tree) -> None:
    if not tree.modules:
        raise options.UsageError(f"--root {args.root}: no Python files in it")
    if args.fail is not None and args.fail not in tree.modules:
        raise options.UsageError(f"--fail {args.fail}: no such module in {tree.title}")


@contextlib.contextmanager
def _engine(args: Namespace, tree: sources.Tree) -> Iterator[Any]:
    flow = tasks.census(sources.groups(tree), args.fail)
    store = {"root": str(tree.root), "title": tree.title, "out": str(args.out)}
    if args.engine == "serial":
        yield engines.load(flow, store=store)
    elif args.engine == "parallel":
        # Parsing is CPU-bound: threads would block each other.
        pool_options = {"executor": "processes", "max_workers": args.workers}
        yield engines.load(flow, store=store, engine="parallel", **pool_options)
    else:
        with tempfile.TemporaryDirectory(prefix="census-") as folder:
            url = f"filesystem://{folder}/broker"
            with kinds.worker_processes(tasks.__name__, url, args.workers) as workers:
                executor = WorkerTaskExecutor(str(uuid.uuid4()), "default", ["examples"], url=url)
                executor.start()
                try:
                    _wait(executor, workers)
                    yield engines.load(flow, store=store, engine="worker-based", executor=executor)
                finally:
                    executor.stop()


def _wait(executor: WorkerTaskExecutor, workers: Sequence[Any]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while executor.wait_for_workers(len(workers), timeout=0.2):
        if any(worker.poll() is not None for worker in workers) or time.monotonic() > deadline:
            raise Unavailable(f"of {len(workers)} workers, not all are ready")


def _run(args: Namespace, engine: Any) -> int:
    failed: list[dict[str, Any]] = []
    engine.atom_notifier.register(states.FAILURE, lambda state, details: failed.append(details))
    interrupted = threading.Event()
    began = time.monotonic()
    try:
        with (
            ProgressListener(engine, Console(stderr=True)),
            _undone_by_signals(engine, interrupted),
        ):
            engine.run()
    except exceptions.TransportFailure:
        raise
    except Exception as error:
        if not interrupted.is_set():
            _show_failure(engine, failed, error)
            return options.FAILED
    if interrupted.is_set():
        undone = engine.storage.get_flow_state() == states.REVERTED
        _complain("interrupted" + ("; this run has left nothing" if undone else ""))
        return options.INTERRUPTED
    engine_line = f"{args.engine}, {time.monotonic() - began:.2f} s"
    census = json.loads((args.out / tasks.REPORT).read_text("utf-8"))
    view = views.view(
        engine.storage.flow_detail.copy(), engine.compilation.outline, now=time.time()
    )
    draft = args.out / f".{PAGE}"
    try:
        draft.write_text(page.render(view, census, engine_line), encoding="utf-8")
        draft.replace(args.out / PAGE)
    finally:
        draft.unlink(missing_ok=True)
    try:
        _show(args, census)
        print(f"flow ran on {engine_line}", flush=True)
    except BrokenPipeError:  # as in `quickstart | head -1`; the files are written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return options.OK


@contextlib.contextmanager
def _undone_by_signals(engine: Any, interrupted: threading.Event) -> Iterator[None]:
    """Revert the flow on the first of `_SIGNALS`; the second one raises `KeyboardInterrupt`."""

    def on_signal(number: int, frame: object) -> None:
        interrupted.set()
        signal.signal(number, signal.default_int_handler)
        # In a thread, because the interrupted main thread may hold any lock.
        threading.Thread(target=engine.cancel, kwargs={"reason": "interrupted"}).start()

    previous_handlers = {
        number: signal.signal(number, on_signal)
        for number in _SIGNALS
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _show_failure(engine: Any, failed: Sequence[dict[str, Any]], error: Exception) -> None:
    for details in failed:
        where = f" on {details['worker']}" if details.get("worker") else ""
        print(f"\ntask {details['task_name']!r} failed{where}:", file=sys.stderr)
        print(details["result"].pformat(traceback=True), file=sys.stderr)
    if not failed:
        print(f"\n{type(error).__name__}: {error}", file=sys.stderr)
    state = engine.storage.get_flow_state()
    result = "reverted: this run has left nothing" if state == states.REVERTED else state
    _complain(f"the flow failed and is {result}")


def _show(args: Namespace, census: dict[str, Any]) -> None:
    modules = sorted(census["modules"], key=lambda module: (-module["lines"], module["name"]))
    total = census["total"]
    table = Table(
        title=f"Census of {escape(census['source'])}",
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_footer=True,
    )
    table.add_column("module", footer=f"all {len(modules):,}", no_wrap=True, overflow="ellipsis")
    for name in NUMBERS:
        table.add_column(name, footer=f"{total[name]:,}", justify="right", no_wrap=True)
    for module in modules[:_TOP]:
        table.add_row(escape(module["name"]), *(f"{module[name]:,}" for name in NUMBERS))
    if len(modules) > _TOP:
        table.add_row(f"… {len(modules) - _TOP:,} more", style="dim")
    console = Console()
    with console.capture() as capture:  # rich would end the process after a closed pipe
        console.print(table)
    print(capture.get(), end="")
    if (longest := total["longest"]) is not None:
        print(f"longest function: {longest['name']}, {longest['lines']:,} lines, {longest['at']}")
    if (deepest := total["deepest"]) is not None:
        print(f"deepest nesting: {deepest['depth']:,} blocks, {deepest['at']}")
    if total["unparsed"]:
        print(f"not parsed: {len(total['unparsed']):,} files (the reports name them)")
    for name in (tasks.REPORT, PAGE):
        print(f"wrote {os.path.relpath(args.out / name)}")


def _complain(message: str) -> None:
    print(f"{_PROG}: {' '.join(message.split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

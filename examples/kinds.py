"""Shared code of the examples: the option `--engine KIND`, and workers."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SERIAL, THREADS, PROCESSES, WORKERS = "serial", "threads", "processes", "worker-based"
ALL = (SERIAL, THREADS, PROCESSES, WORKERS)


@contextlib.contextmanager
def chosen(about: str | None, kinds: Sequence[str] = ALL) -> Iterator[dict[str, Any]]:
    """Yield the options for `engines.load` and `engines.run` that the command line selects.

    The first of `kinds` is the default. For a worker-based engine, a worker runs in a thread of
    this process, reached through memory, until the `with` block ends.
    """
    # Tasks may print in other processes: output must not be buffered, to keep its order.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ["PYTHONUNBUFFERED"] = "1"
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=raw)
    parser.add_argument("--engine", choices=kinds, default=kinds[0], help="(%(default)s)")
    kind = parser.parse_args().engine
    if kind == WORKERS:
        with _worker() as url:
            yield {"engine": WORKERS, "url": url}
    elif kind == SERIAL:
        yield {"engine": SERIAL}
    else:
        yield {"engine": "parallel", "executor": kind, "max_workers": 4}


@contextlib.contextmanager
def _worker() -> Iterator[str]:
    from wbengine.engines.worker_based import worker

    main = sys.modules["__main__"]
    # The class `__main__.Hello` of a program is `its.name.Hello` for modules that import it.
    tasks = [main] if main.__spec__ is None else [main, main.__spec__.name]
    running_worker = worker.Worker("default", "examples", tasks, url="memory://examples")
    thread = threading.Thread(target=running_worker.run, kwargs={"display_banner": False})
    thread.start()
    try:
        running_worker.wait()
        yield "memory://examples"
    finally:
        running_worker.stop()
        thread.join()


@contextlib.contextmanager
def worker_processes(
    tasks: str, url: str, count: int = 1
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start workers with the tasks of a module on the topic 'examples', until the block ends.

    They run in their own session: Ctrl-C on the terminal reaches only the engine, which needs the
    workers for the revert.
    """
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "wbengine.worker", "--quiet", "--log-level", "error"]
    command += ["--url", url, "--threads", "1"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": root}
    started = [
        subprocess.Popen(
            [*command, "--topic", "examples", "--tasks", tasks],
            env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
        )
        for _ in range(count)
    ]  # fmt: skip
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

"""What the examples share: `--engine KIND`, and a worker of their own where the kind needs one."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

SERIAL: Final = "serial"
THREADS: Final = "threads"
PROCESSES: Final = "processes"
WORKERS: Final = "worker-based"
ALL: Final = (SERIAL, THREADS, PROCESSES, WORKERS)
#: All but workers: for tasks that cannot travel, or that have nothing to gain by it.
LOCAL: Final = (SERIAL, THREADS, PROCESSES)
#: All, with workers as the default.
REMOTE_FIRST: Final = (WORKERS, SERIAL, THREADS, PROCESSES)


@contextlib.contextmanager
def chosen(about: str | None, kinds: Sequence[str] = ALL) -> Iterator[dict[str, Any]]:
    """The options for `engines.load` and `engines.run` that the command line asks for.

    The first of `kinds` is the default.  In a `with` block, because a worker-based engine needs a
    worker: one that runs in a thread of this process, reached through memory, until the block ends.
    """
    _print_in_order()
    kind = _parse(about, kinds)
    if kind == WORKERS:
        with _worker() as url:
            yield {"engine": "worker-based", "url": url}
    elif kind == SERIAL:
        yield {"engine": "serial"}
    else:
        yield {"engine": "parallel", "executor": kind, "max_workers": 4}


def _parse(about: str | None, kinds: Sequence[str]) -> str:
    spec = sys.modules["__main__"].__spec__
    parser = argparse.ArgumentParser(
        prog=None if spec is None else f"python -m {spec.name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--engine", choices=kinds, default=kinds[0], help="the kind to run on (%(default)s)"
    )
    return str(parser.parse_args().engine)


def _print_in_order() -> None:
    # Tasks may print in other processes: what is printed must not wait in a buffer.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ["PYTHONUNBUFFERED"] = "1"


@contextlib.contextmanager
def _worker() -> Iterator[str]:
    """Offer the tasks of this program for the length of the block; where the worker is reached."""
    from wbengine.engines.worker_based import worker

    url = "memory://examples"
    main = sys.modules["__main__"]
    # What a program calls `__main__.Hello` is `its.name.Hello` for those who import it.
    tasks = [main] if main.__spec__ is None else [main, main.__spec__.name]
    made = worker.Worker("default", "examples", tasks, url=url)
    thread = threading.Thread(target=made.run, kwargs={"display_banner": False})
    thread.start()
    try:
        made.wait()
        yield url
    finally:
        made.stop()
        thread.join()

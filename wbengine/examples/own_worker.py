"""The same flow, here and on a worker: another process, reached through a folder.

The worker is what anybody would start by hand::

    python -m wbengine.worker --topic telegraph --tasks wbengine.examples.remote_tasks --url ...

Engine and worker may be started in any order; whoever is first waits.

Prints::

    serial: MEET STOP ME STOP AT STOP NOON (in this process)
    worker-based: MEET STOP ME STOP AT STOP NOON (in the worker)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from wbengine import engines
from wbengine.examples import remote_tasks
from wbengine.patterns import linear_flow


@contextlib.contextmanager
def workers(url: str, count: int = 1) -> Iterator[list[int]]:
    """Worker processes for the length of the block; their process ids."""
    command = [sys.executable, "-m", "wbengine.worker", "--quiet", "--url", url]
    command += ["--topic", "telegraph", "--tasks", remote_tasks.__name__, "--threads", "2"]
    started = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()  # it finishes what runs, and says goodbye
        for process in started:
            process.wait()


def send(**options: Any) -> tuple[str, int]:
    flow = linear_flow.Flow("telegram").add(remote_tasks.Translate(), remote_tasks.Sign())
    values = engines.run(flow, store={"text": "meet me at noon"}, **options)
    return values["telegram"], values["pid"]


def main() -> None:
    telegram, pid = send(engine="serial")
    print(f"serial: {telegram} ({'in this process' if pid == os.getpid() else 'elsewhere'})")
    with tempfile.TemporaryDirectory() as folder:
        url = f"filesystem://{folder}/broker"
        with workers(url) as pids:
            telegram, pid = send(engine="worker-based", url=url)
    print(f"worker-based: {telegram} ({'in the worker' if pid in pids else 'elsewhere'})")


if __name__ == "__main__":
    main()

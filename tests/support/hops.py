"""The files of the package that a task passes through.

These are the files with a function that is called between `engines.load` and the end of the run, in
any thread, in the engine and in the worker.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import wbengine
from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.testing._workers import worker_in_thread

__all__ = ["Step", "entered"]

ROOT = f"{Path(wbengine.__file__).parent}/"

#: With three tasks, the processing of the first reply is finished before the last task ends.
STEPS = 3
#: Duration of a task: long enough for RUNNING to be sent, and for both sides to become idle.
SECONDS = 0.05


class Step(task.Task):
    """Receives a number and returns the next one after a short time."""

    def execute(self, number: int) -> int:
        time.sleep(SECONDS)
        return number + 1


class Trace:
    """A profile function that records the files of called functions, except calls by imports."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.counts = False
        self._thread = threading.local()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code.co_name == "<module>":
            self._imports += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and self._counts(code.co_filename):
            self.files.add(code.co_filename.removeprefix(ROOT))

    def _counts(self, file: str) -> bool:
        return self.counts and file.startswith(ROOT) and not self._imports

    @property
    def _imports(self) -> int:
        """Return the nesting depth of imports in this thread."""
        return getattr(self._thread, "imports", 0)

    @_imports.setter
    def _imports(self, count: int) -> None:
        self._thread.imports = count


def entered(engine: str, url: str | None, options: dict[str, Any]) -> list[str]:
    """Return the files. The process must be new; `url` is the URL of a broker, if one is used."""
    trace = Trace()
    flow = linear_flow.Flow("f").add(
        *(Step(f"step {n}", provides=f"n{n + 1}", rebind={"number": f"n{n}"}) for n in range(STEPS))
    )
    if url is not None:
        options = {**options, "url": url}
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        with contextlib.ExitStack() as stack:
            if url is not None:
                stack.enter_context(worker_in_thread(url, Step))
            trace.counts = True
            loaded = engines.load(flow, store={"n0": 0}, engine=engine, **options)
            loaded.run()
            trace.counts = False
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert loaded.storage.fetch(f"n{STEPS}") == STEPS
    return sorted(trace.files)

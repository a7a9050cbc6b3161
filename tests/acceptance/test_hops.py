"""How many files one task visits, from being ready to being settled, on both sides of the wire."""

from __future__ import annotations

import collections
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

import wbengine
from tests import sample_tasks as tasks
from wbengine import engines
from wbengine.engines.worker_based import worker as workers
from wbengine.patterns import linear_flow

ROOT = f"{Path(wbengine.__file__).parent}/"

#: The most files of the package that the way of one task may touch.  Transports are not counted:
#: they stand where kombu's own stand for everybody else.
BUDGET = 24
#: `_crash` says where the process is, and does nothing.
UNCOUNTED = ("transports/", "_crash.py")


class Trace:
    """Files of the package whose functions are called while one given turn of the loop lasts."""

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.turns = 0
        self.calls: collections.Counter[str] = collections.Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            name = code.co_filename.removeprefix(ROOT)
            if (name, code.co_name) == ("_core/machine.py", "_schedule"):
                self.turns += 1
            if self.turns == self.turn:
                self.calls[name] += 1

    @property
    def files(self) -> list[str]:
        return sorted(name for name in self.calls if not name.startswith(UNCOUNTED))


@pytest.mark.parametrize("transport", ["memory", "filesystem"])
def test_a_task_visits_few_files(tmp_path: Path, transport: str) -> None:
    url = "memory://hops" if transport == "memory" else f"filesystem://{tmp_path / 'broker'}"
    # The third turn hands out a task with an argument and a result, of a class that ran before.
    trace = Trace(turn=3)
    threading.setprofile(trace)
    worker = workers.Worker("default", "t", [tasks], url=url, threads_count=1)
    thread = threading.Thread(target=worker.run, kwargs={"display_banner": False})
    thread.start()
    assert worker.wait(60)
    flow = linear_flow.Flow("f").add(
        tasks.Add(),
        tasks.Double(name="first", provides="a"),
        tasks.Double(name="second", provides="b", rebind={"sum": "a"}),
        tasks.Nothing(name="last"),
    )
    loaded = engines.load(flow, store={"x": 1, "y": 2}, engine="worker-based", url=url)
    before = sys.getprofile()
    try:
        sys.setprofile(trace)
        loaded.run()
    finally:
        threading.setprofile(None)
        sys.setprofile(before)
        worker.stop()
        thread.join(60)
    assert loaded.storage.fetch("b") == 12
    print(f"{len(trace.files)} files, {sum(trace.calls.values())} calls: {trace.files}")
    assert len(trace.files) <= BUDGET

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
#: Turns of the loop that hand out a task with an argument and a result, of a class that ran before.
TURNS = range(3, 8)


class Trace:
    """Files of the package whose functions are called, by the turn of the loop that lasts then."""

    def __init__(self) -> None:
        self.turns = 0
        self.calls: dict[int, collections.Counter[str]] = {
            turn: collections.Counter() for turn in TURNS
        }

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            name = code.co_filename.removeprefix(ROOT)
            if (name, code.co_name) == ("_core/machine.py", "_schedule"):
                self.turns += 1
            if self.turns in self.calls:
                self.calls[self.turns][name] += 1

    @property
    def files(self) -> list[str]:
        """Those of the turn with the fewest: in another there may have been a beat besides."""
        found = ([name for name in calls if not name.startswith(UNCOUNTED)]
                 for calls in self.calls.values())  # fmt: skip
        return sorted(min(found, key=len))


@pytest.mark.parametrize("transport", ["memory", "filesystem"])
def test_a_task_visits_few_files(tmp_path: Path, transport: str) -> None:
    url = "memory://hops" if transport == "memory" else f"filesystem://{tmp_path / 'broker'}"
    trace = Trace()
    threading.setprofile(trace)
    worker = workers.Worker("default", "t", [tasks], url=url, threads_count=1)
    thread = threading.Thread(target=worker.run, kwargs={"display_banner": False})
    thread.start()
    assert worker.wait(60)
    flow = linear_flow.Flow("f").add(
        tasks.Add(),
        tasks.Double(name="double 2", provides="x2"),
        *(
            tasks.Double(name=f"double {n}", provides=f"x{n}", rebind={"sum": f"x{n - 1}"})
            for n in TURNS
        ),
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
    assert loaded.storage.fetch(f"x{TURNS[-1]}") == 3 * 2 ** (len(TURNS) + 1)
    print(f"{len(trace.files)} files: {trace.files}")
    assert len(trace.files) <= BUDGET

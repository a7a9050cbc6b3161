"""Memory that a run retains."""

from __future__ import annotations

import tracemalloc

from wbengine import engines, task
from wbengine.patterns import unordered_flow

TASKS = 5000
#: A record of 216 bytes, its identifier, and its entries in tables of the run.
BYTES = 600


class Nothing(task.Task):
    def execute(self):
        return None


def test_run_keeps_few_bytes_per_task():
    flow = unordered_flow.Flow("f").add(*(Nothing(f"t{i}") for i in range(TASKS)))
    engine = engines.load(flow, engine="serial")
    tracemalloc.start()
    try:
        engine.run()
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert allocated / TASKS < BYTES

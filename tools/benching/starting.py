"""Duration of imports and of a first engine, each in new processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.benching import figures

ROOT = Path(__file__).resolve().parents[2]

#: Measures the import without other imports before it. Public names are imported on first use.
_IMPORT = """
import time
began = time.perf_counter()
import wbengine.engines
alone = time.perf_counter() - began
for name in wbengine.engines.__all__:
    getattr(wbengine.engines, name)
took = time.perf_counter() - began
import json
print(json.dumps({"import alone": alone, "import": took}))
"""
_LOAD = """
import json, time
from wbengine import engines, task
from wbengine.patterns import linear_flow
class Nothing(task.Task):
    def execute(self):
        pass
found = {}
for kind in ("serial", "parallel", "worker-based"):
    flow = linear_flow.Flow("f").add(Nothing())
    began = time.perf_counter()
    engines.load(flow, engine=kind)
    found[f"load {kind}"] = time.perf_counter() - began
print(json.dumps(found))
"""
RUNS = 7


def measure(repeat: int = RUNS) -> dict[str, float]:
    """Return the median seconds of each step, without the first run, which may compile modules."""
    medians: dict[str, float] = {}
    for program in (_IMPORT, _LOAD):
        runs = [
            json.loads(subprocess.check_output([sys.executable, "-c", program], cwd=ROOT))
            for _ in range(repeat + 1)
        ]
        medians |= figures.medians(runs[1:])
    return medians

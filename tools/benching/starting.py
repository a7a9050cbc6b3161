"""What it costs to begin: imports, and a first engine, each in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.benching import figures

ROOT = Path(__file__).resolve().parents[2]

#: Nothing else is imported before it.  The names that it offers come from modules of their own,
#: which are imported when a name is first used.
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
    """Seconds of each, the medians; the first run, which may have to compile, is not counted."""
    found: dict[str, float] = {}
    for program in (_IMPORT, _LOAD):
        runs = [
            json.loads(subprocess.check_output([sys.executable, "-c", program], cwd=ROOT))
            for _ in range(repeat + 1)
        ]
        found |= figures.middle(runs[1:])
    return found

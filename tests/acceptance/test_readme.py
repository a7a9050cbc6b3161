"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests import workers

README = (workers.REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def python(folder: Path, program: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_the_first_flow_runs(tmp_path: Path) -> None:
    first, _ = BLOCKS
    assert python(tmp_path, first).splitlines() == [
        "charging for reservation of 7",
        "{'order_id': 7, 'reservation': 'reservation of 7'}",
    ]


def test_the_same_flow_runs_on_a_worker(tmp_path: Path) -> None:
    first, remote = BLOCKS
    tasks = first.partition("flow = ")[0]
    (tmp_path / "orders.py").write_text(tasks, encoding="utf-8")
    url = f"filesystem://{tmp_path / 'broker'}"
    program = f"""
from wbengine import engines
from wbengine.patterns import linear_flow
from orders import Reserve, Charge
flow = linear_flow.Flow("order").add(Reserve(), Charge())
{remote}
print("ended")
"""
    arguments = ("--topic", "orders", "--tasks", "orders", "--url", url)
    with workers.workers(tmp_path, *arguments, cwd=tmp_path) as (worker,):
        environment = f"import os; os.environ['WBENGINE_URL'] = {url!r}\n"
        assert python(tmp_path, environment + program) == "ended\n"
        assert worker.stop() == 0
        assert "charging for reservation of 7" in worker.text

"""Flows on green threads: eventlet is installed apart, for it changes whatever finds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import workers

pytestmark = pytest.mark.timeout(600)  # it is installed

PROGRAM = """
import sys, eventlet
if sys.argv[1:] == ["patched"]:
    eventlet.monkey_patch()
import futurist
from wbengine import engines, task
from wbengine.patterns import unordered_flow

flow = unordered_flow.Flow("f")
for name in "ab":
    flow.add(task.FunctorTask(lambda: eventlet.sleep(0.01) or 1, name=name, provides=name))
with futurist.GreenThreadPoolExecutor(2) as executor:
    try:
        print(engines.run(flow, engine="parallel", executor=executor))
    except ValueError as error:
        print(error)
"""


REFUSAL = (
    "Option executor=GreenThreadPoolExecutor runs nothing before eventlet.monkey_patch() is called,"
    " at the beginning of the program: call it, or take executor='threads'\n"
)


@pytest.fixture(scope="module")
def eventlet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has eventlet."""
    folder = tmp_path_factory.mktemp("eventlet")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    subprocess.run([*pip, "eventlet", "greenlet", "dnspython"], check=True, timeout=300)
    return folder


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["patched"], "{'a': 1, 'b': 1}\n"),
        (
            [],
            REFUSAL,
        ),
    ],
    ids=["patched", "unpatched"],
)
def test_green_executor_runs_a_flow_or_is_refused(
    eventlet: Path, words: list[str], told: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *words],
        env={"PYTHONPATH": f"{eventlet}:{workers.REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.stdout, done.returncode) == (told, 0), done.stderr

"""Flows on green threads, in processes with a separate installation of eventlet and gevent."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import python, workers

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
    "executor=GreenThreadPoolExecutor requires eventlet.monkey_patch(): call it at the beginning of"
    " the program, or use executor='threads'\n"
)


REMOTE = """
import sys, threading
sys.path.insert(0, sys.argv[2])
if sys.argv[1] == "eventlet":
    import eventlet
    eventlet.monkey_patch()
else:
    from gevent import monkey
    monkey.patch_all()
from wbengine import engines, task
from wbengine.engines.worker_based import worker
from wbengine.patterns import unordered_flow

class Double(task.Task):
    def execute(self, x):
        return 2 * x

url = sys.argv[3]
try:
    made = worker.Worker("default", "t", [Double], url=url, threads_count=2)
except ValueError as error:
    sys.exit(str(error))
serving = threading.Thread(target=made.run)
serving.start()
made.wait()
flow = unordered_flow.Flow("f").add(Double(provides="y"))
print(engines.run(flow, engine="worker-based", url=url, store={"x": 4})["y"])
made.stop()
serving.join()
"""


@pytest.fixture(scope="module")
def eventlet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install eventlet and gevent into a folder and return it."""
    folder = tmp_path_factory.mktemp("eventlet")
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    python.run(
        [*pip, "eventlet", "gevent", "greenlet", "dnspython", "zope.event", "zope.interface"],
        real=True,
        check=True,
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
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
    eventlet: Path, words: list[str], message: str
) -> None:
    done = python.run(
        ["-W", "ignore", "-c", PROGRAM, *words],
        real=True,
        env={"PYTHONPATH": f"{eventlet}:{workers.REPOSITORY}"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == (message, 0), done.stderr


def url_of(scheme: str, folder: Path) -> str:
    return f"{scheme}://{'green' if scheme == 'memory' else folder}"


def remote(patched: str, folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    return python.run(
        ["-W", "ignore", "-c", REMOTE, patched, str(folder), url],
        real=True,
        env={"PYTHONPATH": f"{folder}:{workers.REPOSITORY}"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [
        "memory",
        "redis",
        pytest.param("filesystem", marks=pytest.mark.slow),
        pytest.param("postgresql", marks=pytest.mark.slow),
    ],
)
def test_worker_and_engine_run_in_a_process_that_gevent_patched(
    eventlet: Path, scheme: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = url_of(scheme, tmp_path)
    if scheme in ("redis", "postgresql"):
        url = request.getfixturevalue(f"{scheme}_url")
    done = remote("gevent", eventlet, url)
    assert (done.stdout, done.returncode) == ("8\n", 0), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "works"), [("memory", True), ("filesystem", False)])
def test_worker_in_a_process_that_eventlet_patched_runs_or_is_refused(
    eventlet: Path, scheme: str, works: bool, tmp_path: Path
) -> None:
    url = url_of(scheme, tmp_path)
    done = remote("eventlet", eventlet, url)
    if works:
        assert (done.stdout, done.returncode) == ("8\n", 0), done.stderr
    else:
        assert done.returncode == 1
        assert done.stderr.startswith(f"the broker at {url} requires select.poll")
        assert "use gevent" in done.stderr

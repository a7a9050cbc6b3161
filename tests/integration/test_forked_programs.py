"""A fork of a program that has started an executor: it refuses calls, and its parent continues."""

from __future__ import annotations

from concurrent import futures
from typing import Any

import pytest

from tests.support import sample_tasks as tasks
from tests.support.forks import answer_of_fork
from tests.support.workers import worker_in_thread
from wbengine import engines
from wbengine.engines.worker_based import executor as executors
from wbengine.patterns import linear_flow

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def run(**options: Any) -> Any:
    flow = linear_flow.Flow("f").add(tasks.Add())
    return engines.run(flow, store={"x": 1, "y": 2}, **options)["sum"]


@pytest.fixture(params=["memory", "redis", "rabbitmq", "filesystem"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """The fork has the connections of the parent, if there are any."""
    if request.param in ("redis", "rabbitmq"):
        return str(request.getfixturevalue(f"{request.param}_url"))
    return f"{request.param}://{tmp_path}/a" if request.param == "filesystem" else "memory://forks"


def test_fork_cannot_use_an_executor_that_its_parent_started(url: str) -> None:
    with worker_in_thread(url, tasks):
        executor = executors.WorkerTaskExecutor("e", "default", url=url)
        executor.start()
        options = {"engine": "worker-based", "executor": executor}
        for call in (lambda: run(**options), executor.ping, executor.start):
            assert "InvalidState: this executor was started in process" in answer_of_fork(call)
        assert answer_of_fork(executor.stop) == "None"
        assert run(**options) == 3
        executor.stop()
        executor.start()  # in this process
        assert run(**options) == 3
        executor.stop()


def test_fork_uses_an_executor_that_its_parent_has_not_started() -> None:
    executor = executors.WorkerTaskExecutor("e", "default", url="memory://later")

    def run_in_fork() -> Any:
        with worker_in_thread("memory://later", tasks):
            return run(engine="worker-based", executor=executor)

    assert answer_of_fork(run_in_fork) == "3"


@pytest.mark.parametrize("kind", [futures.ThreadPoolExecutor, futures.ProcessPoolExecutor])
def test_fork_cannot_use_a_pool_of_the_user_that_its_parent_used(kind: Any) -> None:
    with kind(1) as used, kind(1) as unused:
        assert run(engine="parallel", executor=used) == 3
        answer = answer_of_fork(lambda: run(engine="parallel", executor=used))
        assert f"RuntimeError: {kind.__name__} was used in process" in answer

        def run_in_fork() -> Any:
            with unused:  # It leaves no children.
                return run(engine="parallel", executor=unused)

        assert answer_of_fork(run_in_fork) == "3"
        assert run(engine="parallel", executor=used) == 3

"""Answers that no worker gave: what an engine does not believe."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support import sample_tasks
from tests.support.workers import until, worker_in_thread
from wbengine import engines
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.patterns import linear_flow


@pytest.mark.parametrize("kind", ["memory", "filesystem", "redis", "rabbitmq"])
def test_outcome_that_is_sent_to_all_engines_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    own = {"memory": f"memory://{tmp_path.name}", "filesystem": f"filesystem://{tmp_path}/broker"}
    url = own.get(kind) or request.getfixturevalue(f"{kind}_url")
    store = {"started": str(tmp_path / "started"), "release": str(tmp_path / "release")}
    executor = executors.WorkerTaskExecutor("victim", "default", url=url)
    forger = executors.WorkerTaskExecutor("forger", "default", url=url)
    flow = linear_flow.Flow("f").add(sample_tasks.WaitFor(provides="seen"))
    with worker_in_thread(url, sample_tasks) as worker:
        engine = engines.load(flow, store=store, engine="worker-based", executor=executor)
        thread = threading.Thread(target=engine.run)
        thread.start()
        until(lambda: executor.requests("started"))
        (running,) = executor.requests("started")
        headers = {env.WBE_VERSION: "1", env.WBE_EPOCH: 1, env.WBE_WORKER: worker.identity}
        forger.start()
        forger.publish(
            pr.Response(pr.SUCCESS, result="forged"),
            env.ALL_ENGINES,
            correlation_id=running.id,
            headers=headers,
        )
        until(lambda: executor.ignored.get("misaddressed") == 1)
        assert [each.state for each in executor.requests()] == ["started"]
        (tmp_path / "release").touch()
        thread.join(60)
        forger.stop()
    assert engine.storage.fetch("seen") == "released"
    assert engine.storage.get_flow_state() == "SUCCESS"

"""Tags that tasks set on remote workers, and after which their process dies."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import python, servers, tagging_tasks, workers
from tests.support.waiting import until
from wbengine import engines, states
from wbengine.persistence import backends, base

HERE = "tests.support.tagging_tasks"


def tags_in(store: base.Backend, *conditions: str) -> list[dict[str, Any]]:
    with store.get_connection() as connection:
        return [dict(row.tags) for row in connection.list_flows(tags=conditions).flows]


@pytest.mark.parametrize("pool", ["--threads", "--processes"])
def test_tasks_on_workers_set_tags(pool: str, tmp_path: Path) -> None:
    broker = f"filesystem://{tmp_path / 'broker'}"
    arguments = ["--url", broker, "--topic", "t", "--tasks", HERE, pool, "2"]
    with (
        workers.workers(tmp_path, *arguments),
        backends.backend(f"sqlite:///{tmp_path}/flows.db") as store,
    ):
        options: dict[str, Any] = {"backend": store, "engine": "worker-based", "url": broker}
        for name in ("Tagger", "AsyncTagger"):
            engines.run(tagging_tasks.flow(name), **options)
        with pytest.raises(RuntimeError, match="no"):
            engines.run(tagging_tasks.flow("Failing"), **options)
        assert tags_in(store, "phase=two", "amount>4", "due<2027-01-01") == [tagging_tasks.TAGS] * 3


def test_tag_remains_after_worker_was_killed(tmp_path: Path) -> None:
    """The tag is listed before the end of the task, and after the task was resent."""
    broker = f"filesystem://{tmp_path / 'broker'}"
    arguments = ["--url", broker, "--topic", "t", "--tasks", HERE, "--threads", "1"]
    with (
        workers.workers(tmp_path, *arguments, count=2),
        backends.backend(f"sqlite:///{tmp_path}/flows.db") as store,
    ):
        engine = engines.load(
            tagging_tasks.flow("Killed"), backend=store, engine="worker-based", url=broker,
            inputs={"folder": str(tmp_path)},
        )  # fmt: skip
        thread = threading.Thread(target=engine.run)
        thread.start()
        until(lambda: tags_in(store, "phase=before") == [{"phase": "before", "amount": 1}], 2)
        assert not (tmp_path / "kill").exists()
        (tmp_path / "kill").touch()
        thread.join()
        assert tags_in(store, "amount>0") == [{"phase": "before", "amount": 1, "again": True}]


RUN = f"""
import sys
from wbengine import engines
from wbengine.persistence import backends
from {HERE} import flow
with backends.backend(sys.argv[1]) as store:
    engines.run(flow("Killed"), backend=store, engine=sys.argv[3], inputs={{"folder": sys.argv[2]}})
"""


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_tag_remains_after_engine_was_killed(sql_uri: str, engine: str, tmp_path: Path) -> None:
    with backends.backend(sql_uri) as store:
        words = ["-c", RUN, sql_uri, str(tmp_path), engine]
        with python.start(words, cwd=servers.REPOSITORY) as process:
            until(lambda: tags_in(store, "phase=before") != [], 2)
            (tmp_path / "kill").touch()
            assert process.wait(60) < 0
        assert tags_in(store, "phase=before") == [{"phase": "before", "amount": 1}]
        with store.get_connection() as connection:
            (row,) = connection.list_flows().flows
            detail = connection.get_flow_details(row.uuid)
        resumed = engines.load(tagging_tasks.flow("Killed"), flow_detail=detail, backend=store)
        resumed.run()
        assert resumed.storage.get_flow_state() == states.SUCCESS
        assert tags_in(store, "again=true") == [{"phase": "before", "amount": 1, "again": True}]

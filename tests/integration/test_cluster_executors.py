"""Flows in executors of other libraries, which pickle their calls."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import loky
import pytest

from tests.unit.executor_tasks import Echo, Fetch, Raises
from wbengine import engines, task
from wbengine.patterns import linear_flow


@pytest.fixture(params=["loky", pytest.param("dask", marks=pytest.mark.slow)])
def executor(request: pytest.FixtureRequest) -> Iterator[futures.Executor]:
    if request.param == "loky":
        with loky.ProcessPoolExecutor(max_workers=1) as pool:
            yield pool
        return
    import distributed  # slow to import

    with (
        distributed.LocalCluster(n_workers=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


def run(executor: futures.Executor, *tasks: task.Task, **inputs: Any) -> dict[str, Any]:
    flow = linear_flow.Flow("f").add(*tasks)
    values: dict[str, Any] = engines.run(flow, inputs, engine="parallel", executor=executor)
    return values


def test_flow_runs_in_executor_of_another_library(executor: futures.Executor) -> None:
    values = run(
        executor,
        Fetch("fetch", provides="fetched", inject={"value": "x"}),
        task.Map(Echo("each"), over="values", item="value", provides="items"),
        values=[1, 2, 3],
    )
    assert values["fetched"][0] != os.getpid()
    assert values["items"] == [1, 2, 3]
    with pytest.raises(LookupError, match="gone"):
        run(executor, Echo("undone"), Raises("fails"))

"""Fields of the lines of a JSON log."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import workers
from tests.support.waiting import until
from wbengine import engines, exceptions, task
from wbengine._cli import log_output
from wbengine._logs import record_fields
from wbengine.patterns import linear_flow

LOG = logging.getLogger("tests.json_log")


@task.task
def charge(amount: int) -> int:
    LOG.warning("charging %d", amount)
    return amount


@task.task
async def hold(folder: str) -> None:
    Path(folder, "begun").touch()
    await asyncio.Event().wait()


@task.workflow
def order(steps: Any) -> None:
    steps.run(charge, amount=2)


def read(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_lines_of_a_worker_name_flow_task_step_request_and_attempt(
    tmp_path: Path, pool: str
) -> None:
    url = f"filesystem://{tmp_path}/broker"
    flow = linear_flow.Flow("f").add(
        charge("first", inject={"amount": 1}), order("order"),
        hold("hold", inject={"folder": str(tmp_path)}),
    )  # fmt: skip
    words = ("--url", url, "--topic", "t", "--tasks", __name__, "--pool", pool)
    words += ("--code-version", "v43")
    with workers.workers(tmp_path, *words, "--log-format", "json") as (worker,):
        engine = engines.load(flow, engine="worker-based", url=url)
        thread = threading.Thread(target=_run, args=(engine,))
        thread.start()
        until((tmp_path / "begun").exists)
        engine.cancel(reason="no stock")
        thread.join()
        assert worker.stop() == 0
    lines = read(worker.text)
    start = next(line for line in lines if line["message"].endswith("accepts requests"))
    assert (start["topics"], start["exchange"]) == (["t"], "default")
    assert start["message"].startswith(start["worker"])
    assert {line["code_version"] for line in lines[lines.index(start) :]} == {"v43"}
    uuid = engine.storage.flow_uuid
    names = ("flow", "task", "step", "attempt")

    def fields(part: str) -> list[tuple[Any, ...]]:
        return [tuple(map(line.get, names)) for line in lines if part in line["message"]]

    called = [(uuid, "first", None, 1), (uuid, "order", "1.0-charge", 1)]
    assert fields("charging") == called
    assert fields("ended after") == called
    ids = {line["request"] for line in lines if "task" in line}
    assert len(ids) == 3
    (cancelled,) = [line for line in lines if "was cancelled" in line["message"]]
    assert (cancelled["level"], cancelled["task"], cancelled["flow"]) == ("INFO", "hold", uuid)
    assert not any("traceback" in line for line in lines)


def _run(engine: Any) -> None:
    with pytest.raises(exceptions.Cancelled):
        engine.run()


def test_lines_of_local_tasks_name_their_flow_and_request() -> None:
    """Lines outside of tasks have the flow of their thread; all have the fields of the process."""
    written: list[dict[str, Any]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(json.loads(log_output.JSONLines().format(record)))

    handler = Handler()
    LOG.addHandler(handler)
    try:
        with log_output.fields(code_version="v43", absent=None):
            engines.run(linear_flow.Flow("f").add(charge("c", inject={"amount": 1})))
            with record_fields.adding_flow("some-flow"):
                LOG.warning("between")
        LOG.warning("after")
    finally:
        LOG.removeHandler(handler)
    inside, between, after = written
    assert inside["task"] == "c" and inside["attempt"] == 1 and inside["request"] and inside["flow"]
    assert (between["flow"], "task" in between) == ("some-flow", False)
    assert "flow" not in after
    assert [line.get("code_version") for line in written] == ["v43", "v43", None]
    assert not any("absent" in line for line in written)

"""Ctrl-C during detached tasks: their requests are recovered by the next run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.workers import until
from wbengine import engines, exceptions, states, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence.backends import impl_memory


class Outside(task.Task):
    """Task that waits in its first run, and returns at once if it is recovered."""

    detached = True
    local = True

    def __init__(self, name: str, log: list[tuple[str, Any]]) -> None:
        super().__init__(name, provides=f"{name}_done")
        self._log = log

    async def execute(self) -> str:
        assert self.request is not None
        if self.request.recovered:
            self._log.append(("found", self.request.id))
            return "done"
        try:
            self._log.append(("begun", self.request.id))
            await asyncio.sleep(20)
            self._log.append(("ended", self.request.id))
        except BaseException:
            self._log.append(("left" if self.request.left else "cancelled", self.cancelled))
            raise
        return "done"


def run_until_interrupted(engine: Any, ready: Callable[[], bool]) -> None:
    """Run an engine, and press Ctrl-C once `ready` returns True."""

    def interrupt() -> None:
        until(ready)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=interrupt)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    pressing.join()


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize(
    "limit",
    [None, (15.0, 18.0)],
    ids=["no time limit", "time limit"],
)
def test_ctrl_c_does_not_wait_for_detached_tasks(executor: str, limit: Any) -> None:
    log: list[tuple[str, Any]] = []
    flow = unordered_flow.Flow("f").add(*(Outside(f"t{n}", log) for n in range(5)))
    engine = engines.load(flow, engine="parallel", executor=executor, timelimit=limit)
    run_until_interrupted(engine, lambda: len(log) == 5)
    begun = {id for kind, id in log[:5] if kind == "begun"}
    assert len(begun) == 5 and log[5:] == [("left", False)] * 5
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert {engine.storage.get_atom_state(f"t{n}") for n in range(5)} == {states.RUNNING}
    engine.run()
    assert set(log[10:]) == {("found", id) for id in begun}
    assert engine.storage.fetch_all() == {f"t{n}_done": "done" for n in range(5)}


def test_ctrl_c_waits_for_revert_of_detached_task() -> None:
    """The engine waits for reverts, as it does for tasks that are not detached."""
    log: list[str] = []

    class Undone(task.Task):
        detached = True

        async def execute(self) -> None: ...

        async def revert(self, *args: Any, **kwargs: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.2)
            log.append("reverted")

    class Fails(task.Task):
        def execute(self) -> None:
            raise LookupError("no")

    flow = linear_flow.Flow("f").add(Undone("u"), Fails("x"))
    engine = engines.load(flow, engine="parallel")
    with pytest.raises((KeyboardInterrupt, LookupError)):
        engine.run()
    assert log == ["reverted"]


class Begins(task.Task):
    """Detached task whose operation continues when the flow is interrupted."""

    detached = True
    local = True

    async def execute(self, heard: str) -> None:
        pathlib.Path(heard, self.name).touch()
        await asyncio.sleep(60)


class Finds(task.Task):
    """Detached task of the next run, which records `recovered` and `cancelled`."""

    detached = True

    def execute(self, heard: str, cancelled: bool) -> None:
        assert self.request is not None
        if cancelled:  # another process learns this after a delay
            until(lambda: self.cancelled)
        pathlib.Path(heard, self.name).write_text(f"{self.request.recovered} {self.cancelled}")


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_recovered_detached_task_is_called_even_if_cancelled(
    executor: str, cancelled: bool, tmp_path: pathlib.Path
) -> None:
    """The pool has one slot, so two of the three tasks wait."""
    backend, names, store = impl_memory.MemoryBackend(), ("a", "b", "c"), {"heard": str(tmp_path)}
    begins = engines.load(
        unordered_flow.Flow("f").add(*map(Begins, names)),
        engine="parallel", backend=backend, store=store,
    )  # fmt: skip
    run_until_interrupted(begins, lambda: len(list(tmp_path.iterdir())) == 3)
    with contextlib.closing(backend.get_connection()) as connection:
        kept = connection.get_flow_details(begins.storage.flow_uuid)
    finds = engines.load(
        unordered_flow.Flow("f").add(*map(Finds, names)), flow_detail=kept,
        engine="parallel", executor=executor, max_workers=1, backend=backend,
        store={"cancelled": cancelled},
    )  # fmt: skip
    if cancelled:
        finds.notifier.register(states.RUNNING, lambda *_, **__: finds.cancel())
    with contextlib.suppress(exceptions.Cancelled):
        finds.run()
    heard = {found.name: found.read_text() for found in tmp_path.iterdir()}
    assert heard == dict.fromkeys(names, f"True {cancelled}")

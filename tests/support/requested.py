"""Submitted flows that conductors of this process have run, for requests to run them again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.operations import flows
from tests.support import conducted
from tests.support.waiting import until
from wbengine import engines
from wbengine.conductors import backends as conductors
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.persistence import base

STEPS = "tests.operations.flows:steps"


@contextlib.contextmanager
def conducting(store: base.Backend, **engine_options: Any) -> Iterator[jobs.JobBoard]:
    with boards.backend("b", "sql", persistence=store) as board:
        conductor = conductors.fetch(
            "nonblocking", "c", board, persistence=store, engine_options=engine_options
        )
        with conducted.running(conductor):
            yield board


@contextlib.contextmanager
def failing_step() -> Iterator[None]:
    """Let the third step of `STEPS` fail in a `with` block."""
    flows.FAILING.add("c")
    try:
        yield
    finally:
        flows.FAILING.clear()
        flows.DONE.clear()


def failed(store: base.Backend, **engine_options: Any) -> engines.FlowHandle:
    """Submit a flow whose third step fails, and return its handle when its job is consumed."""
    with failing_step(), conducting(store, **engine_options) as board:
        handle = engines.submit(STEPS, backend=store)
        assert handle.wait(60)
        until(lambda: board.job_count == 0)
    return handle


def command_of(store: base.Backend, uuid: str) -> base.FlowCommand | None:
    with contextlib.closing(store.get_connection()) as connection:
        return connection.commands([uuid]).get(uuid)


def run_jobs(store: base.Backend) -> None:
    """Run a conductor until the board has no job."""
    with conducting(store) as board:
        until(lambda: board.job_count == 0)

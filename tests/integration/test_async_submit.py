"""`await engines.asubmit(...)`."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import conducted
from wbengine import engines, exceptions, states
from wbengine.conductors.service import ConductorService
from wbengine.patterns import linear_flow
from wbengine.persistence import backends

INPUTS = {"name": "Ann"}
GATE = threading.Event()
PLACE = contextvars.ContextVar("PLACE", default="elsewhere")


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/flows.db"
    with backends.backend(url) as store, store.get_connection() as connection:
        connection.upgrade()
    return url


@contextlib.contextmanager
def locked(url: str) -> Iterator[sqlite3.Connection]:
    """Lock the database for writers until the end, or until the connection commits."""
    path = url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def count(url: str) -> tuple[int, int]:
    """Return the numbers of flows and jobs."""
    path = url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((flows,),) = connection.execute("SELECT COUNT(*) FROM wbe_flowdetails")
        ((jobs,),) = connection.execute("SELECT COUNT(*) FROM wbe_jobs")
    return flows, jobs


def refused() -> Any:
    """Raise an error after a while."""
    assert GATE.wait(60)
    raise ValueError("no flow")


def placed() -> Any:
    return linear_flow.Flow(PLACE.get()).add(conducted.Greet())


def test_parameters_equal_those_of_submit() -> None:
    assert inspect.signature(engines.asubmit) == inspect.signature(engines.submit)
    assert inspect.iscoroutinefunction(engines.asubmit)


def test_flow_is_submitted_and_awaited(url: str) -> None:
    async def main() -> dict[str, Any]:
        handle = await engines.asubmit(conducted.greeting, backend=url, inputs=INPUTS)
        assert handle.state == states.PENDING
        return await handle

    with backends.backend(url) as store, conducted.running(ConductorService(store)):
        assert asyncio.run(main()) == {"name": "Ann", "greeting": "hello Ann"}


def test_event_loop_continues_while_the_store_waits(url: str) -> None:
    async def main() -> None:
        with locked(url) as lock:
            task = asyncio.create_task(
                engines.asubmit(conducted.greeting, backend=url, inputs=INPUTS)
            )
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert not task.done()
            lock.execute("COMMIT")
        await task

    asyncio.run(main())
    assert count(url) == (1, 1)


def test_cancelled_submission_ends_first_and_can_be_repeated(url: str) -> None:
    async def main() -> None:
        with locked(url) as lock:
            submission = engines.asubmit(
                conducted.greeting, backend=url, inputs=INPUTS, unique="key"
            )
            task = asyncio.create_task(submission)
            await asyncio.sleep(0.2)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0.05)
            assert not task.done()  # The thread may still write.
            lock.execute("COMMIT")
        with pytest.raises(asyncio.CancelledError):
            await task
        counted = count(url)
        assert counted in ((0, 0), (1, 1))
        first = await engines.asubmit(conducted.greeting, backend=url, inputs=INPUTS, unique="key")
        second = await engines.asubmit(conducted.greeting, backend=url, inputs=INPUTS, unique="key")
        assert first.id == second.id and count(url) == (1, 1)

    asyncio.run(main())


def test_failed_submission_that_is_cancelled_stores_nothing(url: str) -> None:
    async def main() -> None:
        GATE.clear()
        asyncio.get_running_loop().call_later(0.5, GATE.set)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engines.asubmit(refused, backend=url, inputs=INPUTS), 0.1)
        assert GATE.is_set()  # The submission has ended.
        assert count(url) == (0, 0)

    asyncio.run(main())


def test_errors_of_submit_are_raised(url: str) -> None:
    with pytest.raises(exceptions.MissingDependencies):
        asyncio.run(engines.asubmit(conducted.greeting, backend=url))
    assert count(url) == (0, 0)


def test_many_flows_are_submitted_concurrently(url: str) -> None:
    async def main() -> None:
        with backends.backend(url) as store:
            submissions = (
                engines.asubmit(conducted.greeting, backend=store, inputs=INPUTS)
                for _ in range(100)
            )
            handles = await asyncio.gather(*submissions)
            assert len({handle.id for handle in handles}) == 100

    asyncio.run(main())
    assert count(url) == (100, 100)


def test_factory_is_called_with_the_context_of_the_caller(url: str) -> None:
    async def main() -> None:
        PLACE.set("here")
        with backends.backend(url) as store:
            handle = await engines.asubmit(placed, backend=store, inputs=INPUTS)
            with store.get_connection() as connection:
                assert connection.get_flow_details(handle.id).name == "here"

    asyncio.run(main())

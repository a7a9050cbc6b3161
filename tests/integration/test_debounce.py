"""Submissions that replace each other until their flow starts."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading
import time
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import callers, conducted
from tests.support.callers import Caller, Place
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine.jobs import backends as boards
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends as stores
from wbengine.persistence.backends._sql import tables

everywhere = callers.on("sqlite driver", "postgresql driver", "mysql connection")
KEY = ("doc-7", 3600)


def submit(place: Place, name: str = "Ada", **options: Any) -> engines.FlowHandle:
    return place.submit(None, name, **{"debounce": KEY, **options})


def wait_of_job(place: Place, uuid: str) -> float:
    """Return the seconds until the job of a flow may start."""
    with place.store.engine.begin() as connection:
        not_before = connection.scalar(
            sa.select(tables.JOBS.c.not_before).where(tables.JOBS.c.uuid == uuid)
        )
    return float(not_before or 0) - time.time()


def make_due(place: Place, uuid: str) -> None:
    with boards.backend("b", "sql", persistence=place.store) as board:
        assert isinstance(board, impl_sql.SQLJobBoard)
        board.make_due(uuid)


def result(place: Place, handle: engines.FlowHandle) -> dict[str, Any]:
    make_due(place, handle.id)
    with conducted.conducting(place.store):
        return handle.result(60)


@everywhere
def test_later_submission_replaces_inputs_and_moves_the_start(place: Place) -> None:
    first = submit(place, "Ada", tags={"n": 1, "first": True}, debounce=("doc-7", 1000))
    assert 900 < wait_of_job(place, first.id) <= 1000
    for number, name in enumerate(("Bob", "Cy"), 2):
        later = submit(place, name, tags={"n": number}, debounce=("doc-7", 2000 * number))
        assert later.id == first.id and place.flows() == place.jobs() == {first.id}
        assert 2000 * number - 100 < wait_of_job(place, first.id) <= 2000 * number
    other = submit(place, debounce=("doc-8", 3600))
    assert other.id != first.id
    with contextlib.closing(place.store.get_connection()) as connection:
        assert [row.uuid for row in connection.list_flows(tags={"n": "3"}).flows] == [first.id]
        assert not connection.list_flows(tags={"first": "true"}).flows
        assert len(list(connection.get_flow_details(first.id))) == 1
        assert len(list(connection.get_logbooks())) == 2
    assert result(place, first) == {"name": "Cy", "greeting": "hello Cy"}


@everywhere
def test_start_is_moved_up_to_the_maximum_after_the_first(place: Place) -> None:
    first = submit(place, debounce=("k", 100), debounce_max=150)
    assert 90 < wait_of_job(place, first.id) <= 100
    submit(place, debounce=("k", 1000), debounce_max=150)
    assert 120 < wait_of_job(place, first.id) <= 150
    with place.store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE wbe_unique_keys SET expires = 1"))
    again = submit(place, "Bob", debounce=("k", 1000), debounce_max=150)
    assert again.id == first.id and wait_of_job(place, first.id) < 1
    assert result(place, first)["name"] == "Bob"
    new = submit(place, debounce=("k", 1000), debounce_max=150)
    assert new.id != first.id and 120 < wait_of_job(place, new.id) <= 150


@everywhere
def test_claimed_or_ended_flow_is_not_replaced(place: Place) -> None:
    first = submit(place)
    make_due(place, first.id)
    with boards.backend("b", "sql", persistence=place.store) as board:
        (job,) = board.iterjobs(only_unclaimed=True)
        board.claim(job, "somebody")
        second = submit(place, "Bob")
        assert second.id != first.id
        board.abandon(job, "somebody")  # it was claimed, so it may have started
        assert submit(place, "Cy").id == second.id
    assert result(place, first)["name"] == "Ada"
    assert result(place, second)["name"] == "Cy"
    third = submit(place, "Dan")
    assert third.id not in (first.id, second.id)


@everywhere
def test_cancelled_or_deleted_flow_is_not_replaced(place: Place) -> None:
    first = submit(place)
    first.cancel()
    second = submit(place, "Bob")
    assert second.id != first.id
    operations.delete(place.store, second.id)
    third = submit(place, "Cy")
    assert third.id not in (first.id, second.id)
    with conducted.conducting(place.store), pytest.raises(exceptions.Cancelled):
        first.result(60)
    assert result(place, third)["name"] == "Cy"


@everywhere
def test_parked_flow_is_not_replaced(place: Place) -> None:
    options: dict[str, Any] = {"backend": place.store, "debounce": ("k", 0)}
    first = engines.submit("tests.support.signalled:flow", **options)
    with conducted.conducting(place.store):
        until(lambda: first.state == states.WAITING)
        second = engines.submit("tests.support.signalled:flow", **options)
        assert second.id != first.id
        for handle in (first, second):
            handle.signal("approved", 5)
            assert handle.result(60)["found"] == 5


def _submit_in_process(url: str, name: str, barrier: Any, queue: Any) -> None:
    with stores.backend(url) as store:
        barrier.wait(60)
        inputs = {"name": name}
        handle = engines.submit(callers.GREETING, backend=store, inputs=inputs, debounce=KEY)
        queue.put((name, handle.id))


@pytest.mark.slow
@everywhere
def test_simultaneous_submissions_of_processes_create_one_flow(place: Place) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(3), context.Queue()
    processes = [
        context.Process(target=_submit_in_process, args=(place.url, name, barrier, queue))
        for name in ("Ada", "Bob", "Cy")
    ]
    for process in processes:
        process.start()
    received = dict(queue.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    assert len(set(received.values())) == 1 and place.flows() == set(received.values())
    handle = engines.handle(received["Ada"], backend=place.store)
    assert result(place, handle)["name"] in received


@pytest.mark.slow
@everywhere
def test_flow_that_starts_has_the_inputs_of_one_submission(place: Place) -> None:
    """Each submission is either in a flow that ran, or replaced before it was claimed."""
    last: dict[str, str] = {}

    def run(start: int) -> None:
        for number in range(start, 60, 3):
            handle = submit(place, f"n{number}", debounce=("k", 0))
            with lock:
                last.setdefault(handle.id, "")

    lock = threading.Lock()
    with conducted.conducting(place.store), futures.ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(run, start) for start in range(3)]:
            done.result(60)
        final = submit(place, "final", debounce=("k", 0))
        assert final.result(60)["greeting"] == "hello final"
        for uuid in place.flows():
            values = engines.handle(uuid, backend=place.store).result(60)
            assert values["greeting"] == f"hello {values['name']}"
    assert set(last) | {final.id} == place.flows()


@callers.on(*callers.ALL_KINDS)
def test_replacement_in_a_transaction_of_the_caller(place: Place, caller: Caller) -> None:
    first = submit(place)
    for commits in (False, True):
        caller.add("x")
        again = place.submit(caller.connection, "Bob", debounce=KEY)
        assert again.id == first.id
        assert place.submit(caller.connection, "Cy", debounce=KEY).id == first.id
        new = place.submit(caller.connection, "Dan", debounce=("other", 3600))
        assert place.submit(caller.connection, "Eve", debounce=("other", 3600)).id == new.id
        (caller.commit if commits else caller.rollback)()
    assert place.flows() == {first.id, new.id} and caller.orders() == ["x"]
    assert result(place, first)["name"] == "Cy" and result(place, new)["name"] == "Eve"


@callers.on("postgresql driver", "sqlite driver")
def test_asynchronous_submission_replaces_a_flow(place: Place) -> None:
    first = submit(place)
    inputs = {"name": "Bob"}
    again = asyncio.run(
        engines.asubmit(callers.GREETING, backend=place.store, inputs=inputs, debounce=KEY)
    )
    assert again.id == first.id and result(place, first)["name"] == "Bob"


@callers.on("sqlite driver")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"unique": "k"}, "debounce= does not allow unique="),
        ({"eta": 5}, "debounce= does not allow eta="),
        ({"debounce": "doc-7"}, "debounce must be a key and seconds, got 'doc-7'"),
        ({"debounce": ("doc-7",)}, "debounce must be a key and seconds"),
        ({"debounce": (" doc", 5)}, "Key of debounce must be printable characters without"),
        ({"debounce": (7, 5)}, "Key of debounce must be printable characters without"),
        ({"debounce": ("x" * 250, 5)}, "Key of debounce"),
        ({"debounce": ("k", -1)}, "Option debounce must be a number of 0 or more, got -1"),
        ({"debounce_max": "x"}, "Option debounce_max must be a number of 0 or more, got 'x'"),
        ({"debounce": None, "debounce_max": 5}, "debounce_max= requires debounce="),
    ],
)
def test_invalid_options_are_refused(place: Place, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        submit(place, **options)
    assert place.flows() == set()


@callers.on("sqlite driver")
def test_key_of_debounce_and_unique_key_are_independent(place: Place) -> None:
    first = submit(place)
    assert place.submit(None, unique="doc-7").id != first.id
    assert submit(place).id == first.id

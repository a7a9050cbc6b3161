"""`run_submitted`: submitted flows in the thread of a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base
from wbengine.testing import run_submitted

MODULE = "tests.testing.test_submitted"


@task.task(provides="thread")
def note(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    return threading.get_ident()


@task.task(provides="thread")
def submit_another(url: str, number: int) -> None:
    engines.submit(f"{MODULE}:one", backend=url, inputs={"number": number}, queue="others")


def one() -> linear_flow.Flow:
    return linear_flow.Flow("one").add(note("note"))


def two() -> linear_flow.Flow:
    return linear_flow.Flow("two").add(submit_another("submit"))


def waiting() -> linear_flow.Flow:
    return linear_flow.Flow("waiting").add(task.WaitFor("paid", provides="paid"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/flows.db"


@pytest.fixture
def store(url: str) -> Iterator[base.Backend]:
    with backends.backend(url) as opened:
        yield opened


def test_flows_run_in_this_thread_in_the_order_of_their_submission(store: base.Backend) -> None:
    submitted = engines.submit_many(
        f"{MODULE}:one", [{"number": n} for n in (1, -1)], backend=store
    )
    run = run_submitted(store)
    assert [handle.id for handle in run] == [handle.id for handle in submitted]
    assert [handle.state for handle in run] == ["SUCCESS", "REVERTED"]
    assert run[0].result()["thread"] == threading.get_ident()
    with pytest.raises(ValueError, match="negative"):
        run[1].result()
    assert run_submitted(store) == []


def test_flows_that_a_flow_submits_run_too(url: str, store: base.Backend) -> None:
    engines.submit(f"{MODULE}:two", backend=store, inputs={"url": url, "number": 3})
    first, second = run_submitted(url)
    assert first.result()["number"] == second.result()["number"] == 3


def test_flows_that_are_not_due_remain(store: base.Backend) -> None:
    later = engines.submit(f"{MODULE}:one", backend=store, inputs={"number": 1}, eta=3600)
    paid = engines.submit(f"{MODULE}:waiting", backend=store)
    assert [handle.state for handle in run_submitted(store)] == ["WAITING"]
    paid.signal("paid", 5)
    assert [handle.id for handle in run_submitted(store)] == [paid.id]
    assert paid.result() == {"paid": 5} and later.state == "PENDING"


def test_store_without_jobs_is_refused() -> None:
    with pytest.raises(ValueError, match="backend must be a database"):
        run_submitted("memory")

"""Writes to rows of reported flows, which are no new events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import conducted, receivers, requested
from tests.support.notified import (
    begun,
    change,
    execute,
    failed,
    kinds,
    pass_time,
    run,
    services,
    webhook,
)
from wbengine import engines, operations, states
from wbengine.operations import _operation
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, models
from wbengine.persistence import base as persistence
from wbengine.task import Task

#: Longer than events are remembered.
LATER_SECONDS = 400


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[persistence.Backend]:
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/flows.db"
        if request.param != "sqlite":
            servers: Any = request.getfixturevalue("database_servers")
            url = stack.enter_context(servers[request.param].database())
        yield stack.enter_context(backends.backend(url))


@pytest.fixture
def site() -> Iterator[receivers.Receiver]:
    with receivers.receiver() as opened:
        yield opened


def events(site: receivers.Receiver) -> list[dict[str, Any]]:
    groups = (group for request in site.requests for group in request.json["groups"])
    return [event for group in groups for event in group["events"]]


def write_again(store: persistence.Backend, uuid: str) -> None:
    """Write the row of a flow as users do: with a note and with a tag."""
    for name, values in (
        ("flow annotate", {"text": "called the bank"}),
        ("flow tag", {"set": {"ticket": "4711"}}),
    ):
        operation = _operation.load(name)
        operation.perform(_operation.Scope(store, "ann"), {"flow": uuid, **values})


def test_notes_and_tags_of_old_flows_are_no_events(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    """Neither a failure, nor a recovery by the success of a flow that was written again."""
    service = begun(store, webhook(site, tmp_path))
    uuids = [failed(store, "order", None, states.SUCCESS), failed(store)]
    run(service)
    pass_time(store, LATER_SECONDS)
    for uuid in uuids:
        write_again(store, uuid)
    run(service)
    assert kinds(site) == [("flow_failed", "order", 1)]


def test_event_has_the_time_of_the_failure(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    uuid = failed(store)
    pass_time(store, 100)
    write_again(store, uuid)
    run(service)
    assert events(site)[0]["at"] == pytest.approx(time.time() - 100, abs=20)


def test_next_run_of_a_flow_that_fails_is_another_event(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    class Failing(Task):
        def execute(self) -> None:
            raise ValueError("oops")

    service = begun(store, webhook(site, tmp_path))
    engine = engines.load(linear_flow.Flow("order").add(Failing("pay")), backend=store)
    for _ in range(2):
        with pytest.raises(ValueError, match="oops"):
            engine.run()
        run(service)
        pass_time(store, LATER_SECONDS)
    assert kinds(site) == [("flow_failed", "order", 1)] * 2
    first, second = (event["id"] for event in events(site))
    assert first != second


@pytest.mark.parametrize("verb", ["revert", "retry"])
@pytest.mark.parametrize("is_requested", [False, True], ids=["here", "conductor"])
def test_reversion_of_a_failed_flow_is_no_event_but_its_retry_is(
    is_requested: bool,
    verb: str,
    store: persistence.Backend,
    site: receivers.Receiver,
    tmp_path: Path,
) -> None:
    service = begun(store, webhook(site, tmp_path))
    handle = requested.failed(store, never_resolve=True)
    assert handle.state == states.FAILURE
    run(service)
    pass_time(store, LATER_SECONDS)
    with requested.failing_step():
        if is_requested:
            operations.request(store, handle.id, verb, reason="no money", by="ann")
            requested.run_jobs(store)
        else:
            with pytest.raises(Exception, match="c fails"):
                getattr(operations, verb)(store, handle.id, reason="no money").run()
    assert handle.state == states.REVERTED
    run(service)
    assert len(kinds(site)) == {"revert": 1, "retry": 2}[verb]


def test_later_writes_of_a_blocked_flow_and_a_lost_worker_are_no_events(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    book, flow, task = models.LogBook("b"), models.FlowDetail("lost"), models.TaskDetail("t")
    flow.state, flow.resent_at = states.SUSPENDED, time.time()
    task.add_incident(models.Incident(states.WORKER_LOST, time.time(), 1, "host:7"))
    flow.add(task)
    book.add(flow)
    with contextlib.closing(store.get_connection()) as connection:
        connection.save_logbook(book)
    lost = [flow.uuid, failed(store, "failing", "t: WorkerLost: worker host:8 was lost")]
    blocked = engines.submit(
        conducted.greeting, backend=store, inputs={"name": "x"}, name="blocked"
    ).id
    execute(store, f"UPDATE wbe_jobs SET not_before = 1e12 + {time.time():.0f}"
            f" WHERE uuid = '{blocked}'")  # fmt: skip
    run(service)
    sent = sorted(kinds(site))
    assert sent == [
        ("flow_blocked", "blocked", 1), ("flow_failed", "failing", 1),
        ("worker_lost", "failing", 1), ("worker_lost", "lost", 1),
    ]  # fmt: skip
    pass_time(store, LATER_SECONDS)
    for uuid in (*lost, blocked):
        write_again(store, uuid)
    run(service)
    assert sorted(kinds(site)) == sent


def test_copied_flows_are_no_events(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    """Also in a store whose destination began before the copy."""
    service = begun(store, webhook(site, tmp_path))
    with backends.backend(f"sqlite:///{tmp_path}/old.db") as old:
        uuid = failed(old)
        with contextlib.closing(old.get_connection()) as connection:
            flow = connection.get_flow_details(uuid)
    flow.history = tuple(each._replace(at=each.at - LATER_SECONDS) for each in flow.history)
    book = models.LogBook("b")
    book.add(flow)
    with contextlib.closing(store.get_connection()) as connection:
        connection.save_logbook(book)
    change(store, started=0.0)
    run(service)
    write_again(store, uuid)
    run(service)
    assert site.requests == []


def test_next_process_sends_nothing_again(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    settings = webhook(site, tmp_path)
    service = begun(store, settings)
    uuid = failed(store)
    run(service)
    service.release()
    pass_time(store, LATER_SECONDS)
    write_again(store, uuid)
    (following,) = services(store, settings)
    run(following)
    assert kinds(site) == [("flow_failed", "order", 1)]

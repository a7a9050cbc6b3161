"""Writes to rows of reported flows, which are no new events."""

from __future__ import annotations

import time

import pytest

from tests.support import conducted, requested
from tests.support.destinations import Destination
from tests.support.notified import failed, services, webhook
from tests.support.reading import read_flow, save_flow
from wbengine import engines, operations, states
from wbengine.operations import _operation
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, models
from wbengine.persistence import base as persistence
from wbengine.task import Task

#: Longer than events are remembered.
LATER_SECONDS = 400


pytestmark = pytest.mark.parametrize("uri", ["sqlite", "postgresql", "mysql"], indirect=True)


def write_again(store: persistence.Backend, uuid: str) -> None:
    """Write the row of a flow as users do: with a note and with a tag."""
    for name, values in (
        ("flow annotate", {"text": "called the bank"}),
        ("flow tag", {"set": {"ticket": "4711"}}),
    ):
        operation = _operation.load(name)
        operation.perform(_operation.Scope(store, "ann"), {"flow": uuid, **values})


def test_notes_and_tags_of_old_flows_are_no_events(ops: Destination) -> None:
    """Neither a failure, nor a recovery by the success of a flow that was written again."""
    uuids = [ops.succeeded(), ops.failed()]
    ops.run()
    ops.pass_time(LATER_SECONDS)
    for uuid in uuids:
        write_again(ops.store, uuid)
    ops.run()
    assert ops.kinds == [("flow_failed", "order", 1)]


def test_event_has_the_time_of_the_failure(ops: Destination) -> None:
    uuid = ops.failed()
    ops.pass_time(100)
    write_again(ops.store, uuid)
    ops.run()
    assert ops.events[0]["at"] == pytest.approx(time.time() - 100, abs=20)


def test_next_run_of_a_flow_that_fails_is_another_event(ops: Destination) -> None:
    class Failing(Task):
        def execute(self) -> None:
            raise ValueError("oops")

    engine = engines.load(linear_flow.Flow("order").add(Failing("pay")), backend=ops.store)
    for _ in range(2):
        with pytest.raises(ValueError, match="oops"):
            engine.run()
        ops.run()
        ops.pass_time(LATER_SECONDS)
    assert ops.kinds == [("flow_failed", "order", 1)] * 2
    first, second = (event["id"] for event in ops.events)
    assert first != second


@pytest.mark.parametrize("verb", ["revert", "retry"])
@pytest.mark.parametrize("is_requested", [False, True], ids=["here", "conductor"])
def test_reversion_of_a_failed_flow_is_no_event_but_its_retry_is(
    ops: Destination, is_requested: bool, verb: str
) -> None:
    handle = requested.failed(ops.store, never_resolve=True)
    assert handle.state == states.FAILURE
    ops.run()
    ops.pass_time(LATER_SECONDS)
    with requested.failing_step():
        if is_requested:
            operations.request(ops.store, handle.id, verb, reason="no money", by="ann")
            requested.run_jobs(ops.store)
        else:
            with pytest.raises(Exception, match="c fails"):
                getattr(operations, verb)(ops.store, handle.id, reason="no money").run()
    assert handle.state == states.REVERTED
    ops.run()
    assert len(ops.kinds) == {"revert": 1, "retry": 2}[verb]


def test_later_writes_of_a_blocked_flow_and_a_lost_worker_are_no_events(ops: Destination) -> None:
    flow, task = models.FlowDetail("lost"), models.TaskDetail("t")
    flow.state, flow.resent_at = states.SUSPENDED, time.time()
    task.add_incident(models.Incident(states.WORKER_LOST, time.time(), 1, "host:7"))
    flow.add(task)
    save_flow(ops.store, flow)
    lost = [flow.uuid, ops.failed("failing", "t: WorkerLost: worker host:8 was lost")]
    blocked = engines.submit(
        conducted.greeting, backend=ops.store, inputs={"name": "x"}, name="blocked"
    ).id
    ops.execute(f"UPDATE wbe_jobs SET not_before = 1e12 + {time.time():.0f}"
            f" WHERE uuid = '{blocked}'")  # fmt: skip
    ops.run()
    sent = sorted(ops.kinds)
    assert sent == [
        ("flow_blocked", "blocked", 1), ("flow_failed", "failing", 1),
        ("worker_lost", "failing", 1), ("worker_lost", "lost", 1),
    ]  # fmt: skip
    ops.pass_time(LATER_SECONDS)
    for uuid in (*lost, blocked):
        write_again(ops.store, uuid)
    ops.run()
    assert sorted(ops.kinds) == sent


def test_copied_flows_are_no_events(ops: Destination) -> None:
    """Also in a store whose destination began before the copy."""
    with backends.backend(f"sqlite:///{ops.folder}/old.db") as old:
        uuid = failed(old)
        flow = read_flow(old, uuid)
    flow.history = tuple(each._replace(at=each.at - LATER_SECONDS) for each in flow.history)
    save_flow(ops.store, flow)
    ops.change(started=0.0)
    ops.run()
    write_again(ops.store, uuid)
    ops.run()
    assert ops.requests == []


def test_next_process_sends_nothing_again(
    ops: Destination,
) -> None:
    uuid = ops.failed()
    ops.run()
    ops.service.release()
    ops.pass_time(LATER_SECONDS)
    write_again(ops.store, uuid)
    (ops.service,) = services(ops.store, webhook(ops.site, ops.folder))
    ops.run()
    assert ops.kinds == [("flow_failed", "order", 1)]

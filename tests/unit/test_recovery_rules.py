"""The rules of recovery alone: an event of a request in, decisions out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.trackers import JOB, T0, Fleet, Job
from wbengine._calls import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests import events as ev
from wbengine.engines.worker_based._requests import recovery_decisions as dc
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.engines.worker_based._requests.recovery import Recovery
from wbengine.engines.worker_based._requests.recovery_taskflow import TaskFlowRecovery
from wbengine.engines.worker_based._requests.recovery_with_ledger import LedgerRecovery
from wbengine.engines.worker_based._requests.recovery_without_ledger import AskRecovery
from wbengine.engines.worker_based._requests.request_state import (
    InFlight,
    RequestIndex,
    TrackedRequest,
)
from wbengine.engines.worker_based.ledger import _base as ledgers


class World:
    """What the rules read besides a request."""

    def __init__(self, rules: type[Recovery], **options: Any) -> None:
        self.fleet: Any = Fleet()
        self.fleet.set("q", 1, 1, JOB)
        self.in_flight, self.inherited = InFlight(), RequestIndex()
        self.ended: list[str] = []
        self.rules = rules(
            self.fleet, RequestOptions(**options), self.in_flight, self.inherited, self.ended
        )

    def request(self, state: str = pr.PENDING, worker: str | None = None) -> TrackedRequest:
        call = invocation.Invocation(Job("job"), "execute", uuid="atom")
        tracked = TrackedRequest(call, lambda *_: None, 60.0, T0)
        tracked.queue, tracked.worker, tracked.sent_at = "q", worker, T0
        tracked.opened = tracked.dispatched = True
        tracked.unused_epoch = 2
        tracked.current_state = state
        tracked.ran = state == pr.RUNNING
        if state == pr.PENDING:
            self.in_flight.put("q", tracked)
        return tracked

    def inherit(self) -> TrackedRequest:
        tracked = self.request(pr.WAITING)
        self.inherited.put(tracked.task_cls, tracked)
        return tracked

    def decide(self, event: ev.Event, now: float = T0) -> list[Any]:
        return self.rules.on_event(event, now)


def kinds(decisions: list[Any]) -> list[type]:
    return [type(decision) for decision in decisions]


# A worker dies.


@pytest.mark.parametrize(
    ("option", "expected"), [("fail", fx.Conclude), ("resend", fx.Reopen)], ids=["fail", "resend"]
)
def test_ledger_row_of_lost_owner_is_concluded_or_reopened(option: str, expected: type) -> None:
    world = World(LedgerRecovery, on_worker_lost=option)
    tracked = world.request(pr.RUNNING, "w1")
    assert world.decide(ev.OwnerLost(tracked, "w1")) == [fx.Inspect(tracked, "w1")]
    row = ev.RowSnapshot(ledgers.ROW_CLAIMED, "w1", epoch=1)
    decisions = world.decide(ev.RowRead(tracked, row, "w1"))
    assert kinds(decisions) == [dc.Hold, dc.CheckLater, expected]


def test_row_that_unrecorded_run_reopened_is_published_with_its_epoch() -> None:
    world = World(LedgerRecovery)
    tracked = world.request()
    row = ev.RowSnapshot(ledgers.ROW_OPEN, epoch=3)
    assert world.decide(ev.RowRead(tracked, row, None)) == [dc.Republish(tracked)]
    assert tracked.epoch == tracked.lowest_epoch == 3
    assert world.decide(ev.RowRead(tracked, row, None)) == []


@pytest.mark.parametrize(
    ("option", "resends", "expected"),
    [("fail", 0, [dc.Lose]), ("resend", 0, [dc.Send]), ("resend", 3, [dc.Lose])],
    ids=["fail", "resend", "resent-too-often"],
)
def test_request_of_lost_worker_without_ledger_is_resent_or_lost(
    option: str, resends: int, expected: list[type]
) -> None:
    world = World(AskRecovery, on_worker_lost=option)
    tracked = world.request(pr.RUNNING, "w1")
    tracked.resends = resends
    decisions = world.decide(ev.OwnerLost(tracked, "w1"))
    assert kinds(decisions) == expected
    if option == "resend" and resends:
        assert decisions[0].exhausted


def test_request_of_lost_taskflow_worker_is_never_resent() -> None:
    world = World(TaskFlowRecovery, on_worker_lost="resend")
    tracked = world.request(pr.RUNNING, "q")
    (lost,) = world.decide(ev.OwnerLost(tracked, None))
    assert isinstance(lost, dc.Lose) and not lost.exhausted


@pytest.mark.parametrize("rules", [LedgerRecovery, AskRecovery, TaskFlowRecovery])
@pytest.mark.parametrize("unserved", [True, False])
def test_queued_requests_of_lost_worker_depend_on_the_ledger(
    rules: type[Recovery], unserved: bool
) -> None:
    """With a ledger, the worker may have claimed one of them without a report."""
    world = World(rules)
    tracked = world.request()
    expected: list[Any] = [dc.Reroute(tracked)] if unserved else []
    if rules is LedgerRecovery:
        expected = [fx.Inspect(tracked, "w1")]
    assert world.rules.on_queue_lost_worker("q", "w1", unserved) == expected


# Rows.


def test_live_owner_of_inherited_request_is_asked() -> None:
    world = World(LedgerRecovery)
    tracked = world.inherit()
    tracked.lookups = 1
    row = ev.RowSnapshot(ledgers.ROW_CLAIMED, "w1", epoch=7)
    assert world.decide(ev.RowRead(tracked, row)) == [
        dc.Hold(tracked, "w1"), dc.AcceptEarly(tracked), dc.Ask(tracked, "w1"),
    ]  # fmt: skip
    assert tracked.epoch == 7


@pytest.mark.parametrize("other", [True, False], ids=["other-ledger", "this-ledger"])
def test_missing_row_of_inherited_request_proves_nothing_for_other_ledger(other: bool) -> None:
    world = World(LedgerRecovery)
    tracked = world.inherit()
    tracked.missing_row_reason = "an earlier run used another one" if other else ""
    decisions = world.decide(ev.RowRead(tracked, ev.RowSnapshot(None)))
    assert kinds(decisions) == [dc.Settle if other else dc.Send]


def test_ended_worker_is_not_alive_despite_recent_heartbeat() -> None:
    world = World(LedgerRecovery, on_worker_lost="resend")
    tracked = world.request(pr.RUNNING, "w1")
    row = ev.RowSnapshot(ledgers.ROW_CLAIMED, "w1", epoch=1, silence=0.1)
    assert kinds(world.decide(ev.RowRead(tracked, row, "w1"))) == [dc.Hold]
    world.ended.append("w1")
    assert fx.Reopen in kinds(world.decide(ev.RowRead(tracked, row, "w1")))


@pytest.mark.parametrize(
    ("state", "lost", "expected"),
    [
        (pr.PENDING, None, [dc.RestartTimeout]),
        (pr.PENDING, "w1", [dc.CheckLater]),
        (pr.RUNNING, None, [dc.CheckLater]),
    ],
    ids=["waits", "worker-lost", "runs"],
)
def test_request_with_unreadable_row_is_checked_later_unless_it_waits(
    state: str, lost: str | None, expected: list[type]
) -> None:
    world = World(LedgerRecovery)
    tracked = world.request(state, "w1")
    unknown = ev.RowSnapshot(ev.UNKNOWN)
    assert kinds(world.decide(ev.RowRead(tracked, unknown, lost), T0 + 3600)) == expected


# Searches without a ledger.


def test_unconfirmed_request_is_searched_in_workers_and_queue() -> None:
    world = World(AskRecovery)
    tracked = world.request()
    assert world.decide(ev.Unconfirmed(tracked)) == [
        dc.Search(tracked), dc.CheckLater(tracked), dc.Ask(tracked, env.ALL_WORKERS),
        dc.AskQueue(tracked),
    ]  # fmt: skip


def test_request_that_idle_workers_lack_is_refused_and_sent_again() -> None:
    world = World(AskRecovery)
    tracked = world.request()
    world.decide(ev.Unconfirmed(tracked))
    tracked.lookups = 1
    assert world.decide(ev.RoundEnded(tracked), T0 + 5) == []
    world.fleet.idle["q"] = 2
    assert world.decide(ev.RoundEnded(tracked), T0 + 10) == [dc.Refuse(tracked), dc.Send(tracked)]


def test_request_that_lost_worker_may_have_had_is_lost() -> None:
    world = World(AskRecovery)
    tracked = world.request()
    world.decide(ev.Unconfirmed(tracked))
    tracked.lookups = 1
    world.in_flight.record_loss("q", T0 + 1)
    world.fleet.idle["q"] = 2
    assert kinds(world.decide(ev.RoundEnded(tracked), T0 + 10)) == [dc.Lose]


def test_running_request_is_asked_only_of_its_owner() -> None:
    world = World(AskRecovery)
    tracked = world.request(pr.RUNNING, "w1")
    assert world.decide(ev.Absent(tracked)) == [
        dc.Search(tracked), dc.CheckLater(tracked), dc.Ask(tracked, "w1"),
    ]  # fmt: skip


def test_moved_request_has_new_epoch_without_ledger_and_waits_for_taskflow() -> None:
    asking, taskflow = World(AskRecovery), World(TaskFlowRecovery)
    tracked = asking.request()
    assert asking.decide(ev.Moved(tracked)) == [dc.Send(tracked)] and tracked.resends == 1
    tracked = taskflow.request()
    assert taskflow.decide(ev.Moved(tracked)) == [dc.Wait(tracked)]


def test_cancelled_request_ends_if_taskflow_queue_has_no_workers() -> None:
    world = World(TaskFlowRecovery)
    tracked = world.request()
    assert kinds(world.decide(ev.StartRefused(tracked))) == [dc.Search, dc.CheckLater]
    tracked.lookups, tracked.pending_outcome = 2, "cancelled"
    assert world.decide(ev.RoundEnded(tracked), T0 + 5) == []
    world.fleet.end("q")
    assert kinds(world.decide(ev.RoundEnded(tracked), T0 + 10)) == [dc.Settle]

"""Requests without recent reports: lost workers, resends and questions, without I/O."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.trackers import (
    AGAIN,
    JOB,
    T0,
    Again,
    Bench,
    Job,
    asked_of,
    failures,
    kinds,
    settled,
)
from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based._discovery import snapshots
from wbengine.engines.worker_based._engine_side.publishing import Publishing
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import worker_commands
from wbengine.engines.worker_based._messages.replies import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests import recovery, tracker
from wbengine.engines.worker_based._requests.events import UNKNOWN
from wbengine.engines.worker_based._requests.recovery_with_ledger import (
    MAX_FRONT_ROWS,
    PASSED_SECONDS,
)
from wbengine.engines.worker_based._requests.request_state import STANDSTILL_SECONDS, TrackedRequest
from wbengine.engines.worker_based.ledger import _base as ledgers
from wbengine.types.failure import Failure

LATER = T0 + 2 * recovery.LOOKUP_PAUSE_SECONDS


class Never(Job):
    idempotent = False


NEVER = f"{__name__}.Never"


class Fleeting(Bench):
    """Bench whose workers offer tasks of every kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fleet.set("q", 1, 1, AGAIN, NEVER)

    def again(self, **options: Any) -> TrackedRequest:
        return self.running("w1", kind=Again, **options)

    def lose_with_row(self, entry: TrackedRequest, name: str, now: float = T0) -> list[fx.Effect]:
        """Lose the owner of a claimed row, and reopen the row."""
        assert fx.Inspect(entry, name) in self.lose(name, now=now)
        effects = self.row(entry, ledgers.ROW_CLAIMED, now, name, holder=name)
        if kinds(effects) == [fx.Reopen]:
            effects = self.tracker.on_reopened(entry, None, now)
        return effects

    def given_twice(self, entry: TrackedRequest, worker: str = "w2") -> list[fx.Effect]:
        """Report that a second worker received the request, without a ledger."""
        failure = Failure.from_exception(exc.WorkerLost("given twice"))
        data = {"result": failure.to_dict()}
        reply = Reply(
            entry.id, pr.FAILURE, data, worker=worker, epoch=entry.epoch, seq=1, is_lost=True
        )
        return self.tracker.on_reply(reply, "receipt", T0)


@pytest.fixture
def bench() -> Fleeting:
    return Fleeting()


def sent(effects: list[fx.Effect]) -> fx.Dispatch:
    (dispatch,) = [effect for effect in effects if isinstance(effect, fx.Dispatch)]
    return dispatch


# Lost owner.


def test_idempotent_request_of_lost_worker_is_reopened_and_resent(bench: Fleeting) -> None:
    entry = bench.again()
    assert bench.lose("w1") == [fx.Inspect(entry, "w1")]
    assert bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1") == [fx.Reopen(entry, 2)]
    dispatch = sent(bench.tracker.on_reopened(entry, None, T0))
    assert (dispatch.epoch, dispatch.envelope.headers[hd.WBE_EPOCH]) == (2, 2)
    assert (entry.state, entry.worker) == (pr.PENDING, None)
    bench.succeed(entry, epoch=1)  # The first worker was only frozen.
    assert bench.tracker.ignored["old_epoch"] == 1 and entry.live
    assert settled(bench.succeed(entry, epoch=2))


class Keeper:
    """Receives the incidents of a request."""

    def incident(self, event: str, worker: str | None) -> None: ...


def incidents(effects: list[fx.Effect]) -> list[tuple[str, str | None]]:
    return [(each.event, each.worker) for each in effects if isinstance(each, fx.RecordIncident)]


@pytest.mark.parametrize("ledger", [None, "ledger-1"])
def test_store_receives_worker_lost_and_resent_before_the_resend(
    ledger: str | None,
) -> None:
    bench = Fleeting(ledger=ledger)
    entry = bench.again(events=Keeper())
    effects = bench.lose_with_row(entry, "w1") if ledger else bench.lose("w1")
    assert incidents(effects) == [("WORKER_LOST", "w1"), ("RESENT", "w1")]
    assert kinds(effects) == [fx.RecordIncident, fx.RecordIncident, fx.Dispatch]


@pytest.mark.parametrize("ledger", [None, "ledger-1"])
def test_store_receives_worker_lost_before_the_task_fails(ledger: str | None) -> None:
    bench = Fleeting(ledger=ledger)
    entry = bench.running("w1", kind=Never, events=Keeper())
    effects = bench.lose_with_row(entry, "w1") if ledger else bench.lose("w1")
    assert incidents(effects) == [("WORKER_LOST", "w1")]
    assert kinds(effects) == [fx.RecordIncident, fx.Settle]


class Store(Keeper):
    """Receives the incidents and the start of a request."""

    def began(self, worker: str) -> None: ...

    def taken(self, worker: str) -> None: ...


def shown(bench: Fleeting, entry: TrackedRequest) -> tuple[str, str | None]:
    """Return the displayed state of a request, and its worker."""
    snapshot = snapshots.RequestSnapshot(*entry.described())
    return snapshot.state, snapshot.worker


def test_claimed_request_without_slot_is_queued_until_running(bench: Fleeting) -> None:
    entry = bench.pending(events=Store())
    assert shown(bench, entry) == (snapshots.QUEUED, None)
    effects = bench.row(entry, ledgers.ROW_CLAIMED, holder="w1")
    assert fx.RecordClaim(entry, "w1") in effects and fx.RecordStart not in kinds(effects)
    assert shown(bench, entry) == (snapshots.QUEUED, "w1")
    effects = bench.answer(entry, pr.RUNNING, {})
    assert effects == [fx.RecordStart(entry, "w1"), fx.Acknowledge("receipt")]
    assert shown(bench, entry) == (snapshots.STARTED, "w1")
    bench.answer(entry, pr.RUNNING, {})
    assert bench.tracker.ignored["duplicate"] == 1


def test_reply_to_a_question_has_a_start_time_if_the_task_runs(bench: Fleeting) -> None:
    entry = bench.pending(events=Store())
    bench.row(entry, ledgers.ROW_CLAIMED, holder="w1")
    assert bench.reply_to_query(entry, pr.RUNNING) == [fx.Acknowledge("receipt")]
    assert shown(bench, entry) == (snapshots.QUEUED, "w1")
    effects = bench.reply_to_query(entry, pr.RUNNING, started_at=5.0)
    assert effects == [fx.RecordStart(entry, "w1"), fx.Acknowledge("receipt")]
    assert shown(bench, entry) == (snapshots.STARTED, "w1")


def test_claimed_request_that_ends_is_shown_as_finished(bench: Fleeting) -> None:
    entry = bench.pending(events=Store())
    bench.row(entry, ledgers.ROW_CLAIMED, holder="w1")
    assert settled(bench.succeed(entry))
    assert shown(bench, entry) == (snapshots.FINISHED, "w1")


def test_first_dispatch_reports_no_incident(bench: Fleeting) -> None:
    effects = bench.submit(events=Keeper())[1]
    assert kinds(effects) == [fx.Dispatch]


def test_reopen_that_finds_a_result_settles_the_request(bench: Fleeting) -> None:
    entry = bench.again()
    bench.lose("w1")
    bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1")
    reply = Reply(entry.id, pr.SUCCESS, {"result": 3}, epoch=1)
    (outcome,) = settled(bench.tracker.on_reopened(entry, reply, T0))
    assert outcome.value == 3


@pytest.mark.parametrize("action", ["execute", "revert"])
@pytest.mark.parametrize("ledger", ["ledger-1", None])
@pytest.mark.parametrize(
    ("kind", "rule", "again"),
    [
        (Job, "fail", False),
        (Job, "resend", True),
        (Never, "resend", False),
        (Never, "fail", False),
        (Again, "fail", True),
    ],
)
def test_idempotent_attribute_overrides_on_worker_lost_option(
    action: str, ledger: str | None, kind: Any, rule: Any, again: bool
) -> None:
    bench = Fleeting(ledger=ledger, on_worker_lost=rule)
    entry = bench.running("w1", kind=kind, action=action)
    effects = bench.lose_with_row(entry, "w1") if ledger else bench.lose("w1")
    if again:
        assert sent(effects).epoch == 2
    else:
        assert failures(effects, exc.WorkerLost)


@pytest.mark.parametrize("ledger", ["ledger-1", None])
def test_task_that_kills_workers_fails_after_max_resends(ledger: str | None) -> None:
    bench = Fleeting(ledger=ledger, max_resends=2)
    entry = bench.again()
    for number in (1, 2, 3):
        name, epoch = f"w{number}", number
        bench.answer(entry, pr.RUNNING, {}, worker=name, epoch=epoch)
        effects = bench.lose_with_row(entry, name) if ledger else bench.lose(name)
        if number < 3:
            assert sent(effects).epoch == epoch + 1
    (text,) = failures(effects, exc.WorkerLost)
    assert "3 workers were lost with this task" in text


def test_max_resends_of_zero_fails_at_the_first_loss() -> None:
    bench = Fleeting(max_resends=0)
    (text,) = failures(bench.lose_with_row(bench.again(), "w1"), exc.WorkerLost)
    assert "workers were lost" not in text


def test_row_of_lost_worker_is_read_again_after_a_ledger_outage(bench: Fleeting) -> None:
    entry = bench.again()
    bench.lose("w1")
    assert bench.row(entry, UNKNOWN, lost="w1") == []
    assert bench.tracker.on_timer(T0 + recovery.LOOKUP_PAUSE_SECONDS) == [fx.Inspect(entry)]
    # The lost worker is remembered from the first inspection.
    assert bench.row(entry, ledgers.ROW_CLAIMED, holder="w1") == [fx.Reopen(entry, 2)]


def test_row_is_inspected_again_after_a_failed_reopen(bench: Fleeting) -> None:
    entry = bench.again()
    bench.lose("w1")
    bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1")
    assert bench.tracker.on_timer(LATER) == [fx.Inspect(entry)]
    effects = bench.row(entry, ledgers.ROW_CLAIMED, LATER, holder="w1")
    assert fx.Reopen(entry, 2) in effects and entry.resends == 0


def test_worker_with_recent_ledger_heartbeat_keeps_its_request(bench: Fleeting) -> None:
    """A recent heartbeat in the ledger overrides the loss, unless the worker announced its end."""
    entry = bench.again()
    bench.lose("w1")
    effects = bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1", silence=0.4)
    assert effects == [] and (entry.state, entry.worker) == (pr.RUNNING, "w1")
    worker = types.TopicWorker("t", (), "w1")
    worker.queue, worker.announced_end = "q", True
    assert bench.tracker.on_workers_lost([worker], T0) == [fx.Inspect(entry, "w1")]
    effects = bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1", silence=0.4)
    assert effects == [fx.Reopen(entry, 2)]


@pytest.mark.parametrize("kind", [Never, Again])
def test_released_request_is_republished_with_the_same_epoch(bench: Fleeting, kind: Any) -> None:
    """An example is a worker that claimed the row because of a forged copy."""
    entry = bench.pending(kind=kind)
    bench.reply_to_query(entry, pr.PENDING, "w2", ask_number=0)
    assert asked_of(bench.row(entry, ledgers.ROW_CLAIMED, holder="w1"))[0] == "w1"
    assert bench.reply_to_query(entry, pr.PENDING, "w1")[0] == fx.Inspect(entry)
    dispatch = sent(bench.row(entry, ledgers.ROW_OPEN))
    assert (dispatch.epoch, entry.state, entry.worker, entry.resends) == (1, pr.PENDING, None, 0)
    assert not entry.claimed and not entry.denied
    assert settled(bench.succeed(entry, epoch=1))


@pytest.mark.parametrize("running", [True, False])
def test_missing_row_resends_only_idempotent_requests(bench: Fleeting, running: bool) -> None:
    entry = bench.again() if running else bench.pending(kind=Again)
    if running:
        bench.lose("w1")
    dispatch = sent(bench.row(entry, None, lost="w1" if running else None))
    assert (dispatch.epoch, entry.resends, entry.state) == (2, 1, pr.PENDING)
    other = bench.running("w2", kind=Never)
    bench.lose("w2")
    assert failures(bench.row(other, None, lost="w2"), exc.WorkerLost)


def test_repeated_lookups_leave_one_timer() -> None:
    bench = Fleeting(timeout=None)
    entry = bench.again()
    bench.lose("w1")
    now, effects = T0, bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1")
    for _ in range(20):
        assert fx.Reopen(entry, 2) in effects
        now += recovery.MAX_LOOKUP_PAUSE_SECONDS
        assert bench.tracker.on_timer(now) == [fx.Inspect(entry)]
        effects = bench.row(entry, ledgers.ROW_CLAIMED, now, holder="w1")
    assert len(bench.tracker._timers) == 1


# Requests that no worker started.


def test_open_row_is_republished_after_two_idle_reports(bench: Fleeting) -> None:
    entry = bench.pending()
    bench.fleet.idle["q"] = 1
    assert bench.tracker.on_round(T0 + 5) == []
    bench.fleet.idle["q"] = 2
    assert bench.tracker.on_round(T0 + 10) == [fx.Inspect(entry)]
    dispatch = sent(bench.row(entry, ledgers.ROW_OPEN, T0 + 10))
    assert (dispatch.epoch, entry.since) == (1, T0)
    # No further copy is published before this one is out.
    assert entry.sent_at is None and bench.tracker.on_round(T0 + 15) == []
    # The timeout of the request does not restart.
    entry.sent_at = T0 + 16
    assert bench.tracker.on_timer(T0 + 60) == [fx.Revoke(entry)]


def test_pauses_between_copies_of_a_request_grow() -> None:
    """Copies are queued, too: at a constant pace, a slow queue would grow."""
    bench = Fleeting(timeout=None)
    entry = bench.pending()
    entry.publish_count, entry.sent_at = 1, T0
    bench.fleet.idle["q"] = 2
    copies = []
    for now in range(10, 310, 10):
        for effect in bench.tracker.on_round(T0 + now):
            assert effect == fx.Inspect(entry)
            for _ in bench.row(entry, ledgers.ROW_OPEN, T0 + now):
                entry.publish_count, entry.sent_at = entry.publish_count + 1, T0 + now
                copies.append(now)
    assert copies == [10, 30, 60, 110, 170, 230, 290]


def test_first_publication_after_opening_the_row_counts_as_one() -> None:
    """The count determines the pause before the next copy."""
    entry = Fleeting().pending()
    effect = fx.Dispatch(entry, 1, env.Envelope("", {}))
    message: Any = SimpleNamespace(correlation=effect, envelope=effect.envelope, withdrawn=False)
    requests: Any = SimpleNamespace(
        tracker=SimpleNamespace(observers=()), lock=threading.RLock()
    )
    guards: Any = SimpleNamespace(owns=lambda flow: True)
    writer: Any = SimpleNamespace(open=list)
    Publishing(requests, guards, writer).prepare([message])
    assert entry.publish_count == 1 and not message.withdrawn


def test_unknown_owner_of_a_row_is_watched_after_two_idle_reports(bench: Fleeting) -> None:
    entry = bench.pending()
    bench.fleet.idle["q"] = 2
    bench.tracker.on_round(T0 + 10)
    assert bench.row(entry, ledgers.ROW_CLAIMED, holder="w9", silence=9.5) == []
    assert (entry.worker, bench.fleet.watched[-1]) == ("w9", ("w9", 9.5))


def test_without_ledger_idle_workers_are_queried_before_a_resend() -> None:
    bench = Fleeting(ledger=None)
    first, second = bench.pending(kind=Never), bench.pending(kind=Never)
    bench.fleet.idle["q"] = 2
    to, asked = asked_of(bench.tracker.on_round(T0 + 10))
    assert (to, asked) == (env.ALL_WORKERS, [(first.id, 1), (second.id, 1)])
    bench.reply_to_query(first, pr.RUNNING, epoch=1)
    assert first.state == pr.RUNNING
    effects = bench.tracker.on_round(T0 + 20)
    dispatch = sent(effects)
    assert (dispatch.tracked, dispatch.epoch) == (second, 2)
    # No worker may start the first copy if it arrives later.
    (order,) = [effect.message for effect in effects if isinstance(effect, fx.Cancel)]
    assert (order.routing_key, worker_commands.Cancellation.from_message(order).requests) == (
        env.ALL_WORKERS,
        [(second.id, 1)],
    )


def test_resend_of_an_idempotent_request_cancels_no_copy() -> None:
    bench = Fleeting(ledger=None)
    bench.pending(kind=Again)
    bench.fleet.idle["q"] = 2
    bench.tracker.on_round(T0 + 10)
    effects = bench.tracker.on_round(T0 + 20)
    assert sent(effects).epoch == 2
    assert not [effect for effect in effects if isinstance(effect, fx.Cancel)]


def test_request_overtaken_by_another_is_inspected(bench: Fleeting) -> None:
    left, taken = bench.pending(), bench.pending()
    bench.answer(taken, pr.RUNNING, {}, now=T0 + 5)
    assert bench.tracker.on_round(T0 + PASSED_SECONDS) == []
    assert bench.tracker.on_round(T0 + PASSED_SECONDS + 1) == [fx.Inspect(left)]
    effects = bench.row(left, ledgers.ROW_OPEN, T0 + PASSED_SECONDS + 1)
    assert sent(effects).epoch == 1


def test_only_front_and_overtaken_requests_of_a_queue_are_inspected(bench: Fleeting) -> None:
    """Otherwise each lost worker would cost a lookup of every queued request."""
    bench.fleet.set("q", 1000, 0, AGAIN)
    line = [bench.pending() for _ in range(MAX_FRONT_ROWS + 50)]
    front = line[:MAX_FRONT_ROWS]
    assert bench.lose("w1") == [fx.Inspect(entry, "w1") for entry in front]
    bench.answer(line[-1], pr.RUNNING, {}, now=T0 + 5)
    passed = [fx.Inspect(entry) for entry in line[:-1]]
    assert bench.tracker.on_round(T0 + PASSED_SECONDS + 1) == passed
    bench.fleet.end("q")  # Without workers, all requests of the queue are inspected.
    assert bench.lose("w2") == [fx.Inspect(entry, "w2") for entry in line[:-1]]


def test_front_of_a_stalled_queue_with_free_slots_is_inspected(bench: Fleeting) -> None:
    """The worker of the free slot may have died right after its claim."""
    bench.fleet.set("q", 4, 2)
    front, second, _ = bench.pending(), bench.pending(), bench.pending()
    assert bench.tracker.on_round(T0 + STANDSTILL_SECONDS) == []
    now = T0 + STANDSTILL_SECONDS + 1
    assert bench.tracker.on_round(now) == [fx.Inspect(front), fx.Inspect(second)]
    assert bench.row(front, ledgers.ROW_OPEN, now) == []
    bench.row(second, ledgers.ROW_CLAIMED, now, holder="w9", silence=6.0)
    assert (second.state, second.worker) == (pr.RUNNING, "w9")
    bench.fleet.set("q", 4, 0)
    assert bench.tracker.on_round(now + 60) == []


def test_request_taken_before_a_resend_does_not_count_as_overtaking(bench: Fleeting) -> None:
    bench.fleet.set("q", 1, 0)
    left, before, behind = bench.pending(), bench.pending(), bench.pending()
    bench.answer(behind, pr.RUNNING, {}, now=T0 + 5)
    left.sent_at = before.sent_at = T0 + 6  # Both were resent.
    assert bench.tracker.on_round(T0 + 17) == []
    bench.answer(before, pr.RUNNING, {}, now=T0 + 18)
    assert bench.tracker.on_round(T0 + 19) == [fx.Inspect(left)]


@pytest.mark.parametrize("kind", [Again, Never])
def test_without_ledger_unowned_request_of_lost_worker_is_lost(kind: Any) -> None:
    """Without a ledger, the lost worker may have received the request without a report."""
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=kind)
    bench.lose("w1", now=T0 + 5)
    bench.fleet.idle["q"] = bench.fleet.spoke["q"] = 2
    effects: list[fx.Effect] = []
    for step in range(20):
        effects += bench.tracker.on_round(T0 + 10 + step) + bench.tracker.on_timer(T0 + 10 + step)
    if kind is Again:
        assert [e.epoch for e in effects if isinstance(e, fx.Dispatch)] == [2]
        assert entry.resends == 1
    else:
        assert failures(effects, exc.WorkerLost)


def test_request_reopened_twice_is_resent_once(bench: Fleeting) -> None:
    """Two threads may inspect the row at the same time."""
    entry = bench.again()
    bench.lose("w1")
    assert kinds(bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1")) == [fx.Reopen]
    assert sent(bench.tracker.on_reopened(entry, None, T0)).epoch == 2
    assert bench.tracker.on_reopened(entry, None, T0) == []
    assert (entry.epoch, entry.resends) == (2, 1)


def test_short_heartbeat_period_shortens_the_overtaken_check(bench: Fleeting) -> None:
    bench.fleet.period = 0.5
    left, taken = bench.pending(), bench.pending()
    bench.answer(taken, pr.RUNNING, {}, now=T0 + 0.5)
    assert bench.tracker.on_round(T0 + 1.0) == []
    assert bench.tracker.on_round(T0 + 1.1) == [fx.Inspect(left)]


# Results of publishing.


def test_unrouted_request_is_republished_while_workers_exist() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending()
    assert bench.tracker.on_unrouted(entry, 1, T0) == []
    assert sent(bench.tracker.on_timer(T0 + tracker.REPUBLISH_PAUSE_SECONDS)).epoch == 1
    bench.tracker.on_unrouted(entry, 1, T0 + 2)
    bench.fleet.end("q")
    assert bench.tracker.on_timer(T0 + 10) == []
    bench.fleet.set("q", 1, 1, JOB)
    assert sent(bench.tracker.on_timer(T0 + 11)).tracked is entry
    assert bench.tracker.on_unrouted(entry, 0, T0 + 12) == []  # An earlier epoch.
    assert bench.tracker.on_timer(T0 + 20) == []


def test_unconfirmed_request_is_republished_at_once_with_a_ledger(bench: Fleeting) -> None:
    entry = bench.pending()
    assert sent(bench.tracker.on_unconfirmed(entry, 1, T0)).epoch == 1


def test_without_ledger_workers_are_queried_for_unconfirmed_request() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    effects = bench.tracker.on_unconfirmed(entry, 1, T0)
    assert asked_of(effects[:1]) == (env.ALL_WORKERS, [(entry.id, 1)])
    bench.fleet.spoke["q"] = 2  # All workers are busy: the request may still be queued.
    assert bench.tracker.on_round(T0 + 10) == []
    assert asked_of(bench.tracker.on_timer(T0 + 10))  # The question may be lost.
    bench.fleet.idle["q"] = 2
    assert sent(bench.tracker.on_round(T0 + 20)).epoch == 2
    assert bench.tracker.on_round(T0 + 30) == []


def test_question_is_queued_behind_an_unconfirmed_request() -> None:
    """Its reply shows that all earlier messages of the queue were consumed."""
    bench = Fleeting(ledger=None)
    urgent = bench.pending(kind=Never, priority=7)
    _, line = bench.tracker.on_unconfirmed(urgent, 1, T0)
    bench.fleet.spoke["q"] = 2
    for moment in (10, 20):
        assert isinstance(line, fx.Ask)
        assert asked_of([line]) == ("q", [(urgent.id, 1)])
        assert (line.message.priority, line.message.persistent) == (7, True)
        assert bench.tracker.on_round(T0 + moment) == []
        # The request may be behind that question, or was requeued: ask once more.
        (line,) = bench.reply_to_query(urgent, pr.PENDING, "w5")[:1]
    assert asked_of([line]) == (env.ALL_WORKERS, [(urgent.id, 1)])
    bench.reply_to_query(urgent, pr.PENDING, "w6")
    bench.fleet.spoke["q"] = 1
    assert bench.tracker.on_round(T0 + 30) == []
    bench.fleet.spoke["q"] = 2
    assert bench.tracker.is_searching
    assert sent(bench.tracker.on_round(T0 + 40)).epoch == 2
    assert not bench.tracker.is_searching


def test_running_reply_to_a_queued_question_ends_the_search() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    bench.tracker.on_unconfirmed(entry, 1, T0)
    bench.reply_to_query(entry, pr.RUNNING, "w5", epoch=1)
    bench.reply_to_query(entry, pr.PENDING, "w6")  # The reply to the second question.
    assert (entry.state, entry.lookups, entry.worker) == (pr.RUNNING, 0, "w5")
    bench.fleet.spoke["q"] = 2
    assert bench.tracker.on_round(T0 + 20) == []


def test_queued_question_without_reply_is_published_again() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    bench.tracker.on_unconfirmed(entry, 1, T0)
    lines = [
        effect.message.routing_key
        for moment in (4, 11, 24, 50)
        for effect in bench.tracker.on_timer(T0 + moment)
        if isinstance(effect, fx.Ask)
    ]
    assert lines == [env.ALL_WORKERS] * 3 + ["q", env.ALL_WORKERS, "q"]


def test_taskflow_workers_receive_no_queued_question() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    bench.fleet.plain.add("q")
    assert len(bench.tracker.on_unconfirmed(entry, 1, T0)) == 1


def test_search_ends_when_the_request_reports_running() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending()
    bench.tracker.on_unconfirmed(entry, 1, T0)
    bench.answer(entry, pr.RUNNING, {})
    bench.fleet.idle["q"] = bench.fleet.spoke["q"] = 2
    assert bench.tracker.on_round(T0 + 20) == [] and entry.live
    assert not bench.tracker.is_searching


def test_search_during_a_broker_outage_is_repeated() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending()
    bench.tracker.on_unconfirmed(entry, 1, T0)
    bench.fleet.idle["q"] = 2
    bench.fleet.outage = 7.0
    assert asked_of(bench.tracker.on_round(T0 + 20))
    assert (entry.epoch, entry.search_started_at) == (1, T0 + 20)


# Redelivery to a second worker, without a ledger.


def test_redelivered_request_is_confirmed_with_its_first_worker() -> None:
    """After a cut connection, the first worker may still run the request."""
    bench = Fleeting(ledger=None)
    entry = bench.running("w1")
    assert asked_of(bench.given_twice(entry))[0] == "w1"
    bench.reply_to_query(entry, pr.RUNNING, "w1", epoch=1)
    bench.fleet.spoke["q"] = 2
    assert bench.tracker.on_round(T0 + 20) == []
    assert settled(bench.succeed(entry))


@pytest.mark.parametrize("kind", [Never, Again])
def test_redelivered_request_its_first_worker_lacks_is_lost(kind: Any) -> None:
    bench = Fleeting(ledger=None)
    entry = bench.running("w1", kind=kind)
    bench.given_twice(entry)
    effects = bench.reply_to_query(entry, pr.PENDING, "w1")
    if kind is Again:
        assert sent(effects).epoch == 2
    else:
        assert failures(effects, exc.WorkerLost)


@pytest.mark.parametrize("kind", [Never, Again])
def test_redelivered_request_no_worker_reports_is_lost(kind: Any) -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=kind)
    assert asked_of(bench.given_twice(entry))[0] == env.ALL_WORKERS
    assert entry.state == pr.PENDING
    bench.fleet.spoke["q"] = 1
    assert bench.tracker.on_round(T0 + 5) == []
    bench.fleet.spoke["q"] = 2
    effects = bench.tracker.on_round(T0 + 10)
    if kind is Again:
        assert sent(effects).epoch == 2
    else:
        assert failures(effects, exc.WorkerLost)


def test_redelivered_request_is_lost_after_outage_and_worker_loss() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    bench.given_twice(entry)
    bench.fleet.set("q", 1, 1)
    bench.lose("w1", now=T0 + 2)  # This worker may have had the request.
    bench.fleet.spoke["q"] = 2
    bench.fleet.gone = (T0 - 2, T0 + 1)
    bench.tracker.on_round(T0 + 5)
    assert failures(bench.tracker.on_round(T0 + 10), exc.WorkerLost)


def test_redelivered_request_without_workers_is_lost() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending()
    bench.given_twice(entry)
    bench.fleet.end("q")
    bench.lose("w2")
    assert bench.tracker.on_round(T0 + 1) == [] and entry.state == pr.WAITING
    bench.tracker.on_timer(T0 + recovery.LOOKUP_PAUSE_SECONDS)
    assert failures(bench.tracker.on_round(LATER), exc.WorkerLost)


def test_running_reply_of_an_old_epoch_does_not_end_the_search() -> None:
    """A worker that was wrongly considered lost still runs an earlier epoch."""
    bench = Fleeting(ledger=None)
    entry = bench.again()
    bench.lose("w1")
    entry.sent_at = T0
    bench.answer(entry, pr.RUNNING, {}, worker="w2", epoch=2)
    bench.given_twice(entry, "w3")
    bench.reply_to_query(entry, pr.RUNNING, "w1", epoch=1)
    assert entry.lookups
    bench.reply_to_query(entry, pr.RUNNING, "w2", epoch=2)
    assert not entry.lookups


# Last worker of a queue, without a ledger.


def test_returning_worker_finds_its_queued_request_without_a_resend() -> None:
    """A second copy would run the task twice."""
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    bench.fleet.end("q")
    assert bench.lose("w1") == [] and entry.state == pr.WAITING
    bench.fleet.set("q", 1, 1, NEVER)
    assert bench.tracker.on_workers_gained([NEVER], T0 + 30) == []
    assert (entry.state, entry.epoch, entry.sent_at) == (pr.PENDING, 1, T0 + 30)
    assert settled(bench.succeed(entry, epoch=1))


# Lost replies.


def test_request_missing_in_two_heartbeats_is_inspected(bench: Fleeting) -> None:
    entry, other = bench.running("w1"), bench.running("w1")
    assert bench.tracker.on_heartbeat("w1", {other.id}, T0) == []
    # The heartbeat of another topic.
    assert bench.tracker.on_heartbeat("w1", {other.id}, T0 + 0.01) == []
    assert bench.tracker.on_heartbeat("w2", set(), T0 + 5) == []
    assert bench.tracker.on_heartbeat("w1", {other.id}, T0 + 5) == [fx.Inspect(entry)]
    assert (
        bench.tracker.on_heartbeat("w1", {other.id}, T0 + 10) == []
    )  # A lookup is already scheduled.
    to, _ = asked_of(bench.row(entry, ledgers.ROW_CLAIMED, holder="w1"))
    assert to == "w1"


def test_request_missing_in_alternate_heartbeats_is_not_inspected(bench: Fleeting) -> None:
    entry = bench.running("w1")
    for second in range(0, 40, 10):
        assert bench.tracker.on_heartbeat("w1", set(), T0 + second) == []
        assert bench.tracker.on_heartbeat("w1", {entry.id}, T0 + second + 5) == []


def test_without_ledger_owner_is_queried_for_a_lost_reply() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.running("w1")
    bench.tracker.on_heartbeat("w1", set(), T0)
    assert asked_of(bench.tracker.on_heartbeat("w1", set(), T0 + 5)) == ("w1", [(entry.id, 1)])
    assert settled(bench.succeed(entry, seq=3))


# Frequency of reports.


def test_worker_reports_are_needed_only_while_a_queue_is_stalled(bench: Fleeting) -> None:
    assert not bench.tracker.needs_reports(T0)
    first, second = bench.pending(), bench.pending()
    assert not bench.tracker.needs_reports(T0 + 1)
    assert bench.tracker.needs_reports(T0 + STANDSTILL_SECONDS + 1)
    bench.answer(first, pr.RUNNING, {}, now=T0 + 6)
    assert not bench.tracker.needs_reports(T0 + 7)
    bench.succeed(second)
    assert not bench.tracker.needs_reports(T0 + 100)


# Counts.


def test_ignored_replies_are_counted_by_reason(bench: Fleeting) -> None:
    entry = bench.pending(events=lambda *_: None)
    data = {"event_type": "e", "details": {}}
    bench.answer(entry, pr.EVENT, data, seq=2)
    bench.answer(entry, pr.EVENT, data, seq=2)
    bench.answer(entry, pr.RUNNING, {}, seq=1)
    bench.answer(entry, pr.RUNNING, {}, seq=1)
    bench.answer(entry, pr.RUNNING, {}, seq=1, epoch=7)
    bench.succeed(entry)
    bench.succeed(entry)
    bench.tracker.on_saved([entry.invocation])
    bench.succeed(entry)
    assert bench.tracker.ignored == {
        "duplicate": 2, "reordered": 1, "old_epoch": 1, "late": 1, "unknown": 1,
    }  # fmt: skip

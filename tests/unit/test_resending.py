"""The book's dealings with what it sent and does not hear of, told one thing at a time."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.requesting import (
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
from wbengine.engines.worker_based import executor, types
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.discovery import snapshots
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import commands
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests import recovery
from wbengine.engines.worker_based.requests.recovery import UNKNOWN
from wbengine.engines.worker_based.requests.tracked import TrackedRequest
from wbengine.types.failure import Failure

LATER = T0 + 2 * recovery.LOOKUP_PAUSE


class Never(Job):
    idempotent = False


NEVER = f"{__name__}.Never"


class Fleeting(Bench):
    """A book whose workers offer tasks of every kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fleet.set("q", 1, 1, AGAIN, NEVER)

    def again(self, **options: Any) -> TrackedRequest:
        return self.running("w1", kind=Again, **options)

    def lose_with_row(self, entry: TrackedRequest, name: str, now: float = T0) -> list[fx.Effect]:
        """Its holder is lost, as the row tells, and it may be taken from him."""
        assert fx.Inspect(entry, name) in self.lose(name, now=now)
        effects = self.row(entry, ledgers.ROW_CLAIMED, now, name, holder=name)
        if kinds(effects) == [fx.Reopen]:
            effects = self.recovery.on_reopened(entry, None, now)
        return effects

    def given_twice(self, entry: TrackedRequest, worker: str = "w2") -> list[fx.Effect]:
        """Without a ledger: a worker was given what had been given to another."""
        failure = Failure.from_exception(exc.WorkerLost("given twice"))
        data = {"result": failure.to_dict()}
        headers = {
            env.WBE_VERSION: "1", env.WBE_WORKER: worker, env.WBE_SEQ: 1,
            env.WBE_EPOCH: entry.epoch, env.WBE_LOST: 1,
        }  # fmt: skip
        answer = env.Envelope(
            pr.RESPONSE, {"state": pr.FAILURE, "data": data}, correlation_id=entry.id,
            headers=headers,
        )  # fmt: skip
        return self.tracker.on_response(answer, "receipt", T0)


def sent(effects: list[fx.Effect]) -> fx.Dispatch:
    (dispatch,) = [effect for effect in effects if isinstance(effect, fx.Dispatch)]
    return dispatch


# The holder is lost ------------------------------------------------------------------------------


def test_what_may_be_run_twice_is_taken_from_who_is_lost_and_sent_again() -> None:
    bench = Fleeting()
    entry = bench.again()
    assert bench.lose("w1") == [fx.Inspect(entry, "w1")]
    assert bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1") == [fx.Reopen(entry, 2)]
    dispatch = sent(bench.recovery.on_reopened(entry, None, T0))
    assert (dispatch.epoch, dispatch.envelope.headers[env.WBE_EPOCH]) == (2, 2)
    assert (entry.state, entry.worker) == (pr.PENDING, None)
    bench.succeed(entry, epoch=1)  # he was only frozen
    assert bench.tracker.ignored["old_epoch"] == 1 and entry.live
    assert settled(bench.succeed(entry, epoch=2))


class Keeper:
    """Keeps the incidents of a request."""

    def incident(self, event: str, worker: str | None) -> None: ...


def incidents(effects: list[fx.Effect]) -> list[tuple[str, str | None]]:
    return [(each.event, each.worker) for each in effects if isinstance(each, fx.Incident)]


@pytest.mark.parametrize("ledger", [None, "ledger-1"])
def test_who_keeps_the_flow_is_told_of_the_lost_worker_before_it_is_sent_again(
    ledger: str | None,
) -> None:
    bench = Fleeting(ledger=ledger)
    entry = bench.again(events=Keeper())
    effects = bench.lose_with_row(entry, "w1") if ledger else bench.lose("w1")
    assert incidents(effects) == [("WORKER_LOST", "w1"), ("RESENT", "w1")]
    assert kinds(effects) == [fx.Incident, fx.Incident, fx.Dispatch]


@pytest.mark.parametrize("ledger", [None, "ledger-1"])
def test_who_keeps_the_flow_is_told_of_a_loss_that_ends_the_task(ledger: str | None) -> None:
    bench = Fleeting(ledger=ledger)
    entry = bench.running("w1", kind=Never, events=Keeper())
    effects = bench.lose_with_row(entry, "w1") if ledger else bench.lose("w1")
    assert incidents(effects) == [("WORKER_LOST", "w1")]
    assert kinds(effects) == [fx.Incident, fx.Settle]


class Store(Keeper):
    """What is told to who keeps the flow, while a task is under way."""

    def began(self, worker: str) -> None: ...

    def taken(self, worker: str) -> None: ...


def shown(bench: Fleeting, entry: TrackedRequest) -> tuple[str, str | None]:
    """As what an executor lists a request, and on which worker."""
    told = snapshots.RequestSnapshot(*entry.described())
    return told.state, told.worker


def test_what_waits_for_a_slot_of_who_claimed_it_is_queued() -> None:
    bench = Fleeting()
    entry = bench.pending(events=Store())
    assert shown(bench, entry) == (snapshots.QUEUED, None)
    effects = bench.row(entry, ledgers.ROW_CLAIMED, holder="w1")
    assert fx.Taken(entry, "w1") in effects and fx.Began not in kinds(effects)
    assert shown(bench, entry) == (snapshots.QUEUED, "w1")
    effects = bench.answer(entry, pr.RUNNING, {})
    assert effects == [fx.Began(entry, "w1"), fx.Acknowledge("receipt")]
    assert shown(bench, entry) == (snapshots.STARTED, "w1")
    bench.answer(entry, pr.RUNNING, {})
    assert bench.tracker.ignored["duplicate"] == 1


def test_who_is_asked_says_whether_it_has_begun_what_it_has() -> None:
    bench = Fleeting()
    entry = bench.pending(events=Store())
    bench.row(entry, ledgers.ROW_CLAIMED, holder="w1")
    assert bench.told(entry, pr.RUNNING) == [fx.Acknowledge("receipt")]
    assert shown(bench, entry) == (snapshots.QUEUED, "w1")
    effects = bench.told(entry, pr.RUNNING, **{env.WBE_STARTED: 5.0})
    assert effects == [fx.Began(entry, "w1"), fx.Acknowledge("receipt")]
    assert shown(bench, entry) == (snapshots.STARTED, "w1")


def test_what_ends_without_a_word_was_not_queued_to_the_end() -> None:
    bench = Fleeting()
    entry = bench.pending(events=Store())
    bench.row(entry, ledgers.ROW_CLAIMED, holder="w1")
    assert settled(bench.succeed(entry))
    assert shown(bench, entry) == (snapshots.FINISHED, "w1")


def test_what_is_sent_first_is_no_incident() -> None:
    bench = Fleeting()
    effects = bench.submit(events=Keeper())[1]
    assert kinds(effects) == [fx.Dispatch]


def test_it_had_ended_before_it_could_be_taken() -> None:
    bench = Fleeting()
    entry = bench.again()
    bench.lose("w1")
    bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1")
    body = {"state": pr.SUCCESS, "data": {"result": 3}}
    answer = env.Envelope(pr.RESPONSE, body, correlation_id=entry.id, headers={env.WBE_EPOCH: 1})
    (outcome,) = settled(bench.recovery.on_reopened(entry, answer, T0))
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
def test_what_a_task_says_of_itself_wins(
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
def test_a_task_that_kills_its_workers_comes_to_an_end(ledger: str | None) -> None:
    bench = Fleeting(ledger=ledger, max_resends=2)
    entry = bench.again()
    for number in (1, 2, 3):
        name, epoch = f"w{number}", number
        bench.answer(entry, pr.RUNNING, {}, worker=name, epoch=epoch)
        effects = bench.lose_with_row(entry, name) if ledger else bench.lose(name)
        if number < 3:
            assert sent(effects).epoch == epoch + 1
    (text,) = failures(effects, exc.WorkerLost)
    assert "it was lost with 3 workers" in text


def test_none_at_all() -> None:
    bench = Fleeting(max_resends=0)
    (text,) = failures(bench.lose_with_row(bench.again(), "w1"), exc.WorkerLost)
    assert "lost with" not in text


def test_a_ledger_that_is_away_when_the_holder_is_lost_is_asked_later() -> None:
    bench = Fleeting()
    entry = bench.again()
    bench.lose("w1")
    assert bench.row(entry, UNKNOWN, lost="w1") == []
    assert bench.tracker.tick(T0 + recovery.LOOKUP_PAUSE) == [fx.Inspect(entry)]
    # Nobody says any more who was lost; it is known.
    assert bench.row(entry, ledgers.ROW_CLAIMED, holder="w1") == [fx.Reopen(entry, 2)]


def test_a_row_that_cannot_be_reopened_is_looked_at_again() -> None:
    bench = Fleeting()
    entry = bench.again()
    bench.lose("w1")
    bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1")
    assert bench.tracker.tick(LATER) == [fx.Inspect(entry)]
    effects = bench.row(entry, ledgers.ROW_CLAIMED, LATER, holder="w1")
    assert fx.Reopen(entry, 2) in effects and entry.resends == 0


def test_who_was_only_frozen_keeps_what_he_took_since() -> None:
    """He was taken for lost, and the ledger knows better; unless he said himself that he ends."""
    bench = Fleeting()
    entry = bench.again()
    bench.lose("w1")
    effects = bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1", silence=0.4)
    assert effects == [] and (entry.state, entry.worker) == (pr.RUNNING, "w1")
    worker = types.TopicWorker("t", (), "w1")
    worker.queue, worker.goodbye = "q", True
    assert bench.recovery.on_lost([worker], T0) == [fx.Inspect(entry, "w1")]
    effects = bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1", silence=0.4)
    assert effects == [fx.Reopen(entry, 2)]


@pytest.mark.parametrize("kind", [Never, Again])
def test_what_its_holder_gave_back_before_it_began_is_published_as_it_was(kind: Any) -> None:
    """Such as who was given a forged copy, and claimed the row with it."""
    bench = Fleeting()
    entry = bench.pending(kind=kind)
    bench.told(entry, pr.PENDING, "w2", **{env.WBE_ASK: 0})
    assert asked_of(bench.row(entry, ledgers.ROW_CLAIMED, holder="w1"))[0] == "w1"
    assert bench.told(entry, pr.PENDING, "w1")[0] == fx.Inspect(entry)
    dispatch = sent(bench.row(entry, ledgers.ROW_OPEN))
    assert (dispatch.epoch, entry.state, entry.worker, entry.resends) == (1, pr.PENDING, None, 0)
    assert settled(bench.succeed(entry, epoch=1))


def test_what_was_begun_and_is_open_again_is_lost() -> None:
    """Its server was set back, perhaps."""
    bench = Fleeting()
    entry = bench.running("w1", kind=Never)
    bench.lose("w1")
    assert failures(bench.row(entry, ledgers.ROW_OPEN, lost="w1"), exc.WorkerLost)


@pytest.mark.parametrize("running", [True, False])
def test_a_row_that_vanished_cannot_be_reopened(running: bool) -> None:
    bench = Fleeting()
    entry = bench.again() if running else bench.pending(kind=Again)
    if running:
        bench.lose("w1")
    dispatch = sent(bench.row(entry, None, lost="w1" if running else None))
    assert (dispatch.epoch, entry.resends, entry.state) == (2, 1, pr.PENDING)
    other = bench.running("w2", kind=Never)
    bench.lose("w2")
    assert failures(bench.row(other, None, lost="w2"), exc.WorkerLost)


def test_however_often_it_is_looked_at_one_alarm_is_set() -> None:
    bench = Fleeting(timeout=None)
    entry = bench.again()
    bench.lose("w1")
    now, effects = T0, bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1")
    for _ in range(20):
        assert fx.Reopen(entry, 2) in effects
        now += recovery.LONGEST_LOOKUP_PAUSE
        assert bench.tracker.tick(now) == [fx.Inspect(entry)]
        effects = bench.row(entry, ledgers.ROW_CLAIMED, now, holder="w1")
    assert len(bench.tracker.timers) == 1


# Nobody started it -------------------------------------------------------------------------------


def test_idle_workers_twice_and_it_is_open_so_it_is_published_as_it_was() -> None:
    bench = Fleeting()
    entry = bench.pending()
    bench.fleet.idle["q"] = 1
    assert bench.recovery.review(T0 + 5) == []
    bench.fleet.idle["q"] = 2
    assert bench.recovery.review(T0 + 10) == [fx.Inspect(entry)]
    dispatch = sent(bench.row(entry, ledgers.ROW_OPEN, T0 + 10))
    assert (dispatch.epoch, entry.request.since) == (1, T0)
    # Until that is out, nothing more is known.
    assert entry.sent_at is None and bench.recovery.review(T0 + 15) == []
    # It is the same wait, and ends when it would have.
    entry.sent_at = T0 + 16
    assert bench.tracker.tick(T0 + 60) == [fx.Revoke(entry)]


def test_copies_of_a_request_come_ever_more_rarely() -> None:
    """They stand in the line, too: where all is slow, they would come faster than it moves."""
    bench = Fleeting(timeout=None)
    entry = bench.pending()
    entry.sendings, entry.sent_at = 1, T0
    bench.fleet.idle["q"] = 2
    copies = []
    for now in range(10, 310, 10):
        for effect in bench.recovery.review(T0 + now):
            assert effect == fx.Inspect(entry)
            for _ in bench.row(entry, ledgers.ROW_OPEN, T0 + now):
                entry.sendings, entry.sent_at = entry.sendings + 1, T0 + now
                copies.append(now)
    assert copies == [10, 30, 60, 110, 170, 230, 290]


def test_a_request_whose_row_was_made_first_was_sent_once() -> None:
    """It is looked at again whether it is wanted; its first copy needs no pause for that."""
    entry = Fleeting().pending()
    effect = fx.Dispatch(entry, 1, env.Envelope("", {}))
    message: Any = SimpleNamespace(correlation=effect, envelope=effect.envelope, withdrawn=False)
    tracker: Any = SimpleNamespace(observers=())
    guards: Any = SimpleNamespace(owns=lambda flow: True)
    writer: Any = SimpleNamespace(open=list)
    executor.Publishing(tracker, threading.RLock(), guards, writer, print).prepare([message])
    assert entry.sendings == 1 and not message.withdrawn


def test_idle_workers_twice_and_somebody_unknown_has_it() -> None:
    bench = Fleeting()
    entry = bench.pending()
    bench.fleet.idle["q"] = 2
    bench.recovery.review(T0 + 10)
    assert bench.row(entry, ledgers.ROW_CLAIMED, holder="w9", silence=9.5) == []
    assert (entry.worker, bench.fleet.watched[-1]) == ("w9", ("w9", 9.5))


def test_idle_workers_without_a_ledger_are_asked_first() -> None:
    bench = Fleeting(ledger=None)
    first, second = bench.pending(kind=Never), bench.pending(kind=Never)
    bench.fleet.idle["q"] = 2
    to, asked = asked_of(bench.recovery.review(T0 + 10))
    assert (to, asked) == (env.ALL_WORKERS, [(first.id, 1), (second.id, 1)])
    bench.told(first, pr.RUNNING, **{env.WBE_EPOCH: 1})
    assert first.state == pr.RUNNING
    effects = bench.recovery.review(T0 + 20)
    dispatch = sent(effects)
    assert (dispatch.tracked, dispatch.epoch) == (second, 2)
    # Should the first copy turn up after all, nobody is to begin it.
    (order,) = [effect.message for effect in effects if isinstance(effect, fx.Cancel)]
    assert (order.routing_key, commands.named(order.body)) == (env.ALL_WORKERS, [(second.id, 1)])


def test_what_may_run_twice_is_sent_again_without_further_words() -> None:
    bench = Fleeting(ledger=None)
    bench.pending(kind=Again)
    bench.fleet.idle["q"] = 2
    bench.recovery.review(T0 + 10)
    effects = bench.recovery.review(T0 + 20)
    assert sent(effects).epoch == 2
    assert not [effect for effect in effects if isinstance(effect, fx.Cancel)]


def test_what_others_overtook_is_looked_at() -> None:
    bench = Fleeting()
    left, taken = bench.pending(), bench.pending()
    bench.answer(taken, pr.RUNNING, {}, now=T0 + 5)
    assert bench.recovery.review(T0 + recovery.PASSED) == []
    assert bench.recovery.review(T0 + recovery.PASSED + 1) == [fx.Inspect(left)]
    effects = bench.row(left, ledgers.ROW_OPEN, T0 + recovery.PASSED + 1)
    assert sent(effects).epoch == 1


def test_of_a_long_line_the_front_is_looked_at_and_what_was_passed() -> None:
    """Else each worker that is lost costs as much as all that waits for thousands of others."""
    bench = Fleeting()
    bench.fleet.set("q", 1000, 0, AGAIN)
    line = [bench.pending() for _ in range(recovery.FRONT + 50)]
    assert bench.lose("w1") == [fx.Inspect(entry, "w1") for entry in line[: recovery.FRONT]]
    bench.answer(line[-1], pr.RUNNING, {}, now=T0 + 5)
    passed = [fx.Inspect(entry) for entry in line[:-1]]
    assert bench.recovery.review(T0 + recovery.PASSED + 1) == passed
    bench.fleet.end("q")  # nobody is left: all of it is looked at
    assert bench.lose("w2") == [fx.Inspect(entry, "w2") for entry in line[:-1]]


def test_row_in_front_of_a_line_that_stands_still_is_looked_at() -> None:
    """A slot seems free: its worker may have died as soon as it had claimed the request."""
    bench = Fleeting()
    bench.fleet.set("q", 4, 2)
    front, second, _ = bench.pending(), bench.pending(), bench.pending()
    assert bench.recovery.review(T0 + recovery.STANDSTILL) == []
    now = T0 + recovery.STANDSTILL + 1
    assert bench.recovery.review(now) == [fx.Inspect(front), fx.Inspect(second)]
    assert bench.row(front, ledgers.ROW_OPEN, now) == []
    bench.row(second, ledgers.ROW_CLAIMED, now, holder="w9", silence=6.0)
    assert (second.state, second.worker) == (pr.RUNNING, "w9")
    bench.fleet.set("q", 4, 0)
    assert bench.recovery.review(now + 60) == []


def test_what_stands_behind_and_was_taken_long_ago_says_nothing() -> None:
    bench = Fleeting()
    bench.fleet.set("q", 1, 0)
    left, before, behind = bench.pending(), bench.pending(), bench.pending()
    bench.answer(behind, pr.RUNNING, {}, now=T0 + 5)
    left.sent_at = before.sent_at = T0 + 6  # they were sent again
    assert bench.recovery.review(T0 + 17) == []
    bench.answer(before, pr.RUNNING, {}, now=T0 + 18)
    assert bench.recovery.review(T0 + 19) == [fx.Inspect(left)]


@pytest.mark.parametrize("kind", [Again, Never])
def test_whoever_was_lost_may_have_had_what_nobody_has(kind: Any) -> None:
    """Without a ledger: it was sent, a worker of its queue is lost, and nobody else has it."""
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=kind)
    bench.lose("w1", now=T0 + 5)
    bench.fleet.idle["q"] = bench.fleet.spoke["q"] = 2
    effects: list[fx.Effect] = []
    for step in range(20):
        effects += bench.recovery.review(T0 + 10 + step) + bench.tracker.tick(T0 + 10 + step)
    if kind is Again:
        assert [e.epoch for e in effects if isinstance(e, fx.Dispatch)] == [2]
        assert entry.resends == 1
    else:
        assert failures(effects, exc.WorkerLost)


def test_what_was_taken_from_a_lost_one_twice_is_sent_once() -> None:
    """It was looked at by two threads."""
    bench = Fleeting()
    entry = bench.again()
    bench.lose("w1")
    assert kinds(bench.row(entry, ledgers.ROW_CLAIMED, lost="w1", holder="w1")) == [fx.Reopen]
    assert sent(bench.recovery.on_reopened(entry, None, T0)).epoch == 2
    assert bench.recovery.on_reopened(entry, None, T0) == []
    assert (entry.epoch, entry.resends) == (2, 1)


def test_where_workers_are_heard_of_often_it_is_looked_at_sooner() -> None:
    bench = Fleeting()
    bench.fleet.period = 0.5
    left, taken = bench.pending(), bench.pending()
    bench.answer(taken, pr.RUNNING, {}, now=T0 + 0.5)
    assert bench.recovery.review(T0 + 1.0) == []
    assert bench.recovery.review(T0 + 1.1) == [fx.Inspect(left)]


# What publishing came to -------------------------------------------------------------------------


def test_what_had_no_queue_is_published_again_while_there_are_workers() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending()
    assert bench.recovery.on_unrouted(entry, 1, T0) == []
    assert sent(bench.tracker.tick(T0 + recovery.PAUSE)).epoch == 1
    bench.recovery.on_unrouted(entry, 1, T0 + 2)
    bench.fleet.end("q")
    assert bench.tracker.tick(T0 + 10) == []
    bench.fleet.set("q", 1, 1, JOB)
    assert sent(bench.tracker.tick(T0 + 11)).tracked is entry
    assert bench.recovery.on_unrouted(entry, 0, T0 + 12) == []  # of another time
    assert bench.tracker.tick(T0 + 20) == []


def test_what_was_not_confirmed_is_published_as_it_was_where_a_ledger_tells() -> None:
    bench = Fleeting()
    entry = bench.pending()
    assert sent(bench.recovery.on_unconfirmed(entry, 1, T0)).epoch == 1


def test_what_was_not_confirmed_without_a_ledger_is_searched_for_first() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    effects = bench.recovery.on_unconfirmed(entry, 1, T0)
    assert asked_of(effects[:1]) == (env.ALL_WORKERS, [(entry.id, 1)])
    bench.fleet.spoke["q"] = 2  # all of them, but they are busy: it may wait in their queue
    assert bench.recovery.review(T0 + 10) == []
    assert asked_of(bench.tracker.tick(T0 + 10))  # the question may be lost
    bench.fleet.idle["q"] = 2
    assert sent(bench.recovery.review(T0 + 20)).epoch == 2
    assert bench.recovery.review(T0 + 30) == []


def test_a_question_stands_in_line_for_what_was_not_confirmed() -> None:
    """Workers that are never idle take it some time; what stood before it was taken by then."""
    bench = Fleeting(ledger=None)
    urgent = bench.pending(kind=Never, priority=7)
    _, line = bench.recovery.on_unconfirmed(urgent, 1, T0)
    bench.fleet.spoke["q"] = 2
    for moment in (10, 20):
        assert isinstance(line, fx.Ask)
        assert asked_of([line]) == ("q", [(urgent.id, 1)])
        assert (line.question.priority, line.question.persistent) == (7, True)
        assert bench.recovery.review(T0 + moment) == []
        # It may have come behind that question, or have been given back: once more.
        (line,) = bench.told(urgent, pr.PENDING, "w5")[:1]
    assert asked_of([line]) == (env.ALL_WORKERS, [(urgent.id, 1)])
    bench.told(urgent, pr.PENDING, "w6")
    bench.fleet.spoke["q"] = 1
    assert bench.recovery.review(T0 + 30) == []
    bench.fleet.spoke["q"] = 2
    assert bench.recovery.suspects
    assert sent(bench.recovery.review(T0 + 40)).epoch == 2
    assert not bench.recovery.suspects


def test_who_takes_a_question_that_stood_in_line_may_run_what_it_asks_for() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    bench.recovery.on_unconfirmed(entry, 1, T0)
    bench.told(entry, pr.RUNNING, "w5", **{env.WBE_EPOCH: 1})
    bench.told(entry, pr.PENDING, "w6")  # to the one that was sent again
    assert (entry.state, entry.lookups, entry.worker) == (pr.RUNNING, 0, "w5")
    bench.fleet.spoke["q"] = 2
    assert bench.recovery.review(T0 + 20) == []


def test_a_question_that_stood_in_line_is_asked_again_when_it_seems_to_be_lost() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    bench.recovery.on_unconfirmed(entry, 1, T0)
    lines = [
        effect.question.routing_key
        for moment in (4, 11, 24, 50)
        for effect in bench.tracker.tick(T0 + moment)
        if isinstance(effect, fx.Ask)
    ]
    assert lines == [env.ALL_WORKERS] * 3 + ["q", env.ALL_WORKERS, "q"]


def test_workers_who_do_not_speak_our_language_are_not_asked_in_line() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    bench.fleet.plain.add("q")
    assert len(bench.recovery.on_unconfirmed(entry, 1, T0)) == 1


def test_what_was_searched_for_and_answers_is_left_alone() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending()
    bench.recovery.on_unconfirmed(entry, 1, T0)
    bench.answer(entry, pr.RUNNING, {})
    bench.fleet.idle["q"] = bench.fleet.spoke["q"] = 2
    assert bench.recovery.review(T0 + 20) == [] and entry.live
    assert not bench.recovery.suspects


def test_while_nothing_is_heard_the_search_says_nothing() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending()
    bench.recovery.on_unconfirmed(entry, 1, T0)
    bench.fleet.idle["q"] = 2
    bench.fleet.outage = 7.0
    assert asked_of(bench.recovery.review(T0 + 20))
    assert (entry.epoch, entry.asked_at) == (1, T0 + 20)


# Given to a second worker, without a ledger ------------------------------------------------------


def test_who_was_given_it_a_second_time_is_not_believed_at_once() -> None:
    """A connection was cut, and whoever was given it first still runs it."""
    bench = Fleeting(ledger=None)
    entry = bench.running("w1")
    assert asked_of(bench.given_twice(entry))[0] == "w1"
    bench.told(entry, pr.RUNNING, "w1", **{env.WBE_EPOCH: 1})
    bench.fleet.spoke["q"] = 2
    assert bench.recovery.review(T0 + 20) == []
    assert settled(bench.succeed(entry))


@pytest.mark.parametrize("kind", [Never, Again])
def test_who_had_it_has_it_no_more(kind: Any) -> None:
    bench = Fleeting(ledger=None)
    entry = bench.running("w1", kind=kind)
    bench.given_twice(entry)
    effects = bench.told(entry, pr.PENDING, "w1")
    if kind is Again:
        assert sent(effects).epoch == 2
    else:
        assert failures(effects, exc.WorkerLost)


@pytest.mark.parametrize("kind", [Never, Again])
def test_nobody_says_that_he_has_it(kind: Any) -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=kind)
    assert asked_of(bench.given_twice(entry))[0] == env.ALL_WORKERS
    assert entry.state == pr.PENDING
    bench.fleet.spoke["q"] = 1
    assert bench.recovery.review(T0 + 5) == []
    bench.fleet.spoke["q"] = 2
    effects = bench.recovery.review(T0 + 10)
    if kind is Again:
        assert sent(effects).epoch == 2
    else:
        assert failures(effects, exc.WorkerLost)


def test_a_broker_that_was_away_and_a_worker_that_went() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    bench.given_twice(entry)
    bench.fleet.set("q", 1, 1)
    bench.lose("w1", now=T0 + 2)  # who may have had it
    bench.fleet.spoke["q"] = 2
    bench.fleet.gone = (T0 - 2, T0 + 1)
    bench.recovery.review(T0 + 5)
    assert failures(bench.recovery.review(T0 + 10), exc.WorkerLost)


def test_nobody_is_there_to_say_it() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.pending()
    bench.given_twice(entry)
    bench.fleet.end("q")
    bench.lose("w2")
    assert bench.recovery.review(T0 + 1) == [] and entry.state == pr.WAITING
    bench.tracker.tick(T0 + recovery.LOOKUP_PAUSE)
    assert failures(bench.recovery.review(LATER), exc.WorkerLost)


def test_an_answer_of_an_old_number_promises_nothing() -> None:
    """Whoever was taken for lost runs it still; what he tells is of the past."""
    bench = Fleeting(ledger=None)
    entry = bench.again()
    bench.lose("w1")
    entry.sent_at = T0
    bench.answer(entry, pr.RUNNING, {}, worker="w2", epoch=2)
    bench.given_twice(entry, "w3")
    bench.told(entry, pr.RUNNING, "w1", **{env.WBE_EPOCH: 1})
    assert entry.lookups
    bench.told(entry, pr.RUNNING, "w2", **{env.WBE_EPOCH: 2})
    assert not entry.lookups


# The last worker of a queue, without a ledger ----------------------------------------------------


def test_who_comes_back_finds_what_waits_in_his_queue() -> None:
    """It is not sent a second time, or he would run it twice."""
    bench = Fleeting(ledger=None)
    entry = bench.pending(kind=Never)
    bench.fleet.end("q")
    assert bench.lose("w1") == [] and entry.state == pr.WAITING
    bench.fleet.set("q", 1, 1, NEVER)
    assert bench.tracker.on_gained([NEVER], T0 + 30) == []
    assert (entry.state, entry.epoch, entry.sent_at) == (pr.PENDING, 1, T0 + 30)
    assert settled(bench.succeed(entry, epoch=1))


# Answers that are lost ---------------------------------------------------------------------------


def test_what_its_holder_does_not_name_twice_is_asked_for() -> None:
    bench = Fleeting()
    entry, other = bench.running("w1"), bench.running("w1")
    assert bench.recovery.on_ids("w1", {other.id}, T0) == []
    assert bench.recovery.on_ids("w1", {other.id}, T0 + 0.01) == []  # of its other topic
    assert bench.recovery.on_ids("w2", set(), T0 + 5) == []
    assert bench.recovery.on_ids("w1", {other.id}, T0 + 5) == [fx.Inspect(entry)]
    assert bench.recovery.on_ids("w1", {other.id}, T0 + 10) == []  # it is being looked for
    to, _ = asked_of(bench.row(entry, ledgers.ROW_CLAIMED, holder="w1"))
    assert to == "w1"


def test_what_is_named_again_was_never_missing() -> None:
    bench = Fleeting()
    entry = bench.running("w1")
    for second in range(0, 40, 10):
        assert bench.recovery.on_ids("w1", set(), T0 + second) == []
        assert bench.recovery.on_ids("w1", {entry.id}, T0 + second + 5) == []


def test_a_lost_answer_is_told_again_without_a_ledger() -> None:
    bench = Fleeting(ledger=None)
    entry = bench.running("w1")
    bench.recovery.on_ids("w1", set(), T0)
    assert asked_of(bench.recovery.on_ids("w1", set(), T0 + 5)) == ("w1", [(entry.id, 1)])
    assert settled(bench.succeed(entry, seq=3))


# How often workers are asked ---------------------------------------------------------------------


def test_it_matters_what_workers_say_only_while_something_stands_still() -> None:
    bench = Fleeting()
    assert not bench.recovery.stalled(T0)
    first, second = bench.pending(), bench.pending()
    assert not bench.recovery.stalled(T0 + 1)
    assert bench.recovery.stalled(T0 + recovery.STANDSTILL + 1)
    bench.answer(first, pr.RUNNING, {}, now=T0 + 6)
    assert not bench.recovery.stalled(T0 + 7)
    bench.succeed(second)
    assert not bench.recovery.stalled(T0 + 100)


# Counting ----------------------------------------------------------------------------------------


def test_everything_that_is_dropped_is_counted_as_what_it_is() -> None:
    bench = Fleeting()
    entry = bench.pending(events=lambda *_: None)
    data = {"event_type": "e", "details": {}}
    bench.answer(entry, pr.EVENT, data, seq=2)
    bench.answer(entry, pr.EVENT, data, seq=2)
    bench.answer(entry, pr.RUNNING, {}, seq=1)
    bench.answer(entry, pr.RUNNING, {}, seq=1)
    bench.answer(entry, pr.RUNNING, {}, seq=1, epoch=7)
    bench.succeed(entry)
    bench.succeed(entry)
    bench.tracker.retired([entry.invocation])
    bench.succeed(entry)
    assert bench.tracker.ignored == {
        "duplicate": 2, "reordered": 1, "old_epoch": 1, "late": 1, "unknown": 1,
    }  # fmt: skip

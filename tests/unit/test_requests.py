"""The book of requests, told one thing at a time."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.unit.requesting import JOB, T0, Bench, Job, failures, settled
from wbengine import exceptions as exc
from wbengine import invocation, task
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests import tracker
from wbengine.engines.worker_based.requests.recovery import LOOKUP_PAUSE, Seen
from wbengine.engines.worker_based.requests.tracked import (
    LOOKUP,
    TIMEOUT,
    TimerHeap,
    TrackedRequest,
)
from wbengine.types.failure import Failure


class Rest(task.Task):
    def execute(self) -> None:
        return None


REST = f"{__name__}.Rest"


# The way of a request ----------------------------------------------------------------------------


def test_the_usual_way() -> None:
    bench = Bench()
    call = bench.call(arguments={"x": (1, 2)}, attempt=4, flow_uuid="flow-1", priority=5)
    (dispatch,) = bench.tracker.submit(call, lambda *_: None, T0)
    assert isinstance(dispatch, fx.Dispatch)
    entry, sent = dispatch.tracked, dispatch.envelope
    assert (entry.state, entry.queue, sent.routing_key) == (pr.PENDING, "q", "q")
    assert (sent.correlation_id, sent.reply_to, sent.priority) == (entry.id, "engine", 5)
    assert sent.headers[env.WBE_ATTEMPT] == 4
    assert sent.headers[env.WBE_EPOCH] == dispatch.epoch == 1
    assert sent.headers[env.WBE_LEDGER] == "ledger-1"
    assert sent.headers[env.ROOT_ID] == "flow-1"
    pr.Request.validate(sent.body)
    assert bench.answer(entry, pr.RUNNING, {}, receipt="r1") == [fx.Acknowledge("r1")]
    assert entry.state == pr.RUNNING
    (end,) = bench.succeed(entry, receipt="r2")
    assert isinstance(end, fx.Settle)
    assert (end.outcome.value, end.outcome.worker) == (3, "w1")
    # The answer is acknowledged, and the row removed, only when the outcome was saved.
    assert bench.tracker.retired([call]) == [fx.Drop(entry.id), fx.Acknowledge("r2")]
    assert bench.tracker.retired([call]) == []
    assert len(bench.tracker) == 0
    assert call.ticket is None


def test_ids_depend_on_atom_action_and_attempt_only() -> None:
    def identify(**options: Any) -> str:
        call = Bench().call(**options)
        return TrackedRequest(call, lambda *_: None, None, T0).id

    assert identify() == identify(priority=3)
    assert len({identify(), identify(attempt=2), identify(action="revert")}) == 3


def test_the_same_attempt_twice_is_refused_and_the_first_lives() -> None:
    bench = Bench()
    entry = bench.pending()
    with pytest.raises(exc.Duplicate):
        bench.tracker.submit(entry.invocation, lambda *_: None, T0)
    assert entry.invocation.ticket is entry
    assert len(settled(bench.succeed(entry))) == 1


def test_success_before_running_is_success() -> None:
    bench = Bench()
    entry = bench.pending()
    assert [outcome.value for outcome in settled(bench.succeed(entry, 7))] == [7]
    assert entry.state == pr.SUCCESS
    assert bench.answer(entry, pr.RUNNING, {}) == [fx.Acknowledge("receipt")]
    assert entry.state == pr.SUCCESS
    assert bench.tracker.ignored == {"late": 1}


def test_the_first_end_wins() -> None:
    bench = Bench()
    entry = bench.running()
    bench.succeed(entry, 1)
    again = bench.answer(entry, pr.FAILURE, {"result": _failure_body()}, receipt="r9")
    assert again == [fx.Acknowledge("r9")]
    assert entry.state == pr.SUCCESS


def test_answers_of_plain_peers() -> None:
    bench = Bench()
    bench.fleet.plain.add("q")
    entry = bench.pending(arguments={"x": [1]})
    bench.answer(entry, pr.RUNNING, {}, worker=None)
    (outcome,) = settled(bench.succeed(entry, {"$wbe": "tuple", "v": []}, worker=None))
    assert outcome.value == {"$wbe": "tuple", "v": []}
    assert outcome.worker == "q"


def test_plain_peers_are_sent_plain_values_only() -> None:
    bench = Bench()
    bench.fleet.plain.add("q")
    _, effects = bench.submit(arguments={"x": {1}})
    (text,) = failures(effects, exc.NotEncodable)
    assert "arguments['x']" in text


def test_plain_peers_are_told_nothing_of_ours() -> None:
    bench = Bench()
    bench.fleet.plain.add("q")
    _, effects = bench.submit(arguments={"x": (1, 2)}, priority=9)
    (sent,) = [effect.envelope for effect in effects if isinstance(effect, fx.Dispatch)]
    assert sent.body["arguments"] == {"x": [1, 2]}
    assert not [name for name in sent.headers if name.startswith("wbe-") and "ledger" not in name]
    assert sent.priority == 0  # kombu's Redis would serve it last


@pytest.mark.parametrize("state", [pr.WAITING, pr.PENDING])
def test_states_that_no_worker_tells(state: str) -> None:
    bench = Bench()
    entry = bench.pending()
    assert bench.answer(entry, state, {}) == [fx.Acknowledge("receipt")]
    assert entry.state == pr.PENDING
    assert bench.tracker.ignored == {"unexpected": 1}


def test_answers_to_nobody() -> None:
    bench = Bench()
    entry = bench.running()
    bench.succeed(entry)
    bench.tracker.retired([entry.invocation])
    assert bench.succeed(entry) == [fx.Acknowledge("receipt")]
    assert bench.tracker.ignored == {"unknown": 1}


def test_dropped_answer_is_logged_with_its_request_epoch_and_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    entry = bench.running()
    bench.succeed(entry)
    with caplog.at_level(logging.DEBUG):
        bench.succeed(entry, worker="w2", epoch=1)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == f"SUCCESS to request {entry.id} (epoch 1, of worker w2) is dropped: late"


def test_an_unreadable_result_is_an_end_too() -> None:
    bench = Bench()
    first, second = bench.running(), bench.running()
    assert failures(bench.succeed(first, {"$wbe": "no such"}), exc.InvalidFormat)
    broken = {**_failure_body(), "version": 9}
    (outcome,) = settled(bench.answer(second, pr.FAILURE, {"result": broken}))
    assert isinstance(outcome.value, Failure)


def test_times_of_the_worker_are_kept() -> None:
    bench = Bench()
    entry = bench.running()
    answer = env.Envelope(
        pr.RESPONSE,
        {"state": pr.SUCCESS, "data": {"result": None}},
        correlation_id=entry.id,
        headers={env.WBE_STARTED: 5.0, env.WBE_ENDED: 6.5},
    )
    (outcome,) = settled(bench.tracker.on_response(answer, None, T0))
    assert (outcome.started, outcome.ended) == (5.0, 6.5)


# Events ------------------------------------------------------------------------------------------


def test_events_are_told_once_and_in_any_order() -> None:
    bench = Bench()
    entry = bench.pending(events=lambda *_: None)

    def tell(n: Any, **options: Any) -> list[fx.Effect]:
        data = {"event_type": "e", "details": {"n": n}}
        return bench.answer(entry, pr.EVENT, data, **options)

    assert tell(1, seq=3)[0] == fx.Tell(entry, "e", {"n": 1})
    assert entry.state == pr.RUNNING  # whoever tells, runs
    assert tell(1, seq=3) == [fx.Acknowledge("receipt")]
    assert tell(0, seq=2)[0] == fx.Tell(entry, "e", {"n": 0})
    assert tell(5, seq=3, worker="w2")[0] == fx.Tell(entry, "e", {"n": 5})
    bench.succeed(entry, seq=4)
    assert tell(6, seq=5) == [fx.Acknowledge("receipt")]
    assert bench.tracker.ignored == {"duplicate": 1, "late": 1}


@pytest.mark.parametrize("details", [{"$wbe": "no such"}, {"$wbe": "tuple", "v": [1]}])
def test_an_unreadable_event_changes_nothing_else(details: dict[str, Any]) -> None:
    bench = Bench()
    bench.tracker._capacity = lambda queue: 1  # type: ignore[method-assign]
    entry = bench.pending(events=lambda *_: None)
    waiting, effects = bench.submit()
    assert effects == []
    effects = bench.answer(entry, pr.EVENT, {"event_type": "e", "details": details})
    assert [effect.tracked for effect in effects if isinstance(effect, fx.Dispatch)] == [waiting]
    assert effects[-1] == fx.Acknowledge("receipt")
    assert bench.tracker.ignored == {"unreadable": 1}


def test_events_that_nobody_wants_are_only_acknowledged() -> None:
    bench = Bench()
    entry = bench.running()
    data = {"event_type": "e", "details": {}}
    assert bench.answer(entry, pr.EVENT, data) == [fx.Acknowledge("receipt")]


# Routing -----------------------------------------------------------------------------------------


def test_it_waits_for_a_worker() -> None:
    bench = Bench(workers=False)
    entry, effects = bench.submit()
    assert (effects, entry.state) == ([], pr.WAITING)
    assert bench.tracker.on_gained(["other"], T0) == []
    bench.fleet.set("q", 1, 1, JOB)
    (dispatch,) = bench.tracker.on_gained([JOB], T0 + 1)
    assert isinstance(dispatch, fx.Dispatch)
    assert entry.state == pr.PENDING


def test_gained_and_gone_again_goes_on_waiting() -> None:
    bench = Bench(workers=False)
    entry, _ = bench.submit()
    assert bench.tracker.on_gained([JOB], T0) == []
    assert entry.state == pr.WAITING
    assert bench.tracker.unstarted() == [entry]


def test_the_rest_waits_here_by_priority() -> None:
    bench = Bench()
    bench.tracker._capacity = lambda queue: 2  # type: ignore[method-assign]
    first, second = bench.pending(), bench.pending()
    low, high, other = (bench.submit(priority=n)[0] for n in (1, 9, 1))
    assert all(entry.state == pr.PENDING for entry in (low, high, other))
    order = []
    for entry in (first, second, high, low, other):
        effects = bench.answer(entry, pr.RUNNING, {})
        order += [effect.tracked for effect in effects if isinstance(effect, fx.Dispatch)]
    assert order == [high, low, other]


def test_what_can_not_be_encoded_fails_alone() -> None:
    bench = Bench()
    entry, effects = bench.submit(arguments={"x": [object()]})
    (text,) = failures(effects, exc.NotEncodable)
    assert text.startswith("arguments['x'][0]")
    assert entry.state == pr.FAILURE
    assert bench.tracker.retired([entry.invocation]) == []
    assert len(bench.tracker) == 0


def test_what_is_too_large_fails_alone() -> None:
    _, effects = Bench().submit(arguments={"x": "y" * 20_000})
    (text,) = failures(effects, exc.TooLarge)
    assert "task-1" in text


class Vicious(Job):
    version = property(lambda self: 1 / 0, lambda self, value: None)  # type: ignore[assignment]


def test_whatever_a_task_does_it_is_an_outcome() -> None:
    _, effects = Bench(workers=True).submit()
    bench = Bench()
    bench.fleet.set("q2", 1, 1, f"{__name__}.Vicious")
    _, effects = bench.submit(kind=Vicious)
    assert failures(effects, ZeroDivisionError)


# Time --------------------------------------------------------------------------------------------


def test_waiting_too_long_is_an_error_that_says_what_is_there() -> None:
    bench = Bench(workers=False)
    bench.fleet.set("other", 1, 1, JOB.replace("Job", "Jobs"))
    bench.submit()
    assert bench.tracker.tick(T0 + 59.9) == []
    (text,) = failures(bench.tracker.tick(T0 + 60), exc.RequestTimeout)
    assert "task-1" in text
    assert "60.0 s" in text
    assert JOB in text
    assert "Jobs" in text
    assert "other" in text


def test_nobody_at_all_is_said_plainly() -> None:
    bench = Bench(workers=False)
    bench.submit()
    (text,) = failures(bench.tracker.tick(T0 + 60), exc.RequestTimeout)
    assert "no worker is known, on any topic" in text
    bench.fleet.wanted = ("video", "audio.*")
    bench.submit()
    (text,) = failures(bench.tracker.tick(T0 + 120), exc.RequestTimeout)
    assert "no worker is known, on 'video', 'audio.*' (others do not count)" in text


def test_after_five_seconds_one_line_says_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(workers=False, timeout=None)
    bench.submit()
    assert bench.tracker.next_timer() == T0 + tracker.WARN_AFTER
    with caplog.at_level(logging.WARNING):
        assert bench.tracker.tick(T0 + 5) == []
        assert bench.tracker.tick(T0 + 500) == []
    assert len(caplog.records) == 1
    assert "task-1" in caplog.text


def test_pending_too_long_is_revoked_first() -> None:
    bench = Bench()
    entry = bench.pending()
    assert bench.tracker.tick(T0 + 60) == [fx.Revoke(entry)]
    (text,) = failures(bench.recovery.on_revoked(entry, True, T0 + 60), exc.RequestTimeout)
    assert "'q'" in text


def test_what_was_routed_anew_and_waits_has_a_row_to_revoke() -> None:
    bench = Bench()
    entry = bench.pending()
    bench.fleet.end("q")
    (inspect,) = bench.lose("w1")
    assert inspect == fx.Inspect(entry, "w1")
    assert bench.recovery.on_row(entry, Seen(ledgers.ROW_OPEN), T0 + 1, "w1") == []
    assert entry.state == pr.WAITING
    assert fx.Revoke(entry) not in bench.tracker.tick(T0 + 60)
    assert fx.Revoke(entry) in bench.tracker.tick(T0 + 61)


def test_not_revoked_because_somebody_has_it() -> None:
    bench = Bench()
    entry = bench.pending()
    bench.tracker.tick(T0 + 60)
    assert bench.recovery.on_revoked(entry, False, T0 + 60) == [fx.Inspect(entry)]
    assert bench.recovery.on_row(entry, Seen(ledgers.ROW_CLAIMED, "w7"), T0 + 60) == []
    assert (entry.state, entry.worker, bench.fleet.watched) == (pr.RUNNING, "w7", [("w7", 0.0)])


def test_not_revoked_because_it_is_done() -> None:
    bench = Bench()
    entry = bench.pending()
    answer = env.Envelope(
        pr.RESPONSE, {"state": "SUCCESS", "data": {"result": 8}}, correlation_id=entry.id
    )
    effects = bench.recovery.on_row(entry, Seen(ledgers.ROW_DONE, "w7", answer), T0)
    assert [outcome.value for outcome in settled(effects)] == [8]


def test_not_revoked_because_the_broker_is_away() -> None:
    bench = Bench()
    entry = bench.pending()
    entry.opened = False  # the publisher has not come so far
    bench.tracker.tick(T0 + 60)
    assert bench.recovery.on_row(entry, Seen(None), T0 + 60) == []
    assert entry.state == pr.PENDING
    assert bench.tracker.tick(T0 + 119) == []
    assert bench.tracker.tick(T0 + 120) == [fx.Revoke(entry)]


def test_a_row_that_vanished_is_an_unknown_outcome() -> None:
    bench = Bench()
    entry = bench.pending()
    assert failures(bench.recovery.on_row(entry, Seen(None), T0), exc.WorkerLost)


def test_a_busy_fleet_stops_the_clock() -> None:
    bench = Bench()
    bench.fleet.set("q", 4, 0)
    entry = bench.pending()
    assert bench.tracker.tick(T0 + 60) == []
    bench.fleet.set("q", 4, 1)
    assert bench.tracker.tick(T0 + 119) == []
    assert bench.tracker.tick(T0 + 120) == [fx.Revoke(entry)]


def test_slots_that_were_free_before_it_was_sent_do_not_end_a_request() -> None:
    """A short time-out waits for the next beat, and for two periods at most."""
    bench = Bench(timeout=1)
    entry = bench.pending()
    assert bench.tracker.tick(T0 + 1) == []
    bench.fleet.spoke["q"] = 1
    assert bench.tracker.tick(T0 + 2) == [fx.Revoke(entry)]

    bench = Bench(timeout=1)
    entry = bench.pending()
    ends = next(now for now in range(1, 99) if bench.tracker.tick(T0 + now) == [fx.Revoke(entry)])
    assert ends == 2 * bench.fleet.period


def test_no_fleet_does_not() -> None:
    bench = Bench()
    entry = bench.pending()
    bench.fleet.end("q")
    assert bench.tracker.tick(T0 + 60) == [fx.Revoke(entry)]


def test_a_line_that_moves_stops_the_clock_of_those_behind() -> None:
    """Between two tasks a slot looks free: that alone must not end what waits its turn."""
    bench = Bench()
    line = [bench.pending() for _ in range(4)]
    bench.answer(line[0], pr.RUNNING, {}, now=T0 + 50)
    assert bench.tracker.tick(T0 + 60) == []
    # The third is started, the second was left out: it is looked at, the fourth still waits.
    bench.answer(line[2], pr.RUNNING, {}, now=T0 + 100)
    assert bench.tracker.tick(T0 + 120) == [fx.Revoke(line[1])]
    assert bench.tracker.tick(T0 + 180) == [fx.Revoke(line[3])]


def test_what_waits_here_has_no_clock() -> None:
    bench = Bench(workers=False)
    bench.tracker._capacity = lambda queue: 0  # type: ignore[method-assign]
    entry, _ = bench.submit()
    bench.fleet.set("q", 1, 1, JOB)
    bench.tracker.on_gained([JOB], T0 + 10)
    for minute in range(1, 10):
        assert bench.tracker.tick(T0 + 60 * minute) == []
    assert entry.state == pr.PENDING


def test_no_limit() -> None:
    bench = Bench(timeout=None)
    bench.pending()
    assert bench.tracker.tick(T0 + 1e9) == []
    assert bench.tracker.next_timer() is None


def test_running_has_no_clock() -> None:
    bench = Bench()
    bench.running()
    assert bench.tracker.tick(T0 + 1e9) == []


def test_timers_of_what_ended_keep_nothing_alive() -> None:
    bench = Bench()
    entry, _ = bench.submit()
    for _ in range(3000):
        ended = bench.pending()
        bench.succeed(ended)
        bench.tracker.retired([ended.invocation])
    assert len(bench.tracker.timers) < 1200
    bench.succeed(entry)
    bench.tracker.retired([entry.invocation])
    assert bench.tracker.next_timer() is None


def test_who_fails_with_one_alarm_hears_of_the_others() -> None:
    bench, timers = Bench(), TimerHeap()
    waiting = [bench.submit()[0] for _ in range(4)]
    for entry in waiting:
        timers.set(T0 + 5, TIMEOUT, entry)
    timers.set(T0 + 1, LOOKUP, waiting[3])
    timers.set(T0 + 5, TIMEOUT, waiting[0])
    assert (len(timers), timers.next()) == (6, T0 + 1)
    heard = []
    due = timers.due(T0 + 5)
    for kind, entry in due:
        heard.append((kind, entry))
        if entry is waiting[1]:
            break
    del due
    assert (len(timers), timers.next()) == (3, T0 + 5)
    timers.set(T0 + 5, TIMEOUT, waiting[1])
    heard += timers.due(T0 + 5)
    assert heard[0] == (LOOKUP, waiting[3])
    assert [entry for _, entry in heard[1:]] == [*waiting, waiting[0], waiting[1]]
    assert (len(timers), timers.next()) == (0, None)


def test_timers_of_one_time_are_tidied_one_by_one() -> None:
    bench, timers = Bench(), TimerHeap()
    for _ in range(600):
        ended = bench.pending()
        timers.set(T0, TIMEOUT, ended)
        timers.set(T0, TIMEOUT, ended)
        bench.succeed(ended)
    kept = bench.pending()
    timers.set(T0, TIMEOUT, kept)
    timers.tidy(1)
    assert len(timers) == 1
    assert list(timers.due(T0)) == [(TIMEOUT, kept)]


def test_who_is_heard_of_first_at_the_end_holds_nothing() -> None:
    bench = Bench()
    entry = bench.pending()
    assert len(settled(bench.succeed(entry))) == 1
    assert (entry.worker, entry.ran, entry.index) == ("w1", True, None)
    assert bench.fleet.watched == [("w1", 0.0)], "it was heard of"
    assert not bench.tracker.holds("w1")
    assert bench.lose("w1") == []


def test_what_is_cancelled_and_has_ended_is_not_cancelled_again() -> None:
    bench = Bench()
    entry = bench.pending()
    bench.tracker.cancel([entry.invocation], T0)
    effects = bench.succeed(entry)
    assert [type(effect) for effect in effects] == [fx.Settle]


# Losing workers ----------------------------------------------------------------------------------


def test_without_a_ledger_what_it_ran_is_lost_at_once() -> None:
    bench = Bench(ledger=None)
    entry, other = bench.running("w1"), bench.running("w2")
    (text,) = failures(bench.lose("w1"), exc.WorkerLost)
    assert "w1" in text
    assert (entry.state, other.state) == (pr.FAILURE, pr.RUNNING)


def test_what_was_routed_anew_and_not_sent_there_is_sent_when_workers_come() -> None:
    """Without a ledger: it waited for its turn in a line whose workers went away, too."""
    bench = Bench(ledger=None)
    bench.tracker._capacity = lambda queue: 1  # type: ignore[method-assign]
    entry = bench.pending()
    bench.fleet.set("other", 1, 1, JOB)
    first = bench.pending()
    assert (entry.queue, first.queue) == ("q", "other")
    bench.fleet.end("q")
    assert bench.lose("w1") == []  # its turn has not come
    assert (entry.queue, entry.epoch) == ("other", 2)
    bench.fleet.end("other")
    bench.lose("w2", "other", T0 + 5)
    assert entry.state == pr.WAITING
    bench.fleet.set("other", 1, 1, JOB)
    bench.tracker._capacity = lambda queue: 2  # type: ignore[method-assign]
    effects = bench.tracker.on_gained([JOB], T0 + 10)
    dispatched = [effect for effect in effects if isinstance(effect, fx.Dispatch)]
    assert [(e.tracked, e.epoch) for e in dispatched] == [(entry, 2)]
    assert entry.resends == 1


def test_what_changes_lines_before_its_turn_keeps_its_number() -> None:
    bench = Bench(ledger=None)
    bench.tracker._capacity = lambda queue: 1  # type: ignore[method-assign]
    entry = bench.pending()
    bench.fleet.set("other", 1, 1, JOB)
    bench.pending()
    bench.fleet.end("q")
    bench.lose("w1")
    bench.fleet.set("third", 1, 1, JOB)
    bench.fleet.end("other")
    dispatched = [e for e in bench.lose("w2", "other", T0 + 5) if isinstance(e, fx.Dispatch)]
    assert entry in [effect.tracked for effect in dispatched]
    assert (entry.queue, entry.epoch, entry.resends) == ("third", 2, 1)


def test_with_a_ledger_the_row_says_what_became_of_it() -> None:
    bench = Bench()
    entry = bench.running("w1")
    assert bench.lose("w1") == [fx.Inspect(entry, "w1")]
    effects = bench.recovery.on_row(entry, Seen(ledgers.ROW_CLAIMED, "w1"), T0, "w1")
    assert [type(effect) for effect in effects] == [fx.Conclude] and entry.live
    assert failures(bench.concluded(effects), exc.WorkerLost)


def test_what_could_not_be_ended_for_who_is_lost_is_looked_at_again() -> None:
    """He ended it himself meanwhile, or the ledger was away."""
    bench = Bench()
    entry = bench.running("w1")
    bench.lose("w1")
    seen = Seen(ledgers.ROW_CLAIMED, "w1", epoch=1)
    bench.recovery.on_row(entry, seen, T0, "w1")
    assert entry.live and bench.tracker.tick(T0 + LOOKUP_PAUSE + 1) == [fx.Inspect(entry)]
    assert [type(e) for e in bench.recovery.on_row(entry, seen, T0)] == [fx.Conclude]
    assert settled(bench.succeed(entry, 7))[0].value == 7
    failure = entry.loss()
    assert bench.recovery.on_concluded(entry, failure, T0) == []


@pytest.mark.parametrize("state", [ledgers.ROW_OPEN, None])
def test_a_row_that_says_nothing_leaves_it_lost(state: str | None) -> None:
    bench = Bench()
    entry = bench.running("w1")
    effects = bench.recovery.on_row(entry, Seen(state), T0, "w1")
    assert failures(effects, exc.WorkerLost)


def test_what_it_claimed_and_never_said_is_found_although_others_live() -> None:
    bench = Bench()
    claimed, other = bench.pending(), bench.pending()
    assert bench.lose("w1") == [fx.Inspect(claimed, "w1"), fx.Inspect(other, "w1")]
    effects = bench.recovery.on_row(claimed, Seen(ledgers.ROW_CLAIMED, "w1"), T0, "w1")
    (text,) = failures(bench.concluded(effects), exc.WorkerLost)
    assert "w1" in text
    assert bench.recovery.on_row(other, Seen(ledgers.ROW_OPEN), T0, "w1") == []
    assert other.state == pr.PENDING


def test_claimed_by_another_is_running_there() -> None:
    bench = Bench()
    entry = bench.pending()
    assert bench.recovery.on_row(entry, Seen(ledgers.ROW_CLAIMED, "w2"), T0, "w1") == []
    assert (entry.state, entry.worker) == (pr.RUNNING, "w2")
    assert bench.lose("w2") == [fx.Inspect(entry, "w2")]


def test_open_without_workers_is_routed_anew_in_the_same_epoch() -> None:
    bench = Bench()
    entry = bench.pending()
    bench.fleet.end("q")
    bench.fleet.set("q2", 1, 1, JOB)
    bench.lose("w1")
    (dispatch,) = bench.recovery.on_row(entry, Seen(ledgers.ROW_OPEN), T0, "w1")
    assert isinstance(dispatch, fx.Dispatch)
    assert (dispatch.epoch, dispatch.envelope.routing_key) == (1, "q2")
    # Answered late, twice inspected: nothing happens twice.
    assert bench.recovery.on_row(entry, Seen(ledgers.ROW_OPEN), T0, "w1") == []


def test_without_a_ledger_a_new_route_is_a_new_epoch() -> None:
    bench = Bench(ledger=None)
    entry = bench.pending()
    bench.fleet.end("q")
    bench.fleet.set("q2", 1, 1, JOB)
    (dispatch,) = bench.lose("w1")
    assert isinstance(dispatch, fx.Dispatch)
    assert dispatch.epoch == dispatch.envelope.headers[env.WBE_EPOCH] == 2
    bench.succeed(entry, epoch=1)
    assert entry.state == pr.PENDING
    assert settled(bench.succeed(entry, epoch=2))


def test_what_waited_here_changes_queues() -> None:
    bench = Bench()
    bench.tracker._capacity = lambda queue: 1 if queue == "q" else 9  # type: ignore[method-assign]
    bench.pending()
    waiting, _ = bench.submit()
    bench.fleet.end("q")
    bench.fleet.set("q2", 1, 1, JOB)
    effects = bench.lose("w1")
    assert [e.tracked for e in effects if isinstance(e, fx.Dispatch)] == [waiting]
    assert waiting.epoch == 1


def test_plain_peers_lost_without_a_ledger_route_their_requests_anew() -> None:
    bench = Bench(ledger=None)
    bench.fleet.plain.add("q")
    entry = bench.pending()
    bench.fleet.end("q")
    worker = types.TopicWorker("t", ())
    worker.queue = "q"
    assert bench.recovery.on_lost([worker], T0) == []
    assert entry.state == pr.WAITING


# Ending ------------------------------------------------------------------------------------------


def test_what_was_forgotten_is_not_published_and_not_answered() -> None:
    bench = Bench()
    entry = bench.pending()
    assert bench.tracker.unstarted() == [entry]
    bench.tracker.forget(entry)
    assert not entry.live
    assert (len(bench.tracker), entry.invocation.ticket) == (0, None)
    assert bench.succeed(entry) == [fx.Acknowledge("receipt")]
    assert bench.tracker.on_unsent(entry, ValueError("x"), T0) == []
    assert bench.recovery.on_revoked(entry, True, T0) == []
    assert bench.recovery.on_row(entry, Seen(ledgers.ROW_OPEN), T0) == []
    assert bench.tracker.tick(T0 + 1000) == []
    bench.tracker.submit(entry.invocation, lambda *_: None, T0)


def test_what_can_never_be_published_fails() -> None:
    bench = Bench()
    entry = bench.pending()
    assert failures(
        bench.tracker.on_unsent(entry, exc.LedgerFailure("full"), T0), exc.LedgerFailure
    )
    assert bench.tracker.on_unsent(entry, exc.LedgerFailure("full"), T0) == []


def test_closing_settles_everything_and_what_comes_later() -> None:
    bench = Bench()
    bench.tracker._capacity = lambda queue: 1  # type: ignore[method-assign]
    bench.running()
    bench.pending()
    bench.submit()
    bench.submit(kind=Rest)
    effects = bench.tracker.close("stopped")
    texts = failures(effects, exc.ExecutionFailure)
    assert len(texts) == 4 and len(bench.tracker) == 0
    assert sum(isinstance(effect, fx.Drop) for effect in effects) == 2
    assert all("stopped" in text for text in texts)
    _, late = bench.submit()
    assert failures(late, exc.ExecutionFailure)
    bench.tracker.reopen()
    bench.pending()


def test_one_flow_can_leave_a_book() -> None:
    bench = Bench()
    ours, theirs = bench.pending(flow_uuid="ours"), bench.pending(flow_uuid="theirs")
    running = bench.running(flow_uuid="ours")
    assert bench.tracker.unstarted("ours") == [ours]
    texts = failures(bench.tracker.leave("bye", "ours"), exc.ExecutionFailure)
    assert len(texts) == 2
    assert theirs.live and not ours.live and not running.live
    assert len(bench.tracker) == 1
    bench.pending()


def test_what_has_no_outcome_is_not_retired() -> None:
    bench = Bench()
    entry = bench.pending()
    assert bench.tracker.retired([entry.invocation]) == []
    assert len(bench.tracker) == 1


def _failure_body() -> dict[str, Any]:
    return Failure.from_exception(RuntimeError("no")).to_dict()


def test_the_id_of_a_request_tells_what_it_is() -> None:
    """The same action of the same attempt is the same request; so is an item's, until it is
    resumed: its first message may still be under way."""

    def id_of(**options: Any) -> str:
        call = invocation.Invocation(Job("j"), invocation.EXECUTE, "u", 1, **options)
        return TrackedRequest(call, lambda *_: None, None, T0).id

    assert id_of() == id_of() == id_of(resumed=1)
    items = [id_of(index=0), id_of(index=1), id_of(index=0, resumed=1), id_of(index=0, resumed=2)]
    assert len({id_of(), *items}) == 5
    assert id_of(index=1) == items[1]

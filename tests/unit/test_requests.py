"""Requests of an executor: states, timeouts, routing and lost workers, without I/O."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.unit.trackers import JOB, T0, Bench, Job, failures, only, settled
from wbengine import exceptions as exc
from wbengine import task
from wbengine._calls import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages.replies import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests import tracker
from wbengine.engines.worker_based._requests.events import RowSnapshot
from wbengine.engines.worker_based._requests.recovery import LOOKUP_PAUSE_SECONDS
from wbengine.engines.worker_based._requests.request_state import (
    LOOKUP,
    TIMEOUT,
    TimerHeap,
    TrackedRequest,
)
from wbengine.engines.worker_based.ledger import _base as ledgers
from wbengine.types.failure import Failure


class Rest(task.Task):
    def execute(self) -> None:
        return None


REST = f"{__name__}.Rest"


@pytest.fixture
def bench() -> Bench:
    return Bench()


# States and replies.


def test_request_is_dispatched_acknowledged_settled_and_retired(bench: Bench) -> None:
    call = bench.call(arguments={"x": (1, 2)}, attempt=4, flow_uuid="flow-1", priority=5)
    dispatch = only(fx.Dispatch, bench.tracker.submit(call, lambda *_: None, T0))
    entry, sent = dispatch.tracked, dispatch.envelope
    assert (entry.state, entry.queue, sent.routing_key) == (pr.PENDING, "q", "q")
    assert (sent.correlation_id, sent.reply_to, sent.priority) == (entry.id, "engine", 5)
    assert sent.headers[hd.WBE_ATTEMPT] == 4
    assert sent.headers[hd.WBE_EPOCH] == dispatch.epoch == 1
    assert sent.headers[hd.WBE_LEDGER] == "ledger-1"
    assert sent.headers[hd.ROOT_ID] == "flow-1"
    pr.Request.validate(sent.body)
    assert bench.answer(entry, pr.RUNNING, {}, receipt="r1") == [fx.Acknowledge("r1")]
    assert entry.state == pr.RUNNING
    end = only(fx.Settle, bench.succeed(entry, receipt="r2"))
    assert (end.outcome.value, end.outcome.worker) == (3, "w1")
    # The reply is acknowledged, and the row dropped, only after the outcome was saved.
    assert bench.tracker.on_saved([call]) == [fx.Drop(entry.id), fx.Acknowledge("r2")]
    assert bench.tracker.on_saved([call]) == []
    assert len(bench.tracker.requests) == 0
    assert call.ticket is None


def test_request_ids_depend_only_on_atom_action_and_attempt() -> None:
    def identify(**options: Any) -> str:
        call = Bench().call(**options)
        return TrackedRequest(call, lambda *_: None, None, T0).id

    assert identify() == identify(priority=3)
    assert len({identify(), identify(attempt=2), identify(action="revert")}) == 3


def test_duplicate_attempt_is_rejected_and_first_request_continues(bench: Bench) -> None:
    entry = bench.pending()
    with pytest.raises(exc.Duplicate):
        bench.tracker.submit(entry.invocation, lambda *_: None, T0)
    assert entry.invocation.ticket is entry
    assert len(settled(bench.succeed(entry))) == 1


def test_success_reply_before_running_reply_settles_the_request(bench: Bench) -> None:
    entry = bench.pending()
    assert [outcome.value for outcome in settled(bench.succeed(entry, 7))] == [7]
    assert entry.state == pr.SUCCESS
    assert bench.answer(entry, pr.RUNNING, {}) == [fx.Acknowledge("receipt")]
    assert entry.state == pr.SUCCESS
    assert bench.tracker.ignored == {"late": 1}


def test_second_terminal_reply_is_acknowledged_and_ignored(bench: Bench) -> None:
    entry = bench.running()
    bench.succeed(entry, 1)
    again = bench.answer(entry, pr.FAILURE, {"result": _failure_body()}, receipt="r9")
    assert again == [fx.Acknowledge("r9")]
    assert entry.state == pr.SUCCESS


def test_reply_of_taskflow_worker_is_read_as_plain_json(bench: Bench) -> None:
    bench.fleet.plain.add("q")
    entry = bench.pending(arguments={"x": [1]})
    bench.answer(entry, pr.RUNNING, {}, worker=None)
    (outcome,) = settled(bench.succeed(entry, {"$wbe": "tuple", "v": []}, worker=None))
    assert outcome.value == {"$wbe": "tuple", "v": []}
    assert outcome.worker == "q"


def test_arguments_without_json_form_fail_for_taskflow_workers(bench: Bench) -> None:
    bench.fleet.plain.add("q")
    _, effects = bench.submit(arguments={"x": {1}})
    (text,) = failures(effects, exc.NotEncodable)
    assert "arguments['x']" in text


def test_request_to_taskflow_worker_has_no_headers_types_or_priority(bench: Bench) -> None:
    bench.fleet.plain.add("q")
    _, effects = bench.submit(arguments={"x": (1, 2)}, priority=9)
    (sent,) = [effect.envelope for effect in effects if isinstance(effect, fx.Dispatch)]
    assert sent.body["arguments"] == {"x": [1, 2]}
    assert not [name for name in sent.headers if name.startswith("wbe-") and "ledger" not in name]
    assert sent.priority == 0  # Kombu's Redis transport delivers high priorities last.


@pytest.mark.parametrize("state", [pr.WAITING, pr.PENDING])
def test_reply_with_waiting_or_pending_state_is_ignored(bench: Bench, state: str) -> None:
    entry = bench.pending()
    assert bench.answer(entry, state, {}) == [fx.Acknowledge("receipt")]
    assert entry.state == pr.PENDING
    assert bench.tracker.ignored == {"unexpected": 1}


def test_ignored_reply_is_logged_with_request_epoch_worker_and_reason(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = bench.running()
    bench.succeed(entry)
    with caplog.at_level(logging.DEBUG):
        bench.succeed(entry, worker="w2", epoch=1)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == f"ignored SUCCESS for request {entry.id} (epoch 1, worker w2): late"


def test_unreadable_result_settles_the_request_as_failed(bench: Bench) -> None:
    first, second = bench.running(), bench.running()
    assert failures(bench.succeed(first, {"$wbe": "no such"}), exc.InvalidFormat)
    broken = {**_failure_body(), "version": 9}
    (outcome,) = settled(bench.answer(second, pr.FAILURE, {"result": broken}))
    assert isinstance(outcome.value, Failure)


def test_outcome_has_start_and_end_times_of_the_worker(bench: Bench) -> None:
    entry = bench.running()
    reply = Reply(entry.id, pr.SUCCESS, {"result": None}, started_at=5.0, ended_at=6.5)
    (outcome,) = settled(bench.tracker.on_reply(reply, None, T0))
    assert (outcome.started, outcome.ended) == (5.0, 6.5)


# Events.


def test_events_are_delivered_once_and_in_order_of_arrival(bench: Bench) -> None:
    entry = bench.pending(events=lambda *_: None)

    def tell(n: Any, **options: Any) -> list[fx.Effect]:
        data = {"event_type": "e", "details": {"n": n}}
        return bench.answer(entry, pr.EVENT, data, **options)

    assert tell(1, seq=3)[0] == fx.ForwardEvent(entry, "e", {"n": 1})
    assert entry.state == pr.RUNNING  # An event implies RUNNING.
    assert tell(1, seq=3) == [fx.Acknowledge("receipt")]
    assert tell(0, seq=2)[0] == fx.ForwardEvent(entry, "e", {"n": 0})
    assert tell(5, seq=3, worker="w2")[0] == fx.ForwardEvent(entry, "e", {"n": 5})
    bench.succeed(entry, seq=4)
    assert tell(6, seq=5) == [fx.Acknowledge("receipt")]
    assert bench.tracker.ignored == {"duplicate": 1, "late": 1}


@pytest.mark.parametrize(
    "details",
    [{"$wbe": "no such"}, {"$wbe": "tuple", "v": [1]}],
    ids=["unknown_type", "invalid_tuple"],
)
def test_unreadable_event_is_ignored_but_marks_request_as_running(
    bench: Bench, details: dict[str, Any]
) -> None:
    bench.tracker._capacity = lambda queue: 1  # type: ignore[method-assign]
    entry = bench.pending(events=lambda *_: None)
    waiting, effects = bench.submit()
    assert effects == []
    effects = bench.answer(entry, pr.EVENT, {"event_type": "e", "details": details})
    assert [effect.tracked for effect in effects if isinstance(effect, fx.Dispatch)] == [waiting]
    assert effects[-1] == fx.Acknowledge("receipt")
    assert bench.tracker.ignored == {"unreadable": 1}


def test_events_of_request_without_listener_are_only_acknowledged(bench: Bench) -> None:
    entry = bench.running()
    data = {"event_type": "e", "details": {}}
    assert bench.answer(entry, pr.EVENT, data) == [fx.Acknowledge("receipt")]


# Routing.


def test_request_waits_until_a_worker_offers_its_task() -> None:
    bench = Bench(workers=False)
    entry, effects = bench.submit()
    assert (effects, entry.state) == ([], pr.WAITING)
    assert bench.tracker.on_workers_gained(["other"], T0) == []
    bench.fleet.set("q", 1, 1, JOB)
    only(fx.Dispatch, bench.tracker.on_workers_gained([JOB], T0 + 1))
    assert entry.state == pr.PENDING


def test_request_keeps_waiting_if_the_new_worker_left_already() -> None:
    bench = Bench(workers=False)
    entry, _ = bench.submit()
    assert bench.tracker.on_workers_gained([JOB], T0) == []
    assert entry.state == pr.WAITING
    assert bench.tracker.requests.unstarted() == [entry]


def test_requests_over_capacity_are_dispatched_by_priority(bench: Bench) -> None:
    bench.tracker._capacity = lambda queue: 2  # type: ignore[method-assign]
    first, second = bench.pending(), bench.pending()
    low, high, other = (bench.submit(priority=n)[0] for n in (1, 9, 1))
    assert all(entry.state == pr.PENDING for entry in (low, high, other))
    order = []
    for entry in (first, second, high, low, other):
        effects = bench.answer(entry, pr.RUNNING, {})
        order += [effect.tracked for effect in effects if isinstance(effect, fx.Dispatch)]
    assert order == [high, low, other]


def test_arguments_that_cannot_be_encoded_fail_only_their_request(bench: Bench) -> None:
    entry, effects = bench.submit(arguments={"x": [object()]})
    (text,) = failures(effects, exc.NotEncodable)
    assert text.startswith("arguments['x'][0]")
    assert entry.state == pr.FAILURE
    assert bench.tracker.on_saved([entry.invocation]) == []
    assert len(bench.tracker.requests) == 0


def test_too_large_request_fails_with_the_task_name() -> None:
    _, effects = Bench().submit(arguments={"x": "y" * 20_000})
    (text,) = failures(effects, exc.TooLarge)
    assert "task-1" in text


class Vicious(Job):
    version = property(lambda self: 1 / 0, lambda self, value: None)  # type: ignore[assignment]


def test_error_in_a_task_property_fails_only_its_request() -> None:
    _, effects = Bench(workers=True).submit()
    bench = Bench()
    bench.fleet.set("q2", 1, 1, f"{__name__}.Vicious")
    _, effects = bench.submit(kind=Vicious)
    assert failures(effects, ZeroDivisionError)


# Timeouts.


def test_timeout_error_lists_known_workers_and_similar_tasks() -> None:
    bench = Bench(workers=False)
    bench.fleet.set("other", 1, 1, JOB.replace("Job", "Jobs"))
    bench.submit()
    assert bench.tracker.on_timer(T0 + 59.9) == []
    (text,) = failures(bench.tracker.on_timer(T0 + 60), exc.RequestTimeout)
    assert "task-1" in text
    assert "60.0 s" in text
    assert JOB in text
    assert "Jobs" in text
    assert "other" in text


def test_timeout_error_without_workers_names_the_topics() -> None:
    bench = Bench(workers=False)
    bench.submit()
    (text,) = failures(bench.tracker.on_timer(T0 + 60), exc.RequestTimeout)
    assert "no worker is known on any topic" in text
    bench.fleet.topic_patterns = ("video", "audio.*")
    bench.submit()
    (text,) = failures(bench.tracker.on_timer(T0 + 120), exc.RequestTimeout)
    assert "no worker is known on 'video', 'audio.*' (other topics are ignored)" in text


def test_waiting_request_is_logged_once_after_five_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(workers=False, timeout=None)
    bench.submit()
    assert bench.tracker.next_timer() == T0 + tracker.WARN_AFTER_SECONDS
    with caplog.at_level(logging.WARNING):
        assert bench.tracker.on_timer(T0 + 5) == []
        assert bench.tracker.on_timer(T0 + 500) == []
    assert len(caplog.records) == 1
    assert "task-1" in caplog.text


def test_pending_request_is_revoked_before_it_times_out(bench: Bench) -> None:
    entry = bench.pending()
    assert bench.tracker.on_timer(T0 + 60) == [fx.Revoke(entry)]
    (text,) = failures(bench.tracker.on_revoked(entry, True, T0 + 60), exc.RequestTimeout)
    assert "'q'" in text


def test_waiting_request_with_open_row_is_revoked_at_timeout(bench: Bench) -> None:
    entry = bench.pending()
    bench.fleet.end("q")
    (inspect,) = bench.lose("w1")
    assert inspect == fx.Inspect(entry, "w1")
    assert bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_OPEN), T0 + 1, "w1") == []
    assert entry.state == pr.WAITING
    assert fx.Revoke(entry) not in bench.tracker.on_timer(T0 + 60)
    assert fx.Revoke(entry) in bench.tracker.on_timer(T0 + 61)


def test_timed_out_request_claimed_meanwhile_continues_as_running(bench: Bench) -> None:
    entry = bench.pending()
    bench.tracker.on_timer(T0 + 60)
    assert bench.tracker.on_revoked(entry, False, T0 + 60) == [fx.Inspect(entry)]
    assert bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_CLAIMED, "w7"), T0 + 60) == []
    assert (entry.state, entry.worker, bench.fleet.watched) == (pr.RUNNING, "w7", [("w7", 0.0)])


def test_unpublished_request_restarts_its_timeout(bench: Bench) -> None:
    entry = bench.pending()
    entry.opened = False  # The message is not published yet.
    bench.tracker.on_timer(T0 + 60)
    assert bench.tracker.on_row(entry, RowSnapshot(None), T0 + 60) == []
    assert entry.state == pr.PENDING
    assert bench.tracker.on_timer(T0 + 119) == []
    assert bench.tracker.on_timer(T0 + 120) == [fx.Revoke(entry)]


def test_missing_row_of_pending_request_fails_with_worker_lost(bench: Bench) -> None:
    entry = bench.pending()
    assert failures(bench.tracker.on_row(entry, RowSnapshot(None), T0), exc.WorkerLost)


def test_timeout_restarts_while_all_slots_are_busy(bench: Bench) -> None:
    bench.fleet.set("q", 4, 0)
    entry = bench.pending()
    assert bench.tracker.on_timer(T0 + 60) == []
    bench.fleet.set("q", 4, 1)
    assert bench.tracker.on_timer(T0 + 119) == []
    assert bench.tracker.on_timer(T0 + 120) == [fx.Revoke(entry)]


def test_free_slot_reported_before_sending_does_not_time_out_a_request() -> None:
    """A short timeout waits for the next heartbeat, for at most two periods."""
    bench = Bench(timeout=1)
    entry = bench.pending()
    assert bench.tracker.on_timer(T0 + 1) == []
    bench.fleet.spoke["q"] = 1
    assert bench.tracker.on_timer(T0 + 2) == [fx.Revoke(entry)]

    bench = Bench(timeout=1)
    entry = bench.pending()
    ends = next(
        now for now in range(1, 99) if bench.tracker.on_timer(T0 + now) == [fx.Revoke(entry)]
    )
    assert ends == 2 * bench.fleet.period


def test_timeout_applies_if_the_queue_has_no_workers(bench: Bench) -> None:
    entry = bench.pending()
    bench.fleet.end("q")
    assert bench.tracker.on_timer(T0 + 60) == [fx.Revoke(entry)]


def test_progress_of_a_queue_restarts_timeouts_of_requests_behind(bench: Bench) -> None:
    """A slot is free for a moment between two tasks, which must not time out queued requests."""
    line = [bench.pending() for _ in range(4)]
    bench.answer(line[0], pr.RUNNING, {}, now=T0 + 50)
    assert bench.tracker.on_timer(T0 + 60) == []
    # The third request starts before the second: the second is revoked, the fourth still waits.
    bench.answer(line[2], pr.RUNNING, {}, now=T0 + 100)
    assert bench.tracker.on_timer(T0 + 120) == [fx.Revoke(line[1])]
    assert bench.tracker.on_timer(T0 + 180) == [fx.Revoke(line[3])]


def test_request_in_the_backlog_does_not_time_out() -> None:
    bench = Bench(workers=False)
    bench.tracker._capacity = lambda queue: 0  # type: ignore[method-assign]
    entry, _ = bench.submit()
    bench.fleet.set("q", 1, 1, JOB)
    bench.tracker.on_workers_gained([JOB], T0 + 10)
    for minute in range(1, 10):
        assert bench.tracker.on_timer(T0 + 60 * minute) == []
    assert entry.state == pr.PENDING


def test_request_without_timeout_has_no_timer() -> None:
    bench = Bench(timeout=None)
    bench.pending()
    assert bench.tracker.on_timer(T0 + 1e9) == []
    assert bench.tracker.next_timer() is None


def test_running_request_does_not_time_out(bench: Bench) -> None:
    bench.running()
    assert bench.tracker.on_timer(T0 + 1e9) == []


def test_timers_of_ended_requests_are_removed(bench: Bench) -> None:
    entry, _ = bench.submit()
    for _ in range(3000):
        ended = bench.pending()
        bench.succeed(ended)
        bench.tracker.on_saved([ended.invocation])
    assert len(bench.tracker._timers) < 1200
    bench.succeed(entry)
    bench.tracker.on_saved([entry.invocation])
    assert bench.tracker.next_timer() is None


def test_interrupted_iteration_over_due_timers_keeps_the_others() -> None:
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


def test_tidy_removes_only_ended_requests_of_the_same_time() -> None:
    bench, timers = Bench(), TimerHeap()
    for _ in range(600):
        ended = bench.pending()
        timers.set(T0, TIMEOUT, ended)
        timers.set(T0, TIMEOUT, ended)
        bench.succeed(ended)
    pending = bench.pending()
    timers.set(T0, TIMEOUT, pending)
    timers.tidy(1)
    assert len(timers) == 1
    assert list(timers.due(T0)) == [(TIMEOUT, pending)]


def test_worker_with_a_terminal_first_reply_holds_no_request(bench: Bench) -> None:
    entry = bench.pending()
    assert len(settled(bench.succeed(entry))) == 1
    assert (entry.worker, entry.ran, entry.index) == ("w1", True, None)
    assert bench.fleet.watched == [("w1", 0.0)], "it was heard of"
    assert not bench.tracker.holds("w1")
    assert bench.lose("w1") == []


def test_terminal_reply_after_cancel_sends_no_second_cancel(bench: Bench) -> None:
    entry = bench.pending()
    bench.tracker.cancel([entry.invocation], T0)
    effects = bench.succeed(entry)
    assert [type(effect) for effect in effects] == [fx.Settle]


# Lost workers.


def test_without_ledger_requests_of_lost_worker_fail_at_once() -> None:
    bench = Bench(ledger=None)
    entry, other = bench.running("w1"), bench.running("w2")
    (text,) = failures(bench.lose("w1"), exc.WorkerLost)
    assert "w1" in text
    assert (entry.state, other.state) == (pr.FAILURE, pr.RUNNING)


def test_rerouted_unsent_request_is_sent_when_workers_return() -> None:
    """Without a ledger: the request was in the backlog of a queue that lost its workers."""
    bench = Bench(ledger=None)
    bench.tracker._capacity = lambda queue: 1  # type: ignore[method-assign]
    entry = bench.pending()
    bench.fleet.set("other", 1, 1, JOB)
    first = bench.pending()
    assert (entry.queue, first.queue) == ("q", "other")
    bench.fleet.end("q")
    assert bench.lose("w1") == []  # The other queue is at its capacity.
    assert (entry.queue, entry.epoch) == ("other", 2)
    bench.fleet.end("other")
    bench.lose("w2", "other", T0 + 5)
    assert entry.state == pr.WAITING
    bench.fleet.set("other", 1, 1, JOB)
    bench.tracker._capacity = lambda queue: 2  # type: ignore[method-assign]
    effects = bench.tracker.on_workers_gained([JOB], T0 + 10)
    dispatched = [effect for effect in effects if isinstance(effect, fx.Dispatch)]
    assert [(e.tracked, e.epoch) for e in dispatched] == [(entry, 2)]
    assert entry.resends == 1


def test_request_rerouted_from_a_backlog_keeps_its_epoch() -> None:
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


def test_request_claimed_by_lost_worker_is_concluded_in_the_ledger(bench: Bench) -> None:
    entry = bench.running("w1")
    assert bench.lose("w1") == [fx.Inspect(entry, "w1")]
    effects = bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_CLAIMED, "w1"), T0, "w1")
    assert [type(effect) for effect in effects] == [fx.Conclude] and entry.live
    assert failures(bench.concluded(effects), exc.WorkerLost)


def test_failed_conclusion_of_a_lost_request_is_repeated(bench: Bench) -> None:
    """The worker stored its result first, or the ledger was unavailable."""
    entry = bench.running("w1")
    bench.lose("w1")
    seen = RowSnapshot(ledgers.ROW_CLAIMED, "w1", epoch=1)
    bench.tracker.on_row(entry, seen, T0, "w1")
    assert entry.live and bench.tracker.on_timer(T0 + LOOKUP_PAUSE_SECONDS + 1) == [
        fx.Inspect(entry)
    ]
    assert [type(e) for e in bench.tracker.on_row(entry, seen, T0)] == [fx.Conclude]
    assert settled(bench.succeed(entry, 7))[0].value == 7
    failure = entry.loss()
    assert bench.tracker.on_concluded(entry, failure, T0) == []


@pytest.mark.parametrize("state", [ledgers.ROW_OPEN, None])
def test_open_or_missing_row_of_running_request_fails_worker_lost(
    bench: Bench, state: str | None
) -> None:
    entry = bench.running("w1")
    effects = bench.tracker.on_row(entry, RowSnapshot(state), T0, "w1")
    assert failures(effects, exc.WorkerLost)


def test_unreported_claim_of_lost_worker_is_found_in_the_ledger(bench: Bench) -> None:
    claimed, other = bench.pending(), bench.pending()
    assert bench.lose("w1") == [fx.Inspect(claimed, "w1"), fx.Inspect(other, "w1")]
    effects = bench.tracker.on_row(claimed, RowSnapshot(ledgers.ROW_CLAIMED, "w1"), T0, "w1")
    (text,) = failures(bench.concluded(effects), exc.WorkerLost)
    assert "w1" in text
    assert bench.tracker.on_row(other, RowSnapshot(ledgers.ROW_OPEN), T0, "w1") == []
    assert other.state == pr.PENDING


def test_request_claimed_by_other_worker_runs_on_that_worker(bench: Bench) -> None:
    entry = bench.pending()
    assert bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_CLAIMED, "w2"), T0, "w1") == []
    assert (entry.state, entry.worker) == (pr.RUNNING, "w2")
    assert bench.lose("w2") == [fx.Inspect(entry, "w2")]


def test_open_request_is_rerouted_with_the_same_epoch(bench: Bench) -> None:
    entry = bench.pending()
    bench.fleet.end("q")
    bench.fleet.set("q2", 1, 1, JOB)
    bench.lose("w1")
    dispatch = only(
        fx.Dispatch, bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_OPEN), T0, "w1")
    )
    assert (dispatch.epoch, dispatch.envelope.routing_key) == (1, "q2")
    # A second inspection of the row publishes nothing.
    assert bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_OPEN), T0, "w1") == []


def test_without_ledger_rerouted_request_has_a_new_epoch() -> None:
    bench = Bench(ledger=None)
    entry = bench.pending()
    bench.fleet.end("q")
    bench.fleet.set("q2", 1, 1, JOB)
    dispatch = only(fx.Dispatch, bench.lose("w1"))
    assert dispatch.epoch == dispatch.envelope.headers[hd.WBE_EPOCH] == 2
    bench.succeed(entry, epoch=1)
    assert entry.state == pr.PENDING
    assert settled(bench.succeed(entry, epoch=2))


def test_backlog_moves_to_another_queue_with_the_same_epoch(bench: Bench) -> None:
    bench.tracker._capacity = lambda queue: 1 if queue == "q" else 9  # type: ignore[method-assign]
    bench.pending()
    waiting, _ = bench.submit()
    bench.fleet.end("q")
    bench.fleet.set("q2", 1, 1, JOB)
    effects = bench.lose("w1")
    assert [e.tracked for e in effects if isinstance(e, fx.Dispatch)] == [waiting]
    assert waiting.epoch == 1


def test_requests_of_lost_taskflow_worker_wait_for_another() -> None:
    bench = Bench(ledger=None)
    bench.fleet.plain.add("q")
    entry = bench.pending()
    bench.fleet.end("q")
    worker = types.TopicWorker("t", ())
    worker.queue = "q"
    assert bench.tracker.on_workers_lost([worker], T0) == []
    assert entry.state == pr.WAITING


# Forgetting and closing.


def test_forgotten_request_ignores_replies_rows_and_timers(bench: Bench) -> None:
    entry = bench.pending()
    assert bench.tracker.requests.unstarted() == [entry]
    bench.tracker.forget(entry)
    assert not entry.live
    assert (len(bench.tracker.requests), entry.invocation.ticket) == (0, None)
    assert bench.succeed(entry) == [fx.Acknowledge("receipt")]
    assert bench.tracker.on_unsent(entry, ValueError("x"), T0) == []
    assert bench.tracker.on_revoked(entry, True, T0) == []
    assert bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_OPEN), T0) == []
    assert bench.tracker.on_timer(T0 + 1000) == []
    bench.tracker.submit(entry.invocation, lambda *_: None, T0)


def test_request_that_cannot_be_published_fails_once(bench: Bench) -> None:
    entry = bench.pending()
    assert failures(
        bench.tracker.on_unsent(entry, exc.LedgerFailure("full"), T0), exc.LedgerFailure
    )
    assert bench.tracker.on_unsent(entry, exc.LedgerFailure("full"), T0) == []


def test_close_fails_all_requests_until_reopen(bench: Bench) -> None:
    bench.tracker._capacity = lambda queue: 1  # type: ignore[method-assign]
    bench.running()
    bench.pending()
    bench.submit()
    bench.submit(kind=Rest)
    effects = bench.tracker.close("stopped")
    texts = failures(effects, exc.ExecutionFailure)
    assert len(texts) == 4 and len(bench.tracker.requests) == 0
    assert sum(isinstance(effect, fx.Drop) for effect in effects) == 2
    assert all("stopped" in text for text in texts)
    _, late = bench.submit()
    assert failures(late, exc.ExecutionFailure)
    bench.tracker.reopen()
    bench.pending()


def test_abandon_fails_only_requests_of_one_flow(bench: Bench) -> None:
    ours, theirs = bench.pending(flow_uuid="ours"), bench.pending(flow_uuid="theirs")
    running = bench.running(flow_uuid="ours")
    assert bench.tracker.requests.unstarted("ours") == [ours]
    texts = failures(bench.tracker.abandon("bye", "ours"), exc.ExecutionFailure)
    assert len(texts) == 2
    assert theirs.live and not ours.live and not running.live
    assert len(bench.tracker.requests) == 1
    bench.pending()


def test_request_without_outcome_is_not_retired(bench: Bench) -> None:
    entry = bench.pending()
    assert bench.tracker.on_saved([entry.invocation]) == []
    assert len(bench.tracker.requests) == 1


def _failure_body() -> dict[str, Any]:
    return Failure.from_exception(RuntimeError("no")).to_dict()


def test_request_id_of_an_item_changes_on_resume() -> None:
    """A resumed item is a new request, because its first message may still be queued."""

    def id_of(**options: Any) -> str:
        call = invocation.Invocation(Job("j"), invocation.EXECUTE, "u", 1, **options)
        return TrackedRequest(call, lambda *_: None, None, T0).id

    assert id_of() == id_of() == id_of(resumed=1)
    items = [id_of(index=0), id_of(index=1), id_of(index=0, resumed=1), id_of(index=0, resumed=2)]
    assert len({id_of(), *items}) == 5
    assert id_of(index=1) == items[1]

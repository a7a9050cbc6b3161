"""Cancelled, expired and delayed requests, one step at a time."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.unit.trackers import JOB, T0, WALL, Bench, Job, failures, only, settled
from wbengine import exceptions as exc
from wbengine._calls import start_times
from wbengine.engines.worker_based import _message_schemas
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import worker_commands
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests.events import UNKNOWN, RowSnapshot
from wbengine.engines.worker_based._requests.recovery import LOOKUP_PAUSE_SECONDS
from wbengine.engines.worker_based.ledger import _base as ledgers

UTC = dt.UTC


class Timed(Job):
    """Task whose instances have individual times."""


TIMED = f"{__name__}.Timed"


def bench_of(**options: Any) -> Bench:
    bench = Bench(**options)
    if options.get("workers", True):
        bench.fleet.set("q", 1, 1, TIMED)
    return bench


@pytest.fixture
def bench() -> Bench:
    return bench_of()


def timed(bench: Bench, now: float = T0, action: str = "execute", **times: Any) -> Any:
    call = bench.call(kind=Timed, action=action)
    for name, value in times.items():
        setattr(call.task, name, value)
    effects = bench.tracker.submit(call, lambda *_: None, now)
    entry = call.ticket
    if entry is not None:
        entry.opened, entry.sent_at = True, now
    return entry, effects


def cancelled(effects: list[fx.Effect]) -> list[tuple[str, list[Any]]]:
    messages = [effect.message for effect in effects if isinstance(effect, fx.Cancel)]
    for message in messages:
        worker_commands.SCHEMAS[worker_commands.CANCEL].check(message.body)
        assert message.type == worker_commands.CANCEL and message.extended
    read = worker_commands.Cancellation.from_message
    return [(message.routing_key, list(read(message).requests)) for message in messages]


# Cancelling --------------------------------------------------------------------------------------


def test_cancel_ends_waiting_request_at_once() -> None:
    bench = Bench(workers=False)
    entry, _ = bench.submit()
    effects = bench.tracker.cancel([entry.invocation], T0)
    (text,) = failures(effects, exc.Cancelled)
    assert "task-1" in text
    assert bench.tracker.cancel([entry.invocation], T0) == []


def test_cancel_revokes_published_request(bench: Bench) -> None:
    entry = bench.pending()
    assert bench.tracker.cancel([entry.invocation], T0) == [fx.Revoke(entry)]
    assert bench.tracker.cancel([entry.invocation], T0) == []
    assert failures(bench.tracker.on_revoked(entry, True, T0), exc.Cancelled)


def test_cancel_is_sent_to_worker_that_claimed_the_request(bench: Bench) -> None:
    entry = bench.pending()
    bench.tracker.cancel([entry.invocation], T0)
    assert bench.tracker.on_revoked(entry, False, T0) == [fx.Inspect(entry)]
    effects = bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_CLAIMED, "w7", epoch=1), T0)
    assert cancelled(effects) == [("w7", [(entry.id, 1)])]
    assert settled(bench.succeed(entry, worker="w7"))  # any result of the worker is accepted


def test_cancel_of_running_request_is_sent_only_to_its_worker(bench: Bench) -> None:
    entry = bench.running("w1")
    assert cancelled(bench.tracker.cancel([entry.invocation], T0)) == [("w1", [(entry.id, 1)])]


def test_cancel_ends_request_without_ledger_row(bench: Bench) -> None:
    entry = bench.pending()
    entry.opened = False
    bench.tracker.cancel([entry.invocation], T0)
    bench.tracker.on_revoked(entry, False, T0)
    assert failures(bench.tracker.on_row(entry, RowSnapshot(None), T0), exc.Cancelled)
    assert not entry.live


def test_cancel_is_retried_while_ledger_is_unavailable(bench: Bench) -> None:
    entry = bench.pending()
    bench.tracker.cancel([entry.invocation], T0)
    bench.tracker.on_revoked(entry, False, T0)
    assert bench.tracker.on_row(entry, RowSnapshot(UNKNOWN), T0) == []
    assert bench.tracker.on_timer(T0 + LOOKUP_PAUSE_SECONDS) == [fx.Inspect(entry)]
    effects = bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_OPEN, epoch=1), T0)
    assert effects == [fx.Revoke(entry)]


def test_cancel_of_running_requests_is_sent_and_repeated(bench: Bench) -> None:
    first, second, other = bench.running("w1"), bench.running("w1"), bench.running("w2")
    calls = [entry.invocation for entry in (first, second, other)]
    effects = bench.tracker.cancel(calls, T0)
    assert cancelled(effects) == [("w1", [(first.id, 1), (second.id, 1)]), ("w2", [(other.id, 1)])]
    again = bench.tracker.on_heartbeat("w2", {other.id}, T0 + 5)
    assert cancelled(again) == [("w2", [(other.id, 1)])]


def test_cancel_of_many_requests_is_split_into_messages(bench: Bench) -> None:
    calls = [bench.running("w1").invocation for _ in range(_message_schemas.MAX_IDS + 1)]
    sizes = [len(pairs) for _, pairs in cancelled(bench.tracker.cancel(calls, T0))]
    assert sizes == [_message_schemas.MAX_IDS, 1]


def test_cancelled_request_of_lost_worker_is_not_resent() -> None:
    bench = bench_of(on_worker_lost="resend")
    entry = bench.running("w1")
    bench.tracker.cancel([entry.invocation], T0)
    bench.lose("w1")
    seen = RowSnapshot(ledgers.ROW_CLAIMED, "w1", epoch=1)
    effects = bench.concluded(bench.tracker.on_row(entry, seen, T0, "w1"))
    assert failures(effects, exc.WorkerLost)


def test_cancel_without_ledger_is_sent_to_all_workers() -> None:
    bench = Bench(ledger=None)
    entry = bench.pending()
    effects = bench.tracker.cancel([entry.invocation], T0)
    assert cancelled(effects) == [(env.ALL_WORKERS, [(entry.id, 1)])]
    assert isinstance(effects[-1], fx.Ask)
    bench.fleet.idle["q"] = 2
    assert failures(bench.tracker.on_round(T0 + 10), exc.Cancelled)


def test_cancel_without_ledger_and_workers_ends_after_a_pause() -> None:
    bench = Bench(ledger=None)
    entry = bench.pending()
    bench.fleet.end("q")
    bench.lose("w1")
    bench.tracker.cancel([entry.invocation], T0)
    assert bench.tracker.on_round(T0 + 1) == []
    # a worker may have started since
    assert cancelled(bench.tracker.on_timer(T0 + LOOKUP_PAUSE_SECONDS))
    assert failures(bench.tracker.on_round(T0 + 10), exc.Cancelled)


def test_cancel_is_sent_to_worker_that_starts_the_request_later() -> None:
    bench = Bench(ledger=None)
    entry = bench.pending()
    bench.tracker.cancel([entry.invocation], T0)
    effects = bench.answer(entry, pr.RUNNING, {}, worker="w5")
    assert cancelled(effects) == [("w5", [(entry.id, 1)])]


def test_cancel_ignores_finished_and_unknown_requests(bench: Bench) -> None:
    entry = bench.running()
    bench.succeed(entry)
    assert bench.tracker.cancel([entry.invocation, bench.call()], T0) == []


# Expiring ----------------------------------------------------------------------------------------


def test_waiting_request_expires_in_the_engine() -> None:
    bench = bench_of(workers=False)
    entry, _ = timed(bench, expires=20)
    assert entry is not None and bench.tracker.on_timer(T0 + 19.9) == []
    (text,) = failures(bench.tracker.on_timer(T0 + 20), exc.Expired)
    assert "task-1" in text


def test_published_request_is_revoked_when_it_expires(bench: Bench) -> None:
    entry, (dispatch,) = timed(bench, expires=20)
    assert hd.EXPIRES not in dispatch.envelope.headers  # only the clock of the engine counts
    assert bench.tracker.on_timer(T0 + 20) == [fx.Revoke(entry)]
    assert failures(bench.tracker.on_revoked(entry, True, T0 + 20), exc.Expired)


def test_request_started_in_time_does_not_expire(bench: Bench) -> None:
    entry, _ = timed(bench, expires=20)
    bench.answer(entry, pr.RUNNING, {})
    assert bench.tracker.on_timer(T0 + 1000) == []
    other, _ = timed(bench, expires=20)
    bench.tracker.on_timer(T0 + 20)
    bench.tracker.on_revoked(other, False, T0 + 20)
    effects = bench.tracker.on_row(other, RowSnapshot(ledgers.ROW_CLAIMED, "w7", epoch=1), T0 + 20)
    assert cancelled(effects) == [] and other.state == pr.RUNNING


def test_request_without_ledger_contains_expiry_time() -> None:
    bench = bench_of(ledger=None)
    entry, (dispatch,) = timed(bench, expires=20)
    assert dispatch.envelope.headers[hd.EXPIRES] == WALL + 20
    only(fx.Ask, bench.tracker.on_timer(T0 + 20))
    bench.fleet.idle["q"] = 2
    assert failures(bench.tracker.on_round(T0 + 30), exc.Expired)
    assert not entry.live


def test_expired_request_is_not_published(bench: Bench) -> None:
    past = dt.datetime.fromtimestamp(WALL - 1, UTC)
    _, effects = timed(bench, expires=past)
    assert failures(effects, exc.Expired)


def test_expired_request_of_lost_worker_is_not_resent() -> None:
    bench = bench_of(on_worker_lost="resend", ledger=None)
    entry, _ = timed(bench, expires=20)
    bench.answer(entry, pr.RUNNING, {})
    assert failures(bench.lose("w1", now=T0 + 21), exc.WorkerLost)


def test_request_expires_when_queried_workers_disappear() -> None:
    bench = bench_of(ledger=None)
    entry, _ = timed(bench, expires=20)
    bench.tracker.on_timer(T0 + 20)
    bench.fleet.end("q")
    bench.lose("w1", now=T0 + 21)
    assert entry.index is not None
    bench.tracker.on_timer(T0 + 23)
    assert failures(bench.tracker.on_round(T0 + 30), exc.Expired)


# Delayed start ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "eta", [30, dt.datetime.fromtimestamp(WALL + 30, UTC)], ids=["seconds", "datetime"]
)
def test_request_with_eta_is_published_when_due(eta: Any) -> None:
    bench = bench_of(timeout=10.0)
    entry, effects = timed(bench, eta=eta)
    assert (effects, entry.state) == ([], pr.WAITING)
    assert bench.tracker.on_workers_gained([TIMED, JOB], T0) == []
    assert bench.tracker.next_timer() == pytest.approx(T0 + 30)
    assert bench.tracker.on_timer(T0 + 29) == [] and not bench.tracker.needs_reports(T0 + 29)
    only(fx.Dispatch, bench.tracker.on_timer(T0 + 30.001))
    # The requested delay does not count.
    assert bench.tracker.on_timer(T0 + 40) == []
    assert bench.tracker.on_timer(T0 + 40.001) == [fx.Revoke(entry)]


def recovered(bench: Bench, **times: Any) -> Any:
    call = bench.call(kind=Timed, epoch=2048, recovered=True, flow_uuid="flow")
    for name, value in times.items():
        setattr(call.task, name, value)
    bench.tracker.submit(call, lambda *_: None, T0)
    return call.ticket


def test_recovered_request_keeps_eta_and_expiry(bench: Bench) -> None:
    later = dt.datetime.fromtimestamp(WALL + 30, UTC)
    entry = recovered(bench, eta=later, expires=40)
    assert (
        bench.tracker.on_row(entry, RowSnapshot(None), T0 + 1) == []
    )  # no request was published yet
    assert entry.state == pr.WAITING and bench.tracker.on_timer(T0 + 29) == []
    (dispatch,) = bench.tracker.on_timer(T0 + 30.001)
    assert isinstance(dispatch, fx.Dispatch) and dispatch.tracked is entry
    assert bench.tracker.on_timer(T0 + 40.001) == [fx.Revoke(entry)]


def test_recovered_request_that_was_claimed_does_not_expire(bench: Bench) -> None:
    entry = recovered(bench, eta=30, expires=40)
    bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_CLAIMED, "w1", epoch=1), T0 + 1)
    assert entry.state == pr.RUNNING
    assert not any(isinstance(e, fx.Settle | fx.Revoke) for e in bench.tracker.on_timer(T0 + 41))
    assert settled(bench.succeed(entry, epoch=1))


def test_recovered_request_without_claim_expires(bench: Bench) -> None:
    entry = recovered(bench, expires=20)
    assert bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_OPEN, epoch=1), T0 + 21) == [
        fx.Revoke(entry)
    ]
    assert failures(bench.tracker.on_revoked(entry, True, T0 + 21), exc.Expired)


def test_request_with_eta_can_be_cancelled_and_withdrawn(bench: Bench) -> None:
    first, _ = timed(bench, eta=30)
    second, _ = timed(bench, eta=30)
    assert failures(bench.tracker.cancel([first.invocation], T0), exc.Cancelled)
    assert bench.tracker.requests.unstarted() == [second]
    bench.tracker.forget(second)
    assert bench.tracker.on_timer(T0 + 60) == []


def test_revert_request_ignores_eta_and_expiry(bench: Bench) -> None:
    _, effects = timed(bench, action="revert", eta=30, expires=5)
    assert [type(effect) for effect in effects] == [fx.Dispatch]
    assert bench.tracker.on_timer(T0 + 5) == []


@pytest.mark.parametrize("name", ["eta", "expires"])
@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (dt.datetime(2030, 1, 1), ValueError, "aware"),
        ("soon", TypeError, "soon"),
        (True, TypeError, "True"),
        (-1, ValueError, "-1"),
        (float("nan"), ValueError, "nan"),
        (float("inf"), ValueError, "inf"),
    ],
    ids=["naive", "str", "bool", "negative", "nan", "infinite"],
)
def test_invalid_eta_or_expires_fails_the_task(
    bench: Bench, name: str, value: Any, error: type[Exception], text: str
) -> None:
    _, effects = timed(bench, **{name: value})
    (message,) = failures(effects, error)
    assert name in message and text in message and "task-1" in message


def test_request_keeps_times_that_its_run_read_on_another_clock(bench: Bench) -> None:
    call = bench.call(kind=Timed)
    call.task.eta = dt.datetime.fromtimestamp(WALL + 3630, UTC)
    call.task.expires = 40
    start_times.read(call, T0, WALL + 3600)
    bench.tracker.submit(call, lambda *_: None, T0 + 1)
    assert (call.ticket.eta, call.ticket.expires_at) == (T0 + 30, T0 + 40)


def test_invalid_times_are_rejected_each_time_they_are_read(bench: Bench) -> None:
    call = bench.call(kind=Timed)
    call.task.eta = -1
    for _ in range(2):
        with pytest.raises(ValueError, match="-1"):
            start_times.read(call, T0, WALL)


def test_moment_converts_seconds_and_datetimes() -> None:
    assert start_times.moment(2, "eta", 10.0, 500.0) == 12.0
    aware = dt.datetime.fromtimestamp(530, dt.timezone(dt.timedelta(hours=5)))
    assert start_times.moment(aware, "eta", 10.0, 500.0) == 40.0


# Outages -----------------------------------------------------------------------------------------


def test_outage_does_not_count_toward_request_timeout() -> None:
    bench = Bench(workers=False)
    entry, _ = bench.submit()
    bench.fleet.outage = 45.0
    assert settled(bench.tracker.on_timer(T0 + 60)) == []
    bench.fleet.outage = 0.0
    assert settled(bench.tracker.on_timer(T0 + 104.9)) == [] and entry.live
    assert failures(bench.tracker.on_timer(T0 + 105), exc.RequestTimeout)

"""Requests that are cancelled, expire, or wait for their time, told one thing at a time."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.unit.requesting import JOB, T0, WALL, Bench, Job, failures, settled
from wbengine import exceptions as exc
from wbengine import start_times
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import commands, schemas
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.recovery import LOOKUP_PAUSE, UNKNOWN, Seen

UTC = dt.timezone.utc


class Timed(Job):
    """Each instance has times of its own."""


TIMED = f"{__name__}.Timed"


def bench_of(**options: Any) -> Bench:
    bench = Bench(**options)
    if options.get("workers", True):
        bench.fleet.set("q", 1, 1, TIMED)
    return bench


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
        commands.SCHEMAS[commands.CANCEL].check(message.body)
        assert message.type == commands.CANCEL and message.ours
    return [(message.routing_key, commands.named(message.body)) for message in messages]


# Cancelling --------------------------------------------------------------------------------------


def test_what_waits_here_ends_at_once() -> None:
    bench = Bench(workers=False)
    entry, _ = bench.submit()
    effects = bench.tracker.cancel([entry.invocation], T0)
    (text,) = failures(effects, exc.Cancelled)
    assert "task-1" in text
    assert bench.tracker.cancel([entry.invocation], T0) == []


def test_what_is_out_is_revoked_first() -> None:
    bench = Bench()
    entry = bench.pending()
    assert bench.tracker.cancel([entry.invocation], T0) == [fx.Revoke(entry)]
    assert bench.tracker.cancel([entry.invocation], T0) == []
    assert failures(bench.recovery.on_revoked(entry, True, T0), exc.Cancelled)


def test_who_took_it_meanwhile_is_told() -> None:
    bench = Bench()
    entry = bench.pending()
    bench.tracker.cancel([entry.invocation], T0)
    assert bench.recovery.on_revoked(entry, False, T0) == [fx.Inspect(entry)]
    effects = bench.recovery.on_row(entry, Seen(ledgers.ROW_CLAIMED, "w7", epoch=1), T0)
    assert cancelled(effects) == [("w7", [(entry.id, 1)])]
    assert settled(bench.succeed(entry, worker="w7"))  # however it ends is its end


def test_what_was_not_made_yet_is_not_made_any_more() -> None:
    bench = Bench()
    entry = bench.pending()
    entry.opened = False
    bench.tracker.cancel([entry.invocation], T0)
    bench.recovery.on_revoked(entry, False, T0)
    assert failures(bench.recovery.on_row(entry, Seen(None), T0), exc.Cancelled)
    assert not entry.live


def test_while_the_ledger_is_away_it_is_tried_again() -> None:
    bench = Bench()
    entry = bench.pending()
    bench.tracker.cancel([entry.invocation], T0)
    bench.recovery.on_revoked(entry, False, T0)
    assert bench.recovery.on_row(entry, Seen(UNKNOWN), T0) == []
    assert bench.tracker.tick(T0 + LOOKUP_PAUSE) == [fx.Inspect(entry)]
    effects = bench.recovery.on_row(entry, Seen(ledgers.ROW_OPEN, epoch=1), T0)
    assert effects == [fx.Revoke(entry)]


def test_what_runs_is_told_to_whoever_runs_it_and_told_again() -> None:
    bench = Bench()
    first, second, other = bench.running("w1"), bench.running("w1"), bench.running("w2")
    calls = [entry.invocation for entry in (first, second, other)]
    effects = bench.tracker.cancel(calls, T0)
    assert cancelled(effects) == [("w1", [(first.id, 1), (second.id, 1)]), ("w2", [(other.id, 1)])]
    again = bench.recovery.on_ids("w2", {other.id}, T0 + 5)
    assert cancelled(again) == [("w2", [(other.id, 1)])]


def test_of_many_no_message_grows_too_large() -> None:
    bench = Bench()
    calls = [bench.running("w1").invocation for _ in range(schemas.MAX_IDS + 1)]
    sizes = [len(pairs) for _, pairs in cancelled(bench.tracker.cancel(calls, T0))]
    assert sizes == [schemas.MAX_IDS, 1]


def test_what_is_cancelled_and_lost_is_not_sent_again() -> None:
    bench = bench_of(on_worker_lost="resend")
    entry = bench.running("w1")
    bench.tracker.cancel([entry.invocation], T0)
    bench.lose("w1")
    seen = Seen(ledgers.ROW_CLAIMED, "w1", epoch=1)
    effects = bench.concluded(bench.recovery.on_row(entry, seen, T0, "w1"))
    assert failures(effects, exc.WorkerLost)


def test_without_a_ledger_all_workers_are_told_and_asked() -> None:
    bench = Bench(ledger=None)
    entry = bench.pending()
    effects = bench.tracker.cancel([entry.invocation], T0)
    assert cancelled(effects) == [(env.ALL_WORKERS, [(entry.id, 1)])]
    assert isinstance(effects[-1], fx.Ask)
    bench.fleet.idle["q"] = 2
    assert failures(bench.recovery.review(T0 + 10), exc.Cancelled)


def test_without_a_ledger_and_without_workers_it_ends_after_a_while() -> None:
    bench = Bench(ledger=None)
    entry = bench.pending()
    bench.fleet.end("q")
    bench.lose("w1")
    bench.tracker.cancel([entry.invocation], T0)
    assert bench.recovery.review(T0 + 1) == []
    assert cancelled(bench.tracker.tick(T0 + LOOKUP_PAUSE))  # somebody may have come since
    assert failures(bench.recovery.review(T0 + 10), exc.Cancelled)


def test_who_starts_it_after_all_is_told() -> None:
    bench = Bench(ledger=None)
    entry = bench.pending()
    bench.tracker.cancel([entry.invocation], T0)
    effects = bench.answer(entry, pr.RUNNING, {}, worker="w5")
    assert cancelled(effects) == [("w5", [(entry.id, 1)])]


def test_what_ended_or_was_never_here_is_left_alone() -> None:
    bench = Bench()
    entry = bench.running()
    bench.succeed(entry)
    assert bench.tracker.cancel([entry.invocation, bench.call()], T0) == []


# Expiring ----------------------------------------------------------------------------------------


def test_what_was_not_sent_yet_expires_here() -> None:
    bench = bench_of(workers=False)
    entry, _ = timed(bench, expires=20)
    assert entry is not None and bench.tracker.tick(T0 + 19.9) == []
    (text,) = failures(bench.tracker.tick(T0 + 20), exc.Expired)
    assert "task-1" in text


def test_what_is_out_is_revoked_when_it_expires() -> None:
    bench = bench_of()
    entry, (dispatch,) = timed(bench, expires=20)
    assert env.EXPIRES not in dispatch.envelope.headers  # nobody's clock but ours
    assert bench.tracker.tick(T0 + 20) == [fx.Revoke(entry)]
    assert failures(bench.recovery.on_revoked(entry, True, T0 + 20), exc.Expired)


def test_what_was_started_in_time_does_not_expire() -> None:
    bench = bench_of()
    entry, _ = timed(bench, expires=20)
    bench.answer(entry, pr.RUNNING, {})
    assert bench.tracker.tick(T0 + 1000) == []
    other, _ = timed(bench, expires=20)
    bench.tracker.tick(T0 + 20)
    bench.recovery.on_revoked(other, False, T0 + 20)
    effects = bench.recovery.on_row(other, Seen(ledgers.ROW_CLAIMED, "w7", epoch=1), T0 + 20)
    assert cancelled(effects) == [] and other.state == pr.RUNNING


def test_without_a_ledger_the_worker_looks_at_its_clock() -> None:
    bench = bench_of(ledger=None)
    entry, (dispatch,) = timed(bench, expires=20)
    assert dispatch.envelope.headers[env.EXPIRES] == WALL + 20
    (ask,) = bench.tracker.tick(T0 + 20)
    assert isinstance(ask, fx.Ask)
    bench.fleet.idle["q"] = 2
    assert failures(bench.recovery.review(T0 + 30), exc.Expired)
    assert not entry.live


def test_what_has_expired_already_is_not_sent() -> None:
    bench = bench_of()
    past = dt.datetime.fromtimestamp(WALL - 1, UTC)
    _, effects = timed(bench, expires=past)
    assert failures(effects, exc.Expired)


def test_what_is_lost_after_its_time_is_not_started_anew() -> None:
    bench = bench_of(on_worker_lost="resend", ledger=None)
    entry, _ = timed(bench, expires=20)
    bench.answer(entry, pr.RUNNING, {})
    assert failures(bench.lose("w1", now=T0 + 21), exc.WorkerLost)


def test_expired_while_it_is_searched_for_and_its_workers_go() -> None:
    bench = bench_of(ledger=None)
    entry, _ = timed(bench, expires=20)
    bench.tracker.tick(T0 + 20)
    bench.fleet.end("q")
    bench.lose("w1", now=T0 + 21)
    assert entry.index is not None
    bench.tracker.tick(T0 + 23)
    assert failures(bench.recovery.review(T0 + 30), exc.Expired)


# Waiting for its time ----------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [30, dt.datetime.fromtimestamp(WALL + 30, UTC)])
def test_what_is_not_due_yet_is_kept_here(eta: Any) -> None:
    bench = bench_of(timeout=10.0)
    entry, effects = timed(bench, eta=eta)
    assert (effects, entry.state) == ([], pr.WAITING)
    assert bench.tracker.on_gained([TIMED, JOB], T0) == []
    assert bench.tracker.next_timer() == pytest.approx(T0 + 30)
    assert bench.tracker.tick(T0 + 29) == [] and not bench.recovery.stalled(T0 + 29)
    (dispatch,) = bench.tracker.tick(T0 + 30.001)
    assert isinstance(dispatch, fx.Dispatch)
    # What it waited of its own will does not count.
    assert bench.tracker.tick(T0 + 40) == []
    assert bench.tracker.tick(T0 + 40.001) == [fx.Revoke(entry)]


def recovered(bench: Bench, **times: Any) -> Any:
    call = bench.call(kind=Timed, epoch=2048, recovered=True, flow_uuid="flow")
    for name, value in times.items():
        setattr(call.task, name, value)
    bench.recovery.recover(call, lambda *_: None, T0)
    return call.ticket


def test_an_engine_that_goes_on_knows_the_times_too() -> None:
    bench = bench_of()
    later = dt.datetime.fromtimestamp(WALL + 30, UTC)
    entry = recovered(bench, eta=later, expires=40)
    assert bench.recovery.on_row(entry, Seen(None), T0 + 1) == []  # nobody had sent it yet
    assert entry.state == pr.WAITING and bench.tracker.tick(T0 + 29) == []
    (dispatch,) = bench.tracker.tick(T0 + 30.001)
    assert isinstance(dispatch, fx.Dispatch) and dispatch.tracked is entry
    assert bench.tracker.tick(T0 + 40.001) == [fx.Revoke(entry)]


def test_what_an_earlier_run_sent_in_time_is_not_given_up_for_its_times() -> None:
    bench = bench_of()
    entry = recovered(bench, eta=30, expires=40)
    bench.recovery.on_row(entry, Seen(ledgers.ROW_CLAIMED, "w1", epoch=1), T0 + 1)
    assert entry.state == pr.RUNNING
    assert not any(isinstance(e, fx.Settle | fx.Revoke) for e in bench.tracker.tick(T0 + 41))
    assert settled(bench.succeed(entry, epoch=1))


def test_what_an_earlier_run_left_and_nobody_took_expires() -> None:
    bench = bench_of()
    entry = recovered(bench, expires=20)
    assert bench.recovery.on_row(entry, Seen(ledgers.ROW_OPEN, epoch=1), T0 + 21) == [
        fx.Revoke(entry)
    ]
    assert failures(bench.recovery.on_revoked(entry, True, T0 + 21), exc.Expired)


def test_what_is_not_due_can_be_cancelled_and_taken_back() -> None:
    bench = bench_of()
    first, _ = timed(bench, eta=30)
    second, _ = timed(bench, eta=30)
    assert failures(bench.tracker.cancel([first.invocation], T0), exc.Cancelled)
    assert bench.tracker.unstarted() == [second]
    bench.tracker.forget(second)
    assert bench.tracker.tick(T0 + 60) == []


def test_what_is_undone_has_no_times() -> None:
    bench = bench_of()
    _, effects = timed(bench, action="revert", eta=30, expires=5)
    assert [type(effect) for effect in effects] == [fx.Dispatch]
    assert bench.tracker.tick(T0 + 5) == []


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
)
def test_times_that_make_no_sense_fail_their_task(
    name: str, value: Any, error: type[Exception], text: str
) -> None:
    bench = bench_of()
    _, effects = timed(bench, **{name: value})
    (told,) = failures(effects, error)
    assert name in told and text in told and "task-1" in told


def test_moments() -> None:
    assert start_times.moment(2, "eta", 10.0, 500.0) == 12.0
    aware = dt.datetime.fromtimestamp(530, dt.timezone(dt.timedelta(hours=5)))
    assert start_times.moment(aware, "eta", 10.0, 500.0) == 40.0


# Outages -----------------------------------------------------------------------------------------


def test_the_time_in_which_nobody_could_be_heard_does_not_count() -> None:
    bench = Bench(workers=False)
    entry, _ = bench.submit()
    bench.fleet.outage = 45.0
    assert settled(bench.tracker.tick(T0 + 60)) == []
    bench.fleet.outage = 0.0
    assert settled(bench.tracker.tick(T0 + 104.9)) == [] and entry.live
    assert failures(bench.tracker.tick(T0 + 105), exc.RequestTimeout)

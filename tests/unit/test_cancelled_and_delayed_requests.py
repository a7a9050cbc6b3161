"""Cancelled, expired and delayed requests, one step at a time."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import pytest

from tests.unit.tracker_scripts import Script, play
from tests.unit.trackers import T0, WALL, Bench
from wbengine._calls import start_times
from wbengine.engines.worker_based import _message_schemas
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import worker_commands
from wbengine.engines.worker_based._requests import effects as fx

UTC = dt.UTC
#: Cancellation of `a`, which a worker may start, without a ledger.
CANCELLED: Final = "cancel a > cancel all a1, ask all a1"

SCENARIOS: Final[dict[str, str]] = {
    # Cancelling.
    "workers=False: waiting request ends at once":
        "request a; cancel a > end a Cancelled; failure a ~ 'a'; cancel a",
    "published request is revoked":
        "pending a; cancel a > revoke a; cancel a; revoked a > end a Cancelled",
    "cancellation is sent to the worker that claimed the request, and any result counts":
        "pending a; cancel a > revoke a; revoked a False > read a;"
        " row a CLAIMED w7 > cancel w7 a1; reply a SUCCESS w7 3 > end a 3 by w7",
    "cancelled request ends once": "pending a; cancel a > revoke a;"
        " reply a SUCCESS w1 3 > end a 3 by w1; revoked a",
    "request without a row is cancelled":
        "publishing False; request a > send a1; cancel a > revoke a; revoked a False > read a;"
        " row a None > end a Cancelled; get a live > False",
    "ledger is unavailable while a request is cancelled":
        "pending a; cancel a > revoke a; revoked a False > read a; row a UNKNOWN;"
        " @3 timer > read a; row a OPEN > revoke a",
    "cancellation of running requests is sent to each worker, and repeated":
        "running a b; running c worker=w2; cancel a b c > cancel w1 a1 b1, cancel w2 c1;"
        " @5 beat w2 c > cancel w2 c1; cancel c > cancel w2 c1",
    "on_worker_lost=resend: worker is lost with a cancelled request":
        "running a; cancel a > cancel w1 a1; lost w1 > read a lost=w1;"
        " row a CLAIMED w1 lost=w1 > conclude a w1; concluded a > end a WorkerLost by w1",
    "ledger=None: all workers receive the cancellation, and idle ones do not have the request":
        f"pending a; {CANCELLED}; cancel a; reports 2 2; @10 round > end a Cancelled",
    "ledger=None: request is cancelled, and there are no workers":
        f"pending a; unserve; lost w1; {CANCELLED}; @1 round;"
        " @3 timer > cancel all a1, ask all a1; @10 round > end a Cancelled",
    "ledger=None: worker starts a cancelled request":
        f"pending a; {CANCELLED}; reply a RUNNING w5 > cancel w5 a1, ack",
    "finished request is not cancelled":
        "running a b; reply a SUCCESS w1 3 > end a 3 by w1; cancel a b > cancel w1 b1",
    "ledger=None plain=True: queue of a cancelled request loses its last worker of TaskFlow":
        "taskflow; pending a; cancel a > cancel all a1; @1 unserve; lost None; round; queue q 1 1;"
        " @3 timer; round; unserve; lost None; @4 round > end a Cancelled",
    # Expiring.
    "workers=False: waiting request expires":
        "request a expires=20; @19.9 timer; @20 timer > end a Expired; failure a ~ 'a'",
    "published request is revoked when it expires":
        "pending a expires=20; @20 timer > revoke a; revoked a > end a Expired",
    "request that was started in time does not expire":
        "running a expires=20; @1000 timer; @0 pending b expires=20; @20 timer > revoke b;"
        " revoked b False > read b; row b CLAIMED w7; get b state > RUNNING",
    "ledger=None: request expires":
        "pending a expires=20; @20 timer > ask all a1; reports 2 2; @30 round > end a Expired;"
        " get a live > False",
    "ledger=None on_worker_lost=resend: request expires with its worker":
        "running a expires=20; @21 lost w1 > end a WorkerLost by w1",
    "ledger=None: request expires, and there are no workers":
        "pending a expires=20; @20 timer > ask all a1; unserve; @21 lost w1;"
        " @23 timer > ask all a1; @30 round > end a Expired",
    "request that was left keeps its times":
        "left a eta=30 expires=40 > read a; @1 row a None; get a state > WAITING; @29 timer;"
        " @30 timer > send a2048; @40 timer > revoke a",
    "request that was left is claimed, and does not expire":
        "left a eta=30 expires=40 > read a; @1 row a CLAIMED w1 > ask w1 a2048;"
        " get a state > RUNNING; @41 timer > read a; reply a SUCCESS w1 3 > end a 3 by w1",
    "request that was left is not claimed, and expires":
        "left a expires=20 > read a; @21 row a OPEN > revoke a; revoked a > end a Expired",
    "on_worker_lost=resend: request that was left and lost with its worker expires":
        "left a expires=20 > read a; @1 row a CLAIMED w1 > ask w1 a2048;"
        " lost w1 > read a lost=w1; row a CLAIMED w1 lost=w1 > reopen a2048;"
        " reopened a > send a2048; @19 timer; @20 timer > revoke a",
    # Delayed start.
    "timeout=10: request is sent when it is due, and the delay does not count":
        "request a eta=30; get a state > WAITING; gained; next > 30; @29 timer;"
        " needs > False; @30 timer > send a1; @39.9 timer; @40 timer > revoke a",
    "delayed request is cancelled or withdrawn":
        "request a b eta=30; cancel a > end a Cancelled; unstarted > b; forget b; @60 timer",
    "revert ignores the times of its task":
        "request a action=revert eta=30 expires=5 > send a1; @5 timer",
    # Outages.
    "workers=False: outage does not count toward the timeout":
        "request a; missed 45; @60 timer; missed 0; @104.9 timer; get a live > True;"
        " @105 timer > end a NeverStarted",
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_cancelled_or_delayed_request_has_expected_effects(name: str) -> None:
    play(name, SCENARIOS[name])


def test_cancel_of_many_requests_is_split_into_messages() -> None:
    script = Script()
    labels = [f"r{n}" for n in range(_message_schemas.MAX_IDS + 1)]
    for effect in script.request(*labels):
        script.shown([effect])
        script.reply(effect.tracked.invocation.uuid, "RUNNING", "w1")
    messages = [effect.message for effect in script.cancel(*labels)]
    sizes = [len(worker_commands.Cancellation.from_message(each).requests) for each in messages]
    assert sizes == [_message_schemas.MAX_IDS, 1]


def test_running_request_keeps_its_expiry_when_old_timers_are_removed() -> None:
    script = Script("on_worker_lost=resend").play("running a expires=20")
    for batch in range(2):
        labels = [f"r{batch}-{n}" for n in range(600)]
        script.shown(script.request(*labels))
        for label in labels:
            script.shown(script.reply(label, "SUCCESS", "w1"))
        script.save(*labels)
    assert len(script.tracker._timers) < 600
    script.play(
        "@5 lost w1 > read a lost=w1; row a CLAIMED w1 lost=w1 > reopen a2;"
        " reopened a > send a2; @19 timer; @20 timer > revoke a"
    )


def test_cancel_ignores_unknown_requests() -> None:
    assert Bench().tracker.cancel([Bench().call()], T0) == []


@pytest.mark.parametrize("ledger", [None, "ledger-1"])
def test_request_contains_its_expiry_time_only_without_a_ledger(ledger: str | None) -> None:
    """With a ledger, only the clock of the engine counts."""
    (dispatch,) = Script(f"ledger={ledger}").request("a", expires=20)
    assert isinstance(dispatch, fx.Dispatch)
    assert dispatch.envelope.headers.get(hd.EXPIRES) == (None if ledger else WALL + 20)


def test_datetimes_are_accepted() -> None:
    script, now = Script(), dt.datetime.fromtimestamp(WALL, UTC)
    assert script.request("b", eta=now + dt.timedelta(seconds=30)) == []
    script.play("next > 30; @30 timer > send b1")
    script.shown(script.request("a", expires=now - dt.timedelta(seconds=1)))
    assert script.value("a") == "Expired"


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
    name: str, value: Any, error: type[Exception], text: str
) -> None:
    script = Script()
    script.shown(script.request("task-1", **{name: value}))
    message = script.failure("task-1")
    assert script.value("task-1") == error.__name__
    assert name in message and text in message and "task-1" in message


def test_request_keeps_times_that_its_run_read_on_another_clock() -> None:
    bench = Bench()
    call = bench.call()
    call.task.eta = dt.datetime.fromtimestamp(WALL + 3630, UTC)
    call.task.expires = 40
    start_times.read(call, T0, WALL + 3600)
    bench.tracker.submit(call, lambda *_: None, T0 + 1)
    assert (call.ticket.eta, call.ticket.expires_at) == (T0 + 30, T0 + 40)


def test_invalid_times_are_rejected_each_time_they_are_read() -> None:
    call = Bench().call()
    call.task.eta = -1
    for _ in range(2):
        with pytest.raises(ValueError, match="-1"):
            start_times.read(call, T0, WALL)


def test_moment_converts_seconds_and_datetimes() -> None:
    assert start_times.moment(2, "eta", 10.0, 500.0) == 12.0
    aware = dt.datetime.fromtimestamp(530, dt.timezone(dt.timedelta(hours=5)))
    assert start_times.moment(aware, "eta", 10.0, 500.0) == 40.0

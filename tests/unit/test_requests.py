"""Requests of an executor: states, timeouts, routing and lost workers, without I/O."""

from __future__ import annotations

import logging
import tracemalloc
from typing import Any, Final

import pytest

from tests.unit.tracker_scripts import play
from tests.unit.trackers import JOB, T0, Bench, Job, failures, settled
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests import tracker
from wbengine.engines.worker_based._requests.request_state import (
    LOOKUP,
    TIMEOUT,
    TimerHeap,
    TrackedRequest,
)
from wbengine.types.failure import Failure

SCENARIOS: Final[dict[str, str]] = {
    # States, replies and events.
    "terminal reply is the first one; its worker is known and has no request":
        "pending a; reply a SUCCESS w1 7 > end a 7 by w1; watched > w1:0;"
        " get a state worker ran > SUCCESS w1 True; holds w1 > False; lost w1;"
        " reply a RUNNING w1 > ack; get a state > SUCCESS; ignored > late=1",
    "second terminal reply is ignored":
        "running a; reply a SUCCESS w1 1 > end a 1 by w1; reply a FAILURE w1 receipt=r9 > ack r9;"
        " get a state > SUCCESS",
    "reply has a state of waiting requests":
        "pending a; reply a WAITING w1 > ack; reply a PENDING w1 > ack; get a state > PENDING;"
        " ignored > unexpected=2",
    "events are delivered once and in order of arrival":
        "pending a sink=True; reply a EVENT w1 1 seq=3 > started a w1, event a e 1, ack;"
        " get a state > RUNNING; reply a EVENT w1 1 seq=3 > ack;"
        " reply a EVENT w1 0 seq=2 > event a e 0, ack;"
        " reply a EVENT w2 5 seq=3 > event a e 5, ack; reply a SUCCESS w1 3 seq=4 > end a 3 by w1;"
        " reply a EVENT w1 6 seq=5 > ack; ignored > duplicate=1 late=1",
    "events without a receiver": "running a; reply a EVENT w1 1 > ack",
    **{
        f"event with details {details} is ignored, but the request runs":
            f"capacity 1; pending a sink=True; request b; reply a EVENT w1 {details}"
            " > send b1, started a w1, ack; ignored > unreadable=1"
        for details in ("{'$wbe':'x'}", "{'$wbe':'tuple','v':[1]}")
    },
    "result cannot be decoded":
        "running a; reply a SUCCESS w1 {'$wbe':'x'} > end a InvalidFormat by w1",
    "ledger=None plain=True: result of TaskFlow's worker is plain JSON":
        "taskflow; pending a; reply a RUNNING None > ack;"
        " reply a SUCCESS None {'$wbe':'tuple','v':[]} > end a {'$wbe': 'tuple', 'v': []} by q",
    "arguments cannot be encoded for TaskFlow's workers":
        "taskflow; request a arguments={'x':{1}} > end a NotEncodable; failure a ~ arguments['x']",
    "arguments cannot be encoded":
        "request a arguments={'x':[...]} > end a NotEncodable; failure a ~ arguments['x'][0];"
        " save a; count > 0",
    "arguments are too large":
        f"request a arguments={{'x':'{'y' * 20_000}'}} > end a TooLarge; failure a ~ 'a'",
    "request without an outcome is not retired":
        "pending a b; reply b SUCCESS w1 3 > end b 3 by w1; save a b > drop b, ack; count > 1",
    "request cannot be published": "pending a; unsent a > end a LedgerFailure; unsent a",
    # Routing.
    "workers=False: request waits until a worker offers its task":
        "request a; get a state > WAITING; gained; unstarted > a; queue q 1 1;"
        " gained Again; @1 gained > send a1; get a state > PENDING",
    "requests over the capacity are sent by priority":
        "capacity 2; pending a b; request c priority=1; request d priority=9;"
        " request e priority=1; get c state > PENDING; reply a RUNNING w1 > send d1, ack;"
        " reply b RUNNING w1 > send c1, ack; reply d RUNNING w1 > send e1, ack;"
        " reply c RUNNING w1 > ack",
    "requests in the backlog count toward the load of a queue":
        "capacity 1 others=1; pending a; queue p 1 1; request b > send b1 p; request c d;"
        " get c queue > q; get d queue > p",
    # Timeouts.
    "request is revoked before it times out":
        "pending a; @59.9 timer; @60 timer > revoke a; revoked a > end a NeverStarted;"
        " failure a ~ 'q'",
    "request waits, and its row is open":
        "pending a; unserve; lost w1 > read a lost=w1; @1 row a OPEN lost=w1;"
        " get a state > WAITING; @10.9 timer; @11 timer > read a; @21 timer > read a; @31 timer;"
        " @41 timer > read a; @60 timer; @61 timer > revoke a",
    "request is claimed at its timeout":
        "pending a; @60 timer > revoke a; revoked a False > read a; row a CLAIMED w7;"
        " get a state worker > RUNNING w7; watched > w7:0; @999 timer",
    "timeout restarts while the request is not published":
        "publishing False; request a > send a1; @60 timer > revoke a; row a None;"
        " get a state > PENDING; @119 timer; @120 timer > revoke a",
    "row of a published request is missing": "pending a; row a None > end a WorkerLost by q",
    "timeout restarts while all slots are busy":
        "queue q 4 0; pending a; @60 timer; queue q 4 1; @119 timer; @120 timer > revoke a",
    "timeout=1: free slot was reported before the request was sent":
        "pending a; @1 timer; reports 1; @2 timer > revoke a",
    "timeout=1: report of a free slot is awaited for at most two periods":
        "pending a; " + "; ".join(f"@{n} timer" for n in range(1, 11)) + " > revoke a",
    "timeout applies without workers": "pending a; unserve; @60 timer > revoke a",
    "timeouts of requests behind restart while the queue progresses":
        "pending a b c d; @50 reply a RUNNING w1 > ack; @60 timer; @100 reply c RUNNING w1 > ack;"
        " @120 timer > revoke b; @180 timer > revoke d",
    "workers=False: request in the backlog does not time out":
        "capacity 0; request a; queue q 1 1; @10 gained; "
        + "; ".join(f"@{n} timer" for n in range(60, 600, 60)) + "; get a state > PENDING",
    "timeout=None: there is no timer": "pending a; @1e9 timer; next > never",
    "running request does not time out": "running a; @1e9 timer",
    # Lost workers.
    "ledger=None: request fails with its worker":
        "running a; running b worker=w2; lost w1 > end a WorkerLost by w1; failure a ~ w1;"
        " get b state > RUNNING",
    "ledger=None: unsent request moves to the backlog of another queue, and returns":
        "capacity 1 others=1; pending a; queue other 1 1; request b > send b1 other; unserve;"
        " lost w1; get a queue epoch > other 2; unserve other; @5 lost w2 other;"
        " get a state > WAITING; queue other 1 1; capacity 2 others=2; @10 gained > send a2 other;"
        " get a resends > 1",
    "ledger=None: request keeps its epoch when it leaves a backlog":
        "capacity 1 others=1; pending a; queue other 1 1; request b > send b1 other; unserve;"
        " lost w1; queue third 1 1; unserve other; @5 lost w2 other > send a2 third;"
        " get a epoch resends > 2 1; get b queue epoch > third 2",
    "row of a lost worker is concluded":
        "running a; lost w1 > read a lost=w1; row a CLAIMED w1 lost=w1 > conclude a w1;"
        " get a live > True; concluded a > end a WorkerLost by w1",
    "conclusion fails, because the worker stored its result first":
        "running a; lost w1 > read a lost=w1; row a CLAIMED w1 lost=w1 > conclude a w1;"
        " @4 timer > read a; row a CLAIMED w1 > conclude a w1;"
        " reply a SUCCESS w1 7 > end a 7 by w1; concluded a",
    "row of a running request is open or missing":
        "running a b; row a OPEN lost=w1 > end a WorkerLost by w1;"
        " row b None lost=w1 > end b WorkerLost by w1",
    "claim was not reported":
        "pending a b; lost w1 > read a lost=w1, read b lost=w1;"
        " row a CLAIMED w1 lost=w1 > conclude a w1; concluded a > end a WorkerLost by w1;"
        " failure a ~ w1; row b OPEN lost=w1; get b state > PENDING",
    "another worker has the request":
        "pending a; row a CLAIMED w2 lost=w1; get a state worker > RUNNING w2;"
        " lost w2 > read a lost=w2",
    "open request moves to another queue with its epoch":
        "pending a; unserve; queue q2 1 1; lost w1 > read a lost=w1;"
        " row a OPEN lost=w1 > send a1 q2; row a OPEN lost=w1",
    "ledger=None: request moves to another queue with a new epoch":
        "pending a; unserve; queue q2 1 1; lost w1 > send a2 q2;"
        " reply a SUCCESS w1 3 epoch=1 > ack; get a state > PENDING;"
        " reply a SUCCESS w1 3 > end a 3 by w1",
    "backlog moves to another queue":
        "capacity 1; pending a; request b; unserve; queue q2 1 1;"
        " lost w1 > send b1 q2, read a lost=w1",
    # Workers that drain or are suspended.
    "open requests leave a queue that rests, once":
        "queue q 1 0; pending a b; rest; queue q2 1 1; @2 round > read a, read b;"
        " row a OPEN > send a1 q2; row b CLAIMED w1; get b state worker > RUNNING w1; @3 round;"
        " get a queue epoch resends since > q2 1 0 1002.0; reply a SUCCESS w2 3 > end a 3 by w2",
    "worker is resumed and claims a request that left its queue":
        "queue q 1 0; pending a; rest; queue q2 1 1; @2 round > read a; row a OPEN > send a1 q2;"
        " rest q False; reply a RUNNING w1 > ack; @3 round; reply a SUCCESS w1 3 > end a 3 by w1",
    "request remains in a queue that rests while no other queue accepts it":
        "queue q 1 0; pending a; rest; @1 round; queue q2 1 0; rest q2; @2 round;"
        " rest q2 False; @3 round > read a; rest q2; row a OPEN; get a queue > q; @4 round",
    "pauses between copies grow if queues rest alternately":
        "queue q 1 0; pending a; queue q2 1 0; rest; @1 round > read a; row a OPEN > send a1 q2;"
        " rest q2; rest q False; @12 round; @13 round > read a; row a OPEN > send a1;"
        " rest; rest q2 False; @36 round; @37 round > read a",
    "unavailable ledger: request leaves a queue that rests after the next round":
        "queue q 1 0; pending a; rest; queue q2 1 1; @1 round > read a; row a UNKNOWN;"
        " @2 round > read a; row a OPEN > send a1 q2",
    "unrouted request leaves a queue that rests":
        "queue q 1 0; pending a; unrouted a 1; rest; queue q2 1 0; @0.5 round > read a;"
        " row a OPEN > send a1 q2; @1 timer",
    "request without a row remains in a queue that rests":
        "queue q 1 0; publishing False; request a > send a1; rest; queue q2 1 1; @1 round;"
        " publish a; @2 round > read a; row a OPEN > send a1 q2",
    "cancelled request in a queue that rests is revoked":
        "queue q 1 0; pending a; rest; queue q2 1 1; @1 round > read a; cancel a > revoke a;"
        " row a OPEN > revoke a; revoked a > end a Cancelled; @2 round",
    "request of an earlier run is not sent to a queue that rests":
        "queue q 1 0; rest; queue q2 1 1; left a > read a; row a OPEN > revoke a;"
        " revoked a > send a2048 q2; @5 round",
    **{
        f"{options}backlog leaves a queue that rests in order of priority":
            "queue q 1 0; capacity 1; pending a; request b c; request d priority=5; rest;"
            f" queue q2 1 1; @1 round > {effects}; get b queue > q2; @2 round{later}"
        for options, effects, later in (
            ("", "read a, send d1 q2, send b1 q2, send c1 q2", " > read a"),
            ("ledger=None: ", "send d1 q2, send b1 q2, send c1 q2", "; get a queue > q"),
        )
    },
    "backlog remains while no other queue accepts it":
        "queue q 1 0; capacity 1; pending a; request b; queue q2 1 1; rest; rest q2; @1 round;"
        " get b queue > q",
    "ledger=None: request waits for another worker of TaskFlow":
        "taskflow; pending a; unserve; lost None; get a state > WAITING",
    # Results with a ledger outside the broker: rows decide, replies only announce.
    "terminal reply of a claimed row does not end the request":
        "separate; running a; reply a SUCCESS w1 3 > read a, ack; row a CLAIMED w1;"
        " reply a FAILURE w1 > read a, ack; row a CLAIMED w1; row a DONE result=7 > end a 7 by w1",
    "success reply of an open row does not end the request":
        "separate; pending a; reply a SUCCESS w1 3 > read a, ack; row a OPEN;"
        " get a state > PENDING",
    "failure reply of a worker that uses another ledger ends the request after a revoke":
        "separate; pending a; reply a FAILURE w1 > read a, ack; row a OPEN > revoke a;"
        " revoked a > end a RuntimeError",
    "row was claimed since the failure reply":
        "separate; pending a; reply a FAILURE w1 > read a, ack; row a OPEN > revoke a;"
        " revoked a False > read a; row a CLAIMED w1; get a pending_outcome worker > None w1;"
        " row a DONE result=7 > end a 7 by w1",
    # Forgetting and closing.
    "forgotten request": "pending a; unstarted > a; forget a; get a live > False; count > 0;"
        " reply a SUCCESS w1 3 > ack; unsent a; revoked a; row a OPEN; @1000 timer;"
        " request a > send a1",
    "tracker is closed and reopened":
        "capacity 1; running a; pending b; request c; request d eta=30;"
        " close > end a ExecutionFailure by w1, end b ExecutionFailure, end c ExecutionFailure,"
        " end d ExecutionFailure, drop a, drop b; failure d ~ stopped; count > 0;"
        " request e > end e ExecutionFailure; reopen; pending f",
    "requests of one flow are abandoned":
        "pending a flow_uuid=ours; pending b flow_uuid=theirs; running c flow_uuid=ours;"
        " unstarted ours > a;"
        " abandon ours > end a ExecutionFailure, end c ExecutionFailure by w1, drop a, drop c;"
        " get b live > True; count > 1; pending d",
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_request_has_expected_effects(name: str) -> None:
    play(name, SCENARIOS[name])


def test_separate_ledger_row_overrides_the_reply() -> None:
    script = "separate; pending a; reply a SUCCESS w1 3 > read a, ack"
    play("", f"{script}; row a DONE result=7 > end a 7 by w1")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_request_is_dispatched_acknowledged_settled_and_retired(bench: Bench) -> None:
    call = bench.call(arguments={"x": (1, 2)}, attempt=4, flow_uuid="flow-1", priority=5)
    (dispatch,) = bench.tracker.submit(call, lambda *_: None, T0)
    assert isinstance(dispatch, fx.Dispatch)
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
    (outcome,) = settled(bench.succeed(entry, receipt="r2"))
    assert (outcome.value, outcome.worker) == (3, "w1")
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


def test_request_to_taskflow_worker_has_no_headers_types_or_priority(bench: Bench) -> None:
    bench.fleet.plain.add("q")
    _, effects = bench.submit(arguments={"x": (1, 2)}, priority=9)
    (sent,) = [effect.envelope for effect in effects if isinstance(effect, fx.Dispatch)]
    assert sent.body["arguments"] == {"x": [1, 2]}
    assert not [name for name in sent.headers if name.startswith("wbe-") and "ledger" not in name]
    assert sent.priority == 0  # Kombu's Redis transport delivers high priorities last.


def test_ignored_reply_is_logged_with_request_epoch_worker_and_reason(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = bench.running()
    bench.succeed(entry)
    with caplog.at_level(logging.DEBUG):
        bench.succeed(entry, worker="w2")
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == f"ignored SUCCESS for request {entry.id} (epoch 1, worker w2): late"


def test_unreadable_failure_settles_the_request_as_failed(bench: Bench) -> None:
    broken = {**Failure.from_exception(RuntimeError("no")).to_dict(), "version": 9}
    (outcome,) = settled(bench.answer(bench.running(), pr.FAILURE, {"result": broken}))
    assert isinstance(outcome.value, Failure)


def test_outcome_has_start_and_end_times_of_the_worker(bench: Bench) -> None:
    entry = bench.running()
    reply = Reply(entry.id, pr.SUCCESS, {"result": None}, started_at=5.0, ended_at=6.5)
    (outcome,) = settled(bench.tracker.on_reply(reply, None, T0))
    assert (outcome.started, outcome.ended) == (5.0, 6.5)


class Vicious(Job):
    version = property(lambda self: 1 / 0, lambda self, value: None)  # type: ignore[assignment]


def test_error_in_a_task_property_fails_only_its_request() -> None:
    bench = Bench()
    bench.fleet.set("q2", 1, 1, f"{__name__}.Vicious")
    _, effects = bench.submit(kind=Vicious)
    assert failures(effects, ZeroDivisionError)


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


def test_request_id_of_an_item_changes_on_resume() -> None:
    """A resumed item is a new request, because its first message may still be queued."""

    def id_of(**options: Any) -> str:
        call = invocation.Invocation(Job("j"), invocation.EXECUTE, "u", 1, **options)
        return TrackedRequest(call, lambda *_: None, None, T0).id

    assert id_of() == id_of() == id_of(resumed=1)
    items = [id_of(index=0), id_of(index=1), id_of(index=0, resumed=1), id_of(index=0, resumed=2)]
    assert len({id_of(), *items}) == 5
    assert id_of(index=1) == items[1]


def test_consecutive_events_of_a_request_need_constant_memory(bench: Bench) -> None:
    entry = bench.running()
    tracemalloc.start()
    try:
        for number in range(2, 5000):
            event = Reply(entry.id, pr.EVENT, {}, worker="w1", epoch=1, seq=number)
            assert entry.refusal(event) is None
            assert entry.refusal(event) == "duplicate"
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()

"""Recovery of requests that earlier runs left."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.trackers import AGAIN, JOB, T0, Again, Bench, asked_of, failures, kinds, settled
from wbengine import exceptions as exc
from wbengine.engines.worker_based import executor
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages.replies import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests import events, recovery
from wbengine.engines.worker_based._requests.request_state import TrackedRequest
from wbengine.engines.worker_based.ledger import _base as ledgers

FENCE = 2048

HERE = "no ledger with the broker amqp://me:**@host"


class Heirs(Bench):
    """Tracker of an engine that resumes the flow of another engine."""

    def left(self, now: float = T0, **options: Any) -> tuple[TrackedRequest, list[fx.Effect]]:
        call = self.call(epoch=FENCE, recovered=True, flow_uuid="flow", **options)
        effects = self.tracker.submit(call, lambda *_: None, now)
        return call.ticket, effects

    def row(self, *found: Any, epoch: int = 1, **seen: Any) -> list[fx.Effect]:
        """Read a row, by default with the epoch of an earlier run."""
        return super().row(*found, epoch=epoch, **seen)

    def held(self, worker: str = "w1", **options: Any) -> TrackedRequest:
        entry, _ = self.left(**options)
        effects = self.row(entry, ledgers.ROW_CLAIMED, holder=worker)
        assert asked_of(effects) == (worker, [(entry.id, FENCE)])
        return entry

    def reply_in_row(self, entry: TrackedRequest, epoch: int, result: Any = 3) -> Reply:
        return Reply(entry.id, pr.SUCCESS, {"result": result}, worker="w1", epoch=epoch)


@pytest.fixture
def bench() -> Heirs:
    return Heirs()


def asks(effects: list[fx.Effect]) -> list[fx.Ask]:
    return [effect for effect in effects if isinstance(effect, fx.Ask)]


# With a ledger -----------------------------------------------------------------------------------


def test_recovered_request_is_not_published_before_its_row_is_read(bench: Heirs) -> None:
    entry, effects = bench.left()
    assert effects == [fx.Inspect(entry)]
    assert bench.tracker.requests.unstarted() == bench.tracker.requests.unfinished() == [entry]
    assert bench.tracker.is_inherited(entry)


def test_row_of_a_later_owner_is_not_revoked(bench: Heirs) -> None:
    """This engine was frozen meanwhile, and the ledger rejects its revocation."""
    entry, _ = bench.left()
    assert bench.row(entry, ledgers.ROW_OPEN, epoch=FENCE + 1024) == []
    assert bench.row(entry, ledgers.ROW_OPEN, epoch=FENCE + 1) == []
    assert entry.live and entry.lookups
    assert bench.row(entry, ledgers.ROW_OPEN, epoch=1) == [fx.Revoke(entry)]


def test_open_row_with_epoch_of_this_run_is_revoked(bench: Heirs) -> None:
    """No other run owns the row: without revocation the request would wait forever."""
    entry, _ = bench.left()
    assert bench.row(entry, ledgers.ROW_OPEN, epoch=FENCE) == [fx.Revoke(entry)]


def test_done_request_is_settled_from_its_row_and_dropped_when_saved(bench: Heirs) -> None:
    entry, _ = bench.left()
    reply = bench.reply_in_row(entry, epoch=1)
    (outcome,) = settled(bench.row(entry, ledgers.ROW_DONE, result=reply))
    assert (outcome.value, outcome.worker) == (3, "w1")
    assert bench.tracker.on_saved([entry.invocation]) == [fx.Drop(entry.id)]


def test_done_request_with_unreadable_result_fails_with_worker_lost(bench: Heirs) -> None:
    entry, _ = bench.left()
    assert failures(bench.row(entry, ledgers.ROW_DONE), exc.WorkerLost)


def test_open_request_is_revoked_before_resend(bench: Heirs) -> None:
    """Otherwise workers could claim the request from both messages."""
    entry, _ = bench.left()
    assert bench.row(entry, ledgers.ROW_OPEN) == [fx.Revoke(entry)]
    (dispatch,) = bench.tracker.on_revoked(entry, True, T0)
    assert isinstance(dispatch, fx.Dispatch)
    assert (dispatch.epoch, dispatch.envelope.headers[hd.WBE_EPOCH]) == (FENCE, FENCE)
    assert (entry.state, entry.epoch) == (pr.PENDING, FENCE)
    bench.succeed(entry, epoch=1)
    assert bench.tracker.ignored["old_epoch"] == 1
    assert settled(bench.succeed(entry, epoch=FENCE))


def test_row_is_read_again_if_revoke_fails(bench: Heirs) -> None:
    entry, _ = bench.left()
    bench.row(entry, ledgers.ROW_OPEN)
    assert bench.tracker.on_revoked(entry, False, T0) == [fx.Inspect(entry)]


def test_request_without_row_is_published(bench: Heirs) -> None:
    entry, _ = bench.left()
    (dispatch,) = bench.row(entry, None)
    assert isinstance(dispatch, fx.Dispatch) and dispatch.epoch == FENCE


def test_request_without_row_is_lost_if_flow_used_another_ledger(bench: Heirs) -> None:
    bench.tracker.expect("flow", "an earlier run used redis://one, and this run uses redis://two")
    entry, _ = bench.left()
    (text,) = failures(bench.row(entry, None), exc.WorkerLost)
    assert text == (
        "whether task 'task-1' (execute) ran is unknown, because an earlier run used redis://one,"
        " and this run uses redis://two; resume the flow with the broker and ledger of its earlier"
        " run, or set idempotent = True if the task may run twice"
    )


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        ({"": HERE}, ""),
        ({"": HERE, "a": "the ledger redis://h"}, "used the ledger redis://h, and this run"),
        ({"a": "the ledger y", "b": "the ledger x"}, "used the ledger x and the ledger y, and"),
        ({"a": HERE}, "rows of an earlier run in no ledger"),
    ],
    ids=["same-ledger", "both-ledgers", "other-ledgers", "lost-rows"],
)
def test_executor_names_the_ledgers_of_earlier_runs(used: dict[str, str], reason: str) -> None:
    made = executor.WorkerTaskExecutor("one", "default", url="amqp://me:secret@host")
    assert made.ledger_place == HERE
    made.expect("flow", used)
    found = made._tracker._origins["flow"]
    assert found is not None and (re.search(reason, found) if reason else not found)


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("redis://me:secret@host:1/2", "the ledger redis://host:1/2"),
        ("dir:///tmp/rows", "the ledger dir:///tmp/rows"),
        ("none", "no ledger with the broker memory://here"),
        (None, "the ledger of the broker memory://here"),
    ],
)
def test_place_of_ledger_is_shown_without_password(place: str | None, shown: str) -> None:
    made = executor.WorkerTaskExecutor("one", "default", url="memory://here", ledger=place)
    assert made.ledger_place == shown


def test_request_is_published_if_flow_never_used_workers(bench: Heirs) -> None:
    bench.tracker.expect("flow", None)
    _, (dispatch,) = bench.left()
    assert isinstance(dispatch, fx.Dispatch)


def test_owner_of_claimed_request_is_queried_and_replies(bench: Heirs) -> None:
    entry = bench.held()
    assert (entry.state, entry.worker, entry.epoch) == (pr.RUNNING, "w1", 1)
    assert bench.reply_to_query(entry, pr.RUNNING) == [fx.Acknowledge("receipt")]
    assert entry.lookups == 0 and not bench.tracker.ignored
    assert settled(bench.succeed(entry, epoch=1))


def test_owner_without_promise_is_queried_again_with_growing_pauses(bench: Heirs) -> None:
    """The question or its reply may be lost."""
    entry = bench.held()
    bench.reply_to_query(
        entry, pr.RUNNING, ask_number=1024
    )  # a promise to another engine does not count
    bench.answer(entry, pr.RUNNING, {}, epoch=1)
    times = []
    for _ in range(7):
        due = bench.tracker.next_timer()
        assert due is not None
        times.append(due - T0)
        assert bench.tracker.on_timer(due) == [fx.Inspect(entry)]
        assert asked_of(bench.row(entry, ledgers.ROW_CLAIMED, holder="w1", now=due))
    assert times == [3, 9, 21, 45, 93, 153, 213]
    bench.reply_to_query(entry, pr.RUNNING)
    assert bench.tracker.on_timer(T0 + 10_000) == []


def test_event_sent_before_the_query_is_not_a_promise(bench: Heirs) -> None:
    """The event may be a message to an earlier engine of the same name."""
    entry = bench.held()
    bench.answer(entry, pr.EVENT, {"event_type": "told", "details": {}}, epoch=1)
    assert entry.state == pr.RUNNING and entry.lookups
    assert bench.tracker.on_timer(T0 + recovery.LOOKUP_PAUSE_SECONDS) == [fx.Inspect(entry)]


def test_row_is_read_again_if_queried_owner_does_not_run_request(bench: Heirs) -> None:
    """The row contains the result. If it still names the worker as owner, the result is unknown."""
    entry = bench.held()
    assert bench.reply_to_query(entry, pr.PENDING)[0] == fx.Inspect(entry)
    assert failures(bench.row(entry, ledgers.ROW_CLAIMED, holder="w1"), exc.WorkerLost)


def test_new_owner_is_queried_if_previous_owner_denies_the_request(bench: Heirs) -> None:
    entry = bench.held()
    assert bench.reply_to_query(entry, pr.PENDING) == [fx.Inspect(entry), fx.Acknowledge("receipt")]
    effects = bench.row(entry, ledgers.ROW_CLAIMED, holder="w2")
    assert asked_of(effects) == ("w2", [(entry.id, FENCE)]) and entry.live
    assert failures(bench.row(entry, ledgers.ROW_CLAIMED, holder="w2", silent=True), exc.WorkerLost)


def test_denial_from_other_worker_is_ignored(bench: Heirs) -> None:
    entry = bench.held("w2")
    assert bench.reply_to_query(entry, pr.PENDING) == [fx.Acknowledge("receipt")]
    assert entry.state == pr.RUNNING


@pytest.mark.parametrize("how", [{"silent": True}, {"lost": "w1"}], ids=["silent", "lost"])
def test_request_claimed_by_dead_worker_is_lost(bench: Heirs, how: dict[str, Any]) -> None:
    entry, _ = bench.left()
    (text,) = failures(bench.row(entry, ledgers.ROW_CLAIMED, holder="w1", **how), exc.WorkerLost)
    assert "w1" in text


def test_idempotent_request_of_dead_worker_is_reopened_and_resent(bench: Heirs) -> None:
    bench.fleet.set("q", 1, 1, AGAIN)
    entry, _ = bench.left(kind=Again)
    effects = bench.row(entry, ledgers.ROW_CLAIMED, holder="w1", silent=True)
    assert effects == [fx.Reopen(entry, FENCE)]
    (dispatch,) = bench.tracker.on_reopened(entry, None, T0)
    assert isinstance(dispatch, fx.Dispatch) and dispatch.epoch == FENCE
    other, _ = bench.left(kind=Again)
    bench.row(other, ledgers.ROW_CLAIMED, holder="w1", silent=True)
    reply = bench.reply_in_row(other, epoch=1)
    assert settled(bench.tracker.on_reopened(other, reply, T0))


def test_unreachable_ledger_is_read_again_later(bench: Heirs) -> None:
    entry, _ = bench.left()
    assert bench.row(entry, events.UNKNOWN) == []
    assert bench.tracker.on_timer(T0 + recovery.LOOKUP_PAUSE_SECONDS) == [fx.Inspect(entry)]


def test_new_request_with_claimed_row_queries_its_owner(bench: Heirs) -> None:
    """The store can be older than the ledger: the request was already sent and claimed."""
    entry = bench.pending()
    assert bench.reply_to_query(entry, pr.PENDING, ask_number=0)[0] == fx.Inspect(entry)
    effects = bench.row(entry, ledgers.ROW_CLAIMED, holder="w7")
    assert asked_of(effects) == ("w7", [(entry.id, 1)])
    assert entry.state == pr.RUNNING
    assert bench.reply_to_query(entry, pr.PENDING, ask_number=0) == [
        fx.Acknowledge("receipt")
    ]


# Without a ledger ---------------------------------------------------------------------------------


def test_without_ledger_all_workers_are_queried_in_one_message() -> None:
    bench = Heirs(ledger=None)
    left = [bench.left()[0] for _ in range(3)]
    key, asked = asked_of(bench.tracker.ask())
    assert (key, asked) == (env.ALL_WORKERS, [(entry.id, FENCE) for entry in left])
    assert bench.tracker.ask() == []


@pytest.mark.parametrize("epoch", [1, 2, FENCE])
def test_without_ledger_result_of_any_epoch_settles_request(epoch: int) -> None:
    bench = Heirs(ledger=None)
    entry, _ = bench.left()
    bench.answer(entry, pr.RUNNING, {}, epoch=epoch)
    assert (entry.state, entry.worker, entry.lookups) == (pr.RUNNING, "w1", 0)
    assert settled(bench.succeed(entry, epoch=epoch))


def test_reply_read_before_recovery_settles_recovered_request() -> None:
    """Replies that arrive before their requests are recovered are kept and not acknowledged."""
    bench = Heirs(ledger=None)
    twin = Heirs(ledger=None)
    bench.tracker.inherit("engine")
    entry, _ = twin.left()
    assert bench.succeed(entry, epoch=1, receipt="r") == []
    entry, effects = bench.left()
    assert settled(effects)
    assert fx.Acknowledge("r") in bench.tracker.on_saved([entry.invocation])
    assert bench.tracker.ask() == []


@pytest.mark.parametrize("epoch", [1, 2])
def test_early_reply_settles_request_that_is_submitted_as_new(epoch: int) -> None:
    """The earlier engine died before it stored that it had sent the request, perhaps twice."""
    bench = Heirs(ledger=None)
    bench.tracker.inherit("engine")
    call = bench.call()
    twin = Heirs(ledger=None)
    entry = twin.pending()
    assert bench.succeed(entry, epoch=epoch, receipt="r") == []
    (outcome,) = settled(bench.tracker.submit(call, lambda *_: None, T0))
    assert outcome.value == 3


def test_early_reply_with_other_epoch_does_not_stop_publication(bench: Heirs) -> None:
    """With a ledger, the row determines which reply counts."""
    bench.tracker.inherit("engine")
    entry = Heirs().pending()
    assert bench.succeed(entry, epoch=2, receipt="r") == []
    effects = bench.tracker.submit(bench.call(), lambda *_: None, T0)
    assert kinds(effects) == [fx.Acknowledge, fx.Dispatch]


def test_request_unknown_to_workers_is_lost_after_its_timeout() -> None:
    bench = Heirs(ledger=None, timeout=60.0)
    entry, _ = bench.left()
    assert asked_of(bench.tracker.on_timer(T0 + 3))[0] == env.ALL_WORKERS
    assert entry.state == pr.PENDING
    assert not settled(bench.tracker.on_timer(T0 + 62))
    assert failures(bench.tracker.on_timer(T0 + 63), exc.WorkerLost)


def test_recovered_request_found_nowhere_fails_as_worker_lost() -> None:
    """The engine first waits as long as for a lost worker, and cancels late copies."""
    bench = Heirs(ledger=None, timeout=60.0)
    entry, _ = bench.left()
    bench.tracker.ask()
    assert bench.tracker.on_round(T0) == []  # no worker has replied yet
    bench.fleet.spoke["q"] = 1
    lines = [ask.message for ask in asks(bench.tracker.on_round(T0 + 1))]
    assert [line.routing_key for line in lines] == [env.ALL_WORKERS, "q"]
    assert all(line.body["asked"] == [[entry.id, FENCE]] for line in lines)
    assert lines[1].persistent
    assert asks(bench.reply_to_query(entry, pr.PENDING))[0].message.routing_key == "q"
    assert asks(bench.reply_to_query(entry, pr.PENDING))[0].message.routing_key == env.ALL_WORKERS
    bench.fleet.spoke["q"] = 2
    assert bench.tracker.on_round(T0 + bench.fleet.patience) == []
    effects = bench.tracker.on_round(T0 + bench.fleet.patience + 1)
    assert failures(effects, exc.WorkerLost)
    (refused,) = [each.message for each in effects if isinstance(each, fx.Cancel)]
    assert refused.routing_key == env.ALL_WORKERS
    assert refused.body["cancel"] == [[entry.id, FENCE - 1]]


def test_broker_outage_extends_wait_for_unknown_workers() -> None:
    bench = Heirs(ledger=None, timeout=60.0)
    entry, _ = bench.left()
    bench.fleet.spoke["q"] = bench.fleet.idle["q"] = 2
    bench.tracker.on_round(T0 + 1)
    bench.fleet.gone = T0 + 2, T0 + 12
    bench.tracker.on_round(T0 + 12)  # the question is repeated
    assert bench.tracker.on_round(T0 + bench.fleet.patience + 9) == [] and entry.live
    assert failures(bench.tracker.on_round(T0 + bench.fleet.patience + 11), exc.WorkerLost)


@pytest.mark.parametrize("queues", [0, 2], ids=["no-queue", "two-queues"])
def test_queue_is_not_queried_unless_exactly_one_is_possible(queues: int) -> None:
    bench = Heirs(ledger=None, timeout=60.0, workers=False)
    for number in range(queues):
        bench.fleet.set(f"q{number}", 1, 1, JOB)
        bench.fleet.spoke[f"q{number}"] = bench.fleet.idle[f"q{number}"] = 2
    entry, _ = bench.left()
    bench.tracker.ask()
    assert bench.tracker.on_round(T0 + 1) == bench.tracker.on_round(T0 + 30) == []
    assert entry.live


def test_redelivered_request_is_lost_despite_broker_outage() -> None:
    """Its worker may have been lost before this engine started, so the request is not resent."""
    bench = Heirs(ledger=None, timeout=60.0)
    entry, _ = bench.left()
    bench.fleet.gone = T0 - 5, T0 + 2
    reply = Reply(entry.id, pr.FAILURE, {}, worker="w2", epoch=1, is_lost=True)
    assert asks(bench.tracker.on_reply(reply, "receipt", T0 + 3))
    bench.tracker.on_timer(T0 + 3)
    assert asks(bench.tracker.on_round(T0 + 4)) and entry.live
    assert failures(bench.tracker.on_round(T0 + bench.fleet.patience + 3), exc.WorkerLost)


def test_request_timeout_restarts_while_all_workers_are_busy() -> None:
    bench = Heirs(ledger=None, timeout=60.0)
    entry, _ = bench.left()
    bench.fleet.set("q", 1, 0)
    bench.tracker.on_timer(T0 + 3)
    bench.tracker.on_timer(T0 + 63)
    assert entry.live
    bench.fleet.set("q", 1, 1)
    assert failures(bench.tracker.on_timer(T0 + 123), exc.WorkerLost)


def test_recovered_request_without_timeout_expires_after_default() -> None:
    bench = Heirs(ledger=None, timeout=None)
    bench.left()
    bench.tracker.on_timer(T0 + 3)
    assert failures(bench.tracker.on_timer(T0 + 3 + pr.REQUEST_TIMEOUT), exc.WorkerLost)


def test_idempotent_recovered_request_is_resent_after_pause() -> None:
    bench = Heirs(ledger=None)
    bench.fleet.set("q", 1, 1, AGAIN)
    entry, _ = bench.left(kind=Again)
    (dispatch,) = bench.tracker.on_timer(T0 + recovery.LOOKUP_PAUSE_SECONDS)
    assert isinstance(dispatch, fx.Dispatch) and dispatch.epoch == FENCE
    bench.answer(entry, pr.RUNNING, {}, worker="w2", epoch=FENCE)
    (outcome,) = settled(bench.succeed(entry, epoch=1))  # the reply of the first execution
    assert outcome.worker == entry.worker == "w1"


# Shutdown and cancellation ------------------------------------------------------------------------


def test_disown_forgets_all_requests_of_the_flow(bench: Heirs) -> None:
    bench.left()
    running = bench.running(flow_uuid="flow")
    done = bench.pending(flow_uuid="flow")
    bench.succeed(done, receipt="r")
    other = bench.pending(flow_uuid="other")
    bench.tracker.disown("flow")
    assert bench.tracker.requests.unfinished() == [other] and not running.live
    assert bench.tracker.on_saved([done.invocation]) == []
    assert bench.tracker.close("over") and not bench.tracker.requests.unfinished()


def test_closed_tracker_rejects_recovered_requests(bench: Heirs) -> None:
    bench.tracker.close("over")
    _, effects = bench.left()
    assert failures(effects, exc.ExecutionFailure)


def test_cancel_of_recovered_request_waits_for_its_row(bench: Heirs) -> None:
    entry, _ = bench.left()
    assert bench.tracker.cancel([entry.invocation], T0) == []
    assert bench.row(entry, ledgers.ROW_OPEN) == [fx.Revoke(entry)]
    assert failures(bench.tracker.on_revoked(entry, True, T0), exc.Cancelled)
    other, _ = bench.left()
    bench.tracker.cancel([other.invocation], T0)
    (cancel, ask) = bench.row(other, ledgers.ROW_CLAIMED, holder="w1")
    assert isinstance(cancel, fx.Cancel) and isinstance(ask, fx.Ask)
    assert cancel.message.routing_key == "w1" and other.live


def test_cancelled_recovered_request_without_ledger_is_not_resent() -> None:
    bench = Heirs(ledger=None)
    bench.fleet.set("q", 1, 1, AGAIN)
    entry, _ = bench.left(kind=Again)
    bench.tracker.ask()
    (cancel,) = bench.tracker.cancel([entry.invocation], T0)
    assert isinstance(cancel, fx.Cancel) and cancel.message.routing_key == env.ALL_WORKERS
    assert failures(bench.tracker.on_timer(T0 + recovery.LOOKUP_PAUSE_SECONDS), exc.Cancelled)


def test_unwanted_recovered_request_is_only_looked_up(bench: Heirs) -> None:
    """A call that is cancelled when it is submitted is not sent, but its worker may finish it."""
    call = bench.call(epoch=FENCE, recovered=True, flow_uuid="flow")
    call.cancellation.cancel()
    bench.tracker.submit(call, lambda *_: None, T0)
    assert failures(bench.row(call.ticket, None), exc.Cancelled)
    running = bench.call(epoch=FENCE, recovered=True, flow_uuid="flow")
    running.cancellation.cancel()
    bench.tracker.submit(running, lambda *_: None, T0)
    (ask,) = bench.row(running.ticket, ledgers.ROW_CLAIMED, holder="w1")
    assert isinstance(ask, fx.Ask) and running.ticket.live


def test_unwanted_request_of_engine_without_workers_has_unknown_result() -> None:
    bench = Heirs()
    bench.tracker.expect("flow", None)
    call = bench.call(epoch=FENCE, recovered=True, flow_uuid="flow")
    call.cancellation.cancel()
    assert failures(bench.tracker.submit(call, lambda *_: None, T0), exc.Interrupted)


def test_unwanted_idempotent_request_of_another_ledger_is_lost() -> None:
    bench = Heirs()
    bench.tracker.expect("flow", HERE)
    call = bench.call(epoch=FENCE, kind=Again, recovered=True, flow_uuid="flow")
    call.cancellation.cancel()
    bench.tracker.submit(call, lambda *_: None, T0)
    assert failures(bench.row(call.ticket, None), exc.WorkerLost)

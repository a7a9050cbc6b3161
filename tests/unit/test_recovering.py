"""The book's dealings with what earlier runs left, told one thing at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.requesting import AGAIN, JOB, T0, Again, Bench, asked_of, failures, kinds, settled
from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests import recovery
from wbengine.engines.worker_based.requests.tracked import TrackedRequest

FENCE = 2048


class Heirs(Bench):
    """A book whose engine goes on with what another one began."""

    def left(self, now: float = T0, **options: Any) -> tuple[TrackedRequest, list[fx.Effect]]:
        call = self.call(epoch=FENCE, recovered=True, flow_uuid="flow", **options)
        effects = self.recovery.recover(call, lambda *_: None, now)
        return call.ticket, effects

    def row(self, *found: Any, epoch: int = 1, **seen: Any) -> list[fx.Effect]:
        """An earlier run made it."""
        return super().row(*found, epoch=epoch, **seen)

    def held(self, worker: str = "w1", **options: Any) -> TrackedRequest:
        entry, _ = self.left(**options)
        effects = self.row(entry, ledgers.ROW_CLAIMED, holder=worker)
        assert asked_of(effects) == (worker, [(entry.id, FENCE)])
        return entry

    def answer_in_row(self, epoch: int, result: Any = 3) -> env.Envelope:
        headers = {env.WBE_VERSION: "1", env.WBE_WORKER: "w1", env.WBE_EPOCH: epoch}
        body = {"state": pr.SUCCESS, "data": {"result": result}}
        return env.Envelope(pr.RESPONSE, body, correlation_id="", headers=headers)


def asks(effects: list[fx.Effect]) -> list[fx.Ask]:
    return [effect for effect in effects if isinstance(effect, fx.Ask)]


# With a ledger -----------------------------------------------------------------------------------


def test_nothing_is_published_before_the_row_was_seen() -> None:
    bench = Heirs()
    entry, effects = bench.left()
    assert effects == [fx.Inspect(entry)]
    assert bench.tracker.unstarted() == bench.tracker.unfinished() == [entry]
    assert bench.tracker.is_inherited(entry)


def test_a_row_of_who_owns_the_flow_since_is_left_alone() -> None:
    """This engine was frozen: the row cannot be revoked, however often that is tried."""
    bench = Heirs()
    entry, _ = bench.left()
    assert bench.row(entry, ledgers.ROW_OPEN, epoch=FENCE + 1024) == []
    assert bench.row(entry, ledgers.ROW_OPEN, epoch=FENCE + 1) == []
    assert entry.live and entry.lookups
    assert bench.row(entry, ledgers.ROW_OPEN, epoch=1) == [fx.Revoke(entry)]


def test_open_row_with_this_runs_own_number_is_revoked() -> None:
    """It is nobody else's: left alone, the request would wait for ever."""
    bench = Heirs()
    entry, _ = bench.left()
    assert bench.row(entry, ledgers.ROW_OPEN, epoch=FENCE) == [fx.Revoke(entry)]


def test_what_is_done_is_settled_from_the_row_and_dropped_once_saved() -> None:
    bench = Heirs()
    entry, _ = bench.left()
    answer = bench.answer_in_row(epoch=1)
    answer.correlation_id = entry.id
    (outcome,) = settled(bench.row(entry, ledgers.ROW_DONE, result=answer))
    assert (outcome.value, outcome.worker) == (3, "w1")
    assert bench.tracker.retired([entry.invocation]) == [fx.Drop(entry.id)]


def test_what_is_done_and_cannot_be_read_is_lost() -> None:
    bench = Heirs()
    entry, _ = bench.left()
    assert failures(bench.row(entry, ledgers.ROW_DONE), exc.WorkerLost)


def test_what_is_open_is_revoked_before_it_is_published_anew() -> None:
    """Or a message that is out, and ours, could be granted both."""
    bench = Heirs()
    entry, _ = bench.left()
    assert bench.row(entry, ledgers.ROW_OPEN) == [fx.Revoke(entry)]
    (dispatch,) = bench.recovery.on_revoked(entry, True, T0)
    assert isinstance(dispatch, fx.Dispatch)
    assert (dispatch.epoch, dispatch.envelope.headers[env.WBE_EPOCH]) == (FENCE, FENCE)
    assert (entry.state, entry.epoch) == (pr.PENDING, FENCE)
    bench.succeed(entry, epoch=1)
    assert bench.tracker.ignored["old_epoch"] == 1
    assert settled(bench.succeed(entry, epoch=FENCE))


def test_what_was_taken_while_it_was_to_be_revoked_is_looked_at_again() -> None:
    bench = Heirs()
    entry, _ = bench.left()
    bench.row(entry, ledgers.ROW_OPEN)
    assert bench.recovery.on_revoked(entry, False, T0) == [fx.Inspect(entry)]


def test_without_a_row_it_was_never_published() -> None:
    bench = Heirs()
    entry, _ = bench.left()
    (dispatch,) = bench.row(entry, None)
    assert isinstance(dispatch, fx.Dispatch) and dispatch.epoch == FENCE


@pytest.mark.parametrize("used", [("another",), (None,), ("ledger-1", "another")])
def test_without_a_row_where_the_ledger_is_another_nobody_can_tell(used: Any) -> None:
    bench = Heirs()
    bench.recovery.expect("flow", used)
    entry, _ = bench.left()
    assert failures(bench.row(entry, None), exc.WorkerLost)


def test_of_a_flow_that_never_ran_on_workers_nothing_is_under_way() -> None:
    bench = Heirs()
    bench.recovery.expect("flow", ())
    _, (dispatch,) = bench.left()
    assert isinstance(dispatch, fx.Dispatch)


def test_whoever_holds_it_is_asked_and_answers_here() -> None:
    bench = Heirs()
    entry = bench.held()
    assert (entry.state, entry.worker, entry.epoch) == (pr.RUNNING, "w1", 1)
    assert bench.told(entry, pr.RUNNING) == [fx.Acknowledge("receipt")]
    assert entry.lookups == 0 and not bench.tracker.ignored
    assert settled(bench.succeed(entry, epoch=1))


def test_as_long_as_he_does_not_promise_he_is_asked_again_and_the_row_is_looked_at() -> None:
    """Seldomer and seldomer: the question, or the answer, may be lost."""
    bench = Heirs()
    entry = bench.held()
    bench.told(
        entry, pr.RUNNING, **{env.WBE_ASK: 1024}
    )  # what he promised to somebody else is nothing to us
    bench.answer(entry, pr.RUNNING, {}, epoch=1)
    times = []
    for _ in range(7):
        due = bench.tracker.next_timer()
        assert due is not None
        times.append(due - T0)
        assert bench.tracker.tick(due) == [fx.Inspect(entry)]
        assert asked_of(bench.row(entry, ledgers.ROW_CLAIMED, holder="w1", now=due))
    assert times == [3, 9, 21, 45, 93, 153, 213]
    bench.told(entry, pr.RUNNING)
    assert bench.tracker.tick(T0 + 10_000) == []


def test_what_he_told_before_he_was_asked_is_no_promise() -> None:
    """It may have waited where an engine of the same name left it, and another one came between."""
    bench = Heirs()
    entry = bench.held()
    bench.answer(entry, pr.EVENT, {"event_type": "told", "details": {}}, epoch=1)
    assert entry.state == pr.RUNNING and entry.lookups
    assert bench.tracker.tick(T0 + recovery.LOOKUP_PAUSE) == [fx.Inspect(entry)]


def test_he_may_have_ended_just_before_he_was_asked() -> None:
    """Then the row says how; where it says nothing, although he does not hold it, nobody can."""
    bench = Heirs()
    entry = bench.held()
    assert bench.told(entry, pr.PENDING)[0] == fx.Inspect(entry)
    assert failures(bench.row(entry, ledgers.ROW_CLAIMED, holder="w1"), exc.WorkerLost)


def test_that_he_does_not_hold_it_says_nothing_of_who_holds_it_since() -> None:
    bench = Heirs()
    entry = bench.held()
    assert bench.told(entry, pr.PENDING) == [fx.Inspect(entry), fx.Acknowledge("receipt")]
    effects = bench.row(entry, ledgers.ROW_CLAIMED, holder="w2")
    assert asked_of(effects) == ("w2", [(entry.id, FENCE)]) and entry.live
    assert failures(bench.row(entry, ledgers.ROW_CLAIMED, holder="w2", silent=True), exc.WorkerLost)


def test_what_others_say_they_do_not_hold_means_nothing() -> None:
    bench = Heirs()
    entry = bench.held("w2")
    assert bench.told(entry, pr.PENDING) == [fx.Acknowledge("receipt")]
    assert entry.state == pr.RUNNING


@pytest.mark.parametrize("how", [{"silent": True}, {"lost": "w1"}])
def test_what_a_dead_worker_holds_is_lost(how: dict[str, Any]) -> None:
    bench = Heirs()
    entry, _ = bench.left()
    (text,) = failures(bench.row(entry, ledgers.ROW_CLAIMED, holder="w1", **how), exc.WorkerLost)
    assert "w1" in text


def test_what_a_dead_worker_holds_and_may_be_run_twice_is_run_again() -> None:
    bench = Heirs()
    bench.fleet.set("q", 1, 1, AGAIN)
    entry, _ = bench.left(kind=Again)
    effects = bench.row(entry, ledgers.ROW_CLAIMED, holder="w1", silent=True)
    assert effects == [fx.Reopen(entry, FENCE)]
    (dispatch,) = bench.recovery.on_reopened(entry, None, T0)
    assert isinstance(dispatch, fx.Dispatch) and dispatch.epoch == FENCE
    other, _ = bench.left(kind=Again)
    bench.row(other, ledgers.ROW_CLAIMED, holder="w1", silent=True)
    answer = bench.answer_in_row(epoch=1)
    answer.correlation_id = other.id
    assert settled(bench.recovery.on_reopened(other, answer, T0))


def test_a_ledger_that_is_away_is_asked_later() -> None:
    bench = Heirs()
    entry, _ = bench.left()
    assert bench.row(entry, recovery.UNKNOWN) == []
    assert bench.tracker.tick(T0 + recovery.LOOKUP_PAUSE) == [fx.Inspect(entry)]


def test_the_store_may_be_behind_the_ledger() -> None:
    """What is published as new is held by somebody: he is asked, as if we had known."""
    bench = Heirs()
    entry = bench.pending()
    assert bench.told(entry, pr.PENDING, **{env.WBE_ASK: 0})[0] == fx.Inspect(entry)
    effects = bench.row(entry, ledgers.ROW_CLAIMED, holder="w7")
    assert asked_of(effects) == ("w7", [(entry.id, 1)])
    assert entry.state == pr.RUNNING
    assert bench.told(entry, pr.PENDING, **{env.WBE_ASK: 0}) == [fx.Acknowledge("receipt")]


# Without one -------------------------------------------------------------------------------------


def test_all_workers_are_asked_in_one_message() -> None:
    bench = Heirs(ledger=None)
    left = [bench.left()[0] for _ in range(3)]
    assert bench.recovery.unasked
    key, asked = asked_of(bench.recovery.ask())
    assert (key, asked) == (env.ALL_WORKERS, [(entry.id, FENCE) for entry in left])
    assert bench.recovery.ask() == []


@pytest.mark.parametrize("epoch", [1, 2, FENCE])
def test_whichever_run_of_it_ends_is_its_end(epoch: int) -> None:
    bench = Heirs(ledger=None)
    entry, _ = bench.left()
    bench.answer(entry, pr.RUNNING, {}, epoch=epoch)
    assert (entry.state, entry.worker, entry.lookups) == (pr.RUNNING, "w1", 0)
    assert settled(bench.succeed(entry, epoch=epoch))


def test_answers_that_waited_for_an_heir_are_found() -> None:
    """They may be read before their requests are taken up; they are kept, and not acknowledged."""
    bench = Heirs(ledger=None)
    twin = Heirs(ledger=None)
    bench.recovery.inherit("engine")
    entry, _ = twin.left()
    assert bench.succeed(entry, epoch=1, receipt="r") == []
    entry, effects = bench.left()
    assert settled(effects)
    assert fx.Acknowledge("r") in bench.tracker.retired([entry.invocation])
    assert bench.recovery.ask() == []


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_answer_may_wait_for_who_does_not_know_that_it_was_sent(epoch: int) -> None:
    """Its engine died before it wrote that; and it had been sent a second time, perhaps."""
    bench = Heirs(ledger=None)
    bench.recovery.inherit("engine")
    call = bench.call()
    twin = Heirs(ledger=None)
    entry = twin.pending()
    assert bench.succeed(entry, epoch=epoch, receipt="r") == []
    (outcome,) = settled(bench.tracker.submit(call, lambda *_: None, T0))
    assert outcome.value == 3


def test_an_answer_that_does_not_fit_keeps_nothing_from_being_sent() -> None:
    """With a ledger the row tells which answer counts."""
    bench = Heirs()
    bench.recovery.inherit("engine")
    entry = Heirs().pending()
    assert bench.succeed(entry, epoch=2, receipt="r") == []
    effects = bench.tracker.submit(bench.call(), lambda *_: None, T0)
    assert kinds(effects) == [fx.Acknowledge, fx.Dispatch]


def test_what_nobody_knows_of_waits_as_long_as_any_other_and_is_lost() -> None:
    bench = Heirs(ledger=None, timeout=60.0)
    entry, _ = bench.left()
    assert asked_of(bench.tracker.tick(T0 + 3))[0] == env.ALL_WORKERS
    assert entry.state == pr.PENDING
    assert not settled(bench.tracker.tick(T0 + 62))
    assert failures(bench.tracker.tick(T0 + 63), exc.WorkerLost)


def test_what_its_queue_has_passed_and_no_worker_has_is_lost() -> None:
    """But not before a worker would be lost that was never heard of; and no copy begins later."""
    bench = Heirs(ledger=None, timeout=60.0)
    entry, _ = bench.left()
    bench.recovery.ask()
    assert bench.recovery.review(T0) == []  # no worker has answered yet
    bench.fleet.spoke["q"] = 1
    lines = [ask.question for ask in asks(bench.recovery.review(T0 + 1))]
    assert [line.routing_key for line in lines] == [env.ALL_WORKERS, "q"]
    assert all(line.body["asked"] == [[entry.id, FENCE]] for line in lines)
    assert lines[1].persistent
    assert asks(bench.told(entry, pr.PENDING))[0].question.routing_key == "q"
    assert asks(bench.told(entry, pr.PENDING))[0].question.routing_key == env.ALL_WORKERS
    bench.fleet.spoke["q"] = 2
    assert bench.recovery.review(T0 + bench.fleet.patience) == []
    effects = bench.recovery.review(T0 + bench.fleet.patience + 1)
    assert failures(effects, exc.WorkerLost)
    (refused,) = [each.message for each in effects if isinstance(each, fx.Cancel)]
    assert refused.routing_key == env.ALL_WORKERS
    assert refused.body["cancel"] == [[entry.id, FENCE - 1]]


def test_outage_does_not_count_as_silence_of_workers_that_were_never_heard_of() -> None:
    bench = Heirs(ledger=None, timeout=60.0)
    entry, _ = bench.left()
    bench.fleet.spoke["q"] = bench.fleet.idle["q"] = 2
    bench.recovery.review(T0 + 1)
    bench.fleet.gone = T0 + 2, T0 + 12
    bench.recovery.review(T0 + 12)  # asked again
    assert bench.recovery.review(T0 + bench.fleet.patience + 9) == [] and entry.live
    assert failures(bench.recovery.review(T0 + bench.fleet.patience + 11), exc.WorkerLost)


@pytest.mark.parametrize("queues", [0, 2])
def test_it_is_not_asked_for_in_line_where_nobody_knows_in_which(queues: int) -> None:
    bench = Heirs(ledger=None, timeout=60.0, workers=False)
    for number in range(queues):
        bench.fleet.set(f"q{number}", 1, 1, JOB)
        bench.fleet.spoke[f"q{number}"] = bench.fleet.idle[f"q{number}"] = 2
    entry, _ = bench.left()
    bench.recovery.ask()
    assert bench.recovery.review(T0 + 1) == bench.recovery.review(T0 + 30) == []
    assert entry.live


def test_what_was_given_twice_is_lost_however_long_the_broker_was_away() -> None:
    """Its worker may have been lost before this engine came: it is not sent again."""
    bench = Heirs(ledger=None, timeout=60.0)
    entry, _ = bench.left()
    bench.fleet.gone = T0 - 5, T0 + 2
    headers = {env.WBE_VERSION: "1", env.WBE_WORKER: "w2", env.WBE_EPOCH: 1, env.WBE_LOST: 1}
    answer = env.Envelope(
        pr.RESPONSE, {"state": pr.FAILURE, "data": {}}, correlation_id=entry.id, headers=headers
    )
    assert asks(bench.tracker.on_response(answer, "receipt", T0 + 3))
    bench.tracker.tick(T0 + 3)
    assert asks(bench.recovery.review(T0 + 4)) and entry.live
    assert failures(bench.recovery.review(T0 + bench.fleet.patience + 3), exc.WorkerLost)


def test_it_may_wait_behind_others_for_longer() -> None:
    bench = Heirs(ledger=None, timeout=60.0)
    entry, _ = bench.left()
    bench.fleet.set("q", 1, 0)
    bench.tracker.tick(T0 + 3)
    bench.tracker.tick(T0 + 63)
    assert entry.live
    bench.fleet.set("q", 1, 1)
    assert failures(bench.tracker.tick(T0 + 123), exc.WorkerLost)


def test_it_does_not_wait_for_ever_even_where_others_do() -> None:
    bench = Heirs(ledger=None, timeout=None)
    bench.left()
    bench.tracker.tick(T0 + 3)
    assert failures(bench.tracker.tick(T0 + 3 + pr.REQUEST_TIMEOUT), exc.WorkerLost)


def test_what_may_be_run_twice_is_published_again_soon() -> None:
    bench = Heirs(ledger=None)
    bench.fleet.set("q", 1, 1, AGAIN)
    entry, _ = bench.left(kind=Again)
    (dispatch,) = bench.tracker.tick(T0 + recovery.LOOKUP_PAUSE)
    assert isinstance(dispatch, fx.Dispatch) and dispatch.epoch == FENCE
    assert settled(bench.succeed(entry, epoch=1))  # the first run came to its end after all


# The end -----------------------------------------------------------------------------------------


def test_what_is_disowned_is_forgotten_as_it_is() -> None:
    bench = Heirs()
    bench.left()
    running = bench.running(flow_uuid="flow")
    done = bench.pending(flow_uuid="flow")
    bench.succeed(done, receipt="r")
    other = bench.pending(flow_uuid="other")
    bench.recovery.disown("flow")
    assert bench.tracker.unfinished() == [other] and not running.live
    assert bench.tracker.retired([done.invocation]) == []
    assert bench.tracker.close("over") and not bench.tracker.unfinished()


def test_a_closed_book_takes_nothing_over() -> None:
    bench = Heirs()
    bench.tracker.close("over")
    _, effects = bench.left()
    assert failures(effects, exc.ExecutionFailure)


def test_what_is_left_and_cancelled_is_found_out_about_first() -> None:
    bench = Heirs()
    entry, _ = bench.left()
    assert bench.tracker.cancel([entry.invocation], T0) == []
    assert bench.row(entry, ledgers.ROW_OPEN) == [fx.Revoke(entry)]
    assert failures(bench.recovery.on_revoked(entry, True, T0), exc.Cancelled)
    other, _ = bench.left()
    bench.tracker.cancel([other.invocation], T0)
    (cancel, ask) = bench.row(other, ledgers.ROW_CLAIMED, holder="w1")
    assert isinstance(cancel, fx.Cancel) and isinstance(ask, fx.Ask)
    assert cancel.message.routing_key == "w1" and other.live


def test_what_is_left_and_cancelled_without_a_ledger_is_not_sent() -> None:
    bench = Heirs(ledger=None)
    bench.fleet.set("q", 1, 1, AGAIN)
    entry, _ = bench.left(kind=Again)
    bench.recovery.ask()
    (cancel,) = bench.tracker.cancel([entry.invocation], T0)
    assert isinstance(cancel, fx.Cancel) and cancel.message.routing_key == env.ALL_WORKERS
    assert failures(bench.tracker.tick(T0 + recovery.LOOKUP_PAUSE), exc.Cancelled)

"""A ledger in a place of its own: what a row says is an outcome, and what an answer says is not."""

from __future__ import annotations

import pytest

from tests.unit.requesting import T0, Bench, failures, settled
from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.recovery import Seen
from wbengine.engines.worker_based.requests.tracked import TrackedRequest
from wbengine.types.failure import Failure


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.tracker.separate_ledger = True
    return made


def done(entry: TrackedRequest, result: int = 7) -> Seen:
    headers = {env.WBE_VERSION: "1", env.WBE_WORKER: "w1", env.WBE_EPOCH: entry.epoch}
    body = {"state": pr.SUCCESS, "data": {"result": result}}
    answer = env.Envelope(pr.RESPONSE, body, correlation_id=entry.id, headers=headers)
    return Seen(ledgers.ROW_DONE, None, answer, entry.epoch)


def fail(bench: Bench, entry: TrackedRequest) -> list[fx.Effect]:
    failure = Failure.from_exception(exc.NotFound("another ledger")).to_dict()
    return bench.answer(entry, pr.FAILURE, {"result": failure})


def test_outcome_is_that_of_the_row(bench: Bench) -> None:
    entry = bench.pending()
    assert bench.succeed(entry, 3) == [fx.Inspect(entry), fx.Acknowledge("receipt")]
    (outcome,) = settled(bench.recovery.on_row(entry, done(entry), T0))
    assert (outcome.value, outcome.worker) == (7, "w1")


def test_outcome_of_a_task_that_a_worker_runs_is_not_believed(bench: Bench) -> None:
    entry = bench.running("w1")
    for tell in (bench.succeed, lambda entry: fail(bench, entry)):
        assert tell(entry) == [fx.Inspect(entry), fx.Acknowledge("receipt")]
        seen = Seen(ledgers.ROW_CLAIMED, "w1", epoch=1)
        assert not settled(bench.recovery.on_row(entry, seen, T0))
    assert settled(bench.recovery.on_row(entry, done(entry), T0))[0].value == 7


def test_success_of_a_task_that_no_worker_has_is_not_believed(bench: Bench) -> None:
    entry = bench.pending()
    bench.succeed(entry)
    assert bench.recovery.on_row(entry, Seen(ledgers.ROW_OPEN, epoch=1), T0) == []
    assert entry.state == pr.PENDING


def test_refusal_ends_only_what_no_worker_can_begin_any_more(bench: Bench) -> None:
    """Such as one of a worker that does not hold the ledger: nobody has claimed the row."""
    entry = bench.pending()
    fail(bench, entry)
    assert bench.recovery.on_row(entry, Seen(ledgers.ROW_OPEN, epoch=1), T0) == [fx.Revoke(entry)]
    assert failures(bench.recovery.on_revoked(entry, True, T0), exc.NotFound) == ["another ledger"]


def test_refusal_of_what_was_claimed_meanwhile_is_forgotten(bench: Bench) -> None:
    entry = bench.pending()
    fail(bench, entry)
    bench.recovery.on_row(entry, Seen(ledgers.ROW_OPEN, epoch=1), T0)
    assert bench.recovery.on_revoked(entry, False, T0) == [fx.Inspect(entry)]
    bench.recovery.on_row(entry, Seen(ledgers.ROW_CLAIMED, "w1", epoch=1), T0)
    assert (entry.pending_outcome, entry.worker) == (None, "w1")
    assert settled(bench.recovery.on_row(entry, done(entry), T0))

"""Results with a ledger outside the broker: rows decide, replies only announce."""

from __future__ import annotations

import pytest

from tests.unit.trackers import T0, Bench, failures, settled
from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages.replies import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests.events import RowSnapshot
from wbengine.engines.worker_based._requests.request_state import TrackedRequest
from wbengine.engines.worker_based.ledger import _base as ledgers
from wbengine.types.failure import Failure


@pytest.fixture
def bench() -> Bench:
    new_bench = Bench()
    new_bench.tracker.separate_ledger = True
    return new_bench


def done(entry: TrackedRequest, result: int = 7) -> RowSnapshot:
    reply = Reply(entry.id, pr.SUCCESS, {"result": result}, worker="w1", epoch=entry.epoch)
    return RowSnapshot(ledgers.ROW_DONE, None, reply, entry.epoch)


def fail(bench: Bench, entry: TrackedRequest) -> list[fx.Effect]:
    failure = Failure.from_exception(exc.NotFound("another ledger")).to_dict()
    return bench.answer(entry, pr.FAILURE, {"result": failure})


def test_separate_ledger_row_overrides_the_reply(bench: Bench) -> None:
    entry = bench.pending()
    assert bench.succeed(entry, 3) == [fx.Inspect(entry), fx.Acknowledge("receipt")]
    (outcome,) = settled(bench.tracker.on_row(entry, done(entry), T0))
    assert (outcome.value, outcome.worker) == (7, "w1")


def test_terminal_reply_of_a_claimed_row_does_not_settle_the_request(bench: Bench) -> None:
    entry = bench.running("w1")
    for tell in (bench.succeed, lambda entry: fail(bench, entry)):
        assert tell(entry) == [fx.Inspect(entry), fx.Acknowledge("receipt")]
        seen = RowSnapshot(ledgers.ROW_CLAIMED, "w1", epoch=1)
        assert not settled(bench.tracker.on_row(entry, seen, T0))
    assert settled(bench.tracker.on_row(entry, done(entry), T0))[0].value == 7


def test_success_reply_of_an_open_row_does_not_settle_the_request(bench: Bench) -> None:
    entry = bench.pending()
    bench.succeed(entry)
    assert bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_OPEN, epoch=1), T0) == []
    assert entry.state == pr.PENDING


def test_failure_reply_of_an_open_row_settles_after_a_revoke(bench: Bench) -> None:
    """An example is a reply of a worker that uses another ledger."""
    entry = bench.pending()
    fail(bench, entry)
    assert bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_OPEN, epoch=1), T0) == [
        fx.Revoke(entry)
    ]
    assert failures(bench.tracker.on_revoked(entry, True, T0), exc.NotFound) == ["another ledger"]


def test_failure_reply_is_dropped_if_the_row_was_claimed_since(bench: Bench) -> None:
    entry = bench.pending()
    fail(bench, entry)
    bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_OPEN, epoch=1), T0)
    assert bench.tracker.on_revoked(entry, False, T0) == [fx.Inspect(entry)]
    bench.tracker.on_row(entry, RowSnapshot(ledgers.ROW_CLAIMED, "w1", epoch=1), T0)
    assert (entry.pending_outcome, entry.worker) == (None, "w1")
    assert settled(bench.tracker.on_row(entry, done(entry), T0))

"""Heartbeats of a worker to its ledger, and the thread that sends them."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.support.waiting import until
from wbengine import exceptions
from wbengine.engines.worker_based._worker_side import heartbeat
from wbengine.transports._memory import memory_broker

PERIOD = heartbeat.PERIOD_SECONDS


class Unreachable(memory_broker.MemoryLedger):
    """Ledger whose heartbeats can fail."""

    is_unreachable = False

    def _renew(self, holder: str) -> None:
        if self.is_unreachable:
            raise exceptions.LedgerFailure("away")
        super()._renew(holder)


def beats() -> heartbeat.Beats:
    made = heartbeat.Beats("w1", lambda now: None)
    made.ledger = Unreachable()
    return made


def test_heartbeat_is_stored_twice_in_each_period() -> None:
    sender = beats()
    sender.renew(100.0)
    assert sender.due == 100.0 + PERIOD / 2
    assert sender.ledger is not None and sender.ledger.silence("w1") is not None


def test_failing_heartbeats_are_logged_once_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    sender = beats()
    assert isinstance(sender.ledger, Unreachable)
    with caplog.at_level(logging.WARNING):
        for fails in (True, True, False, True):
            sender.ledger.is_unreachable = fails
            sender.due = 0.0
            sender.renew(1.0)
            assert (sender.due == 0.0) is fails
    assert caplog.text.count("cannot be written to the ledger: away") == 2


def test_shorter_period_before_the_start_starts_no_thread() -> None:
    sender = beats()
    sender.adopt_period(1.0)
    assert (sender.period, sender._worker) == (1.0, None)


def test_stop_ends_the_thread_of_heartbeats() -> None:
    threads: set[threading.Thread] = set()
    sender = heartbeat.Beats("w1", lambda now: threads.add(threading.current_thread()))
    sender.start()
    until(lambda: threads)
    sender.stop()
    (thread,) = threads
    thread.join(60)
    assert not thread.is_alive()

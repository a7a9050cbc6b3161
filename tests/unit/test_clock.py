"""Clocks."""

from __future__ import annotations

import queue
import time

import pytest

from wbengine._concurrency.clocks import SYSTEM, Clock, StoreClock, uptime
from wbengine._concurrency.manual_clock import ManualClock


def test_system_clock_returns_current_time():
    assert abs(SYSTEM.time() - time.time()) < 60
    assert SYSTEM.monotonic() <= SYSTEM.monotonic()


def test_manual_clock_moves_only_when_advanced():
    clock = ManualClock(10.0)
    assert isinstance(clock, Clock)
    assert (clock.time(), clock.monotonic()) == (10.0, 10.0)
    clock.advance(2.5)
    clock.advance(0)
    assert (clock.time(), clock.monotonic()) == (12.5, 12.5)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_manual_clock_rejects_negative_and_nan_steps(seconds):
    clock = ManualClock()
    with pytest.raises(ValueError, match="to advance a clock"):
        clock.advance(seconds)
    assert clock.monotonic() == 0.0


def test_queue_timeout_advances_manual_clock():
    clock = ManualClock(10)
    inbox = clock.queue()
    with pytest.raises(queue.Empty):
        inbox.get(timeout=5)
    assert clock.monotonic() == 15
    inbox.put("there")
    assert inbox.get(timeout=5) == "there"
    assert clock.monotonic() == 15
    with pytest.raises(queue.Empty):
        inbox.get(False)
    assert clock.monotonic() == 15


def test_queue_timeout_of_system_clock_takes_real_time():
    inbox = SYSTEM.queue()
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        inbox.get(timeout=0.02)
    assert time.monotonic() - began >= 0.02


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_store_clock_has_the_time_of_the_store_and_is_not_set(
    ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, now = StoreClock(), time.time()
    clock.follow(now - uptime() + ahead)
    monkeypatch.setattr(time, "time", lambda: now + 500)
    assert clock.time() == pytest.approx(now + ahead, abs=60)
    clock.follow(None)
    assert clock.time() == now + 500


def test_store_clock_has_the_time_of_its_host_if_they_are_equal() -> None:
    clock = StoreClock()
    own = time.time() - uptime()
    clock.follow(own + StoreClock.TOLERANCE_SECONDS / 2)
    assert clock.time() - uptime() == pytest.approx(own, abs=StoreClock.TOLERANCE_SECONDS / 4)

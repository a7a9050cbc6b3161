"""Times in which the engine received nothing."""

from __future__ import annotations

from wbengine.engines.worker_based._discovery.finder import Reception


def test_time_without_reception_is_counted_once() -> None:
    """A pause of the loop also delays the echo."""
    reception = Reception(period=5.0)
    reception.record_echo(0.0)
    reception.record_loop_iteration(0.0, None)
    assert reception.outage_seconds(10.0, 30.0) == 20.0  # the outage continues
    reception.record_loop_iteration(30.0, None)
    reception.record_echo(30.0)
    assert reception.outage_seconds(0.0, 30.0) == 30.0
    assert reception.outage_seconds(30.0, 35.0) == 0.0
    assert reception.outage_seconds(25.0, 26.0) == 1.0

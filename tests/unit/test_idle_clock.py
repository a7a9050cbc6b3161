"""The clock of simulated runs."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wbengine.testing._crashing import clock as idle_clock
from wbengine.testing._crashing.killed import Stuck


def _wait_forever(seconds: float | None) -> bool:
    raise Stuck


class _SlowChild(idle_clock.IdleClock):
    """Another run goes on for some rounds, and then adds an item."""

    rounds = 0

    @contextlib.contextmanager
    def stuck(self, events: queue.SimpleQueue[Any]) -> Iterator[Callable[[], bool]]:
        with super().stuck(events) as others_go_on:

            def go_on() -> bool:
                self.rounds += 1
                if self.rounds == 3:
                    events.put("end")
                return others_go_on()

            yield go_on


def test_stuck_run_waits_while_another_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_clock, "_GRACE_SECONDS", 0)
    clock = _SlowChild(0.0, _wait_forever)
    events, of_child = clock.queue(), clock.queue()
    clock.attach(events, bool)
    clock.attach(of_child, bool)

    assert events.get() == "end"
    assert clock.rounds == 3


def test_runs_that_are_all_stuck_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_clock, "_GRACE_SECONDS", 0)
    clock = idle_clock.IdleClock(0.0, _wait_forever)
    events, of_child = clock.queue(), clock.queue()
    clock.attach(events, bool)
    clock.attach(of_child, bool)

    with clock.stuck(of_child), pytest.raises(Stuck):
        events.get()
    clock.detach(of_child)
    with pytest.raises(Stuck):
        events.get()

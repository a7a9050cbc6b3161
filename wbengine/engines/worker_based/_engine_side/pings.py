"""Pings to the workers of an executor, and their replies."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wbengine._concurrency import conditions
from wbengine._concurrency.clocks import SYSTEM
from wbengine.engines.worker_based._messages import notices


@dataclass(frozen=True, slots=True)
class Pong:
    """The reply of a worker to a ping.

    `seconds` is the response time. `ahead` is the difference of the worker's clock to the clock of
    this host, with an error of at most half of `seconds`; None if unknown.
    """

    seconds: float
    ahead: float | None = None


class _Round:
    __slots__ = ("answers", "since", "wall", "workers")

    def __init__(self, workers: Iterable[str]) -> None:
        self.workers = frozenset(workers)
        self.answers: dict[str, Pong] = {}
        self.since = SYSTEM.monotonic()
        self.wall = SYSTEM.time()


class Pings:
    """Pings that wait for replies. Thread-safe.

    If no round is open, a received message costs one comparison.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = conditions.Condition(self._lock)
        self._rounds: tuple[_Round, ...] = ()

    def begin(self, workers: Iterable[str]) -> _Round:
        """Start a round. Call this immediately before you ping the workers."""
        ping_round = _Round(workers)
        with self._lock:
            self._rounds = (*self._rounds, ping_round)
        return ping_round

    def wait(self, round: _Round, timeout: float) -> dict[str, Pong]:
        """Return the replies that arrive within `timeout` seconds, and close the round."""
        self._changed.wait_for(lambda: len(round.answers) == len(round.workers), timeout)
        with self._lock:
            self._rounds = tuple(each for each in self._rounds if each is not round)
            return dict(round.answers)

    def record_reply(self, headers: Any) -> None:
        reply = notices.worker_and_time(headers) if self._rounds else None
        if reply is None:
            return
        worker, sent_at = reply
        with self._lock:
            for each in self._rounds:
                if worker in each.workers and worker not in each.answers:
                    each.answers[worker] = _pong(each, sent_at)
                    self._changed.notify_all()


def _pong(round: _Round, reported_time: Any) -> Pong:
    seconds = SYSTEM.monotonic() - round.since
    if type(reported_time) not in (int, float):
        return Pong(seconds)
    return Pong(seconds, reported_time - (round.wall + seconds / 2))

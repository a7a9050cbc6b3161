"""How long it takes a worker to answer, and what its clock says."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wbengine._clock import SYSTEM
from wbengine.engines.worker_based.messages import envelope as env


@dataclass(frozen=True, slots=True)
class Pong:
    """A worker answered after so many `seconds`.

    `ahead`: by how many seconds its clock is ahead of this host's, give or take half of these; None
    where it does not tell the time.
    """

    seconds: float
    ahead: float | None = None


class _Round:
    """Workers that were asked at one moment, and what they answered."""

    __slots__ = ("answers", "asked", "since", "wall")

    def __init__(self, workers: Iterable[str]) -> None:
        self.asked = frozenset(workers)
        self.answers: dict[str, Pong] = {}
        self.since = SYSTEM.monotonic()
        self.wall = SYSTEM.time()


class Pings:
    """Who was asked, and has not answered yet.  Thread-safe; costs nothing while nobody is."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rounds: tuple[_Round, ...] = ()

    def begin(self, workers: Iterable[str]) -> _Round:
        """They are asked now."""
        made = _Round(workers)
        with self._changed:
            self._rounds = (*self._rounds, made)
        return made

    def wait(self, round: _Round, timeout: float) -> dict[str, Pong]:
        """What those of a round answer within `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: len(round.answers) == len(round.asked), timeout)
            self._rounds = tuple(each for each in self._rounds if each is not round)
            return dict(round.answers)

    def hear(self, headers: Any) -> None:
        """Somebody tells who he is."""
        if not self._rounds or headers.get(env.WBE_STATE) == env.BEAT:
            return  # nobody asked for that
        worker = headers.get(env.WBE_WORKER)
        with self._changed:
            for each in self._rounds:
                if worker in each.asked and worker not in each.answers:
                    each.answers[worker] = _pong(each, headers.get(env.WBE_TIME))
                    self._changed.notify_all()


def _pong(round: _Round, told: Any) -> Pong:
    seconds = SYSTEM.monotonic() - round.since
    if type(told) not in (int, float):
        return Pong(seconds)
    return Pong(seconds, told - (round.wall + seconds / 2))

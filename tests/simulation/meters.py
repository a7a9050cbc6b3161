"""Costs of a simulated fleet."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from wbengine.engines.worker_based._messages import envelope as env


class Meter:
    """CPU time of this thread and numbers of operations by purpose.

    `clock` may count other units than seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.seconds: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        #: Number of messages by kind; sizes (headers and bodies as JSON) are sampled.
        self.messages: Counter[str] = Counter()
        self._sizes: dict[str, list[int]] = {}
        self._part = ""
        self._since = clock()

    def part(self, name: str) -> str:
        """Account the following time to `name`; return the previous purpose."""
        now, before = self._clock(), self._part
        self.seconds[before] += now - self._since
        self._part, self._since = name, now
        return before

    def sent(self, kind: str, envelope: env.Envelope) -> None:
        seen = self.messages[kind] = self.messages[kind] + 1
        if seen & (seen - 1) == 0 or seen % 1024 == 0:
            before = self.part("sizes")
            size = len(envelope.encoded) + len(env._encode(envelope.headers))
            self._sizes.setdefault(kind, []).append(size)
            self.part(before)

    def size(self, kind: str) -> float:
        """Return the mean size of a message of that kind in bytes."""
        sizes = self._sizes.get(kind) or [0]
        return sum(sizes) / len(sizes)

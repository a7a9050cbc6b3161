"""What a simulated fleet costs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from wbengine.engines.worker_based.messages import envelope as env


class Meter:
    """CPU time of this thread, and operations, by what they were for.

    `clock` may count something else than seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.seconds: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        #: Messages and bytes (of headers and bodies, as JSON) by kind; sizes are of some of them.
        self.messages: Counter[str] = Counter()
        self._sizes: dict[str, list[int]] = {}
        self._part = ""
        self._since = clock()

    def part(self, name: str) -> str:
        """What comes from now on is for `name`; what it was for until now."""
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
        """Bytes of a message of that kind, on average."""
        sizes = self._sizes.get(kind) or [0]
        return sum(sizes) / len(sizes)

"""Lines of the log of which anybody can cause any number."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Final

#: Seconds in which one reason is told once.
PERIOD: Final = 60.0


class RareWarnings:
    """Warnings of one kind: each reason is told once a minute, with how many there were.

    Reasons are few: what others send is in the text, not in them.  Any thread.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()
        self._due: dict[str, float] = {}

    def tell(self, reason: str, text: str, *args: object) -> None:
        """`text` and `args` as for a logger."""
        self._counts[reason] += 1
        now = time.monotonic()
        if now >= self._due.get(reason, now):
            self._due[reason] = now + PERIOD
            self._log.warning(text + " (%d of those so far)", *args, self._counts[reason])

"""Rate-limited warnings for events that other processes can cause in any number."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Final

#: Minimum interval between two warnings with the same reason.
PERIOD_SECONDS: Final = 60.0


class RareWarnings:
    """Warnings that are logged at most once a minute for each reason, with their total number.

    Reasons must come from a small fixed set. Text from messages belongs into `args`. Thread-safe.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()
        self._due: dict[str, float] = {}

    def warn(self, reason: str, text: str, *args: object) -> None:
        """Count the reason, and log a warning unless it was logged recently.

        :param text: the format string for the logger, with `args`.
        """
        self._counts[reason] += 1
        now = time.monotonic()
        if now >= self._due.get(reason, now):
            self._due[reason] = now + PERIOD_SECONDS
            self._log.warning(text + " (%d of those so far)", *args, self._counts[reason])

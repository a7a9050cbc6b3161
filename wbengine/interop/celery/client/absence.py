"""That a broker is away, and what was said of it."""

from __future__ import annotations

import logging
from typing import Final

from wbengine.interop.celery.client.orders import CONFIRMED, NEW, Order

__all__ = ["Absence"]

LOG: Final = logging.getLogger(__name__)


class Absence:
    """Why the broker of a link, or the Redis of its results, is away, if it is.

    What is new is said in the log: why it is away, and, after that, that it is back.  It belongs to
    the thread of the link, but for `fate`, which any thread may call.

    :param shown: the URL of the broker, without passwords.
    """

    def __init__(self, shown: str) -> None:
        self._shown = shown
        #: Empty: it is there, or nobody has tried yet.
        self._why = ""

    def unreached(self, why: str, waiting: int) -> None:
        """An attempt to reach the broker failed; so many tasks wait for it."""
        if why != self._why:
            tasks = {0: "", 1: " (1 task waits)"}.get(waiting, f" ({waiting} tasks wait)")
            LOG.warning("the Celery broker at %s cannot be reached: %s%s", self._shown, why, tasks)
        self._why = why

    def lost(self, why: str, waiting: int) -> None:
        """The broker was there, but it, or the Redis of its results, is not now."""
        if why != self._why:
            told = "lost the Celery broker at %s, or its results, with %d tasks under way: %s"
            LOG.warning(told, self._shown, waiting, why)
        self._why = why

    def over(self) -> None:
        """All is there, and can be used."""
        if self._why:
            LOG.warning("the Celery broker at %s is back", self._shown)
        self._why = ""

    def fate(self, order: Order) -> str:
        """What is known of an order that has not ended; empty: a broker that is there has it."""
        why = self._why
        place, because = f"the broker at {self._shown}", f": {why}" if why else ""
        if order.stage == CONFIRMED:
            return f"{place} has its message, but is away{because}" if why else ""
        if order.stage == NEW and not order.recovered:
            return f"its message never reached {place}{because}"
        return f"{place} did not confirm its message{because}"

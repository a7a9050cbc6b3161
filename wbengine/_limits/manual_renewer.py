"""Limits of engines with a manual clock: counted in memory, on this clock, without a thread."""

from __future__ import annotations

import math
import threading
import weakref
from typing import Final

from wbengine._concurrency import clocks
from wbengine._limits import account_stores, permit_renewer, permit_sharing

__all__ = ["of_clock"]


class ManualRenewer(permit_renewer.PermitRenewer):
    """Sends requests in the threads of the engines, when they need or release a permit.

    The engines wait for the next permit of a rate themselves, with the clock. Nothing else changes
    these limits, so nothing is polled. Each request renews the permits of all flows.
    """

    def __init__(self, clock: clocks.Clock) -> None:
        source = weakref.proxy(clock)  # `_renewers` keeps this object as long as the clock.

        def now() -> float:
            return float(source.monotonic())

        super().__init__(account_stores.MemoryStore(now), now)
        self._is_settling = False

    def _start(self) -> None:
        """Start no thread."""

    def request_soon(self, name: str) -> None:
        super().request_soon(name)
        self.settle_due()

    def settle_due(self) -> None:
        if self._is_settling:  # An answer causes another request, which follows.
            return
        self._is_settling = True
        try:
            while requests := self._take_due():
                self._settle(requests)
                for name in requests:
                    limit = self._limits.get(name)
                    for membership in () if limit is None else limit.memberships.values():
                        membership.wake()  # It has permits, or sets the time of its next request.
        finally:
            self._is_settling = False

    def settles_at(self, name: str) -> float:
        limit = self._limits.get(name)
        return math.inf if limit is None else limit.due

    def _next(
        self,
        limit: permit_renewer._Limit,
        answer: permit_sharing.Answer,
        has_new: bool,
        now: float,
    ) -> float:
        if not limit.is_waiting or answer.retry_seconds is None:
            return math.inf  # The release of a permit sends the next request.
        return now + answer.retry_seconds


_lock: Final = threading.Lock()
_renewers: Final[weakref.WeakKeyDictionary[clocks.Clock, ManualRenewer]] = (
    weakref.WeakKeyDictionary()
)


def of_clock(clock: clocks.Clock) -> ManualRenewer:
    """Return the renewer of the limits of all engines with a manual clock."""
    with _lock:
        if clock not in _renewers:
            _renewers[clock] = ManualRenewer(clock)
        return _renewers[clock]

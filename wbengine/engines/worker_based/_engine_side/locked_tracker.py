"""State that the threads of an executor share: the tracker with its lock, and checks of leases.

It is used by threads of engines, which submit calls, by the consumer's thread, which receives
messages, by the threads that publish, and by the ledger's thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable

from wbengine import exceptions
from wbengine._concurrency.clocks import SYSTEM
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests.tracker import RequestTracker

LOG = logging.getLogger(__name__)

Check = Callable[[], object]


class FlowGuards:
    """The checks of an executor's flows, which raise LeaseLost if another engine owns the flow.

    Do not call checks under a lock of the executor: a check can report the loss of the flow,
    which takes other locks.
    """

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        # Check of the flow whose next owner may take over the executor's name; None if it may not.
        self._sole: Check | None = None
        #: Whether the executor has lost all its flows. It then reads and acknowledges no messages.
        self.disowned = False

    def add(self, flow: str, check: Check | None, *, sole: bool) -> None:
        if check is not None:
            self._checks[flow] = check
            self._sole = check if sole else None

    def remove(self, flow: str) -> None:
        self._checks.pop(flow, None)
        self._sole = None

    @property
    def flows(self) -> Collection[str]:
        return self._checks.keys()

    def owns(self, flow: str) -> bool:
        return _passes(self._checks.get(flow))

    def reads_replies(self) -> bool:
        """Return whether received replies are for this executor, not for a new owner of its name.

        The new owner is an executor that took over the only flow of this one.
        """
        return not self.disowned and _passes(self._sole)


def _passes(check: Check | None) -> bool:
    try:
        if check is not None:
            check()
    except exceptions.LeaseLost:
        return False
    return True


class LockedTracker:
    """The request tracker of an executor, and the only lock that protects it.

    Hold `lock` while you use `tracker`. Release it before you apply the effects, because they
    publish, write to the ledger and call engines.

    :param perform: performs one effect, in the thread that reports the event.
    """

    def __init__(self, tracker: RequestTracker, perform: Callable[[fx.Effect], None]) -> None:
        self.tracker = tracker
        self.lock = threading.RLock()
        self._perform = perform

    def report(self, on_event: Callable[..., list[fx.Effect]], *arguments: object) -> None:
        """Pass an event and the time to a method of the tracker, and apply its effects."""
        with self.lock:
            effects = on_event(*arguments, SYSTEM.monotonic())
        self.apply(effects)

    def apply(self, effects: Iterable[fx.Effect]) -> None:
        for effect in effects:
            try:
                self._perform(effect)
            except Exception:  # The remaining effects belong to other requests.
                LOG.exception("failed to perform %s", type(effect).__name__)

"""Ownership checks for the flows of an executor."""

from __future__ import annotations

from collections.abc import Callable, Collection

from wbengine import exceptions

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

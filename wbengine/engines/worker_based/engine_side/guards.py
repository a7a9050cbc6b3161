"""Whether the flows that an executor serves are still its own."""

from __future__ import annotations

from collections.abc import Callable, Collection

from wbengine import exceptions

Check = Callable[[], object]


class FlowGuards:
    """The checks of an executor's flows: one raises LeaseLost as soon as its flow is another's.

    A flow without a check is its own.  Checks are not called under a lock of the executor: an owner
    that finds its flow lost tells so, under locks of its own.
    """

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        # That of the one flow whose next owner may take the executor's name; None: there is none.
        self._sole: Check | None = None
        #: Everything was disowned: no message is read, or acknowledged, any more.
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

    def reads(self) -> bool:
        """Whether the answers that come are for this executor, and not for one that has its name
        by now.
        """
        return not self.disowned and _passes(self._sole)


def _passes(check: Check | None) -> bool:
    try:
        if check is not None:
            check()
    except exceptions.LeaseLost:
        return False
    return True

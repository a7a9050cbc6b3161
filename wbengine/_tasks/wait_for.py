"""A task that only waits: for what somebody tells the flow from outside."""

from __future__ import annotations

import math
from typing import Any

from wbengine import atom, signals
from wbengine._tasks.base import Task


class WaitFor(Task):
    """Waits until the flow is given a signal of this name; the value of that is its result.

    ::

        flow.add(Quote(provides='price'),
                 task.WaitFor('approved', timeout=3 * 86400, provides='approval'),
                 Order())

    It holds no thread and no worker's slot, and goes on waiting when its engine died or the flow
    was suspended.  A signal is given by `engine.signal`, `FlowHandle.signal`, `operations.signal`,
    `wbengine flow signal`, or on the dashboard: also before the task begins; and once, the first
    one counts, for all tasks that wait for it and for each of their attempts.  Reverting it does
    nothing.

    :param signal: up to 255 printable characters.
    :param timeout: seconds from its beginning, in whichever run that was, after which it fails with
        `SignalTimeout`; None: never.
    :param provides: as for any task.
    :param name: `wait-for-<signal>` by default.
    :raises TypeError, ValueError: an argument makes no sense.
    """

    __module__ = "wbengine.task"

    local = True
    cancel_on_revert = True

    def __init__(
        self,
        signal: str,
        timeout: float | None = None,
        provides: atom.Provides | None = None,
        name: str | None = None,
    ) -> None:
        self.signal = signals.check_name(signal)
        self.timeout = _seconds(timeout)
        super().__init__(f"wait-for-{signal}" if name is None else name, provides)

    def execute(self) -> Any:
        """Not called: the engine waits."""
        raise NotImplementedError(f"{self.name!r} is not run: an engine waits for its signal")


def _seconds(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"The timeout of a WaitFor is seconds or None, not {timeout!r:.80}")
    if not 0 <= timeout < math.inf:
        raise ValueError(f"The timeout of a WaitFor is seconds from 0 on, not {timeout!r}")
    return timeout

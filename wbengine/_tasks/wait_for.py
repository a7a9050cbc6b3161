"""A task that waits for a signal."""

from __future__ import annotations

import math
from typing import Any

from wbengine import atom, signals
from wbengine._tasks.base import Task


class WaitFor(Task):
    """Waits for the signal with this name; its result is the value of the signal.

    ::

        flow.add(Quote(provides='price'),
                 task.WaitFor('approved', timeout=3 * 86400, provides='approval'),
                 Order())

    It occupies neither a thread nor a slot of a worker. A resumed flow continues to wait. To send a
    signal, use `engine.signal`, `FlowHandle.signal`, `operations.signal`, `wbengine flow signal` or
    the dashboard, also before the task begins. Only the first signal of a name is used, by all
    tasks that wait for it and in all their attempts. A revert has no effect.

    :param signal: up to 255 printable characters.
    :param timeout: seconds since the task first began, after which it fails with `SignalTimeout`;
        None: no limit.
    :param name: default: `wait-for-<signal>`.
    :raises TypeError, ValueError: if an argument is invalid.
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
        """Raise an exception, because engines wait for the signal instead."""
        raise NotImplementedError(
            f"execute of {self.name!r} is never called: the engine waits for its signal"
        )


def _seconds(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds or None, got {timeout!r:.80}")
    if not 0 <= timeout < math.inf:
        raise ValueError(f"timeout must be 0 or more seconds, got {timeout!r}")
    return timeout

"""When a call may start, and until when: `eta` and `expires` on an engine's own clock."""

from __future__ import annotations

import datetime as dt
import math
import sys
from typing import Any

from wbengine import invocation

__all__ = ["moment", "read"]


def moment(value: Any, what: str, now: float, wall: float) -> float:
    """The moment that `value` names, on the clock that shows `now` (and in unix seconds, `wall`).

    A number is the seconds from now on; a datetime has to be aware.

    :raises TypeError: it is neither.
    :raises ValueError: it is a naive datetime, or not a number of seconds from 0 on.
    """
    if isinstance(value, dt.datetime):
        if value.utcoffset() is None:
            raise ValueError(
                f"{what} must be an aware datetime (such as datetime.now(timezone.utc) + ...),"
                f" not the naive {value!r}: nobody knows which clock it is on"
            )
        return now + (value.timestamp() - wall)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{what} must be seconds or an aware datetime, not {value!r:.80}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{what} must be seconds from 0 on, not {value!r}")
    if value > sys.float_info.max:
        raise ValueError(f"{what} must be at most {sys.float_info.max:g} seconds")
    return now + value


def read(call: invocation.Invocation, now: float, wall: float) -> None:
    """Note in an execution, once, when it may start (its task's `eta`), and until when (`expires`).

    What was done is undone in any case: a reversion has neither.

    :raises TypeError, ValueError: they make no sense.
    """
    task = call.task
    if call.action != invocation.EXECUTE or call.not_before is not None:
        return
    call.not_before = now
    if task.eta is not None:
        call.not_before = moment(task.eta, f"eta of task {task.name!r}", now, wall)
    if task.expires is not None:
        call.not_after = moment(task.expires, f"expires of task {task.name!r}", now, wall)

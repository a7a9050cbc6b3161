"""Earliest and latest start of calls, from `eta` and `expires`."""

from __future__ import annotations

import datetime as dt
import math
import sys
from typing import Any

from wbengine._calls import invocation

__all__ = ["moment", "read"]


def moment(value: Any, what: str, now: float, wall: float) -> float:
    """Convert `value` to a time on the monotonic clock.

    :param value: seconds from now, or an aware datetime.
    :param what: name of the value, for errors.
    :param now: the current time on the monotonic clock.
    :param wall: the current time in Unix seconds.
    :raises TypeError: if `value` has another type.
    :raises ValueError: if `value` is a naive datetime, negative or infinite.
    """
    if isinstance(value, dt.datetime):
        if value.utcoffset() is None:
            raise ValueError(
                f"{what} must be an aware datetime (such as datetime.now(timezone.utc) + ...),"
                f" got {value!r} without a time zone"
            )
        return now + (value.timestamp() - wall)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{what} must be seconds or an aware datetime, got {value!r:.80}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{what} must be 0 or more seconds, got {value!r}")
    if value > sys.float_info.max:
        raise ValueError(f"{what} must be at most {sys.float_info.max:g} seconds")
    return now + value


def read(call: invocation.Invocation, now: float, wall: float) -> None:
    """Set the earliest start (`eta`) and the latest start (`expires`) of an execution, once.

    Reverts have neither.

    :raises TypeError, ValueError: if a value is invalid.
    """
    task = call.task
    if call.action != invocation.EXECUTE or call.not_before is not None:
        return
    not_before, not_after = now, None
    if task.eta is not None:
        not_before = moment(task.eta, f"eta of task {task.name!r}", now, wall)
    if task.expires is not None:
        not_after = moment(task.expires, f"expires of task {task.name!r}", now, wall)
    call.not_before, call.not_after = not_before, not_after

"""Earliest starts of tasks (`eta`), which are stored in their records.

So a resumed flow waits for the rest only.
"""

from __future__ import annotations

import contextlib
from typing import Any

from wbengine import states
from wbengine._calls import start_times
from wbengine.persistence import models

__all__ = ["has_passed", "is_waiting", "start_of", "store_start"]


def start_of(record: models.AtomDetail) -> float | None:
    """Return the stored earliest start in Unix seconds."""
    start = record.meta_value(models.STARTS_AT)
    return start if isinstance(start, float) else None


def store_start(record: models.AtomDetail, task: Any, now: float) -> None:
    """Store the earliest start of an execution, unless an earlier run has stored it.

    Ignore invalid values of `eta`, with which the call fails.

    :param now: Unix seconds.
    """
    if start_of(record) is None:
        with contextlib.suppress(TypeError, ValueError):
            record.meta[models.STARTS_AT] = start_times.moment(task.eta, "eta", now, now)


def is_waiting(record: models.AtomDetail, now: float) -> bool:
    """Return whether the latest attempt waited for its start, and nothing was started.

    :param now: Unix seconds.
    """
    start = start_of(record)
    if start is None or record.submitted is None:
        return False
    if record.state == states.PENDING:
        return start > record.submitted  # Otherwise it has passed the gate.
    return record.state == states.RUNNING and start > now


def has_passed(record: models.AtomDetail, now: float) -> bool:
    """Return whether the stored earliest start has passed; True without one."""
    start = start_of(record)
    return start is None or start <= now

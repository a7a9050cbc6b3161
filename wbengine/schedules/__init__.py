"""Schedules: rules by which `wbengine serve` submits flows at given times.

Example::

    schedules.add("nightly", "shop:report", cron="30 2 * * *", time_zone="Europe/Berlin",
                  backend="postgresql://flows@db/flows")

The public names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine._imports import lazily

if TYPE_CHECKING:
    from wbengine.schedules._store import Entry, Schedules, add
    from wbengine.schedules._ticks import Schedule

__all__ = ["Entry", "Schedule", "Schedules", "add"]

__getattr__, __dir__ = lazily.lazy_attributes(
    __name__,
    {
        "._store": ("Entry", "Schedules", "add"),
        "._ticks": ("Schedule",),
    },
)

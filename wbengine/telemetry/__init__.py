"""Metrics, traces and probes of flows, tasks and workers.

Nothing is imported or counted unless it is requested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine._imports import lazily

if TYPE_CHECKING:
    from wbengine.telemetry._programs import traced

__all__ = ["traced"]

__getattr__, __dir__ = lazily.lazy_attributes(__name__, {"._programs": ("traced",)})

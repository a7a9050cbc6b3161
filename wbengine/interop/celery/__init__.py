"""Celery's message protocol: run Celery tasks here, and run tasks of flows on Celery workers.

The public names are imported on first use, so that a worker loads only the modules that it uses.
Only `CeleryWorker` imports Celery itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine._imports import lazily

if TYPE_CHECKING:
    from wbengine.interop.celery._embedded_worker import CeleryWorker
    from wbengine.interop.celery._protocol import Malformed, TaskMessage, decode, encode
    from wbengine.interop.celery._request import Ignore, Reject, Retry, current
    from wbengine.interop.celery._serializers import Accepted, Refused, Undecodable, Wire
    from wbengine.interop.celery.events import Event
    from wbengine.interop.celery.task import CeleryTask

__all__ = [
    "Accepted", "CeleryTask", "CeleryWorker", "Event", "Ignore", "Malformed", "Refused", "Reject",
    "Retry", "TaskMessage", "Undecodable", "Wire", "current", "decode", "encode",
]  # fmt: skip

__getattr__, __dir__ = lazily.lazy_attributes(
    __name__,
    {
        "._protocol": ("Malformed", "TaskMessage", "decode", "encode"),
        "._serializers": ("Accepted", "Refused", "Undecodable", "Wire"),
        "._request": ("Ignore", "Reject", "Retry", "current"),
        ".task": ("CeleryTask",),
        "._embedded_worker": ("CeleryWorker",),
        ".events": ("Event",),
    },
)

"""Celery's message protocol: its tasks run here, and ours ask its workers.

The public names are found on first use: a worker loads no more of this than it is asked for.
Celery itself is never imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from wbengine.interop.celery.codec import decode, encode
    from wbengine.interop.celery.events import Event
    from wbengine.interop.celery.guest import Guest
    from wbengine.interop.celery.message import Malformed, TaskMessage
    from wbengine.interop.celery.publisher import EventPublisher
    from wbengine.interop.celery.receiver import EventReceiver
    from wbengine.interop.celery.retrying import Ignore, Reject, Retry, current
    from wbengine.interop.celery.serializers import Accepted, Refused, Undecodable
    from wbengine.interop.celery.signature import Signature
    from wbengine.interop.celery.task import CeleryTask
    from wbengine.interop.celery.wire import Wire

__all__ = [
    "Accepted",
    "CeleryTask",
    "Event",
    "EventPublisher",
    "EventReceiver",
    "Guest",
    "Ignore",
    "Malformed",
    "Refused",
    "Reject",
    "Retry",
    "Signature",
    "TaskMessage",
    "Undecodable",
    "Wire",
    "current",
    "decode",
    "encode",
]

#: Public name -> the module of this package that has it.
_PLACES: Final[dict[str, str]] = {
    "Accepted": "serializers",
    "CeleryTask": "task",
    "Event": "events",
    "EventPublisher": "publisher",
    "EventReceiver": "receiver",
    "Guest": "guest",
    "Ignore": "retrying",
    "Malformed": "message",
    "Refused": "serializers",
    "Reject": "retrying",
    "Retry": "retrying",
    "Signature": "signature",
    "TaskMessage": "message",
    "Undecodable": "serializers",
    "Wire": "wire",
    "current": "retrying",
    "decode": "codec",
    "encode": "codec",
}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{place}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

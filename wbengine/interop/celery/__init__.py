"""Celery's message protocol: its tasks run here, and ours ask its workers.

The public names are found on first use: a worker loads no more of this than it is asked for.
Celery itself is never imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wbengine import _lazily

if TYPE_CHECKING:
    from wbengine.interop.celery.canvas.signature import Signature
    from wbengine.interop.celery.client.task import CeleryTask
    from wbengine.interop.celery.monitoring.events import Event
    from wbengine.interop.celery.monitoring.publisher import EventPublisher
    from wbengine.interop.celery.monitoring.receiver import EventReceiver
    from wbengine.interop.celery.protocol.codec import decode, encode
    from wbengine.interop.celery.protocol.message import Malformed, TaskMessage
    from wbengine.interop.celery.protocol.serializers import Accepted, Refused, Undecodable
    from wbengine.interop.celery.protocol.wire import Wire
    from wbengine.interop.celery.retrying import Ignore, Reject, Retry, current
    from wbengine.interop.celery.worker.guest import Guest

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
    "Accepted": "protocol.serializers",
    "CeleryTask": "client.task",
    "Event": "monitoring.events",
    "EventPublisher": "monitoring.publisher",
    "EventReceiver": "monitoring.receiver",
    "Guest": "worker.guest",
    "Ignore": "retrying",
    "Malformed": "protocol.message",
    "Refused": "protocol.serializers",
    "Reject": "retrying",
    "Retry": "retrying",
    "Signature": "canvas.signature",
    "TaskMessage": "protocol.message",
    "Undecodable": "protocol.serializers",
    "Wire": "protocol.wire",
    "current": "retrying",
    "decode": "protocol.codec",
    "encode": "protocol.codec",
}

__getattr__, __dir__ = _lazily.names(
    __name__, {name: f"{__name__}.{place}" for name, place in _PLACES.items()}
)

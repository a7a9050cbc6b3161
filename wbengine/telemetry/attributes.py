"""The names of attributes of spans, those of OpenTelemetry's conventions where they have one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine.types import failure as ft

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["failed", "failed_with", "flow", "message"]

FLOW_UUID: Final = "wbengine.flow.uuid"
FLOW_NAME: Final = "wbengine.flow.name"
FLOW_STATE: Final = "wbengine.flow.state"
ATOM_UUID: Final = "wbengine.atom.uuid"
ATOM_NAME: Final = "wbengine.atom.name"
ATOM_STATE: Final = "wbengine.atom.state"
#: `execute` or `revert`.
DIRECTION: Final = "wbengine.direction"
#: Of the atom: its executions and reversions are counted together.
ATTEMPT: Final = "wbengine.attempt"
WORKER: Final = "wbengine.worker"
#: What a task is called that no engine sent.
TASK: Final = "wbengine.task"
ERROR: Final = "error.type"


def flow(uuid: str, name: str) -> dict[str, Any]:
    return {FLOW_UUID: uuid, FLOW_NAME: name}


def message(
    operation: str, system: str, topic: str, id: str, epoch: int, routing_key: str
) -> dict[str, Any]:
    """Of a span that sends or processes (`operation`) a message."""
    found: dict[str, Any] = {
        "messaging.system": system,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        "messaging.message.id": f"{id}.{epoch}",
        "messaging.message.conversation_id": id,
    }
    if system == "rabbitmq":
        found["messaging.rabbitmq.destination.routing_key"] = routing_key
    return found


def failed(span: Span, kind: str) -> None:
    """Mark a span as failed: by the kind of the error only, for its message may hold anything."""
    from opentelemetry.trace import StatusCode

    span.set_attribute(ERROR, kind)
    span.set_status(StatusCode.ERROR)


def failed_with(span: Span, value: Any) -> None:
    """`failed`, if `value` is a failure, or several by name."""
    if isinstance(value, Mapping):
        value = next(iter(value.values()), None)
    if isinstance(value, ft.Failure):
        failed(span, next(iter(value), "error"))

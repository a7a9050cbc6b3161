"""The names of attributes of spans, those of OpenTelemetry's conventions where they have one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine.telemetry import labels
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["error_of", "failed", "failed_with", "flow", "message"]

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
SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
CONVERSATION: Final = "messaging.message.conversation_id"


def flow(uuid: str, name: str) -> dict[str, Any]:
    return {FLOW_UUID: labels.text(uuid), FLOW_NAME: labels.text(name)}


def message(
    operation: str, system: str, topic: str, id: str, epoch: int, routing_key: str
) -> dict[str, Any]:
    """Of a span that sends or processes (`operation`) a message."""
    id = labels.text(id)  # as whoever sent it likes
    found: dict[str, Any] = {
        SYSTEM: system,
        OPERATION: operation,
        OPERATION_TYPE: operation,
        DESTINATION: topic,
        "messaging.message.id": f"{id}.{epoch}",
        CONVERSATION: id,
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
    kind = error_of(value)
    if kind is not None:
        failed(span, kind)


def error_of(value: Any) -> str | None:
    """The kind of the error that a failure stands for; None: it is none."""
    return next(iter(value), "error") if isinstance(value, ft.Failure) else None

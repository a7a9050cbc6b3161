"""Attributes of spans, with the names of OpenTelemetry's semantic conventions where they exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine.telemetry import _labels
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["error_type", "mark_failed", "mark_failed_with", "flow", "message"]

FLOW_UUID: Final = "wbengine.flow.uuid"
FLOW_NAME: Final = "wbengine.flow.name"
FLOW_STATE: Final = "wbengine.flow.state"
ATOM_UUID: Final = "wbengine.atom.uuid"
ATOM_NAME: Final = "wbengine.atom.name"
ATOM_STATE: Final = "wbengine.atom.state"
#: `execute` or `revert`.
DIRECTION: Final = "wbengine.direction"
#: The attempt of the atom, which counts executions and reversions.
ATTEMPT: Final = "wbengine.attempt"
WORKER: Final = "wbengine.worker"
#: The name of a task that a foreign client sent.
TASK: Final = "wbengine.task"
ERROR: Final = "error.type"
SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
CONVERSATION: Final = "messaging.message.conversation_id"


def flow(uuid: str, name: str) -> dict[str, Any]:
    return {FLOW_UUID: _labels.text(uuid), FLOW_NAME: _labels.text(name)}


def message(
    operation: str, system: str, topic: str, id: str, epoch: int, routing_key: str
) -> dict[str, Any]:
    """Return the attributes of a span that sends or processes (`operation`) a message."""
    id = _labels.text(id)  # The client chooses the id.
    attributes: dict[str, Any] = {
        SYSTEM: system,
        OPERATION: operation,
        OPERATION_TYPE: operation,
        DESTINATION: topic,
        "messaging.message.id": f"{id}.{epoch}",
        CONVERSATION: id,
    }
    if system == "rabbitmq":
        attributes["messaging.rabbitmq.destination.routing_key"] = routing_key
    return attributes


def mark_failed(span: Span, kind: str) -> None:
    """Mark a span as failed with a type of error, without the message: it may contain secrets."""
    from opentelemetry.trace import StatusCode

    span.set_attribute(ERROR, kind)
    span.set_status(StatusCode.ERROR)


def mark_failed_with(span: Span, value: Any) -> None:
    """Mark a span as failed if `value` is a failure or a mapping of failures."""
    if isinstance(value, Mapping):
        value = next(iter(value.values()), None)
    kind = error_type(value)
    if kind is not None:
        mark_failed(span, kind)


def error_type(value: Any) -> str | None:
    """Return the type of the error if `value` is a failure, else None."""
    return next(iter(value), "error") if isinstance(value, ft.Failure) else None

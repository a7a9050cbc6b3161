"""Results of ended flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from wbengine import exceptions, states
from wbengine.engines import _allowed, _flow_errors, _loading
from wbengine.persistence import base, models
from wbengine.storage import Storage
from wbengine.types import codec

__all__ = ["FlowError", "FlowResult", "read"]


class FlowError(NamedTuple):
    """The error of a flow: the class and the text of its exception."""

    type: str
    message: str


class FlowResult(NamedTuple):
    """The result of a flow.

    :ivar has_ended: whether the flow has ended, and is not to run again.
    :ivar values: all values by name, as `FlowHandle.result` returns them; None without success.
    :ivar error: the error of a flow that ended without success.
    """

    state: str
    has_ended: bool
    values: Mapping[str, Any] | None = None
    error: FlowError | None = None


def read(connection: base.Connection, uuid: str) -> FlowResult:
    """Return the result of a flow, without waiting.

    The flow defines the names of the values, so this calls its factory.

    :raises NotFound: if the flow does not exist.
    :raises NotTrusted: if its factory is not among the allowed flows of this process.
    """
    is_requested = bool(connection.commands([uuid]))
    state = connection.get_flow_details(uuid, lazy=True).state or states.PENDING
    if state not in states.FLOW_ENDED or is_requested:
        return FlowResult(state, False)
    if state != states.SUCCESS:
        with codec.unknown_classes_as_text():
            detail = connection.get_flow_details(uuid)
        try:
            _flow_errors.raise_recorded(Storage(detail))
        except Exception as error:
            return FlowResult(state, True, error=_error_of(error))
    detail = _loading.read_flow_detail(connection, uuid, _allowed.of_process())
    return FlowResult(state, True, _values(connection, detail))


def _values(connection: base.Connection, detail: models.FlowDetail) -> Mapping[str, Any]:
    payloads = connection.backend.payloads
    return _loading.values_of(detail, payloads=payloads, flows=_allowed.of_process())


def _error_of(error: Exception) -> FlowError:
    if isinstance(error, exceptions.WrappedFailure):
        failure = next(iter(error))
        return FlowError(next(iter(failure)), failure.exception_str)
    kind = type(error)
    return FlowError(f"{kind.__module__}.{kind.__qualname__}", str(error))

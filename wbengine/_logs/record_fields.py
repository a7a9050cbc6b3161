"""Fields of log records: the flow, task, step, request and attempt to which they belong."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

from wbengine import running

__all__ = ["adding_flow", "of_call", "of_context"]

#: Name of a step: the name of its workflow, and the number of the attempt and of the step.
_STEP: Final = re.compile(r"(.+)/(\d+\.\d+-.+)", re.DOTALL)

#: Uuid of the flow that this thread runs.
_FLOW: Final[ContextVar[str]] = ContextVar("wbengine_flow", default="")


@contextlib.contextmanager
def adding_flow(uuid: str) -> Iterator[None]:
    """Add the uuid of a flow to the fields of log records in a `with` block."""
    token = _FLOW.set(uuid)
    try:
        yield
    finally:
        _FLOW.reset(token)


def of_call(flow: str, name: str, request: str, attempt: int) -> dict[str, object]:
    """Return the fields of a log record about a call of the task or step with this name."""
    step = _STEP.fullmatch(name)
    fields: dict[str, object] = {"flow": flow} if flow else {}
    fields |= {"task": name} if step is None else {"task": step[1], "step": step[2]}
    return {**fields, "request": request, "attempt": attempt}


def of_context() -> dict[str, object]:
    """Return the fields of log records of this context: those of its flow and its call."""
    call, flow = running.CURRENT.get(), _FLOW.get()
    request = None if call is None else call.task.request
    if call is None or request is None:
        return {"flow": flow} if flow else {}
    return of_call(request.flow_uuid, call.task.name, request.id, request.attempt)

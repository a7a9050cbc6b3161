"""What became of a task, as Celery's result backends keep it and its clients read it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions, limits
from wbengine.interop.celery.protocol import errors, serializers, showing
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.interop.celery.protocol.message import TaskMessage
    from wbengine.interop.celery.protocol.steps import Missed

__all__ = [
    "FAILURE",
    "RETRY",
    "REVOKED",
    "STARTED",
    "SUCCESS",
    "ChordPart",
    "Fallen",
    "Result",
]

STARTED: Final = "STARTED"
RETRY: Final = "RETRY"
SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"
REVOKED: Final = "REVOKED"

Encoded = tuple[str, str, bytes]


@dataclass(slots=True)
class Result:
    """The state of one task, for its client.

    `value` is the result, or the description of its exception (`errors.told`).  `children` are the
    tasks that it sent, each as `AsyncResult.as_tuple()`.  `date_done` is an ISO 8601 time in UTC.
    It is replied to `reply_to` under `correlation_id`, where that is how results travel; without
    `reply_to`, nowhere.  `about` is what it also tells of its task (see `about`).
    """

    id: str
    state: str
    value: Any = None
    traceback: str | None = None
    children: Sequence[Any] = ()
    date_done: str | None = None
    group_id: str | None = None
    parent_id: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    serializer: str = "json"
    about: Mapping[str, Any] | None = None
    _encoded: Encoded | None = None

    def meta(self) -> dict[str, Any]:
        """The mapping that backends keep, and that `rpc://` sends."""
        found: dict[str, Any] = {
            "status": self.state,
            "result": self.value,
            "traceback": self.traceback,
            "children": list(self.children),
            "date_done": self.date_done,
        }
        if self.group_id:
            found["group_id"] = self.group_id
        if self.parent_id:
            found["parent_id"] = self.parent_id
        if self.about is not None:
            found.update(self.about)
        found["task_id"] = self.id
        return found

    @property
    def encoded(self) -> Encoded:
        """`(content type, content encoding, body)` of `meta()`, written once.

        :raises NotEncodable: the serializer cannot write the value.
        """
        if self._encoded is None:
            self._encoded = serializers.dump(self.meta(), self.serializer)
        return self._encoded


@dataclass(slots=True)
class ChordPart:
    """What one task is to a chord: `value` is as in the task's result, `body` what is called when
    all of its group ended, `serializer` what results are written in."""

    group: str
    index: int | None
    id: str
    state: str
    value: Any
    body: Mapping[str, Any]
    serializer: str = "json"


@dataclass(slots=True)
class Fallen:
    """A task that is not going to run, because one before it failed; and its part of a chord."""

    result: Result | None
    chord: ChordPart | None = None


def of_success(
    message: TaskMessage, value: Any, children: Sequence[Any], now: float, serializer: str
) -> Result:
    """The result of a task that returned `value`."""
    return _of(message, SUCCESS, value, None, children, now, serializer)


def of_failure(
    message: TaskMessage,
    failure: ft.Failure,
    now: float,
    serializer: str,
    limit: limits.TimeLimit = limits.UNLIMITED,
) -> Result:
    """The result of a task that failed."""
    value = errors.told(failure, limit, serializer)
    return _of(message, FAILURE, value, errors.traceback_of(failure), (), now, serializer)


def of_error(
    message: TaskMessage,
    error: Mapping[str, Any],
    now: float,
    serializer: str,
    state: str = FAILURE,
) -> Result:
    """The result of a task that did not run, for a reason that `errors.describe` made."""
    return _of(message, state, dict(error), None, (), now, serializer)


def of_state(message: TaskMessage, state: str, value: Any, serializer: str) -> Result:
    """A state that a task is in for now, like STARTED."""
    return _of(message, state, value, None, (), None, serializer)


def about(message: TaskMessage, worker: str, queue: str, serializer: str) -> dict[str, Any]:
    """What an extended result tells of its task besides, under the names that Celery has for it.

    Arguments that the serializer cannot write are told as `repr` shows them.
    """
    found: dict[str, Any] = {
        "name": message.task,
        "args": list(message.args),
        "kwargs": dict(message.kwargs),
        "worker": worker,
        "retries": message.retries,
        "queue": queue,
    }
    for name in ("args", "kwargs"):
        try:
            serializers.dump(found[name], serializer)
        except exceptions.NotEncodable:
            found[name] = showing.shown(found[name], asks=True)
    if message.stamps:
        names = message.stamped_headers or ()
        found["stamped_headers"] = list(names)
        found.update((name, message.stamps[name]) for name in names if name in message.stamps)
    return found


def part_of(message: TaskMessage, result: Result) -> ChordPart | None:
    """The part of a chord that a task's result is, if it is one."""
    if not (message.chord and message.group):
        return None
    return ChordPart(
        message.group,
        message.group_index,
        result.id,
        result.state,
        result.value,
        message.chord,
        result.serializer,
    )


def of_missed(missed: Missed, result: Result) -> Fallen:
    """What a task that is not going to run has in common with the one that failed before it."""
    part = None
    if missed.chord and missed.group:
        part = ChordPart(
            missed.group,
            missed.group_index,
            missed.id,
            result.state,
            result.value,
            missed.chord,
            result.serializer,
        )
    told = replace(
        result,
        id=missed.id,
        group_id=missed.group,
        parent_id=None,
        reply_to=None,
        correlation_id=None,
        children=(),
        about=None,
        _encoded=None,
    )
    return Fallen(told, part)


def moment(now: float) -> str:
    """A time as results have it."""
    return dt.datetime.fromtimestamp(now, dt.timezone.utc).isoformat()


def _of(
    message: TaskMessage,
    state: str,
    value: Any,
    traceback: str | None,
    children: Sequence[Any],
    now: float | None,
    serializer: str,
) -> Result:
    return Result(
        message.id,
        state,
        value,
        traceback,
        children,
        None if now is None else moment(now),
        message.group,
        message.parent_id,
        message.reply_to,
        message.correlation_id or message.id,
        serializer,
    )

"""The messages between engines and workers: NOTIFY, REQUEST and RESPONSE.

Bodies are plain JSON in the form that TaskFlow's peers use, and are validated with `schemas`.
Extensions are in message headers (see `headers`).
"""

from __future__ import annotations

import abc
import logging
import time
from collections.abc import Mapping
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Final

from automaton import exceptions as automaton_exceptions
from automaton import machines

from wbengine import exceptions as exc
from wbengine import running
from wbengine._introspection import object_names
from wbengine.engines.worker_based import _message_schemas
from wbengine.types import codec
from wbengine.types import failure as ft
from wbengine.types._schema_validation import Schema

LOG = logging.getLogger(__name__)

WAITING: Final = "WAITING"
PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"
EVENT: Final = "EVENT"

#: States in which the timeout of a request runs.
WAITING_STATES: Final = frozenset((WAITING, PENDING))
#: Final states.
STOP_STATES: Final = frozenset((SUCCESS, FAILURE))

NOTIFY: Final = "NOTIFY"
REQUEST: Final = "REQUEST"
RESPONSE: Final = "RESPONSE"

EXECUTE: Final = "execute"
REVERT: Final = "revert"

#: Default maximum of seconds in each of the waiting states.
REQUEST_TIMEOUT: Final = 60

#: The value of `result` in a request without a result (None is a valid result).
NO_RESULT: Final = object()


def make_an_event(new_state: str) -> str:
    """Return the name of the event that moves a request to `new_state`."""
    return f"on_{new_state.lower()}"


def build_a_machine(freeze: bool = True) -> machines.FiniteMachine:
    """Return the state machine of a request in its start state."""
    machine = machines.FiniteMachine()
    for state in (WAITING, PENDING, RUNNING):
        machine.add_state(state)
    for state in (SUCCESS, FAILURE):
        machine.add_state(state, terminal=True)
    for start, end in (
        (WAITING, PENDING),
        (WAITING, FAILURE),
        (PENDING, RUNNING),
        (PENDING, FAILURE),
        (RUNNING, SUCCESS),
        (RUNNING, FAILURE),
    ):
        machine.add_transition(start, end, make_an_event(end))
    machine.default_start_state = WAITING
    machine.initialize()
    if freeze:
        machine.freeze()
    return machine


#: Permitted pairs (state, next state), so that requests need no state machine.
_MOVES: Final = frozenset((start, end) for start, _, end in build_a_machine())


#: Parts of a failure that TaskFlow reads. It refuses other parts.
_TASKFLOW_PARTS: Final = (
    "version", "exception_str", "traceback_str", "exc_type_names", "exc_args", "causes",
)  # fmt: skip


def failure_to_dict(failure: ft.Failure, extended: bool = True) -> dict[str, Any]:
    """Return a failure as plain JSON.

    Exception arguments that cannot be encoded are omitted. Messages and tracebacks are limited to
    `failure.MAX_TEXT_LENGTH`, because each reversion that the failure causes sends them again.

    :param extended: False for peers of TaskFlow: without notes, members and attributes.
    """
    try:
        data = failure.to_json()
        codec.plain(data, "failure")
    except Exception:
        data = failure.to_json(include_args=False)
    ft.shorten(data)
    return data if extended else _for_taskflow(data)


def _for_taskflow(data: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: data[name] for name in _TASKFLOW_PARTS if name in data}
    if "causes" in known:
        known["causes"] = [_for_taskflow(cause) for cause in known["causes"]]
    return known


def _check_failure(data: Any) -> None:
    try:
        ft.Failure.validate(data)
    except (RecursionError, ValueError):  # The error itself cannot be displayed.
        raise exc.InvalidFormat("a failure is invalid") from None
    if data.get("version") != ft.Failure.DICT_VERSION:
        raise exc.InvalidFormat(f"the 'version' of a failure must be {ft.Failure.DICT_VERSION}")


class Message(abc.ABC):
    """A message body."""

    __slots__ = ()

    TYPE: str

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the body as a JSON tree."""


class Notify(Message):
    """The NOTIFY of an engine, or the announcement of a worker with its topic and tasks."""

    TYPE = NOTIFY

    RESPONSE_SCHEMA: Final = _message_schemas.ANSWER
    SENDER_SCHEMA: Final = _message_schemas.QUESTION

    _ANSWER: Final = Schema(RESPONSE_SCHEMA, "notify response")
    _QUESTION: Final = Schema(SENDER_SCHEMA, "notify request")

    def __init__(self, **data: Any) -> None:
        self._data = data

    @property
    def topic(self) -> str | None:
        return self._data.get("topic")

    @property
    def tasks(self) -> list[str] | None:
        return self._data.get("tasks")

    def to_dict(self) -> dict[str, Any]:
        return self._data

    @classmethod
    def validate(cls, data: Any, response: bool = False) -> None:
        """Validate the NOTIFY of an engine (or with `response`, of a worker).

        :raises InvalidFormat: if `data` is not valid.
        """
        (cls._ANSWER if response else cls._QUESTION).check(data)


@dataclass(slots=True)
class WorkUnit:
    """The content of a validated REQUEST, with failures and results as objects."""

    task_cls: str
    task_name: str
    action: str
    arguments: Mapping[str, Any]
    result: Any
    failures: Mapping[str, ft.Failure]
    #: Information about the request for the running task.
    request: running.Request | None = None
    #: Whether the log records of the task are stored.
    captures: bool = False
    #: The key of the row of a task with a transaction, or "", and the highest settled attempt.
    row: str = ""
    settled: int = 0
    #: Whether the engine reads values that are stored out of line.
    stores_large: bool = False


class Request(Message):
    """A remote execution of a task, and its state in the engine.

    A request starts in WAITING. Its timeout (`timeout` seconds, None: no limit) runs in WAITING and
    starts again in PENDING. It does not run in RUNNING, because the duration of a task is unknown.
    `future` resolves to `(event, result)`.
    """

    TYPE = REQUEST

    SCHEMA: Final = _message_schemas.REQUEST
    _SCHEMA: Final = Schema(SCHEMA, "request")

    __slots__ = (
        "_future",
        "action",
        "arguments",
        "current_state",
        "failures",
        "result",
        "since",
        "task",
        "task_cls",
        "timeout",
        "uuid",
    )

    def __init__(
        self,
        task: Any,
        uuid: str,
        action: str,
        arguments: Mapping[str, Any],
        timeout: float | None = REQUEST_TIMEOUT,
        result: Any = NO_RESULT,
        failures: Mapping[str, ft.Failure] | None = None,
    ) -> None:
        self.task = task
        self.task_cls = object_names.class_name(type(task))
        self.uuid = uuid
        self.action = action
        self.arguments = arguments
        self.timeout = timeout
        self.result = result
        self.failures = failures
        self.since = time.monotonic()
        self.current_state: str = WAITING
        self._future: futures.Future[tuple[str, Any]] | None = None

    def __repr__(self) -> str:
        # Arguments are omitted, because they may be secret or large.
        return f"<Request {self.uuid} {self.action} {self.task.name!r} {self.current_state}>"

    @property
    def future(self) -> futures.Future[tuple[str, Any]]:
        if self._future is None:
            self._future = futures.Future()
            self._future.set_running_or_notify_cancel()
        return self._future

    def set_result(self, result: Any) -> None:
        """Resolve the future; ignore a second result."""
        if not self.future.done():
            self.future.set_result((f"{self.action}d", result))

    @property
    def expired(self) -> bool:
        """Whether the request has been WAITING or PENDING for longer than `timeout`."""
        return self.expired_at(time.monotonic())

    def expired_at(self, now: float) -> bool:
        """Return `expired` for this time of the monotonic clock."""
        return (
            self.current_state in WAITING_STATES
            and self.timeout is not None
            # This sum must be exactly that of the timer, because the timer fires only once.
            and now >= self.since + self.timeout
        )

    def transition(self, new_state: str) -> bool:
        """Move to `new_state`; return False if it is the present state.

        :raises InvalidState: if the state machine does not permit it; its error is the cause.
        """
        if self.current_state == new_state:
            return False
        if (self.current_state, new_state) not in _MOVES:
            try:
                machine = build_a_machine()
                machine.initialize(self.current_state)
                machine.process_event(make_an_event(new_state))
            except automaton_exceptions.AutomatonException as error:
                raise exc.InvalidState(
                    f"request {self.uuid} of task {self.task.name!r} cannot change from"
                    f" {self.current_state} to {new_state}"
                ) from error
        self.current_state = new_state
        return True

    def transition_and_log_error(
        self, new_state: str, logger: logging.Logger | None = None
    ) -> bool:
        """Like `transition`, but log a warning and return False instead of raising."""
        try:
            return self.transition(new_state)
        except exc.InvalidState as error:
            (logger or LOG).warning("%s", error)
            return False

    def to_dict(self) -> dict[str, Any]:
        """Return the body without encoding; values must be plain JSON (see `encode`)."""
        return self.encode(codec.plain, extended=False)

    def encode(self, pack: Any, extended: bool = True) -> dict[str, Any]:
        """Return the body, with `pack(value, where)` applied to user values.

        :param extended: False for peers of TaskFlow.
        :raises NotEncodable: if `pack` rejects a value; the error contains its path.
        """
        body: dict[str, Any] = {
            "action": self.action,
            "arguments": {
                name: pack(value, f"arguments[{name!r}]") for name, value in self.arguments.items()
            },
            "task_cls": self.task_cls,
            "task_name": self.task.name,
            "task_version": list(self.task.version),
        }
        if self.result is not NO_RESULT:
            if isinstance(self.result, ft.Failure):
                body["result"] = ["failure", failure_to_dict(self.result, extended)]
            else:
                body["result"] = ["success", pack(self.result, "result")]
        if self.failures:
            body["failures"] = {
                name: failure_to_dict(failure, extended) for name, failure in self.failures.items()
            }
        return body

    @classmethod
    def validate(cls, data: Any) -> None:
        """Validate the body of a REQUEST completely.

        :raises InvalidFormat: if `data` is not valid.
        """
        cls._SCHEMA.check(data)
        try:
            object_names.check_length("request['task_name']", data["task_name"])
        except ValueError as error:
            raise exc.InvalidFormat(str(error)) from None
        if "result" in data and data["result"][0] == "failure":
            _check_failure(data["result"][1])
        for failure in data.get("failures", {}).values():
            _check_failure(failure)

    @staticmethod
    def from_dict(data: Mapping[str, Any], task_uuid: str | None = None) -> WorkUnit:
        """Read a validated plain body (see `decode`). `task_uuid` is TaskFlow's, and unused."""
        return Request.decode(data, lambda value: value)

    @staticmethod
    def decode(
        data: Mapping[str, Any], unpack: Any, request: running.Request | None = None
    ) -> WorkUnit:
        """Read a validated body, with `unpack` applied to user values."""
        result: Any = None
        if "result" in data:
            kind, value = data["result"]
            result = ft.Failure.from_dict(value) if kind == "failure" else unpack(value)
        arguments, failures = data.get("arguments"), data.get("failures")
        return WorkUnit(
            data["task_cls"],
            data["task_name"],
            data["action"],
            {k: unpack(v) for k, v in arguments.items()} if arguments else {},
            result,
            {k: ft.Failure.from_dict(v) for k, v in failures.items()} if failures else {},
            request,
        )


class Response(Message):
    """A reply of a worker about a request: its progress or its result."""

    TYPE = RESPONSE

    SCHEMA: Final = _message_schemas.RESPONSE
    _SCHEMA: Final = Schema(SCHEMA, "response")
    _NEEDED: Final = {EVENT: "event_type", SUCCESS: "result", FAILURE: "result"}

    def __init__(self, state: str, **data: Any) -> None:
        self.state = state
        self.data = data

    def to_dict(self) -> dict[str, Any]:
        return {"state": self.state, "data": self.data}

    @classmethod
    def validate(cls, data: Any) -> None:
        """Validate the body of a RESPONSE, including the data for its state.

        :raises InvalidFormat: if `data` is not valid.
        """
        cls._SCHEMA.check(data)
        state = data["state"]
        needed = cls._NEEDED.get(state)
        if needed is not None and needed not in data["data"]:
            raise exc.InvalidFormat(f"response['data'] must contain {needed!r} in state {state}")
        if state == FAILURE:
            _check_failure(data["data"]["result"])

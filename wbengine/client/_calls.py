"""The calls of the API that each method of a client makes, without input and output.

A method is a generator: it yields calls, receives their JSON responses, and returns its result.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote

from wbengine import exceptions, states
from wbengine._introspection import object_names

__all__ = [
    "AccessDenied",
    "Call",
    "FlowFailed",
    "Steps",
    "cancel",
    "CallFailed",
    "error_of",
    "flows_page",
    "next_call",
    "perform",
    "published",
    "result",
    "signal",
    "state",
    "submit",
    "wait",
]

_T = TypeVar("_T")

#: Maximum time in seconds for which the server delays a response until a flow has ended.
LONG_POLL_SECONDS: Final = 30.0
_ERROR_TYPE: Final = "urn:wbengine:error:"
#: Status of a call that the server rejected before it did anything.
_TOO_MANY: Final = 429
#: Statuses of a call of which it is unknown whether the server carried it out.
_UNAVAILABLE: Final = frozenset({408, 502, 503, 504})
#: Exceptions that are raised here as in the server.
_KINDS: Final[Mapping[str, type[exceptions.WbengineException]]] = {
    each.__name__: each
    for each in (
        exceptions.Duplicate,
        exceptions.InvalidState,
        exceptions.NotFound,
        exceptions.UniqueKeyConflict,
    )
}
_STATUSES: Final[Mapping[int, type[exceptions.WbengineException]]] = {
    404: exceptions.NotFound,
    409: exceptions.InvalidState,
}


class AccessDenied(exceptions.WbengineException):
    """The key is missing, is wrong, or has a role that does not permit the operation."""


class FlowFailed(exceptions.ExecutionFailure):
    """A flow ended without success.

    :ivar state: the state of the flow.
    :ivar type: class of its error, such as `shop.CardDeclined`.
    """

    def __init__(self, message: str, state: str = "", type: str = "") -> None:
        super().__init__(message)
        self.state = state
        self.type = type


class CallFailed(exceptions.TransportFailure):
    """A call without a response, or whose response says that the server could not carry it out.

    :ivar is_repeated: whether the client repeats the call.
    """

    def __init__(self, message: str = "", is_repeated: bool = False) -> None:
        super().__init__(message)
        self.is_repeated = is_repeated


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the API.

    :ivar path: after `/api/v1/`.
    :ivar is_repeatable: whether a second call has no further effect, so that the call is repeated
        if its response is lost.
    """

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True


Steps = Generator[Call, Mapping[str, Any], _T]


def submit(
    factory: str,
    *,
    unique: str | None,
    unique_for: str | float | None,
    eta: datetime | float | None,
    tags: Mapping[str, str | float | bool | datetime] | None,
    debounce: tuple[str, float] | None,
    **options: Any,
) -> Steps[str]:
    """Submit a flow and return its uuid.

    Without `unique` and `debounce`, the call has a random key, so that it can be repeated. With a
    key that ends with the run or the start of its flow, a repeated call could start a second run.
    """
    given = {"unique": unique, "unique_for": unique_for, **options}
    given["eta"] = eta.isoformat() if isinstance(eta, datetime) else eta
    if tags is not None:
        given["tags"] = {
            key: {"time": value.isoformat()} if isinstance(value, datetime) else value
            for key, value in tags.items()
        }
    if debounce is not None:
        given["debounce"], given["debounce_for"] = debounce
    body = {name: value for name, value in given.items() if value is not None}
    has_key = unique is not None or debounce is not None
    headers = {} if has_key else {"idempotency-key": str(uuid.uuid4())}
    is_repeatable = not has_key or unique_for is not None
    response = yield Call("POST", "flows", {}, {"factory": factory, **body}, headers, is_repeatable)
    return str(response["uuid"])


def state(flow: str) -> Steps[str]:
    response = yield Call("GET", f"flows/{flow}", {"atoms": "0"})
    shown = response["shown_state"]
    return str(shown if shown in (states.WAITING, states.BLOCKED) else response["state"])


def wait(flow: str, timeout: float | None, clock: Callable[[], float]) -> Steps[bool]:
    until = None if timeout is None else clock() + timeout
    while True:
        seconds = LONG_POLL_SECONDS
        if until is not None:
            seconds = min(seconds, max(0.0, until - clock()))
        query = {"atoms": "0", "wait": f"{seconds:.3f}"}
        response = yield Call("GET", f"flows/{flow}", query)
        if response["state"] in states.FLOW_ENDED and response["wish"] is None:
            return True
        if until is not None and clock() >= until:
            return False


def result(flow: str, timeout: float | None, clock: Callable[[], float]) -> Steps[dict[str, Any]]:
    """Wait for the end of a flow and return its values.

    :raises TimeoutError: if it did not end in time.
    :raises Cancelled: if it was cancelled.
    :raises FlowFailed: if it ended without success.
    """
    until = None if timeout is None else clock() + timeout
    while True:
        left = None if until is None else max(0.0, until - clock())
        if not (yield from wait(flow, left, clock)):
            raise TimeoutError(f"Flow {flow} did not end within {timeout:g} s")
        response = yield Call("GET", f"flows/{flow}/result")
        if response["has_ended"]:  # Otherwise it was retried since.
            return _values_in(response)


def _values_in(response: Mapping[str, Any]) -> dict[str, Any]:
    error = response["error"]
    if error is None:
        return dict(response["values"])
    text = ": ".join(filter(None, (error["type"], error["message"])))
    message = f"Flow {response['uuid']} ended in {response['state']}: {text}"
    if error["type"] == _name_of(exceptions.Cancelled):
        raise exceptions.Cancelled(message)
    raise FlowFailed(message, response["state"], error["type"])


def _name_of(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def cancel(flow: str, reason: str | None) -> Steps[bool]:
    body = {} if reason is None else {"reason": reason}
    try:
        yield Call("POST", f"flows/{flow}/cancel", {}, body)
    except exceptions.InvalidState:
        return False
    return True


def signal(flow: str, name: str, value: Any, strict: bool) -> Steps[int]:
    body = {"signal": name, "value": value, "strict": strict}
    response = yield Call("POST", f"flows/{flow}/signal", {}, body, is_repeatable=False)
    return int(response["number"])


def published(flow: str) -> Steps[dict[str, Any]]:
    response = yield Call("GET", f"flows/{flow}", {"atoms": "0"})
    return dict(response["published"])


def flows_page(query: Mapping[str, Any]) -> Steps[Mapping[str, Any]]:
    given = {name: value for name, value in query.items() if value is not None}
    return (yield Call("GET", "flows", given))


def perform(
    paths: dict[str, str], name: str, arguments: Mapping[str, Any]
) -> Steps[dict[str, Any]]:
    """Perform any operation that the server has.

    :param paths: templates of paths by operation, which are read when they are needed first.
    :raises ValueError: if the server has no such operation, or an argument of its path is missing.
    """
    if not paths:
        document = yield Call("GET", "openapi.json")
        paths |= {
            methods["post"]["operationId"].replace("_", " "): path.removeprefix("/")
            for path, methods in document["paths"].items()
            if "post" in methods
        }
    if name not in paths:
        raise ValueError(f"Unknown operation {name!r:.80}{object_names.hint(name, paths)}")
    body = dict(arguments)
    path = []
    for part in paths[name].split("/"):
        target = part.strip("{}")
        if target != part and target not in body:
            raise ValueError(f"{name} requires argument {target!r}")
        path.append(part if target == part else _quoted(target, str(body.pop(target))))
    response = yield Call("POST", "/".join(path), {}, body, is_repeatable=False)
    return {key: value for key, value in response.items() if key != "schema"}


def _quoted(name: str, text: str) -> str:
    if text in ("", ".", ".."):  # Parts of a path that HTTP clients remove.
        raise ValueError(f"{name} must be a name or a uuid, got {text!r}")
    return quote(text, safe="")


def next_call(steps: Steps[Any], call: Call, content: Mapping[str, Any]) -> Call:
    """Send the content of a response to a method, and return its next call.

    :raises StopIteration: with the result of the method.
    :raises CallFailed: if the content is not that of this API.
    """
    try:
        return steps.send(content)
    except (AttributeError, LookupError, TypeError) as error:
        text = f"unexpected response: {type(error).__name__}: {error}"
        raise CallFailed(f"{call.method} {call.path}: {text}") from error


def error_of(status: int, content: Any, call: Call) -> Exception:
    """Return the exception for a response with an error.

    :param content: its JSON content, or its text.
    """
    problem = content if isinstance(content, Mapping) else {"detail": content}
    detail = str(problem.get("detail") or f"status {status}")
    if status in (401, 403):
        return AccessDenied(detail)
    if status in (400, 413, 415):
        return ValueError(detail)
    kind = _KINDS.get(str(problem.get("type")).removeprefix(_ERROR_TYPE)) or _STATUSES.get(status)
    if kind is not None:
        return kind(detail)
    is_repeated = status == _TOO_MANY or (status in _UNAVAILABLE and call.is_repeatable)
    return CallFailed(f"{call.method} {call.path}: status {status}: {detail}", is_repeated)

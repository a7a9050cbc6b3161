"""A simulated HTTP service, as a transport of httpx."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from wbengine.testing._worlds.world import Unavailable, World

__all__ = ["HttpWorld"]

#: Returns the body of a response, given the values of the request and the `id` of its effect.
Reply = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class _Route:
    method: str
    pattern: re.Pattern[str]
    kind: str  # "effect", "undo" or "find"
    key: str
    reply: Reply
    status: int


class HttpWorld(World):
    """An HTTP service for `crash_everywhere`. Thread-safe.

    `client = httpx.Client(transport=shop.transport(httpx), base_url="https://shop.example")`. A
    second request with the same `Idempotency-Key` receives the first response, and status 422 if
    the request differs. Unreachable services raise `ConnectError`, overloaded ones answer with
    status 503, and services that do not answer after the effect raise `ReadTimeout`.

    :param name: its name in reports.
    """

    _clients = ("httpx", "httpx2")
    can_be_busy = True

    def __init__(self, name: str, *, permanent: bool = False) -> None:
        super().__init__(name, permanent=permanent)
        self._routes: Final[list[_Route]] = []

    def on(
        self,
        method: str,
        path: str,
        *,
        effect: str = "",
        undone_by: tuple[str, str] | None = None,
        find: str = "",
        reply: Reply = lambda values: {"id": values["id"]},
        status: int = 200,
    ) -> None:
        """Add a route. Exactly one of `effect` and `find` is the key of an effect.

        In keys, "{order}" is replaced by a part of the path, a parameter of the query or a field of
        the JSON body; in `find` and `undone_by`, "{id}" in the path is the identity of an effect.

        :param path: its parts can be names in braces, such as "/charges/{order}".
        :param effect: the effect of a request, such as "charge {order}".
        :param undone_by: method and path that undo it. Status 404 if it does not exist.
        :param find: the effect that a request finds. Status 404 if it does not exist.
        :param reply: returns the JSON body of the response. Its argument contains the values of the
            request, and the `id` of the effect.
        :param status: status of the response.
        """
        if bool(effect) == bool(find) or (undone_by and not effect):
            raise ValueError("Exactly one of effect and find must be given, undone_by with effect")
        kind = "effect" if effect else "find"
        self._add(method, path, kind, effect or find, reply, status)
        if undone_by is not None:
            self._add(*undone_by, "undo", effect, lambda _: {}, 200)

    def transport(self, library: ModuleType) -> Any:
        """Return a transport for clients, also asynchronous ones.

        :param library: the module `httpx` or `httpx2`.
        """

        def handle(request: Any) -> Any:
            try:
                status, body = self._respond(request)
            except TimeoutError as error:
                raise library.ReadTimeout(str(error), request=request) from error
            except Unavailable as error:
                status, body = 503, {"error": str(error)}
            except ConnectionError as error:
                raise library.ConnectError(str(error), request=request) from error
            return library.Response(status, json=body)

        return library.MockTransport(handle)

    def _add(self, method: str, path: str, kind: str, key: str, reply: Reply, status: int) -> None:
        parts = re.split(r"\{(\w+)\}", path)
        pattern = "".join(
            f"(?P<{part}>[^/]+)" if number % 2 else re.escape(part)
            for number, part in enumerate(parts)
        )
        route = _Route(method.upper(), re.compile(pattern), kind, key, reply, status)
        self._routes.append(route)

    def _respond(self, request: Any) -> tuple[int, Any]:
        method, path = request.method, request.url.path
        for route in self._routes:
            match = route.pattern.fullmatch(path) if route.method == method else None
            if match is not None:
                values = {**_fields(request), **match.groupdict()}
                if route.kind == "effect":
                    return self._do(route, request, values)
                return self._find_or_undo(route, values)
        raise LookupError(f"{self!r} has no route for {method} {path}: add it with on()")

    def _do(self, route: _Route, request: Any, values: dict[str, Any]) -> tuple[int, Any]:
        token = request.headers.get("Idempotency-Key")
        scope = token and f"{route.method} {request.url.path} {token}"
        try:
            key = route.key.format_map(values)
        except KeyError as error:
            return 422, {"error": f"The request must contain {error}"}
        with self._lock:
            contents = self._contents
            is_known = scope in contents.by_idempotency_key
            if contents.state.setdefault(scope, request.content) != request.content and is_known:
                return 422, {"error": "The Idempotency-Key belongs to another request"}
            contents.state[scope] = request.content
        identity = self.effect(key, idempotency_key=scope)
        return route.status, route.reply({**values, "id": identity})

    def _find_or_undo(self, route: _Route, values: dict[str, Any]) -> tuple[int, Any]:
        key = self._key(route, values)
        with self._lock:
            effects = self._contents.active.get(key)
            identity = effects[-1].id if effects else None
        if route.kind == "undo":
            self.undo(key, missing_ok=True)
        if identity is None:
            return 404, {"error": f"{key!r} does not exist"}
        return route.status, route.reply({**values, "id": identity})

    def _key(self, route: _Route, values: dict[str, Any]) -> str:
        if "id" not in route.pattern.groupindex:
            return route.key.format_map(values)
        with self._lock:
            for key, effects in self._contents.active.items():
                if any(effect.id == values["id"] for effect in effects):
                    return key
        return f"{self.name} {values['id']}"


def _fields(request: Any) -> dict[str, Any]:
    """Return the parameters of the query and the fields of a JSON body."""
    fields = dict(request.url.params)
    if request.headers.get("content-type", "").startswith("application/json"):
        body = json.loads(request.content)
        if isinstance(body, dict):
            fields |= body
    return fields

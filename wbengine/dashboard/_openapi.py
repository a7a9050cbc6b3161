"""The description of the API: an OpenAPI document and a page, made from the table of operations."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine import version
from wbengine.dashboard import (
    _api,
    _bulk_routes,
    _bulk_views,
    _http_errors,
    _operation_routes,
    _rendering,
    _roles,
    _urls,
)
from wbengine.dashboard._app_state import AppState
from wbengine.jobs import _places
from wbengine.operations import _bulk, _operation
from wbengine.operations._operation import Choice, Operation

__all__ = ["Description", "document"]

_PATH_PARAMETER: Final = re.compile(r"{(\w+)(:\w+)?}")

_UUID_OF_FLOW: Final = "The uuid of the flow."
#: Descriptions of the uuid in paths of reads that is not that of a flow.
_UUIDS: Final = {"bulk": "The uuid of the operation."}
_QUEUE: Final = {"type": "string", "pattern": _places.QUEUE_PATTERN}

_ERROR: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "schema": {"const": "wbengine/error/1"},
        "type": {
            "type": "string",
            "description": "`urn:wbengine:error:` and the name of the exception, or `about:blank`.",
        },
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What was wrong, and what is valid."},
        "error": {"type": "string", "description": "The same text."},
    },
    "required": ["schema", "type", "title", "status", "detail", "error"],
}
#: Meaning of each status of an error.
_ERRORS: Final[Mapping[str, str]] = {
    "400": "A parameter is invalid.",
    "401": "The token is missing or wrong.",
    "403": "The role of the token, or the server, does not allow it.",
    "404": "It does not exist.",
    "408": "The body was not received in time.",
    "409": "The present state does not allow it.",
    "413": "The body is too long.",
    "415": "The body is not JSON.",
    "429": "The client sends too many requests at a time.",
    "502": "It failed.",
    "503": "The store or the broker is unavailable, or the server is busy.",
}
_EXAMPLES: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "uuid": {"type": "string"},
            "name": {"type": "string"},
            "state": {"type": "string"},
            "error": {"type": ["string", "null"]},
        },
    },
}
_READ_ERRORS: Final = ("400", "401", "403", "404", "429", "502", "503")


class Description:
    """Handlers of the document and of the page."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [Route("/api/v1/openapi.json", self.openapi), Route("/api", self.page)]

    def openapi(self, request: Request) -> Response:
        content = document()
        servers = [{"url": _urls.href(request, "/api/v1")}]
        return _rendering.SafeJSONResponse({**content, "servers": servers})

    def page(self, request: Request) -> Response:
        operations = [
            _shown(method, path, data)
            for path, methods in document()["paths"].items()
            for method, data in methods.items()
        ]
        return self._state.render(request, "api.html", {"here": "/api", "operations": operations})


def _shown(method: str, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a path for the page."""
    body = data.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = body.get("schema", {})
    required = schema.get("required", ())
    rows = [(each["name"], each["in"], each["description"]) for each in data["parameters"]]
    for name, each in schema.get("properties", {}).items():
        place = "body, required" if name in required else "body"
        rows.append((name, place, each["description"]))
    return {
        "id": data["operationId"],
        "path": f"{method.upper()} /api/v1{path}",
        "texts": [data["summary"], *data.get("description", "").split("\n\n")],
        "rows": rows,
    }


@functools.cache
def document() -> Mapping[str, Any]:
    """Return the OpenAPI 3.1 document of the API, without its servers."""
    paths: dict[str, dict[str, Any]] = {}
    for name, read in _api.READS.items():
        paths.setdefault(_template(f"/{read.path}"), {})["get"] = _of_read(name, read)
    for operation in _operation.table().values():
        path = _template(_operation_routes.path_of(operation)).removeprefix("/api/v1")
        paths.setdefault(path, {})["post"] = _of_operation(operation)
    for operation in _bulk.operations().values():
        paths[f"/flows/{operation.verb}"] = {"post": _of_many(operation)}
    for verb, summary in _bulk_routes.VERBS.items():
        paths[f"/bulks/{{uuid}}/{verb}"] = {"post": _of_bulk(verb, summary)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "wbengine",
            "version": version.version_string(),
            "description": "Submit, control and observe flows.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR},
        },
    }


def _template(path: str) -> str:
    return _PATH_PARAMETER.sub(r"{\1}", path)


def _of_read(name: str, read: _api.Read) -> dict[str, Any]:
    query = [
        {"name": each, "in": "query", "description": doc, "schema": schema}
        for each, (doc, schema) in read.parameters.items()
    ]
    in_path = [
        _in_path("queue", _QUEUE, "The name of the queue.")
        if each == "queue"
        else _in_path(each, {"type": "string", "format": "uuid"}, _UUIDS.get(name, _UUID_OF_FLOW))
        for each, _ in _PATH_PARAMETER.findall(read.path)
    ]
    return {
        "operationId": name,
        "summary": read.summary,
        "description": f"Needs role {_roles.VIEWER}.",
        "tags": [read.path.partition("/")[0]],
        "parameters": [*in_path, *query],
        "responses": {
            "200": _response("The result.", read.schema, read.result),
            "304": {"description": "The result is that of the ETag in If-None-Match."},
            **_errors(_READ_ERRORS),
        },
    }


def _of_operation(operation: Operation) -> dict[str, Any]:
    target, parameters = operation.target, operation.parameters
    in_body = {
        name: {**each.schema, "description": each.doc}
        for name, each in parameters.items()
        if name != target
    }
    outside = []
    if target is not None:
        outside.append(_in_path(target, parameters[target].schema, parameters[target].doc))
    if "unique" in parameters:
        outside.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "Sets `unique` unless the body has it, and `unique_for` to 24 hours"
                " by default: a request that is repeated with the same body has the same result.",
                "schema": parameters["unique"].schema,
            }
        )
    needed = sorted(operation.required - {target})
    body = _body(in_body, operation.choice)
    result = _response("The result.", operation.schema, operation.result)
    return {
        "operationId": operation.identifier,
        "summary": operation.summary,
        "description": f"{operation.description}\n\nNeeds role {operation.roles}.".strip(),
        "tags": [_operation_routes.path_of(operation).split("/")[3]],
        "parameters": outside,
        "requestBody": {
            "required": bool(needed) or operation.choice is not None,
            "content": {
                "application/json": {"schema": {**body, "required": needed} if needed else body}
            },
        },
        "responses": {
            **({"201": {**result, "links": _links()}} if operation.creates else {"200": result}),
            **_errors(_ERRORS),
        },
    }


def _of_many(operation: Operation) -> dict[str, Any]:
    in_body = {
        name: {**each.schema, "description": each.doc}
        for name, each in _bulk_routes.parameters(operation).items()
    }
    needed = sorted(operation.required - {operation.target})
    body = _body(in_body, operation.choice, _bulk_routes.CHOICE)
    dry_run = {"dry_run": {"const": True}, "count": {"type": "integer"}, "examples": _EXAMPLES}
    schema = f"{operation.schema}-many"
    return {
        "operationId": f"{operation.identifier}_many",
        "summary": f"Apply `{operation.name}` to many flows.",
        "description": "Select flows by `flows`, `filter` or `all`. Conductors (`wbengine serve`)"
        f" carry the stored operation out.\n\nNeeds role {operation.role}.",
        "tags": ["bulks"],
        "parameters": [],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {**body, "required": needed} if needed else body}
            },
        },
        "responses": {
            "200": _response("The result of a dry run.", schema, dry_run),
            "201": _response("The stored operation.", "bulk", _bulk_views.BULK),
            **_errors(_ERRORS),
        },
    }


def _of_bulk(verb: str, summary: str) -> dict[str, Any]:
    uuid = {"type": "string", "format": "uuid"}
    return {
        "operationId": f"bulk_{verb}",
        "summary": summary,
        "description": "Needs the role of the operation.",
        "tags": ["bulks"],
        "parameters": [_in_path("uuid", uuid, "The uuid of the operation.")],
        "responses": {
            "200": _response("The operation.", "bulk", _bulk_views.BULK),
            **_errors(_ERRORS),
        },
    }


def _body(properties: Mapping[str, Any], *choices: Choice | None) -> dict[str, Any]:
    schemas = [each.schema for each in choices if each is not None]
    body = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**body, "allOf": schemas} if schemas else body


def _links() -> dict[str, Any]:
    """Return the paths of a new flow, with the parameter that contains its uuid."""
    reads = {
        name: "uuid"
        for name, each in _api.READS.items()
        if each.path.startswith("flows/{uuid:uuid}")
    }
    changes = {
        each.identifier: "flow" for each in _operation.table().values() if each.target == "flow"
    }
    return {
        name: {"operationId": name, "parameters": {parameter: "$response.body#/uuid"}}
        for name, parameter in {**reads, **changes}.items()
    }


def _in_path(name: str, schema: Mapping[str, Any], doc: str = _UUID_OF_FLOW) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "description": doc, "schema": schema}


def _response(doc: str, schema: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    all_properties = {"schema": {"const": f"wbengine/{schema}/1"}, **properties}
    content = {"type": "object", "properties": all_properties, "required": [*all_properties]}
    return {"description": doc, "content": {"application/json": {"schema": content}}}


def _errors(statuses: Mapping[str, str] | tuple[str, ...]) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {
        status: {
            "description": _ERRORS[status],
            "content": {_http_errors.PROBLEM: {"schema": schema}},
        }
        for status in statuses
    }

"""A server of the Model Context Protocol: the paths of the API as tools of a coding assistant.

The tools are those of the OpenAPI document, with its parameters. They call the API, so the roles,
the limits and the masking of secrets are the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from starlette.types import ASGIApp, Message

from wbengine import version
from wbengine.dashboard import _openapi
from wbengine.operations import _operation

__all__ = ["MAX_RESULT_CHARS", "Tool", "client_of", "serve", "serve_app", "server", "tools"]

#: Maximum size of a result: it becomes a part of the context of the assistant.
MAX_RESULT_CHARS: Final = 40_000
_TIMEOUT_SECONDS: Final = 90.0

_INSTRUCTIONS: Final = (
    "wbengine runs flows: graphs of tasks, and workflows. Find a flow with `flows`, read it with"
    " `flow`, `events` and `logs`. A flow that failed can be retried, reverted or left."
)


@dataclass(frozen=True, slots=True)
class Tool:
    """A path of the API as a tool.

    :ivar places: 'path', 'query' or 'body' of each parameter.
    """

    name: str
    method: str
    path: str
    description: str
    schema: Mapping[str, Any]
    places: Mapping[str, str]

    @property
    def is_read(self) -> bool:
        return self.method == "GET"

    def request(self, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any], Any]:
        """Return the path, the query and the body of a call.

        :raises ValueError: if an argument is unknown, or a part of the path is missing.
        """
        parts: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "body": {}}
        for name, value in arguments.items():
            if name not in self.places:
                raise ValueError(f"{self.name} has no parameter {name!r:.80}")
            parts[self.places[name]][name] = value
        for name, place in self.places.items():
            if place == "path" and name not in parts["path"]:
                raise ValueError(f"{self.name} requires parameter {name!r}")
        quoted = {
            name: urllib.parse.quote(str(value), safe="") for name, value in parts["path"].items()
        }
        return self.path.format(**quoted), parts["query"], parts["body"]


def tools(*, allow_actions: bool) -> Mapping[str, Tool]:
    """Return the tools by name; without `allow_actions` only those that read."""
    all_tools = (
        _tool(method.upper(), path, data)
        for path, methods in _openapi.document()["paths"].items()
        for method, data in methods.items()
    )
    return {tool.name: tool for tool in all_tools if allow_actions or tool.is_read}


def _tool(method: str, path: str, data: Mapping[str, Any]) -> Tool:
    body = data.get("requestBody", {}).get("content", {}).get("application/json", {})
    body_schema = body.get("schema", {})
    listed = [each for each in data["parameters"] if each["in"] != "header"]
    properties = {
        each["name"]: {**each["schema"], "description": each["description"]} for each in listed
    }
    places = {each["name"]: each["in"] for each in listed}
    required = [each["name"] for each in listed if each.get("required")]
    in_body = body_schema.get("properties", {})
    schema = {
        "type": "object",
        "properties": {**properties, **in_body},
        "required": [*required, *body_schema.get("required", ())],
        "additionalProperties": False,
    }
    text = f"{data['summary']}\n\n{data.get('description', '')}".strip()
    places |= dict.fromkeys(in_body, "body")
    return Tool(data["operationId"], method, path, text, schema, places)


def server(client: httpx2.AsyncClient, *, allow_actions: bool) -> Server[Any]:
    """Return a server whose tools use a client of the API.

    :param client: its base URL is that of the API: `https://flows.example.com/api/v1`.
    """
    known = tools(allow_actions=allow_actions)

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_description(each) for each in known.values()])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = known.get(params.name)
        if tool is None:
            return _result(f"There is no tool {params.name!r:.80}.", is_error=True)
        try:
            path, query, body = tool.request(params.arguments or {})
            response = await client.request(
                tool.method, path, params=query, json=None if tool.is_read else body
            )
            content = response.json()
        except (httpx2.HTTPError, ValueError) as error:
            return _result(f"{type(error).__name__}: {error}", is_error=True)
        if response.is_error:
            return _result(str(content.get("detail", content)), is_error=True)
        return _result(json.dumps(content, ensure_ascii=False))

    return Server(
        "wbengine",
        version=version.version_string(),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve(client: httpx2.AsyncClient, *, allow_actions: bool) -> None:
    """Serve on the standard input and output until the input ends."""
    async with client, stdio_server() as (read_stream, write_stream):
        running = server(client, allow_actions=allow_actions)
        await running.run(read_stream, write_stream, running.create_initialization_options())


async def serve_app(app: ASGIApp, *, allow_actions: bool) -> None:
    """Do the same with a dashboard in this process."""
    async with _lifespan(app):
        client = httpx2.AsyncClient(
            base_url="http://localhost/api/v1",
            timeout=_TIMEOUT_SECONDS,
            transport=httpx2.ASGITransport(app=app),
        )
        await serve(client, allow_actions=allow_actions)


def client_of(url: str, token: str) -> httpx2.AsyncClient:
    """Return a client of the dashboard at a URL."""
    return httpx2.AsyncClient(
        base_url=f"{url.rstrip('/')}/api/v1",
        headers={"authorization": f"Bearer {token}"},
        timeout=_TIMEOUT_SECONDS,
    )


@contextlib.asynccontextmanager
async def _lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Start and stop an application, as a server does."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        if not started.is_set():
            return {"type": "lifespan.startup"}
        await ended.wait()
        return {"type": "lifespan.shutdown"}

    async def send(message: Message) -> None:
        started.set()

    running = asyncio.ensure_future(app({"type": "lifespan", "state": {}}, receive, send))
    await started.wait()
    try:
        yield
    finally:
        ended.set()
        await running


def _description(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=dict(tool.schema),
        annotations=types.ToolAnnotations(
            read_only_hint=tool.is_read,
            destructive_hint=tool.name in _destructive_names(),
        ),
    )


def _destructive_names() -> set[str]:
    operations = _operation.table().values()
    return {each.identifier for each in operations if each.is_destructive}


def _result(text: str, *, is_error: bool = False) -> types.CallToolResult:
    if len(text) > MAX_RESULT_CHARS:
        text = (
            f"{text[:MAX_RESULT_CHARS]}\n(The result has {len(text):,} characters; the first"
            f" {MAX_RESULT_CHARS:,} are shown. Use limit, after, task or atoms=0 for a part.)"
        )
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)

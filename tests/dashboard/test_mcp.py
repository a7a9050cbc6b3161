"""Tools for coding assistants: `wbengine mcp`, as an assistant starts it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest

from tests.dashboard import story
from tests.dashboard.conftest import TOKENS, site
from wbengine import engines
from wbengine.dashboard import _key_management, _mcp

FACTORY = "tests.dashboard.api_flows:approval"


def texts(result: Any) -> str:
    return "".join(part.text for part in result.content)


async def called(client: mcp.Client, name: str, **arguments: object) -> Any:
    """Return the JSON result of a tool."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, texts(result)
    return json.loads(texts(result))


async def failed(client: mcp.Client, name: str, **arguments: object) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error
    return texts(result)


def command(tmp_path: Path, *options: str) -> mcp.StdioServerParameters:
    environment = {
        **os.environ,
        "WBENGINE_PERSISTENCE": f"sqlite:///{tmp_path}/flows.db",
        "WBENGINE_FLOWS": "tests.dashboard.api_flows",
    }
    arguments = ["-m", "wbengine", "mcp", *options]
    return mcp.StdioServerParameters(command=sys.executable, args=arguments, env=environment)


@pytest.mark.slow
def test_assistant_submits_reads_and_cancels(tmp_path: Path) -> None:
    async def use() -> None:
        async with mcp.Client(command(tmp_path, "--allow-actions")) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert tools["flow_cancel"].annotations.destructive_hint is True
            assert tools["flows"].annotations.read_only_hint is True
            uuid = (await called(client, "flow_submit", factory=FACTORY))["uuid"]
            assert (await called(client, "flow", uuid=uuid, atoms="0"))["state"] == "PENDING"
            cancelled = await called(client, "flow_cancel", flow=uuid, reason="order withdrawn")
            assert cancelled["old"] == "PENDING"
            rows = (await called(client, "flows", limit=5))["flows"]
            assert [row["uuid"] for row in rows] == [uuid]
            assert "Unknown flow" in await failed(client, "flow_cancel", flow="missing")
            assert "requires parameter 'flow'" in await failed(client, "flow_cancel")
            assert "no parameter 'flwo'" in await failed(client, "flow_cancel", flwo=uuid)
            assert "no tool 'flow_run'" in await failed(client, "flow_run")

    asyncio.run(use())


@pytest.mark.slow
def test_assistant_only_reads_by_default(tmp_path: Path) -> None:
    engines.submit(FACTORY, backend=f"sqlite:///{tmp_path}/flows.db")

    async def use() -> None:
        async with mcp.Client(command(tmp_path)) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"flows", "flow", "events", "logs", "workers"} <= names
            assert not any(name.startswith(("flow_", "tasks_", "schedule_")) for name in names)
            assert len((await called(client, "flows"))["flows"]) == 1
            assert "no tool 'flow_cancel'" in await failed(client, "flow_cancel", flow="x")

    asyncio.run(use())


def test_tools_of_a_server_have_the_role_of_the_token(kept: story.Kept) -> None:
    """The server checks roles: a token of a viewer cannot cancel a flow, whatever the tools are."""
    uuid = kept.uuids["good"]

    async def use(client: mcp.Client) -> None:
        assert (await called(client, "flow", uuid=uuid))["state"] == "SUCCESS"
        assert "needs role operator" in await failed(client, "flow_cancel", flow=uuid)

    with site(kept) as browser:
        connect(browser.app, TOKENS["victor"], use)


def test_long_result_is_cut(kept: story.Kept, monkeypatch: Any) -> None:
    monkeypatch.setattr(_mcp, "MAX_RESULT_CHARS", 100)

    async def use(client: mcp.Client) -> None:
        text = texts(await client.call_tool("flows", {}))
        assert len(text) < 300 and "the first 100 are shown" in text

    with site(kept) as browser:
        connect(browser.app, TOKENS["victor"], use)


def test_tools_have_access_to_the_flows_of_a_key(kept: story.Kept) -> None:
    """The error about a flow of others is that of a missing one."""
    key = _key_management.new(kept.backend, "mcp", "admin", tags={"team": "billing"}).text
    unknown = "00000000-0000-4000-8000-000000000000"

    async def use(client: mcp.Client) -> None:
        assert (await called(client, "flows"))["flows"] == []
        for name, parameter in (
            ("flow", "uuid"), ("events", "uuid"), ("logs", "uuid"), ("flow_cancel", "flow"),
            ("flow_delete", "flow"),
        ):  # fmt: skip
            uuid = kept.uuids["good"]
            foreign = await failed(client, name, **{parameter: uuid})
            missing = await failed(client, name, **{parameter: unknown})
            assert foreign.replace(uuid, unknown) == missing and unknown in missing
        for name in ("workers", "queues", "requests", "schedules", "pauses"):
            assert "only to flows with your tags" in await failed(client, name)

    with site(kept) as browser:
        connect(browser.app, key, use)


def connect(app: Any, token: str, use: Callable[[mcp.Client], Awaitable[None]]) -> None:
    """Use the tools with a dashboard and a token."""

    async def run() -> None:
        api = httpx2.AsyncClient(
            base_url=f"{story.HOST}/api/v1",
            headers={"authorization": f"Bearer {token}"},
            transport=httpx2.ASGITransport(app=app),
        )
        async with mcp.Client(_mcp.server(api, allow_actions=True)) as client:
            await use(client)

    asyncio.run(run())

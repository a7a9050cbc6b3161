"""The units and manifests of the documentation: they can be read, and say what there is."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.support import workers
from wbengine.cli import app, context, dashboard_command, worker_command

FOLDER = workers.REPOSITORY / "doc" / "deployment"
UNITS = sorted(FOLDER.glob("systemd/*.service"))
MANIFESTS = sorted(FOLDER.glob("kubernetes/*.yaml"))
COMPOSE = FOLDER / "containers" / "compose.yaml"


def check(command: Sequence[str]) -> None:
    """That these words call something of ours, with options that it knows."""
    program, *words = command
    if Path(program).name == "python":
        assert words[0] == "-m"
        if words[1] == "wbengine.worker":
            with click.Context(app.root, obj=context.Context(app.COMMANDS)) as above:
                worker_command.command.make_context("worker", words[2:], parent=above)
        else:
            assert words[1:] == ["repair"]
    else:
        assert Path(program).name == "wbengine"
        command = {"dashboard": dashboard_command, "worker": worker_command}[words[0]].command
        with click.Context(app.root, obj=context.Context(app.COMMANDS)) as above:
            command.make_context(words[0], words[1:], parent=above)


def test_there_are_some() -> None:
    assert UNITS and MANIFESTS


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_what_there_is(path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(path.read_text(encoding="utf-8"))
    service = unit["Service"]
    check(shlex.split(service["ExecStart"]))
    found = re.search(r"--drain-timeout (\d+)", service["ExecStart"])
    if found is not None:
        assert int(service["TimeoutStopSec"]) >= int(found[1]) + 15
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            spec = document["spec"]
            template = spec.get("jobTemplate", {"spec": spec})["spec"].get("template")
            if template is not None:
                yield path.name, template["spec"]


@pytest.mark.parametrize("pod", [pytest.param(pod, id=name) for name, pod in pods()])
def test_a_pod_starts_what_there_is_and_its_probes_have_ports(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    words = [*container["command"], *container.get("args", ())]
    check(words)
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    for probe in ("livenessProbe", "readinessProbe"):
        if probe in container:
            where = container[probe]["httpGet"]
            assert where["path"] in ("/livez", "/readyz") and where["port"] in ports
    for port in ports.values():
        assert any(str(port) in word for word in words)
    for word in words:
        if (found := re.fullmatch(r"--drain-timeout=(\d+)", word)) is not None:
            assert pod["terminationGracePeriodSeconds"] >= int(found[1]) + 15


def services() -> dict[str, Any]:
    """Those of ours; the image's program is `wbengine`."""
    found = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return {name: service for name, service in found.items() if "build" in service}


@pytest.mark.parametrize("name", services())
def test_container_starts_what_there_is(name: str) -> None:
    service = services()[name]
    check(["wbengine", *service["command"]])
    for word in service["command"]:
        if (found := re.fullmatch(r"--drain-timeout=(\d+)", word)) is not None:
            assert int(service["stop_grace_period"].removesuffix("s")) >= int(found[1]) + 15
    assert 'ENTRYPOINT ["wbengine"]' in (COMPOSE.parent / "Dockerfile").read_text("utf-8")


def test_no_password_is_on_a_command_line() -> None:
    for path in [*UNITS, *MANIFESTS, COMPOSE]:
        assert "://" not in re.sub(r"registry\S+", "", path.read_text(encoding="utf-8")), path

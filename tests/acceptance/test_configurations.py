"""The configuration files of the documentation, loaded by the programs that they configure.

Not checked: fragments of Kubernetes objects beyond their structure, because a cluster validates
them.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import redis
import yaml

from examples import table_transport
from tests.support import pages, servers, workers
from tools import _servers
from wbengine._cli import app, context, dashboard_command, schedule_command
from wbengine.dashboard import _visitors
from wbengine.transports import _kinds
from wbengine.types._encoding import installed_codecs

SOURCE = workers.REPOSITORY / "doc" / "source"
FILES = [
    (page.stem, block)
    for page in sorted(SOURCE.rglob("*.rst"))
    for block in pages.configurations(page)
]


def load_redis(text: str, folder: Path) -> None:
    program = _servers.find("redis")
    if program is None:
        servers.skip_or_fail(_servers.reason(["redis"]))
    (folder / "redis.conf").write_text(text, encoding="utf-8")
    private = ["--port", "0", "--unixsocket", "socket"]
    with subprocess.Popen(
        [str(program), "redis.conf", *private], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line)
                if "eady to accept connections" in line:
                    break
            else:
                pytest.fail("".join(lines))
            with redis.Redis(unix_socket_path=str(folder / "socket")) as client:
                for line in text.splitlines():
                    name, _, value = line.partition(" ")
                    if name != "#":
                        assert client.config_get(name) == {name: value}
        finally:
            process.kill()


def load_settings(text: str, folder: Path) -> None:
    path = folder / "wbengine.toml"
    path.write_text(text, encoding="utf-8")
    settings = context.Context(app.COMMANDS)
    settings.file = str(path)
    assert settings.files[0].content
    schedules = schedule_command.declared(settings)
    assert {schedule.name for schedule in schedules} == set(settings.settings.schedules)
    with click.Context(app.root, info_name="wbengine", obj=settings) as above:
        made = dashboard_command.command.make_context("dashboard", [], parent=above)
    for name, value in settings.files[0].content.get("dashboard", {}).items():
        assert made.params[name] == (tuple(value) if isinstance(value, list) else value)


def load_users(text: str, folder: Path) -> None:
    users = _visitors.parse_users(text.replace("…", "0" * 12))
    assert len(users) == len(text.splitlines())


def load_nginx(text: str, folder: Path) -> None:
    program = _servers.find("nginx")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail(_servers.reason(["nginx"]))
        pytest.skip("nginx is not installed")
    signed = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    subprocess.run(["openssl", *signed, *files], check=True, capture_output=True)
    named = "ssl_certificate cert.pem; ssl_certificate_key key.pem;"
    assert "# ssl_certificate ..." in text
    text = text.replace("# ssl_certificate ...", named)
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{name}_temp_path {name};" for name in temporary)
    whole = f"pid nginx.pid; events {{}} http {{ access_log off; {folders}\n{text}}}\n"
    (folder / "nginx.conf").write_text(whole, encoding="utf-8")
    command = [program, "-t", "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "warn" not in done.stderr, done.stderr


def load_entry_points(text: str, folder: Path) -> None:
    for group, points in tomllib.loads(text)["project"]["entry-points"].items():
        assert group in (_kinds.GROUP, installed_codecs.GROUP)
        for name, value in points.items():
            point = importlib.metadata.EntryPoint(name, f"examples.{value}", group)
            if group == installed_codecs.GROUP:  # The page defines the codec, and tests use one.
                assert "." in name and point.attr, "the names of a class and of its codec"
                continue
            assert point.load() is table_transport.KIND


def load_probe(text: str, folder: Path) -> None:
    """The command succeeds only with a file that was touched less than a minute ago."""
    probe = yaml.safe_load(text)["livenessProbe"]
    assert probe.keys() == {"exec", "initialDelaySeconds", "periodSeconds"}
    path = folder / "heartbeat"
    *shell, script = probe["exec"]["command"]
    command = [*shell, script.replace("/run/wbengine/heartbeat", str(path))]
    assert str(path) in command[-1]

    def succeeds() -> bool:
        return subprocess.run(command, capture_output=True).returncode == 0

    assert not succeeds()
    path.touch()
    assert succeeds()
    os.utime(path, (time.time() - 120,) * 2)
    assert not succeeds()


def load_pod(text: str, folder: Path) -> None:
    pod = yaml.safe_load(text)
    assert pod.keys() == {"securityContext", "volumes"} and "fsGroup" in pod["securityContext"]
    (volume,) = pod["volumes"]
    assert volume["secret"]["secretName"] and volume["secret"]["defaultMode"] == 0o440


LOADERS: dict[str, Callable[[str, Path], None]] = {
    "nginx.conf": load_nginx,
    "pod.yaml": load_pod,
    "probe.yaml": load_probe,
    "pyproject.toml": load_entry_points,
    "redis.conf": load_redis,
    "users": load_users,
    "wbengine.toml": load_settings,
}


def test_each_kind_of_configuration_is_loaded() -> None:
    assert {block.caption for _, block in FILES} == set(LOADERS)


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, id=f"{page}-{block.caption}") for page, block in FILES],
)
def test_configuration_is_accepted(block: pages.Block) -> None:
    # The path of a socket is limited to 107 bytes.
    with tempfile.TemporaryDirectory() as folder:
        LOADERS[block.caption](block.text, Path(folder))


def test_comment_behind_value_of_redis_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.raises(pytest.fail.Exception):
        load_redis("appendfsync everysec  # or always\n", Path(folder))

"""The sdist and the wheel are complete, and the wheel installs with each extra."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.support import installed as installing
from tests.support import python, workers
from wbengine import __version__

TOOL = workers.REPOSITORY / "tools" / "package"
PINS = workers.REPOSITORY / "tools" / "_requirements.txt"
#: A module that needs the extra, for each extra.
MODULES = {
    "apprise": "wbengine.notifications._apprise",
    "arrow": "wbengine.types._codecs.arrow_tables",
    "celery": "wbengine.interop.celery._internals",
    "client": "wbengine.client._blocking",
    "dashboard": "wbengine.dashboard._asgi",
    "dev": "mypy",
    "django": "wbengine.integrations.django._backend",
    "docs": "furo",
    "etcd": "wbengine.jobs.backends.impl_etcd",
    "keys": "cryptography",
    "mcp": "wbengine.dashboard._mcp",
    "metrics": "wbengine.telemetry.metrics",
    "mysql": "pymysql",
    "numpy": "wbengine.types._codecs.arrays",
    "oidc": "wbengine.dashboard._oidc_sign_in",
    "otel": "wbengine.telemetry.tracing",
    "pandas": "wbengine.types._codecs.frames",
    "payloads": "fsspec, zstandard",
    "polars": "wbengine.types._codecs.polars_frames",
    "postgresql": "psycopg",
    "pydantic": "pydantic",
    "redis": "wbengine.transports._redis.redis_broker",
    "s3": "s3fs",
    "test": "pytest",
    "zookeeper": "wbengine.jobs.backends.impl_zookeeper",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sdist and the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    package("--no-twine", str(folder))
    return folder


def package(*options: str) -> None:
    done = python.run([TOOL, "--here", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def wheel(folder: Path) -> Path:
    (path,) = folder.glob("*.whl")
    return path


def extras() -> list[str]:
    settings = configparser.ConfigParser()
    settings.read(workers.REPOSITORY / "setup.cfg", encoding="utf-8")
    return sorted(settings["options.extras_require"])


def test_wheel_contains_package_and_licences_but_no_tests(built: Path) -> None:
    with zipfile.ZipFile(wheel(built)) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {
        "wbengine",
        f"wbengine-{__version__}.dist-info",
    }
    licences = {name.partition("/licenses/")[2] for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "wbengine/dashboard/static/vendor/LICENSE.htmx"}
    assert "wbengine/py.typed" in names
    for suffix in ".py", ".lua":
        paths = (workers.REPOSITORY / "wbengine").rglob(f"*{suffix}")
        sources = {str(path.relative_to(workers.REPOSITORY)) for path in paths}
        assert sources and {name for name in names if name.endswith(suffix)} == sources


def test_metadata_has_classifiers_and_no_links(built: Path) -> None:
    with zipfile.ZipFile(wheel(built)) as archive:
        text = archive.read(f"wbengine-{__version__}.dist-info/METADATA").decode("utf-8")
    metadata = Parser().parsestr(text)
    assert metadata["Version"] == __version__ == "0.1.0"
    assert metadata["Requires-Python"] == ">=3.11"
    classifiers = metadata.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    assert "Programming Language :: Python :: 3.13" in classifiers
    assert metadata.get_all("Project-URL") is None and metadata["Home-page"] is None
    assert metadata.get_payload() == (workers.REPOSITORY / "README.md").read_text("utf-8")


def test_sdist_contains_each_tracked_file(built: Path) -> None:
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=workers.REPOSITORY, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is not a git checkout")
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {name for name in listed.stdout.split("\0") if name}
    tracked = {name for name in tracked if (workers.REPOSITORY / name).exists()}
    assert tracked - names == {".git-blame-ignore-revs", ".gitignore"}


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first test of a run that uses `installed` waits for it
def test_installed_wheel_prints_its_version(built: Path, installed: Path, tmp_path: Path) -> None:
    python = installing.copied(installed, tmp_path / "env", wheel(built))
    done = subprocess.run(
        [python, "-m", "wbengine", "--version"],
        cwd=tmp_path,
        env=installing.environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "wbengine 0.1.0\n", "")


@pytest.mark.slow
def test_twine_accepts_sdist_and_wheel(tmp_path: Path) -> None:
    package(str(tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", extras())
def test_wheel_installs_with_extra(extra: str, built: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PIP_NO_COMPILE": "1"}
    for name in installing.ELSEWHERE:
        environment.pop(name, None)
    python = tmp_path / "env" / "bin" / "python"
    # Without them, pip tries out releases of the extra `test` for minutes.
    pins = PINS.read_text(encoding="utf-8").splitlines()
    pinned = [line.rstrip("\\ ") for line in pins if "==" in line and line[0] not in "# "]
    (tmp_path / "pins.txt").write_text("\n".join(pinned), encoding="utf-8")
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", tmp_path / "pins.txt"]
    for command in (
        [sys.executable, "-m", "venv", tmp_path / "env"],
        [*install, f"{wheel(built)}[{extra}]"],
        [python, "-m", "pip", "check"],
        [python, "-I", "-c", f"import {MODULES[extra]}"],
    ):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    version = [python, "-m", "wbengine", "--version"]
    assert subprocess.check_output(version, cwd=tmp_path, text=True) == "wbengine 0.1.0\n"

"""Installation commands in errors about missing packages."""

from __future__ import annotations

import configparser
import json
import shlex
import sys
import sysconfig
import typing
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers import REPOSITORY
from wbengine._imports import installing

#: Install command of the environment of the tests, which may be active or not.
INSTALL = installing.pip("install")


def installed(folder: Path, source: dict[str, Any] | None, *lines: str) -> Path:
    """Write the metadata that pip stores for an installation from `source` (None: an index)."""
    notes = folder / "wbengine-0.1.0.dist-info"
    notes.mkdir(parents=True)
    head = ["Metadata-Version: 2.1", "Name: wbengine", "Version: 0.1.0"]
    (notes / "METADATA").write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    (notes / "RECORD").touch()
    if source is not None:
        (notes / "direct_url.json").write_text(json.dumps(source), encoding="utf-8")
    return folder


def test_advice_for_checkout_is_editable_installation(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    assert installing.advice("redis", folder=tmp_path) == f"{INSTALL} -e '{tmp_path}[redis]'"
    # Metadata that `setup.py develop` writes.
    (tmp_path / "wbengine.egg-info").mkdir()
    (tmp_path / "wbengine.egg-info" / "PKG-INFO").write_text("Name: wbengine\nVersion: 0.1.0\n")
    assert installing.advice("redis", folder=tmp_path) == f"{INSTALL} -e '{tmp_path}[redis]'"


@pytest.mark.parametrize("name", ["my checkout", "wbengine-0.1.0-py3-none-any.whl"])
def test_advice_names_checkout_or_wheel_that_was_installed(name: str, tmp_path: Path) -> None:
    source = tmp_path / name
    source.mkdir()
    folder = installed(tmp_path / "site", {"url": source.as_uri(), "dir_info": {}})
    # Some packages install a `pyproject.toml` in this folder.
    (folder / "pyproject.toml").touch()
    found = installing.advice("redis", "keys", folder=folder)
    assert found == f"{INSTALL} '{source}[redis,keys]'"
    assert str(source) in installing.upgrade(folder)


def test_advice_names_packages_if_the_source_was_removed(tmp_path: Path) -> None:
    folder = installed(
        tmp_path,
        {"url": "file:///removed/wbengine.whl", "archive_info": {}},
        "Requires-Dist: click>=8.1",
        'Requires-Dist: Jinja2>=3.1.6; extra == "dashboard"',
        'Requires-Dist: wbengine[metrics]; extra == "dashboard"',
        'Requires-Dist: prometheus-client>=0.20; extra == "metrics"',
        'Requires-Dist: celery; extra == "celery"',
    )
    found = installing.advice("dashboard", folder=folder)
    assert shlex.split(found.removeprefix(INSTALL)) == ["Jinja2>=3.1.6", "prometheus-client>=0.20"]
    assert installing.advice("dashboard", "metrics", folder=folder) == found


@pytest.mark.parametrize(
    ("noted", "place"),
    [
        ({"url": "https://e.org/w.whl", "archive_info": {}}, "https://e.org/w.whl"),
        (
            {"url": "https://e.org/w", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
            "git+https://e.org/w@ab12",
        ),
        (
            {"url": "https://e.org/w.zip", "archive_info": {}, "subdirectory": "py"},
            "https://e.org/w.zip#subdirectory=py",
        ),
    ],
    ids=["url", "git", "subdirectory"],
)
def test_advice_names_the_url_of_the_installation(
    noted: dict[str, Any], place: str, tmp_path: Path
) -> None:
    found = installing.advice("redis", folder=installed(tmp_path, noted))
    assert shlex.split(found)[-1] == f"wbengine[redis] @ {place}"


def test_advice_names_the_package_if_installed_from_an_index(tmp_path: Path) -> None:
    folder = installed(tmp_path, None)
    assert installing.advice("redis", folder=folder) == f"{INSTALL} 'wbengine[redis]'"
    assert installing.upgrade(folder) == f"{INSTALL} --upgrade wbengine"


def test_command_uses_pip_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the environment is not active, the PATH has the `pip` of another one, or none."""
    other = tmp_path / "pip"
    other.touch(mode=0o755)
    for path in (str(tmp_path), ""):
        monkeypatch.setenv("PATH", path)
        assert installing.pip("install", "a>=1") == f"{sys.executable} -m pip install 'a>=1'"
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"))
    assert installing.pip("install", "a>=1") == "pip install 'a>=1'"


def test_extra_type_lists_all_user_extras_of_setup_cfg() -> None:
    told = configparser.ConfigParser()
    told.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    known = set(told["options.extras_require"])
    assert set(typing.get_args(installing.Extra)) == known - {"test", "docs", "dev"}

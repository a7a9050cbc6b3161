"""Files contain no private paths, and scripts have help."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest

from tests.support import python

from . import imports

#: The pattern is written so that this file does not match.
PRIVATE = re.compile(
    r"/tmp/wb[e]\b|(?<![\w.$~}])/(?:root|work|home/\w+)/[\w.]|helper sessio[n]",
    re.IGNORECASE,
)
BINARY = {".png", ".gif", ".ico", ".woff2", ".gz", ".xz"}


def tracked() -> list[pathlib.Path]:
    """Return the files that are or would be under version control."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(
            command, cwd=imports.ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = [imports.ROOT / name for name in names if name]
    return [path for path in paths if path.is_file() and path.suffix not in BINARY]


def scripts() -> list[str]:
    folder = imports.ROOT / "tools"
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith(("_", "."))
    )


def test_no_file_contains_private_paths() -> None:
    paths = tracked()
    assert imports.ROOT / "wbengine" / "pools.py" in paths
    hits = [
        f"{path}:{number}: {match[0]}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := PRIVATE.search(line))
    ]
    assert not hits, "\n" + "\n".join(hits)


@pytest.mark.parametrize("line", ["see /tmp/wb" + "e/x", "in /wor" + "k/main", "/roo" + "t/.pyenv"])
def test_private_path_is_found(line: str) -> None:
    assert PRIVATE.search(line)


@pytest.mark.parametrize("line", ["$HOME/work/x", "a/work/x", "https://x.org/root/x", "tmp/in"])
def test_other_path_is_accepted(line: str) -> None:
    assert not PRIVATE.search(line)


@pytest.mark.parametrize("name", scripts())
def test_every_script_is_linted(name: str) -> None:
    """ruff finds files by their suffix; scripts have none."""
    assert f'"tools/{name}"' in (imports.ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", scripts())
def test_every_script_has_help_and_can_be_run(name: str) -> None:
    path = imports.ROOT / "tools" / name
    assert os.access(path, os.X_OK)
    process = python.run([str(path), "--help"], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert f"tools/{name}" in process.stdout or f"usage: {name}" in process.stdout


@pytest.mark.parametrize("name", [name for name in scripts() if name != "test"])
def test_every_script_reports_wrong_usage_in_one_line(name: str, tmp_path: pathlib.Path) -> None:
    """The working directory does not matter, and the script may be called through a link.
    `tools/test` passes its options to pytest.
    """
    link = tmp_path / "a link"
    link.symlink_to(imports.ROOT / "tools" / name)
    process = python.run(
        [str(link), "--no-such-option"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (2, ""), process.stderr
    assert len(process.stderr.splitlines()) == 1 and "--no-such-option" in process.stderr

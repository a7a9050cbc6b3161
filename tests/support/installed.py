"""wbengine as a user has it: installed by the commands of the README, without extras.

The fixture `installed` installs once for each run of the tests, for all its processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import pages

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
#: Files of the checkout that an installation needs.
_SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg", "setup.py", "wbengine")
#: Variables that would make the installed Python find other packages, or compile them each time.
ELSEWHERE = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a user whose only wbengine is an installed one.

    The user's files, and the folder where engines and workers meet, are in `folder`.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in ELSEWHERE and not name.startswith("WBENGINE_")
    }
    for what in ("RUNTIME_DIR", "CONFIG_HOME", "STATE_HOME", "DATA_HOME"):
        place = folder / what
        place.mkdir(mode=0o700)
        variables[f"XDG_{what}"] = str(place)
    return variables


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that contains only wbengine and its requirements."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    checkout = shared / "checkout"
    marker = shared / "checkout-is-installed"
    with _locked(shared / "installing"):
        if not marker.exists():
            shutil.rmtree(checkout, ignore_errors=True)  # left by a killed process
            _install(checkout)
            marker.touch()
    python = checkout / "env" / "bin" / "python"
    assert python.exists(), "the README calls its environment `env`"
    return python


def copied(python: Path, folder: Path, source: str | Path) -> Path:
    """Return the Python of a copy of the installed environment with wbengine from `source`.

    This is a wheel, or 'checkout', 'editable', 'wheel' or 'removed wheel'.
    """
    # Another process may write a compiled file now, which would remain after the removal.
    unfinished = shutil.ignore_patterns("*.pyc.*")
    shutil.copytree(python.parents[1], folder, symlinks=True, ignore=unfinished)
    copy = folder / "bin" / "python"
    pip = [copy, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"]
    if isinstance(source, Path):
        _succeed([*pip, source])
        return copy
    checkout = folder / "checkout"
    _copy_sources(checkout)
    if source == "editable":
        _succeed([*pip, "-e", checkout])
    elif source == "checkout":
        _succeed([*pip, checkout])
    else:
        _succeed([copy, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, checkout])
        (wheel,) = folder.glob("*.whl")
        _succeed([*pip, wheel])
        if source == "removed wheel":
            wheel.unlink()
    return copy


def _succeed(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def install_commands() -> list[str]:
    """Return the first commands of the README."""
    text = next(block.text for block in pages.blocks(README) if block.language == "console")
    return [line[2:] for line in text.splitlines()]


def _copy_sources(checkout: Path) -> None:
    checkout.mkdir()
    for name in _SOURCES:
        if (REPOSITORY / name).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, checkout / name, ignore=unwanted)
        else:
            shutil.copy(REPOSITORY / name, checkout / name)


def _install(checkout: Path) -> None:
    _copy_sources(checkout)
    variables = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    variables["PIP_NO_COMPILE"] = "1"  # the tests import only a few of the modules
    variables["PATH"] = os.path.dirname(sys.executable) + os.pathsep + variables["PATH"]
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(install_commands())],
        cwd=checkout,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

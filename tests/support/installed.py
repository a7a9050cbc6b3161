"""wbengine as a user has it: installed by the commands of the README, without extras.

`installed` is made once for a run of the tests, however many processes that has.
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
#: What a checkout has that installing needs.
_SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg", "setup.py", "wbengine")
#: What would let the installed Python find packages of another place, or compile them each time.
_ELSEWHERE = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


def environment(folder: Path) -> dict[str, str]:
    """The variables of a user whose only wbengine is an installed one, and whose own files, and the
    place where engines and workers meet, are in `folder`."""
    told = {
        name: value
        for name, value in os.environ.items()
        if name not in _ELSEWHERE and not name.startswith("WBENGINE_")
    }
    for what in ("RUNTIME_DIR", "CONFIG_HOME", "STATE_HOME", "DATA_HOME"):
        place = folder / what
        place.mkdir(mode=0o700)
        told[f"XDG_{what}"] = str(place)
    return told


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds wbengine and what it requires, and nothing else."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    checkout = shared / "checkout"
    made = shared / "checkout-is-installed"
    with _locked(shared / "installing"):
        if not made.exists():
            shutil.rmtree(checkout, ignore_errors=True)  # of a process that was ended midway
            _install(checkout)
            made.touch()
    python = checkout / "env" / "bin" / "python"
    assert python.exists(), "the README calls its environment `env`"
    return python


def install_commands() -> list[str]:
    """What the README says: the first commands on it."""
    text = next(block.text for block in pages.blocks(README) if block.language == "console")
    return [line[2:] for line in text.splitlines()]


def _install(checkout: Path) -> None:
    checkout.mkdir()
    for name in _SOURCES:
        if (REPOSITORY / name).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, checkout / name, ignore=unwanted)
        else:
            shutil.copy(REPOSITORY / name, checkout / name)
    variables = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    variables["PIP_NO_COMPILE"] = "1"  # what the tests import is little of it
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

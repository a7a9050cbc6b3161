"""Required and pinned releases: bounds, hashes and the audit."""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import fresh
from tests.support.workers import REPOSITORY
from tools import _supply

PINS = REPOSITORY / "tools" / "_requirements.txt"
PYTHONS = ("3.11.15", "3.12.13", "3.13.12")


def requirements() -> Iterator[Requirement]:
    """Yield all requirements of setup.cfg with all extras, and the build requirement."""
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    texts = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    for line in "\n".join(texts).splitlines():
        if line.strip() and not line.startswith("wbengine["):
            yield Requirement(line)
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    yield Requirement(re.findall(r'(?m)^requires = \["(.+)"\]', project)[0])


def environment(python: str) -> dict[str, str]:
    minor = ".".join(python.split(".")[:2])
    return {"python_version": minor, "python_full_version": python, "sys_platform": "linux"}


@pytest.mark.parametrize("python", PYTHONS)
def test_each_requirement_is_pinned_with_hashes(python: str) -> None:
    """A failure means that `tools/supply pin` was not run after a change of setup.cfg."""
    pinned = {}
    for name, version, marker, hashes in _supply.pins(PINS.read_text(encoding="utf-8")):
        assert hashes, name
        if marker is None or Marker(marker).evaluate(environment(python)):
            assert name not in pinned
            pinned[canonicalize_name(name)] = version
    for wanted in requirements():
        if wanted.marker is None or wanted.marker.evaluate(environment(python)):
            pin = pinned.get(canonicalize_name(wanted.name))
            assert pin is not None, f"{wanted} is not pinned: run tools/supply pin"
            assert wanted.specifier.contains(pin), f"{wanted}, but {pin} is pinned"


def test_requirements_file_contains_no_url() -> None:
    assert "://" not in PINS.read_text(encoding="utf-8")


#: The last release of each package with an advisory, as of November 2026; see setup.cfg.
KNOWN = {
    "Jinja2": "3.1.5", "Mako": "1.3.11", "PyMySQL": "1.1.0", "Pygments": "2.19.2",
    "cryptography": "48.0.0", "h11": "0.14.0", "joserfc": "1.6.5", "msgpack": "1.2.0",
    "orjson": "3.11.5", "pytest": "9.0.2", "redis": "6.1.1",
    "requests": "2.32.5", "setuptools": "82.0.1", "starlette": "1.3.0", "tornado": "6.5.7",
    "urllib3": "2.6.3",
}  # fmt: skip


@pytest.mark.parametrize(("name", "version"), KNOWN.items())
def test_release_with_known_advisory_is_excluded(name: str, version: str) -> None:
    wanted_releases = [wanted for wanted in requirements() if wanted.name == name]
    assert wanted_releases and all(
        not wanted.specifier.contains(version) for wanted in wanted_releases
    ), wanted_releases


#: First unreviewed release of packages whose internals wbengine uses.
UNSEEN = {
    "amqp": "5.5", "celery": "5.8", "kombu": "6.0", "redis": "9.0", "sse-starlette": "4.0",
    "starlette": "2.0",
}  # fmt: skip


@pytest.mark.parametrize(("name", "version"), UNSEEN.items())
def test_unreviewed_release_is_excluded(name: str, version: str) -> None:
    limited = [wanted for wanted in requirements() if wanted.name == name and wanted.specifier]
    assert limited and all(not wanted.specifier.contains(version) for wanted in limited), limited


def report(*dependencies: dict[str, Any]) -> str:
    return json.dumps({"dependencies": dependencies, "fixes": []})


FINE = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "c", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("said", "errors", "verdict", "why"),
    [
        (report(FINE), "", _supply.PASSED, "no known advisory for 1 releases"),
        (report(FINE, BAD), "", _supply.FAILED, "b 2: CVE-1, fixed in 3"),
        (report(FINE, UNKNOWN), "", _supply.FAILED, "the lookup failed for: c"),
        # pip-audit's exit code is 0 in this case.
        (report(UNKNOWN, UNKNOWN), "", _supply.SKIPPED, "the lookup failed for all 2 releases"),
        (report(), "", _supply.SKIPPED, "the lookup failed for all 0 releases"),
        ("", "Traceback\nrequests.exceptions.ConnectionError: x", _supply.SKIPPED, "Connection"),
        ("", "Traceback\nKeyError: 'id'", _supply.FAILED, "KeyError: 'id'"),
        ("[]", "", _supply.FAILED, "nothing was reported"),
    ],
)
def test_audit_passes_only_after_lookup_of_each_release(
    said: str, errors: str, verdict: str, why: str
) -> None:
    found, message = _supply.verdict(said, errors)
    assert found == verdict and why in message


class Checkout:
    """A folder with the installer, a package index and a file of pins."""

    def __init__(self, folder: Path) -> None:
        self._tools = folder / "tools"
        self._tools.mkdir()
        source = (REPOSITORY / "tools" / "_bootstrap.py").read_bytes()
        (self._tools / "_bootstrap.py").write_bytes(source)
        self._index = folder / "index"
        self._index.mkdir()
        wheel = self._index / "pinned_thing-1.0-py3-none-any.whl"
        about = "pinned_thing-1.0.dist-info"
        with zipfile.ZipFile(wheel, "w") as file:
            told = "Metadata-Version: 2.1\nName: pinned-thing\nVersion: 1.0\n"
            file.writestr(f"{about}/METADATA", told)
            told = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            file.writestr(f"{about}/WHEEL", told)
            file.writestr(f"{about}/RECORD", "")
        self.digest = hashlib.sha256(wheel.read_bytes()).hexdigest()

    def install(self, version: str, digest: str, **variables: str) -> tuple[int, str, str]:
        pin = f"pinned-thing=={version} \\\n    --hash=sha256:{digest}\n"
        (self._tools / "_requirements.txt").write_text(pin, encoding="utf-8")
        program = (
            "import sys, _bootstrap as b; print(b._install_pinned([sys.executable, '-m', 'pip',"
            f" 'install', '-q', '--dry-run', '--no-index', '--find-links', {str(self._index)!r}]))"
        )
        base = {name: value for name, value in os.environ.items() if name != "CI"}
        environment = {**base, "PIP_CONFIG_FILE": os.devnull, **variables}
        done = fresh.run(program, code=None, cwd=self._tools, env=environment)
        return done.returncode, done.stdout.strip(), done.stderr

    def install_with_uv(self, python: Path, pins: str) -> bool:
        (self._tools / "_requirements.txt").write_text(pins, encoding="utf-8")
        program = (
            "import sys, _bootstrap as b; python = sys.argv[1];"
            " pip = [python, '-m', 'pip', 'install', '-q', '--disable-pip-version-check'];"
            " print(b._install_with_uv(python, pip))"
        )
        command = [sys.executable, "-c", program, str(python)]
        done = subprocess.run(command, cwd=self._tools, capture_output=True, text=True, check=True)
        return done.stdout.strip() == "True"


def _pin_of(name: str) -> str:
    """Return the lines of a package in the file of pins."""
    found = re.search(rf"(?m)^{name}==.+\n(?: +--hash=.+\n)+", PINS.read_text(encoding="utf-8"))
    assert found is not None
    return found.group()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.slow
def test_pinned_release_is_installed(checkout: Checkout) -> None:
    assert checkout.install("1.0", checkout.digest, CI="1")[:2] == (0, "True")


@pytest.mark.slow
@pytest.mark.parametrize("is_right", [True, False], ids=["right-hash", "wrong-hash"])
def test_uv_installs_files_with_pinned_hashes_only(
    checkout: Checkout, tmp_path: Path, is_right: bool
) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    venv.create(python.parents[1], with_pip=True)
    pin = _pin_of("iniconfig")
    if not is_right:
        pin = re.sub(r"sha256:\w+", f"sha256:{'0' * 64}", pin)
    assert checkout.install_with_uv(python, pin + _pin_of("uv")) is is_right
    installed = subprocess.call([python, "-c", "import iniconfig"], stderr=subprocess.DEVNULL)
    assert (installed == 0) is is_right


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"CI": "1"}], ids=["developer", "CI"])
def test_file_with_wrong_hash_is_refused(checkout: Checkout, variables: dict[str, str]) -> None:
    code, output, errors = checkout.install("1.0", "0" * 64, **variables)
    assert (code, output) == (1, "") and checkout.digest in errors


@pytest.mark.slow
def test_missing_pinned_release_fails_in_ci_only(checkout: Checkout) -> None:
    assert checkout.install("2.0", checkout.digest, CI="1")[:2] == (1, "")
    code, output, errors = checkout.install("2.0", checkout.digest)
    assert (code, output) == (0, "False")
    assert errors.startswith("not as pinned, but as setup.cfg asks for: ") and "==2.0" in errors

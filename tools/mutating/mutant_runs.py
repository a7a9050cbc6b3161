"""Test runs on copies of a tree, with and without a mutant."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tools import _patience

KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
#: Exit code of pytest for failed tests.
FAILED = 1


class Broken(Exception):
    """Tests fail without a mutant."""


@dataclass(frozen=True)
class Verdict:
    outcome: str
    by: str | None = None
    """The test that failed."""


def copy(tree: Path, target: Path) -> Path:
    """Copy the files that git lists, or all files if the tree is not a repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        shutil.copytree(tree, target, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        return target
    for name in filter(None, listed.stdout.split("\0")):
        if (tree / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, target / name)
    return target


class Copy:
    """A copy of the tree for one mutant at a time."""

    def __init__(self, tree: Path, place: Path) -> None:
        self._place = copy(tree, place)
        self._written = time.time()

    def seconds(self, tests: Sequence[str], jobs: int) -> dict[str, float]:
        """Return the duration of each test file in seconds, without a mutant.

        :raises Broken: if a test fails, also when it is run alone.
        """
        report = self._place.with_suffix(".xml")
        spread = ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []
        code, output = self._pytest([*tests, *spread, f"--junitxml={report}"], None)
        if code not in (0, FAILED):
            raise Broken(output)
        failed = _failed(output)
        if failed:
            code, output = self._pytest(failed, None)
            if code:
                raise Broken(output)
        durations: dict[str, float] = {}
        for case in ET.parse(report).iter("testcase"):
            name = _file(self._place, case.get("classname", ""))
            durations[name] = durations.get(name, 0.0) + float(case.get("time", 0))
        return durations

    def attempt(self, mutant: dict[str, Any], files: Sequence[str], limit: float) -> Verdict:
        """Run test files with a mutant, in this order, until a test fails.

        If the test then passes when it is run alone, its failure is ignored and the run continues.
        """
        path = self._place / mutant["name"]
        before = path.read_text(encoding="utf-8")
        until = time.monotonic() + limit
        self._write(path, mutant["code"])
        try:
            return self._search(list(files), until)
        except subprocess.TimeoutExpired:
            return Verdict(TIMED_OUT)
        finally:
            self._write(path, before)

    def _search(self, files: list[str], until: float) -> Verdict:
        doubtful: list[str] = []
        while True:
            passed = [f"--deselect={test}" for test in doubtful]
            code, output = self._pytest(["-x", *files, *passed], until)
            if code == 0:
                return Verdict(SURVIVED)
            failed = _failed(output)
            if code != FAILED or not failed:
                return Verdict(KILLED, "what cannot be imported, or ends pytest")
            if self._pytest(failed[:1], until)[0]:
                return Verdict(KILLED, failed[0])
            doubtful.append(failed[0])
            files = files[files.index(failed[0].partition("::")[0]) :]

    def _write(self, path: Path, code: str) -> None:
        """Write a file with a new modification time, which identifies its compiled file."""
        path.write_text(code, encoding="utf-8")
        self._written += 2
        os.utime(path, (self._written, self._written))

    def _pytest(self, words: Iterable[str], until: float | None) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-m", "not alone"]
        environment = {**os.environ, "CI": "true", "PYTHONPATH": str(self._place)}
        for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
            environment.pop(name, None)  # all mutants reuse the compiled files
        with self._place.with_suffix(".out").open("w+", encoding="utf-8", errors="replace") as out:
            process = subprocess.Popen(
                [*command, *words], cwd=self._place, env=environment, stdout=out,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                remaining = None if until is None else max(until - time.monotonic(), 0)
                code = process.wait(remaining)
            finally:
                _patience.end(process)
            out.seek(0)
            return code, out.read()


def _failed(output: str) -> list[str]:
    return re.findall(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.*?)?)(?: - |$)", output, re.M)


def _file(place: Path, classname: str) -> str:
    """Return the file of a class name: `tests.unit.test_a.TestB` is in `tests/unit/test_a.py`."""
    parts = classname.split(".")
    for count in range(len(parts), 0, -1):
        name = "/".join(parts[:count]) + ".py"
        if (place / name).exists():
            return name
    return classname

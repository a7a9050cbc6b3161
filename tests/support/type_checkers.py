"""Checks of programs whose lines with errors are marked."""

from __future__ import annotations

import json
import pathlib
import re
import sys

from tests.support import python

ROOT = pathlib.Path(__file__).parents[2]

#: Mark of a line: the code of the error of mypy. Pyright reports another code.
MARK = re.compile(r"  # error: ([\w-]+)$")


def check_with_mypy(program: str, folder: pathlib.Path) -> None:
    """Check that mypy reports exactly the marked errors."""
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    command = ["-m", "mypy", "--strict", "--follow-imports=silent"]
    options = ["--config-file=", f"--cache-dir={folder}/cache", str(path)]
    checked = python.run([*command, *options], real=True, cwd=ROOT, capture_output=True, text=True)
    reported = re.findall(r"program\.py:(\d+): error: .*\[([\w-]+)\]$", checked.stdout, re.M)

    lines = dict(enumerate(program.splitlines(), 1))
    expected = [(line, mark[1]) for line in lines.values() if (mark := MARK.search(line))]
    assert [(lines[int(number)], code) for number, code in reported] == expected, checked


def check_with_pyright(program: str, folder: pathlib.Path) -> None:
    """Check that pyright reports errors in exactly the marked lines."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    config = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)], "include": ["program.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = ["-m", "basedpyright", "--level=error", "--outputjson"]
    options = [f"--pythonpath={sys.executable}", f"--project={folder}"]
    checked = python.run([*command, *options], real=True, capture_output=True, text=True)
    reported = json.loads(checked.stdout)["generalDiagnostics"]

    lines = program.splitlines()
    expected = [number for number, line in enumerate(lines) if MARK.search(line)]
    actual = sorted({each["range"]["start"]["line"] for each in reported})
    assert [lines[number] for number in actual] == [lines[number] for number in expected]

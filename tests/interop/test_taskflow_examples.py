"""TaskFlow's examples print the same with wbengine, except those that the guide names."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import python

REDIRECTED = Path(__file__).parent / "redirected"
SOURCE = Path(__file__).parents[2] / "doc" / "source"
GUIDE = SOURCE / "explanation" / "differences_from_taskflow.rst"
#: Examples that need a ZooKeeper at port 2181 of this host.
NEED_ZOOKEEPER = {"99_bottles", "jobboard_produce_consume_colors", "tox_conductor"}

#: Examples that differ only if eventlet is installed.
NEED_EVENTLET = {"parallel_table_multiply", "resume_vm_boot"}
UNSEEN = NEED_ZOOKEEPER | NEED_EVENTLET
#: Examples that print a line each time that the engine waits: the number of lines varies.
PRINT_STEPS = {"parallel_table_multiply"}

#: Texts that differ between two runs or contain the name of the library.
VARIABLE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|(?<=thread ')\d+|\d+\.\d+(?= seconds)"
    r"|(taskflow|wbengine)(\.\w+)*(?=\.\w+ object at)"
)


def examples() -> list[Path]:
    spec = importlib.util.find_spec("taskflow")
    assert spec is not None and spec.origin is not None
    paths = (Path(spec.origin).parent / "examples").glob("*.py")
    programs = [each for each in paths if not each.stem.endswith("_utils")]
    # The slowest programs start first.
    return sorted(programs, key=lambda each: (not each.stem.startswith("resume"), each))


def start(folder: Path, programs: list[Path], **environment: str) -> subprocess.Popen[bytes]:
    folder.mkdir()
    return python.start(
        ["-m", "tests.interop.examples", folder, *programs],
        env={**os.environ, "PYTHONHASHSEED": "0", **environment},
    )


def printed(folder: Path, program: Path) -> list[str]:
    """Return the lines that a program printed, sorted because threads print in any order."""
    text = (folder / f"{program.stem}.out").read_text()
    lines = VARIABLE.sub("...", text).splitlines()
    return sorted(set(lines) if program.stem in PRINT_STEPS else lines)


def named_in_guide() -> set[str]:
    """Return the examples in the first column of the guide's table."""
    section = GUIDE.read_text(encoding="utf-8").partition("TaskFlow's examples\n---")[2]
    rows = re.findall(r"^   \* - ((?:.|\n {7})*)", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"``(\w+)\.py``", row)}


@pytest.mark.slow
def test_examples_print_the_same_unless_the_guide_names_them(tmp_path: Path) -> None:
    programs = [each for each in examples() if each.stem not in NEED_ZOOKEEPER]
    theirs, ours = tmp_path / "taskflow", tmp_path / "wbengine"
    runs = start(theirs, programs), start(ours, programs, PYTHONPATH=str(REDIRECTED))
    assert [run.wait() for run in runs] == [0, 0]
    different = {each.stem for each in programs if printed(theirs, each) != printed(ours, each)}
    without = NEED_ZOOKEEPER if importlib.util.find_spec("eventlet") else UNSEEN
    assert different == named_in_guide() - without
    assert len(programs) - len(different) > 25

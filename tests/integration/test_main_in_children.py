"""Tasks of the module `__main__` in child processes, by the way in which the program starts."""

from __future__ import annotations

import os
import subprocess
import zipapp
from pathlib import Path
from typing import Any

import pytest

from tests.support import python

PROGRAM = """
import dataclasses, logging, sys
from wbengine import engines, task
from wbengine.patterns import linear_flow

logging.basicConfig(format="of the program: %(message)s")

@dataclasses.dataclass
class Price:
    amount: int

class Double(task.Task):
    default_provides = "doubled"

    def execute(self, price):
        logging.warning("doubling")
        return Price(2 * price.amount)

def main():
    flow = linear_flow.Flow("prices").add(Double())
    options = {"engine": "parallel", "executor": "processes", "max_workers": 1}
    print(engines.run(flow, store={"price": Price(4)}, **options)["doubled"])
"""
GUARDED = f'{PROGRAM}\nif __name__ == "__main__":\n    main()\n'


def run(*words: object, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return python.run(
        words,
        real=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(python.REPOSITORY)},
        capture_output=True,
        text=True,
        **options,
    )


def write_package(folder: Path, program: str = GUARDED) -> None:
    (folder / "prices").mkdir()
    (folder / "prices" / "__init__.py").touch()
    (folder / "prices" / "__main__.py").write_text(program)


@pytest.mark.parametrize(
    "way", ["package", *(pytest.param(w, marks=pytest.mark.slow) for w in ("folder", "zip"))]
)
def test_child_imports_main_module_of_package_folder_and_zip(tmp_path: Path, way: str) -> None:
    write_package(tmp_path)
    zipapp.create_archive(tmp_path / "prices", tmp_path / "zip")
    words = {"package": ["-m", "prices"], "folder": ["prices"], "zip": ["zip"]}[way]
    done = run(*words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Price(amount=8)\n"), done.stderr
    assert done.stderr == "of the program: doubling\n"


def test_main_module_without_guard_is_refused_in_the_child(tmp_path: Path) -> None:
    write_package(tmp_path, f"{PROGRAM}\nmain()\n")
    done = run("-m", "prices", folder=tmp_path)
    assert done.returncode == 1
    assert 'its actions below `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("way", ["code", pytest.param("input", marks=pytest.mark.slow)])
def test_task_of_unimportable_program_is_refused_with_the_remedy(tmp_path: Path, way: str) -> None:
    if way == "code":
        done = run("-c", GUARDED, folder=tmp_path)
    else:
        done = run("-", folder=tmp_path, input=GUARDED)
    assert done.returncode == 1
    reason = "child processes cannot import 'Double' from the main program: move it into a module"
    assert f"'__main__.Double': call cannot be unpickled: ImportError: {reason}" in done.stderr


def test_program_from_standard_input_runs_tasks_of_modules_in_children(tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text(PROGRAM)
    done = run("-", folder=tmp_path, input="import prices\nprices.main()\n")
    assert (done.returncode, done.stdout) == (0, "Price(amount=8)\n"), done.stderr

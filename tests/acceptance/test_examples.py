"""Each example prints the output in its docstring, on each kind of engine that it supports."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest

from tests.support import python, workers

FOLDER = workers.REPOSITORY / "examples"
#: Modules in the folder that are not examples.
OTHERS = {"__init__", "kinds", "remote_tasks", "table_transport"}

SERIAL, THREADS, PROCESSES, WORKERS = "serial", "threads", "processes", "worker-based"
LOCAL = (SERIAL, THREADS, PROCESSES)
ALL = (*LOCAL, WORKERS)
#: Example -> kinds of engine that it supports; None: the example starts its own engines.
EXAMPLES: dict[str, tuple[str, ...] | None] = {
    "async_tasks": ALL,
    "crash_and_resume": None,
    "delayed_return": (SERIAL, THREADS, WORKERS),
    "fan_out": ALL,
    "graph_flow": ALL,
    "hand_over": None,
    "hello_world": ALL,
    "resume_from_backend": LOCAL,
    "retry_flow": ALL,
    "switch_graph_flow": ALL,
    "watching": ALL,
}
KINDS = {kind: [name for name, kinds in EXAMPLES.items() if kind in (kinds or ())] for kind in ALL}
#: Examples that start their own engines.
OWN = [name for name, kinds in EXAMPLES.items() if kinds is None]

#: Program that runs examples one by one, each as `__main__`.
ONE_BY_ONE = """
import importlib, sys
names, sys.argv[1:] = sys.argv[1].split(), sys.argv[2:]
here = sys.modules["__main__"]
for name in names:
    print("==", name, flush=True)
    sys.modules["__main__"] = importlib.import_module(f"examples.{name}")
    sys.modules["__main__"].main()
sys.modules["__main__"] = here
"""


def promised(name: str) -> str:
    """Return the output that the docstring of an example documents."""
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")))
    assert text is not None
    about, marker, block = text.partition("\n\nPrints::\n\n")
    assert about and marker, f"{name} does not say what it prints"
    return "\n".join(line.removeprefix("    ") for line in block.splitlines())


def started(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python.run(
        ["-W", "error", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(workers.REPOSITORY)},
        capture_output=True,
        text=True,
    )


def printed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("kind", ALL)
def test_examples_print_documented_output(kind: str, tmp_path: Path) -> None:
    names = KINDS[kind]
    ended = started(tmp_path, "-c", ONE_BY_ONE, " ".join(names), "--engine", kind)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    parts = [part.partition("\n") for part in ended.stdout.split("== ")[1:]]
    assert {name: printed(text) for name, _, text in parts} == {
        name: promised(name) for name in names
    }
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["hello_world", *OWN])
def test_example_runs_as_program(name: str, tmp_path: Path) -> None:
    ended = started(tmp_path, "-m", f"examples.{name}")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert printed(ended.stdout) == promised(name)
    assert not list(tmp_path.iterdir())


def test_each_example_is_tested() -> None:
    names = {path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_")}
    assert {*names, "__init__"} - OTHERS == EXAMPLES.keys()


def test_example_rejects_unsupported_engine(tmp_path: Path) -> None:
    ended = started(tmp_path, "-m", "examples.resume_from_backend", "--engine", "worker-based")
    assert ended.returncode == 2
    assert "choose from" in ended.stderr and "processes" in ended.stderr

"""Files in the current folder do not shadow modules, since commands also run in shared folders."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support import python

#: Modules that commands import from Python and from packages.
SHADOWS = (
    "json", "redis", "click", "logging", "asyncio", "sqlalchemy", "kombu", "tomllib", "uuid",
    "multiprocessing", "selectors", "socket", "pickle", "tempfile", "struct", "copyreg", "hmac",
)  # fmt: skip

TASKS = """
import json
from wbengine import task
class Dump(task.Task):
    default_provides = "text"
    def execute(self):
        return json.dumps([1])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"open({name!r} + '.shadowed', 'w').close()\n")
    (tmp_path / "mine.py").write_text(TASKS)
    return tmp_path


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("WBENGINE_")}
    env |= {"XDG_STATE_HOME": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder)}
    # Import the package under test instead of modules in the current folder.
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    return python.run(words, real=True, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("wbengine", "flow", "run", "mine:Dump", "--json"),
        ("wbengine", "flow", "run", "mine:Dump", "--json", "--engine", "parallel"),
        ("wbengine.worker", "t", "--tasks", "mine", "--burst", "--url=filesystem://broker"),
        ("wbengine", "worker", "t", "--tasks", "mine", "--burst", "--url=filesystem://broker",
         "--processes", "1"),
        ("wbengine", "doctor", "--url=filesystem://broker", "--persistence=sqlite:///f.db",
         "--timeout=60"),
    ],
    ids=["run", "threads", "module", "worker", "doctor"],
)  # fmt: skip
def test_file_in_current_folder_does_not_shadow_a_module(
    words: tuple[str, ...], folder: Path
) -> None:
    """Modules in the current folder are importable."""
    done = call(folder, "-m", *words)
    assert not list(folder.glob("*.shadowed"))
    assert done.returncode == 0, done.stderr
    if "--json" in words:
        assert json.loads(done.stdout)["results"]["text"] == "[1]"


@pytest.fixture
def script(folder: Path) -> str:
    """Return the path of a script like the one that pip installs."""
    # `python -m wbengine` would run this file instead of the package.
    (folder / "wbengine.py").write_text("open('wbengine.shadowed', 'w').close()\n")
    path = folder / "bin" / "wbengine"
    path.parent.mkdir()
    path.write_text("import sys\nfrom wbengine.__main__ import main\nsys.exit(main())\n")
    return str(path)


@pytest.mark.slow
def test_current_folder_is_last_on_the_import_path_of_the_script(folder: Path, script: str) -> None:
    """Python does not search the current folder for a script; the command appends it."""
    done = call(folder, script, "flow", "run", "mine:Dump", "--json")
    assert json.loads(done.stdout)["results"]["text"] == "[1]"
    assert not list(folder.glob("*.shadowed"))


@pytest.mark.parametrize(
    "words",
    [
        ("worker", "t", "--tasks", "mine", "--burst", "--url=filesystem://broker",
         "--processes", "1"),
        ("flow", "run", "mine:Dump", "--persistence=sqlite:///f.db", "--detach"),
    ],
    ids=["pool", "detached"],
)  # fmt: skip
def test_current_folder_is_last_on_the_import_path_of_child_processes(
    words: tuple[str, ...], folder: Path, script: str
) -> None:
    done = call(folder, script, *words)
    assert done.returncode == 0, done.stderr
    assert not list(folder.glob("*.shadowed"))

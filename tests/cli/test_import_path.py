"""Files of the current folder take no module's place: commands are run where others write, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: What commands import of Python, and of packages.
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
    # The package that is tested, wherever it is: not the folder that this test runs in.
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=120
    )


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
def test_a_file_of_the_current_folder_takes_no_module_s_place(
    words: tuple[str, ...], folder: Path
) -> None:
    """And modules of the current folder are found."""
    done = call(folder, "-m", *words)
    assert not list(folder.glob("*.shadowed"))
    assert done.returncode == 0, done.stderr
    if "--json" in words:
        assert json.loads(done.stdout)["results"]["text"] == "[1]"


@pytest.fixture
def script(folder: Path) -> str:
    """What pip installs as the command."""
    # Not so for `python -m wbengine`, which runs that file as the first thing.
    (folder / "wbengine.py").write_text("open('wbengine.shadowed', 'w').close()\n")
    path = folder / "bin" / "wbengine"
    path.parent.mkdir()
    path.write_text("import sys\nfrom wbengine.__main__ import main\nsys.exit(main())\n")
    return str(path)


def test_the_current_folder_is_last_for_the_command_s_script(folder: Path, script: str) -> None:
    """Python does not look there for what a script imports; the command does, after all else."""
    done = call(folder, script, "flow", "run", "mine:Dump", "--json")
    assert json.loads(done.stdout)["results"]["text"] == "[1]"
    assert not list(folder.glob("*.shadowed"))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot be told so")
@pytest.mark.parametrize(
    "words",
    [
        ("worker", "t", "--tasks", "mine", "--burst", "--url=filesystem://broker",
         "--processes", "1"),
        ("flow", "run", "mine:Dump", "--persistence=sqlite:///f.db", "--detach"),
    ],
    ids=["pool", "detached"],
)  # fmt: skip
def test_children_of_the_script_look_there_last_too(
    words: tuple[str, ...], folder: Path, script: str
) -> None:
    done = call(folder, script, *words)
    assert done.returncode == 0, done.stderr
    assert not list(folder.glob("*.shadowed"))

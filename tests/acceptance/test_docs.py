"""The documentation: it builds, every code block in the guide runs, and its tables are true."""

from __future__ import annotations

import contextlib
import doctest
import fnmatch
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.state_tables import CHECKS, transitions
from tests.support import pages, workers
from wbengine import states
from wbengine._sql import options as sql_options
from wbengine.cli import worker_command
from wbengine.engines import ownership
from wbengine.engines.worker_based.discovery.snapshots import STATES
from wbengine.engines.worker_based.engine import WorkerBasedActionEngine
from wbengine.runtime import saving

SOURCE = workers.REPOSITORY / "doc" / "source"
PACKAGE = workers.REPOSITORY / "wbengine"
GUIDE = sorted(
    page
    for pattern in ("user/*.rst", "cookbook/*.rst", "migrating_*.rst")
    for page in SOURCE.glob(pattern)
)
#: Those that need no extra are run on a plain installation, by `test_installed`.
BUILT = (SOURCE / "installing.rst", SOURCE / "tutorial.rst", *GUIDE)


def built(folder: Path, *options: str) -> Path:
    """What Sphinx makes of the documentation; it must have nothing to say."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    ended = subprocess.run(
        [*command, *options, "-d", folder / "trees", SOURCE, folder / "html"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return folder / "html"


def test_the_tutorial_builds_by_itself(tmp_path: Path) -> None:
    only = "include_patterns=tutorial.rst", "root_doc=tutorial", "suppress_warnings=ref.doc"
    made = built(tmp_path, *(word for each in only for word in ("-D", each)))
    assert "<h1>" in (made / "tutorial.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_builds_without_warnings(tmp_path: Path) -> None:
    made = built(tmp_path)
    for page in BUILT:
        text = (made / page.relative_to(SOURCE).with_suffix(".html")).read_text(encoding="utf-8")
        assert "<h1>" in text
    messages = (made / "reference" / "messages.html").read_text(encoding="utf-8")
    assert "wbe-attempt" in messages and "task_version" in messages


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs_and_prints_what_is_shown(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found = pages.blocks(page)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    folder = tmp_path / "folder"
    folder.mkdir()
    # The default place where engine and workers meet is one of this test's own.
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "WBENGINE_URL": ""}
    environment["WBENGINE_TIMEOUT"] = "60"  # no command gives up because the machine is slow
    environment |= {
        f"XDG_{what}_HOME": str(tmp_path / what) for what in ("CONFIG", "STATE", "DATA")
    }
    with contextlib.ExitStack() as stack:
        if (kind := pages.broker(page)) is not None:
            place = request.getfixturevalue("broker_servers")[kind].place()
            environment["WBENGINE_URL"] = stack.enter_context(place)
            # Tests may run as root, to which Celery's workers object.
            environment["PYTHONWARNINGS"] = "ignore:You're running the worker with superuser"
        printed = pages.printed(found, folder, environment)
    pages.compare(page, found, printed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("See::\n\n    run()\n", "literal block"),
        (".. code:: python\n\n   run()\n", "none of python"),
        (".. code-block:: bash\n\n   ls\n", "bash is none of"),
        (".. code-block::\n\n   ls\n", "none of"),
        (">>> 1\n1\n", "interpreter session"),
        (".. code-block:: output\n\n   1\n", "does not follow"),
        (".. code-block:: python\n\n   1\n\nx\n\n.. code-block:: output\n\n   1\n", "not follow"),
    ],
)
def test_a_block_that_would_not_be_run_is_refused(text: str, words: str, tmp_path: Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(pages.Unclear, match=words):
        pages.blocks(page)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("See:\n\n    run()\n", "indented"),
        ("```\nrun()\n```\n", "a fence is none of"),
        ("```bash\nls\n```\n", "bash is none of"),
        ("```output\n1\n```\n", "does not follow"),
        ("```python\n1\n```\nx\n```output\n1\n```\n", "not follow"),
    ],
)
def test_block_in_markdown_that_would_not_be_run_is_refused(
    text: str, words: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(pages.Unclear, match=words):
        pages.blocks(page)


def test_blocks_in_markdown_are_those_of_the_guide(tmp_path: Path) -> None:
    markdown, guide = tmp_path / "page.md", tmp_path / "page.rst"
    markdown.write_text(
        "```python mine.py\nx = 1\n```\n\n- so\n\n  ```python\n  if 1:\n      x\n  ```\n\n"
        "  ```output\n  shown\n  ```\n\n```text\nno\n```\n\n```console\n$ ls\n```\n",
        encoding="utf-8",
    )
    guide.write_text(
        ".. code-block:: python\n   :caption: mine.py\n\n   x = 1\n\nso\n\n"
        ".. code-block:: python\n\n   if 1:\n       x\n\n.. code-block:: output\n\n   shown\n\n"
        ".. code-block:: text\n\n   no\n\n.. code-block:: console\n\n   $ ls\n",
        encoding="utf-8",
    )
    found = pages.blocks(markdown)
    assert [block.line for block in found] == [2, 8, 21]
    same = pages.blocks(guide)
    for one in (*found, *same):
        one.line = 0
    assert found == same


def test_blocks_are_run_as_they_are_described(tmp_path: Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text(
        ".. code-block:: python\n   :caption: mine.py\n\n   x = 1\n\n"
        "Then\n\n.. code-block:: python\n\n   import mine\n\n   mine.x / 0\n\n"
        ".. code-block:: output\n\n   shown\n\n"
        ".. code-block:: console\n\n   $ echo $((6 * 7))\n   42\n",
        encoding="utf-8",
    )
    found = pages.blocks(page)
    assert [block.line for block in found] == [4, 10, 20]
    told = pages.printed(found, tmp_path, dict(os.environ))
    assert told == [
        "",
        "Traceback (most recent call last):\n  ...\nZeroDivisionError: division by zero\n",
        "42\n",
    ]
    assert found[1].expected == "shown\n"


def table(what: str) -> dict[str, set[str]]:
    """What the page says: the table behind the comment `.. transitions: what`."""
    text = (SOURCE / "user" / "states.rst").read_text(encoding="utf-8")
    _, _, rest = text.partition(f".. transitions: {what}\n")
    rows = re.findall(r"^   \* - (.+)\n     - (.*)$", rest.split("\n\n\n")[0], re.MULTILINE)
    cells = [(old.strip("`"), re.findall(r"``(\w+)``", new)) for old, new in rows[1:]]
    return {old: set(new) for old, new in cells}


@pytest.mark.parametrize("what", CHECKS)
def test_the_tables_of_states_are_those_of_the_code(what: str) -> None:
    assert table(what) == transitions(what)


def test_every_state_is_in_a_table() -> None:
    known = {value for value in vars(states).values() if isinstance(value, str)}
    shown = {state for _, names in CHECKS.values() for state in names}
    text = (SOURCE / "user" / "states.rst").read_text(encoding="utf-8")
    assert shown <= known
    loose = {"SCHEDULING", "WAITING", "ANALYZING", "UNCLAIMED", "CLAIMED", "COMPLETE"}
    assert all(f"``{state}``" in text for state in shown | loose)


def test_every_option_of_a_database_and_every_level_of_durability_is_explained() -> None:
    text = (SOURCE / "user" / "persistence.rst").read_text(encoding="utf-8")
    wanted = {f"``{name}``" for name in sql_options.OPTIONS}
    wanted |= {f'``"{level}"``' for level in saving.LEVELS}
    wanted |= {f'``on_busy="{word}"``' for word in ownership.ON_BUSY}
    assert {words for words in wanted if words not in text} == set()


def test_every_option_on_workers_is_explained() -> None:
    text = (SOURCE / "user" / "workers.rst").read_text(encoding="utf-8")
    more = (SOURCE / "user" / "engines.rst").read_text(encoding="utf-8")
    options = {name for name in WorkerBasedActionEngine.OPTIONS if f"``{name}``" not in more}
    missing = {name for name in options if f"``{name}" not in text}
    text += (SOURCE / "user" / "celery.rst").read_text(encoding="utf-8")
    said = {words for option in worker_command.command.params for words in option.opts[-1:]}
    missing |= {words for words in said - {"topics"} if words not in text}
    text = (SOURCE / "user" / "fleets.rst").read_text(encoding="utf-8")
    missing |= {state for state in STATES if f'``"{state}"``' not in text}
    assert missing == set()


def test_the_floors_name_every_module() -> None:
    text = (SOURCE / "architecture.rst").read_text(encoding="utf-8")
    block = text.partition("\n   F0 words")[2].partition("\n\nPython runs")[0]
    words = re.sub(r"\(.*?\)|^ +F\d \w+", "", block, flags=re.MULTILINE).split()
    patterns = set()
    for word in words:
        before, brace, several = word.partition("{")
        names = several.rstrip("}").split(",") if brace else [""]
        patterns |= {before + name + ("*" if word.endswith("/") else "") for name in names}
    there = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    modules = {path.as_posix() for path in there if path.name != "__init__"}
    assert {one for one in patterns if not fnmatch.filter(modules, one)} == set()
    assert {one for one in modules if not any(fnmatch.fnmatch(one, p) for p in patterns)} == set()


def test_the_map_of_the_wire_names_every_module() -> None:
    text = (SOURCE / "architecture.rst").read_text(encoding="utf-8")
    _, _, text = text.partition("Where things are, in ``engines/worker_based``")
    rows = text.partition("Celery, hosted by a worker")[0].split("\n   * - ")[1:]
    folder = PACKAGE / "engines" / "worker_based"
    there = {
        f"``{room.name}/``" if room != folder else "the top": {
            path.stem for path in room.glob("*.py") if not path.stem.startswith("_")
        }
        for room in [folder, *(init.parent for init in folder.glob("*/__init__.py"))]
    }
    cells = [row.partition("\n     - ") for row in rows]
    assert {room: set(re.findall(r"``(\w+)``", named)) for room, _, named in cells} == there


def modules_with_examples() -> list[str]:
    return sorted(
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if ">>> " in path.read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_are_true(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed

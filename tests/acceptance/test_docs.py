"""The documentation builds, its code blocks run, and its tables match the code."""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import importlib
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.state_tables import CHECKS, transitions
from tests.architecture import public_api
from tests.support import changes, page_scripts, pages, python, server_kinds, workers
from wbengine import states
from wbengine._cli import worker_command
from wbengine._runtime import saving
from wbengine._sql import connection_options as sql_options
from wbengine.engines import _ownership
from wbengine.engines.worker_based._discovery.snapshots import STATES
from wbengine.engines.worker_based.engine import WorkerBasedActionEngine
from wbengine.transports import _kinds

SOURCE = workers.REPOSITORY / "doc" / "source"
PACKAGE = workers.REPOSITORY / "wbengine"
#: A page for an installation without extras, which `test_installed` runs.
INSTALLING = SOURCE / "installing.rst"
TUTORIAL = SOURCE / "tutorial.rst"
PAGES = sorted(SOURCE.rglob("*.rst"))


def guide() -> Iterator[Any]:
    """Yield the pages with code. Those without recent changes are slow tests."""
    for page in PAGES:
        if page != INSTALLING and pages.blocks(page):
            name = str(page.relative_to(SOURCE).with_suffix(""))
            quick = page == TUTORIAL or changes.is_recent(page)
            yield pytest.param(
                page, id=name, marks=pytest.mark.every_commit if quick else pytest.mark.slow
            )


def built(folder: Path, *options: str) -> Path:
    """Build the documentation with Sphinx, which must print nothing."""
    command = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    ended = python.run(
        [*command, *options, "-d", folder / "trees", SOURCE, folder / "html"],
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return folder / "html"


@pytest.mark.slow
def test_tutorial_builds_without_warnings(tmp_path: Path) -> None:
    settings = (
        "include_patterns=tutorial.rst,glossary.rst",
        "root_doc=tutorial",
        "suppress_warnings=ref.doc,toc.not_included",
    )
    folder = built(tmp_path, *(word for each in settings for word in ("-D", each)))
    assert "<h1>" in (folder / "tutorial.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_documentation_builds_without_warnings(tmp_path: Path) -> None:
    build = built(tmp_path, "-n")
    for page in PAGES:
        text = (build / page.relative_to(SOURCE).with_suffix(".html")).read_text(encoding="utf-8")
        assert "<h1>" in text
    messages = (build / "reference" / "messages.html").read_text(encoding="utf-8")
    assert "wbe-attempt" in messages and "task_version" in messages
    commands = (build / "reference" / "command_line.html").read_text(encoding="utf-8")
    worker = {words for option in worker_command.command.params for words in option.opts[-1:]}
    assert {words for words in worker - {"topics"} if words not in commands} == set()
    options = (build / "reference" / "worker_options.html").read_text(encoding="utf-8")
    assert "transition_timeout" in options and "seconds that a task waits" in options.lower()
    assert documented_names(build) == listed_names()
    index = (build / "llms.txt").read_text(encoding="utf-8")
    urls = [page.relative_to(SOURCE).with_suffix(".html").as_posix() for page in PAGES]
    assert [url for url in urls if f"]({url})" not in index] == ["index.html"]


def documented_names(build: Path) -> set[str]:
    """Return the Python names in the inventory of the documentation, without second names."""
    *_, content = (build / "objects.inv").read_bytes().split(b"\n", 4)
    rows = [line.split() for line in zlib.decompress(content).decode().splitlines()]
    return {
        name
        for name, role, _, place, *_ in rows
        if role.startswith("py:") and role != "py:module" and place.endswith("$")
    }


def listed_names() -> set[str]:
    """Return the Python names in the list of the public interface."""
    entries = re.findall(
        r"^(?:alias|attribute|class|constant|function|method) ([\w.]+)",
        public_api.FILE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return set(entries)


@pytest.mark.parametrize("page", list(guide()))
def test_code_blocks_of_page_run_and_print_shown_output(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    page_blocks = pages.blocks(page)
    port = str(server_kinds.free_port())
    for block in page_blocks:
        block.text = block.text.replace(pages.PORT, port)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    folder = tmp_path / "folder"
    folder.mkdir()
    # Each test has its own default broker folder.
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "WBENGINE_URL": ""}
    environment["WBENGINE_TIMEOUT"] = "60"  # no command times out on a slow machine
    environment |= {
        f"XDG_{what}_HOME": str(tmp_path / what) for what in ("CONFIG", "STATE", "DATA")
    }
    with contextlib.ExitStack() as stack:
        if (kind := pages.broker(page)) is not None:
            place = request.getfixturevalue("broker_servers")[kind].place()
            environment["WBENGINE_URL"] = stack.enter_context(place)
            # Celery's workers warn if tests run as root.
            environment["PYTHONWARNINGS"] = "ignore:You're running the worker with superuser"
        if (kind := pages.store(page)) is not None:
            database = request.getfixturevalue("database_servers")[kind].database()
            environment["WBENGINE_PERSISTENCE"] = stack.enter_context(database)
        printed = pages.run_blocks(page_blocks, folder, environment)
    pages.compare(page, page_blocks, printed)


@pytest.mark.slow
def test_modules_of_pages_run_as_programs(tmp_path: Path) -> None:
    shown = [*PAGES, workers.REPOSITORY / "README.md"]
    programs = [script for page in shown for script in page_scripts.scripts(page, tmp_path)]
    assert len(programs) > 40
    assert page_scripts.failures(programs) == []


def test_module_that_fails_as_program_is_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python mine.py\nx = 1\n```\n\n```python sum.py\nimport mine\n\nmine.x / 0\n```\n",
        encoding="utf-8",
    )
    (failure,) = page_scripts.failures([*page_scripts.scripts(page, tmp_path)])
    assert failure.startswith("page.md:6: sum.py ends with 1\n")
    assert "ZeroDivisionError" in failure


@pytest.mark.parametrize(
    ("suffix", "text", "words"),
    [
        ("rst", "See::\n\n    run()\n", "literal block"),
        ("rst", ".. code:: python\n\n   run()\n", "none of python"),
        ("rst", ".. code-block:: bash\n\n   ls\n", "bash is none of"),
        ("rst", ".. code-block::\n\n   ls\n", "none of"),
        ("rst", ">>> 1\n1\n", "interpreter session"),
        ("rst", ".. code-block:: output\n\n   1\n", "does not follow"),
        (
            "rst",
            ".. code-block:: python\n\n   1\n\nx\n\n.. code-block:: output\n\n   1\n",
            "not follow",
        ),
        ("md", "See:\n\n    run()\n", "indented"),
        ("md", "```\nrun()\n```\n", "a fence is none of"),
        ("md", "```bash\nls\n```\n", "bash is none of"),
        ("md", "```output\n1\n```\n", "does not follow"),
        ("md", "```python\n1\n```\nx\n```output\n1\n```\n", "not follow"),
    ],
)
def test_untested_block_is_refused(suffix: str, text: str, words: str, tmp_path: Path) -> None:
    page = tmp_path / f"page.{suffix}"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(pages.BlockError, match=words):
        pages.blocks(page)


def test_markdown_and_rst_yield_same_blocks(tmp_path: Path) -> None:
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
    page_blocks = pages.blocks(markdown)
    assert [block.line for block in page_blocks] == [2, 8, 21]
    same = pages.blocks(guide)
    for one in (*page_blocks, *same):
        one.line = 0
    assert page_blocks == same


def test_blocks_of_page_run_with_modules_and_print_output(tmp_path: Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text(
        ".. code-block:: python\n   :caption: mine.py\n\n   x = 1\n\n"
        "Then\n\n.. code-block:: python\n\n   import mine\n\n   mine.x / 0\n\n"
        ".. code-block:: output\n\n   shown\n\n"
        ".. code-block:: console\n\n   $ echo $((6 * 7))\n   42\n",
        encoding="utf-8",
    )
    page_blocks = pages.blocks(page)
    assert [block.line for block in page_blocks] == [4, 10, 20]
    outputs = pages.run_blocks(page_blocks, tmp_path, dict(os.environ))
    assert outputs == [
        "",
        "Traceback (most recent call last):\n  ...\nZeroDivisionError: division by zero\n",
        "42\n",
    ]
    assert page_blocks[1].expected == "shown\n"


def test_blocks_without_guard_fail_if_they_start_processes(tmp_path: Path) -> None:
    """As they do when a reader saves the blocks of the page as one program."""
    page = tmp_path / "page.md"
    starting = (
        "import concurrent.futures as cf, multiprocessing as mp\n"
        'with cf.ProcessPoolExecutor(1, mp.get_context("spawn")) as pool:\n'
        "    print(pool.submit(abs, -1).result())\n"
    )
    guarded = 'if __name__ == "__main__":\n' + "".join(
        f"    {line}\n" for line in starting.splitlines()
    )
    page.write_text(f"```python\n{guarded}```\n", encoding="utf-8")
    assert pages.run_blocks(pages.blocks(page), tmp_path, dict(os.environ)) == ["1\n"]
    page.write_text(f"```python\n{starting}```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"before the\s+current process has finished"):
        pages.run_blocks(pages.blocks(page), tmp_path, dict(os.environ))


def table(what: str) -> dict[str, set[str]]:
    """Return the table of the page after the comment `.. transitions: what`."""
    text = (SOURCE / "reference" / "states.rst").read_text(encoding="utf-8")
    _, _, following = text.partition(f".. transitions: {what}\n")
    rows = re.findall(r"^   \* - (.+)\n     - (.*)$", following.split("\n\n\n")[0], re.MULTILINE)
    cells = [(old.strip("`"), re.findall(r"``(\w+)``", new)) for old, new in rows[1:]]
    return {old: set(new) for old, new in cells}


@pytest.mark.parametrize("what", CHECKS)
def test_state_table_of_page_matches_code(what: str) -> None:
    assert table(what) == transitions(what)


def test_every_state_is_in_a_table() -> None:
    known = {value for value in vars(states).values() if isinstance(value, str)}
    shown = {state for _, names in CHECKS.values() for state in names}
    text = (SOURCE / "reference" / "states.rst").read_text(encoding="utf-8")
    assert shown <= known
    loose = {"SCHEDULING", "WAITING", "ANALYZING", "UNCLAIMED", "CLAIMED", "COMPLETE"}
    assert all(f"``{state}``" in text for state in shown | loose)


def test_database_options_and_durability_levels_are_described() -> None:
    guides = [SOURCE / "howto" / name for name in ("store_flows.rst", "resume_flows.rst")]
    text = "".join(guide.read_text(encoding="utf-8") for guide in guides)
    wanted = {f"``{name}``" for name in sql_options.OPTIONS}
    wanted |= {f'``"{level}"``' for level in saving.LEVELS}
    wanted |= {f'``on_busy="{word}"``' for word in _ownership.ON_BUSY}
    assert {words for words in wanted if words not in text} == set()


def test_worker_based_options_and_request_states_are_described() -> None:
    run_flows = (SOURCE / "howto" / "run_flows.rst").read_text(encoding="utf-8")
    docstring = WorkerBasedActionEngine.__doc__ or ""
    options = {name for name in WorkerBasedActionEngine.OPTIONS if f"``{name}``" not in run_flows}
    missing = {name for name in options if f"`{name}`" not in docstring}
    fleet = (SOURCE / "howto" / "operate_fleet.rst").read_text(encoding="utf-8")
    missing |= {state for state in STATES if f'``"{state}"``' not in fleet}
    assert missing == set()


def test_options_of_transports_are_described() -> None:
    page = (SOURCE / "reference" / "worker_options.rst").read_text(encoding="utf-8")
    tables = re.findall(r"\.\. transport_options:: (\S+)", page)
    # Other tests may have loaded transports of other packages.
    own = f"{PACKAGE.name}."
    loaded = [kind for kind in _kinds.loaded_kinds() if type(kind).__module__.startswith(own)]
    assert {*tables} == {f"{kind.options.__module__}:{kind.options.__name__}" for kind in loaded}
    guide = (SOURCE / "howto" / "choose_brokers.rst").read_text(encoding="utf-8")
    names = {each.name for kind in loaded for each in dataclasses.fields(kind.options)}
    of_tls = {name for name in names if name.startswith("ssl_")}
    assert {name for name in of_tls if f"``{name}``" not in guide} == set()


def test_wire_page_contains_each_worker_based_module() -> None:
    text = (SOURCE / "explanation" / "wire.rst").read_text(encoding="utf-8")
    _, _, text = text.partition("Modules of ``engines/worker_based``\n")
    rows = text.partition("\nMissing features\n")[0].split("\n   * - ")[1:]
    folder = PACKAGE / "engines" / "worker_based"
    there = {
        f"``{room.name}/``" if room != folder else "the top": {
            path.stem for path in room.glob("*.py") if not path.stem.startswith("__")
        }
        for room in [folder, *(init.parent for init in folder.glob("*/__init__.py"))]
    }
    cells = [row.partition("\n     - ") for row in rows]
    assert {room: set(re.findall(r"``(\w+)``", named)) for room, _, named in cells} == there


def test_redis_page_contains_each_script_and_key() -> None:
    page = (SOURCE / "reference" / "redis_scripts.rst").read_text(encoding="utf-8")
    files = list(PACKAGE.rglob("*.lua"))
    scripts = [path for path in files if path.parent.name != "shared"]
    folders = {str(path.parent.relative_to(PACKAGE)) for path in scripts}
    assert set(re.findall(r"\.\. scripts:: (\S+)", page)) == folders
    for path in scripts:
        comment = path.read_text("utf-8").partition("\n\n")[0]
        assert not comment.split("\n--\n")[-1].startswith(("-- Arg", "-- Key", "-- Result")), path
    wire = [path for path in files if "transports" in path.parts]
    wire += PACKAGE.glob("transports/_redis/*.py")
    code = "\n".join(path.read_text("utf-8") for path in wire)
    used = set(re.findall(r"prefix(?: \.\. '|\})([a-z]+:?)", code))
    assert set(re.findall(r"^   \* - ``([a-z]+:?)", page, re.MULTILINE)) == used


def modules_with_examples() -> list[str]:
    return sorted(
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if ">>> " in path.read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples_print_shown_output(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed

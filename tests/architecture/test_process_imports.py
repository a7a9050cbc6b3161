"""Modules that processes of workers, engines and commands import, and their lines of code."""

from __future__ import annotations

import ast
import io
import json
import os
import tokenize
from pathlib import Path

import pytest

from tests.support import fresh
from wbengine import engines
from wbengine.patterns import linear_flow

from . import imports

FORBIDDEN = (
    "networkx",
    "redis",  # imported only for a Redis broker or ledger
    "sqlalchemy",  # imported only for a ledger in a database
    "wbengine._runtime",
    "wbengine._sql",
    "wbengine._tasks.arguments",
    "wbengine.engines.base",
    "wbengine.persistence",
    "wbengine.storage",
)

SCRIPT = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
json.dump(sorted(sys.modules), sys.stdout)
"""


RUN = """
import json, sys
from wbengine import engines
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
engines.run(linear_flow.Flow("empty").add(unordered_flow.Flow("inner")))
json.dump(sorted(sys.modules), sys.stdout)
"""


RUN_WORKFLOW = """
import json, sys
from wbengine import engines, task
from wbengine.patterns import linear_flow

@task.task
def add(number):
    return number + 1

@task.workflow(name="program")
def program(steps):
    return steps.run(add, 1)

assert engines.run(linear_flow.Flow("one").add(program(provides="sum")))["sum"] == 2
json.dump(sorted(sys.modules), sys.stdout)
"""


#: Runs a command as its entry point does.
COMMAND = """
import gc, json, sys
path = sys.argv.pop(1)
from wbengine.__main__ import main
code = main()
with open(path, "w") as file:
    json.dump([sorted(sys.modules), gc.get_freeze_count(), gc.isenabled()], file)
sys.exit(code)
"""


def loaded_by(*arguments: str, script: str = SCRIPT) -> list[str]:
    """Return the modules that a new process has imported at the end of a script."""
    names: list[str] = json.loads(fresh.run(script, *arguments).stdout)
    return names


def forbidden(names: list[str]) -> list[str]:
    inside = tuple(f"{root}." for root in FORBIDDEN)
    return [name for name in names if name in FORBIDDEN or name.startswith(inside)]


@pytest.mark.parametrize(
    "module",
    [
        "wbengine.worker",
        "wbengine.engines.worker_based.worker",
        "wbengine.transports._folder.folder_broker",
        # Modules for child processes of a pool, and for tasks.
        "wbengine.pools",
        "wbengine.task",
    ],
)
def test_worker_does_not_import_forbidden_modules(module: str) -> None:
    names = loaded_by(module)
    assert module in names
    assert forbidden(names) == []


@pytest.mark.parametrize("script", [RUN, RUN_WORKFLOW], ids=["flow", "workflow"])
def test_engine_without_store_does_not_import_databases_and_brokers(script: str) -> None:
    names = loaded_by(script=script)
    assert "wbengine.engines.base" in names
    assert {"sqlalchemy", "redis", "kombu", "networkx"} & set(names) == set()


def end_of_command(folder: Path, *arguments: str) -> tuple[str, set[str], int, bool]:
    """Run a command. Return its output, its modules and the state of its garbage collector."""
    variables = {name: value for name, value in os.environ.items() if "WBENGINE" not in name}
    variables |= {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "PYTHONPATH": os.pathsep.join([str(imports.ROOT), str(folder)]),
    }
    done = fresh.run(COMMAND, str(folder / "end.json"), *arguments, env=variables)
    modules, frozen, is_enabled = json.loads((folder / "end.json").read_text())
    return done.stdout, set(modules), frozen, is_enabled


def test_flow_list_imports_only_libraries_of_its_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    engines.run(linear_flow.Flow("listed"), backend=url)
    output, modules, *_ = end_of_command(tmp_path, "flow", "list", "--persistence", url)
    assert "listed" in output and "sqlalchemy" in modules
    unused = {"alembic", "jsonschema", "kombu", "networkx", "redis", "rich", "tenacity"}
    assert modules & {*unused, "wbengine.engines.base", "wbengine._runtime"} == set()


def test_command_without_store_reads_no_package_metadata(tmp_path: Path) -> None:
    output, modules, *_ = end_of_command(tmp_path, "config", "show")
    assert "log_level" in output
    assert modules & {"importlib.metadata", "rich", "sqlalchemy"} == set()


def test_modules_of_command_are_excluded_from_garbage_collection(tmp_path: Path) -> None:
    store = ("--persistence", "memory")
    _, modules, frozen, is_enabled = end_of_command(tmp_path, "flow", "list", *store)
    assert frozen > 10 * len(modules) and is_enabled
    *_, before_objects_of_users, is_enabled = end_of_command(
        tmp_path, "flow", "list", *store, "--include", "this"
    )
    assert 0 < before_objects_of_users < frozen and is_enabled


def test_forbidden_import_is_found() -> None:
    assert "networkx" in forbidden(loaded_by("networkx"))
    assert forbidden(["wbengine.storage_of_old", "wbengine._runtime.plan"]) == [
        "wbengine._runtime.plan"
    ]


# Lines of code.

MAX_LINES_OF_FLOW_SHOW = 17_100
MAX_LINES_OF_FLOW_RUN = 30_000

FLOW = """
from wbengine import task
from wbengine.patterns import linear_flow

class Nothing(task.Task):
    def execute(self):
        return 1

def make():
    return linear_flow.Flow("flow").add(Nothing("a"), Nothing("b"))
"""

NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """Return the number of lines without blank lines, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def lines_of_wbengine(names: set[str]) -> int:
    """Return the lines of code of the modules of wbengine among these, without the entry point."""
    found = imports.modules(imports.ROOT / "wbengine")
    paths = [path for name, path in found.items() if name in names - {"wbengine.__main__"}]
    return sum(code_lines(path.read_text(encoding="utf-8")) for path in paths)


def test_commands_load_few_lines(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FLOW)
    store = ("--persistence", f"sqlite:///{tmp_path}/flows.db")
    command = ("flow", "run", "shop:make", "--no-progress", *store)
    result, modules, *_ = end_of_command(tmp_path, *command)
    assert 5_000 < lines_of_wbengine(modules) <= MAX_LINES_OF_FLOW_RUN
    command = ("flow", "show", json.loads(result)["uuid"], *store)
    _, modules, *_ = end_of_command(tmp_path, *command)
    assert 5_000 < lines_of_wbengine(modules) <= MAX_LINES_OF_FLOW_SHOW


def test_blank_lines_comments_and_docstrings_are_not_counted() -> None:
    assert code_lines('"""Text.\n\nText."""\n\n# note\nvalue = (\n    1,\n)\n') == 3

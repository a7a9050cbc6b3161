"""The imports of the package keep the contracts in `.importlinter`."""

from __future__ import annotations

import graphlib
import pathlib
import re
import shutil
import subprocess
from collections import defaultdict

import networkx as nx
import pytest

from tests.support import python

from . import imports

PACKAGE = imports.ROOT / "wbengine"
CONTRACTS = imports.ROOT / ".importlinter"
COMMAND = "from importlinter.cli import lint_imports_command as run; run()"


def lint(folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Check the package in a folder."""
    command = ["-c", COMMAND, "--no-cache", "--no-logo", str(CONTRACTS)]
    return python.run(command, real=True, cwd=folder, capture_output=True, text=True)


def test_imports_keep_the_contracts() -> None:
    process = lint(imports.ROOT)
    assert process.returncode == 0, process.stdout + process.stderr
    assert re.search(r"Analyzed \d{3} files", process.stdout)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of the package, in which a test can add an import."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, folder / "wbengine", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def lint_with(copy: pathlib.Path, module: str, text: str) -> subprocess.CompletedProcess[str]:
    """Check the copy while a module has an additional text."""
    path = copy / "wbengine" / f"{module}.py"
    original = path.read_text(encoding="utf-8") if path.exists() else None
    path.write_text(f"{original or ''}\n{text}\n", encoding="utf-8")
    try:
        return lint(copy)
    finally:
        path.unlink() if original is None else path.write_text(original, encoding="utf-8")


LAYERS = "A module imports only from its own layer and lower ones"
CYCLES = "No package or module imports itself through others"
WIRE = "engines/worker_based"
PARTS = "Parts of the wire import only parts below them"


@pytest.mark.parametrize(
    ("module", "text", "contract"),
    [
        ("_text/json_text", "from wbengine import task", LAYERS),
        ("_text/json_text", "def late():\n    from wbengine import task", LAYERS),
        ("_runtime/plan", "from wbengine.transports import _broker", LAYERS),
        ("a_new_module", "", LAYERS),
        ("retry", "def late():\n    from wbengine import flow", CYCLES),
        ("types/failure", "from wbengine.types import codec", CYCLES),
        ("views/_timeline", "from wbengine.engines import base", "Reading loads neither"),
        ("views/_timeline", "from wbengine._concurrency import threads", "Reading imports values"),
        (f"{WIRE}/proxy", "from wbengine._runtime import plan", "The wire imports no run loop"),
        (f"{WIRE}/_schemas", "from wbengine.engines.worker_based import proxy", PARTS),
        (f"{WIRE}/worker", "from ._requests import tracker", "A worker process imports no engine"),
    ],
)
def test_forbidden_import_breaks_contract(
    copy: pathlib.Path, module: str, text: str, contract: str
) -> None:
    process = lint_with(copy, module, text)
    assert process.returncode == 1, process.stdout + process.stderr
    assert re.search(rf"^{contract}.* BROKEN", process.stdout, re.MULTILINE), process.stdout


def test_import_for_type_checking_is_accepted(copy: pathlib.Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wbengine import task"
    process = lint_with(copy, "_text/json_text", text)
    assert process.returncode == 0, process.stdout


# Rules that import-linter cannot express.


def test_package_and_its_modules_do_not_import_each_other() -> None:
    edges = defaultdict(set)
    for edge in imports.imports(imports.modules(PACKAGE)):
        edges[edge.source].add(edge.target)
    graphlib.TopologicalSorter(edges).prepare()  # raises CycleError


#: Modules that import each other only for types: a call has a task, and a task has its call.
CIRCLE_FOR_TYPES = frozenset({
    "wbengine._calls.invocation",
    "wbengine._logs.captured_lines",
    "wbengine._logs.record_fields",
    "wbengine._tasks.base",
    "wbengine._tasks.child",
    "wbengine._tasks.function",
    "wbengine._tasks.functors",
    "wbengine._tasks.map",
    "wbengine._tasks.sleep_and_wait_for",
    "wbengine._tasks.sub_flow",
    "wbengine._tasks.workflow",
    "wbengine.running",
    "wbengine.task",
})  # fmt: skip


def test_imports_for_types_form_no_further_circles() -> None:
    modules = imports.modules(PACKAGE)
    # An `__init__` only passes names on.
    files = {name: path for name, path in modules.items() if path.name != "__init__.py"}
    graph: nx.DiGraph[str] = nx.DiGraph(
        (edge.source, edge.target)
        for edge in imports.imports(modules, files, for_types=True)
        if edge.target in files
    )
    circles = nx.strongly_connected_components(graph)
    assert [circle for circle in circles if len(circle) > 1] == [CIRCLE_FOR_TYPES]


def test_no_module_imports_wbengine_by_name_as_text() -> None:
    pattern = re.compile(r"import(_module|__)\(\s*[rf]?[\"']wbengine\b")
    paths = PACKAGE.rglob("*.py")
    assert [path for path in paths if pattern.search(path.read_text(encoding="utf-8"))] == []


def test_packages_of_the_wire_import_nothing() -> None:
    paths = [path for path in (PACKAGE / WIRE).rglob("__init__.py") if path.parent.name != "ledger"]
    assert len(paths) > 5
    modules = imports.modules(PACKAGE)
    sources = {name for name, path in modules.items() if path in paths}
    assert [edge for edge in imports.imports(modules) if edge.source in sources] == []

"""The imports of the package keep the contracts in `.importlinter`."""

from __future__ import annotations

import graphlib
import pathlib
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping

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


def lint_with(copy: pathlib.Path, texts: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Check the copy while modules have additional texts."""
    paths = {copy / "wbengine" / f"{module}.py": text for module, text in texts.items()}
    originals = {path: path.read_text("utf-8") if path.exists() else None for path in paths}
    for path, text in paths.items():
        path.write_text(f"{originals[path] or ''}\n{text}\n", encoding="utf-8")
    try:
        return lint(copy)
    finally:
        for path, original in originals.items():
            path.unlink() if original is None else path.write_text(original, encoding="utf-8")


LAYERS = "A module imports only from its own layer and lower ones"
CYCLES = "No package or module imports itself through others"
READING = "Reading loads neither engines nor brokers"
VALUES = "Reading imports values and records, not what creates them"
COLUMNS = "The wire imports no run loop and no records"
PARTS = "Parts of the wire import only parts below them"
WORKER = "A worker process imports no engine"
WIRE = "engines/worker_based"


@pytest.mark.parametrize(
    "forbidden",
    [
        # (module, text, contract, the part of the report about it)
        [
            ("_text/json_text", "from wbengine import task", LAYERS, "json_text -> wbengine.task"),
            (
                "_text/data_formats", "def late():\n    from wbengine import task", LAYERS,
                "data_formats -> wbengine.task",
            ),
            (
                "_runtime/plan", "from wbengine.transports import _broker", LAYERS,
                "_runtime.plan -> wbengine.transports._broker",
            ),
            ("a_new_module", "", LAYERS, "- wbengine.a_new_module"),
            (
                "views/_timeline", "from wbengine.engines import base", READING,
                "_timeline -> wbengine.engines.base",
            ),
            (
                "views/_flow_chart", "from wbengine._concurrency import threads", VALUES,
                "_flow_chart -> wbengine._concurrency.threads",
            ),
            (
                f"{WIRE}/proxy", "from wbengine._runtime import plan", COLUMNS,
                "proxy -> wbengine._runtime.plan",
            ),
            (
                f"{WIRE}/_schemas", "from wbengine.engines.worker_based import proxy", PARTS,
                "- wbengine.engines.worker_based._schemas",
            ),
            (
                f"{WIRE}/worker", "from ._requests import tracker", WORKER,
                "worker -> wbengine.engines.worker_based._requests.tracker",
            ),
        ],
        [
            ("retry", "def late():\n    from wbengine import flow", CYCLES, "in wbengine.\n"),
            ("types/failure", "from wbengine.types import codec", CYCLES, "in wbengine.types.\n"),
        ],
    ],
    ids=["layers", "cycles"],
)  # fmt: skip
def test_forbidden_import_breaks_contract(
    copy: pathlib.Path, forbidden: list[tuple[str, str, str, str]]
) -> None:
    process = lint_with(copy, {module: text for module, text, _, _ in forbidden})
    assert process.returncode == 1, process.stdout + process.stderr
    # The report wraps long lines after a space.
    parts = re.split(r"^(.+)\n-+\n", " ".join(process.stdout.split(" \n")), flags=re.MULTILINE)
    reports = dict(zip(parts[1::2], parts[2::2], strict=True))
    accepted = [
        (module, text)
        for module, text, contract, found in forbidden
        if found not in reports.get(contract, "")
    ]
    assert not accepted, process.stdout


def test_import_for_type_checking_is_accepted(copy: pathlib.Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wbengine import task"
    process = lint_with(copy, {"_text/json_text": text})
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
    paths = [*(PACKAGE / WIRE).rglob("__init__.py"), *PACKAGE.glob("transports/*/__init__.py")]
    assert len(paths) > 10
    modules = imports.modules(PACKAGE)
    sources = {name for name, path in modules.items() if path in paths}
    assert [edge for edge in imports.imports(modules) if edge.source in sources] == []

"""Lines of code of wbengine that commands load."""

from __future__ import annotations

import ast
import io
import json
import os
import pathlib
import tokenize

import pytest

from tests.support import fresh

from . import imports

MAX_LINES_OF_FLOW_SHOW = 17_000
MAX_LINES_OF_FLOW_RUN = 29_900

FLOW = """
from wbengine import task
from wbengine.patterns import linear_flow

class Nothing(task.Task):
    def execute(self):
        return 1

def make():
    return linear_flow.Flow("flow").add(Nothing("a"), Nothing("b"))
"""

SCRIPT = """
import json, sys
from wbengine._cli import app
code = app.main(sys.argv[2:])
modules = [module for name, module in sys.modules.items() if name.startswith("wbengine")]
with open(sys.argv[1], "w") as file:
    json.dump([module.__file__ for module in modules if module.__file__], file)
sys.exit(code)
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


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "shop.py").write_text(FLOW)
    return tmp_path


def run(folder: pathlib.Path, *arguments: str) -> tuple[str, int]:
    """Run a command in a new process. Return its output and the number of lines it loaded."""
    variables = {name: value for name, value in os.environ.items() if "WBENGINE" not in name}
    variables |= {
        "WBENGINE_PERSISTENCE": f"sqlite:///{folder}/flows.db",
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "PYTHONPATH": os.pathsep.join([str(imports.ROOT), str(folder)]),
    }
    process = fresh.run(SCRIPT, "files.json", *arguments, cwd=folder, env=variables)
    files = json.loads((folder / "files.json").read_text())
    return process.stdout, sum(
        code_lines(pathlib.Path(file).read_text(encoding="utf-8")) for file in files
    )


def test_commands_load_few_lines(folder: pathlib.Path) -> None:
    result, lines_of_run = run(folder, "flow", "run", "shop:make", "--no-progress")
    _, lines_of_show = run(folder, "flow", "show", json.loads(result)["uuid"])
    assert 5_000 < lines_of_show <= MAX_LINES_OF_FLOW_SHOW
    assert 5_000 < lines_of_run <= MAX_LINES_OF_FLOW_RUN


def test_blank_lines_comments_and_docstrings_are_not_counted() -> None:
    assert code_lines('"""Text.\n\nText."""\n\n# note\nvalue = (\n    1,\n)\n') == 3

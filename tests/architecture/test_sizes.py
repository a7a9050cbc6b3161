"""Long modules and functions are asked to be split, or to say why not."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Mapping

import pytest

from . import imports

MODULE_LINES = 450
FUNCTION_LINES = 60

#: What may be longer: "path" or "path:function" -> why.  An entry that is not needed fails too.
REASONS: dict[str, str] = {
    "wbengine/interop/celery/pool.py": "one message from Celery's pool to ours and back",
    "wbengine/interop/celery/protocol.py": "all kinds of messages, and their fields",
    "wbengine/interop/celery/publisher.py": "one connection, and what goes over it",
    "wbengine/interop/celery/results.py": "one reader of results, of both kinds",
    "wbengine/interop/celery/task.py:__init__": "documents each option",
    "wbengine/interop/celery/worker.py": "Celery's worker as a guest, and what its options say",
    "wbengine/worker.py": "all options of the command",
    "wbengine/invocation.py": "a call of a task, how it is made, and what comes of it",
}


def oversized(package: pathlib.Path) -> dict[str, int]:
    """What is too long -> its lines; keys as in `REASONS`."""
    found: dict[str, int] = {}
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(package.parent).as_posix()
        if (lines := len(text.splitlines())) > MODULE_LINES:
            found[name] = lines
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found[f"{name}:{node.name}"] = lines
    return found


def complaints(found: Mapping[str, int], reasons: Mapping[str, str]) -> list[str]:
    lines = [
        f"{name} has {length} lines: split it, or say why not in REASONS"
        for name, length in found.items()
        if name not in reasons
    ]
    lines += [f"{name} is not too long: drop its reason" for name in reasons if name not in found]
    lines += [f"{name} needs a reason" for name, reason in reasons.items() if not reason.strip()]
    return lines


def test_nothing_is_too_long_without_a_reason() -> None:
    lines = complaints(oversized(imports.ROOT / "wbengine"), REASONS)
    assert not lines, "\n" + "\n".join(lines)


def test_the_check_sees_what_it_should(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "p"
    package.mkdir()
    just = "def f():\n" + "    pass\n" * (FUNCTION_LINES - 1)
    (package / "just.py").write_text(just + "#\n" * (MODULE_LINES - FUNCTION_LINES))
    (package / "long.py").write_text("#\n" * (MODULE_LINES + 1))
    (package / "f.py").write_text("class A:\n    async def f():\n" + "        pass\n" * 60)
    found = oversized(package)
    assert found == {"p/long.py": MODULE_LINES + 1, "p/f.py:f": FUNCTION_LINES + 1}
    assert len(complaints(found, {"p/long.py": "a table"})) == 1
    assert len(complaints({}, {"p/long.py": "a table"})) == 1
    assert len(complaints({"p/long.py": 500}, {"p/long.py": " "})) == 1


@pytest.mark.parametrize("name", ["wbengine/pools.py", "wbengine/_codec.py"])
def test_the_check_reads_the_package(name: str) -> None:
    assert (imports.ROOT / name).is_file()

"""Selection of mutants. This script runs in an environment that contains cosmic-ray.

It reads a request from the standard input, `{"tree": FOLDER, "files": [NAME, ...], "sample": N,
"seed": S}`, and writes an answer, `{"places": COUNT, "mutants": [{"name", "line", "operator",
"code"}, ...]}`, both as JSON. The same request for the same files yields the same answer.
"""

from __future__ import annotations

import ast
import json
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parso.python.tree
from cosmic_ray import mutating, plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.operators import exception_replacer
from cosmic_ray.operators.operator import Example, Operator

Position = tuple[int, int]
Span = tuple[Position, Position]

#: The binary replacements of cosmic-ray whose results often have the same type. The others cause
#: type errors, which any test finds.
BINARY = {
    "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "BitOr_BitAnd",
    "BitAnd_BitOr", "BitXor_BitAnd", "LShift_RShift", "RShift_LShift",
}  # fmt: skip
LOGS = {"log", "logger", "logging"}


class ExceptionReplacer(exception_replacer.ExceptionReplacer):
    """Operator of cosmic-ray without dotted names of exceptions, which it cannot replace."""

    @staticmethod
    def _name_nodes(node: Any) -> list[Any]:
        nodes = exception_replacer.ExceptionReplacer._name_nodes(node)
        return [each for each in nodes if each.type == "name"]


class StatementRemover(Operator):
    """Operator that removes a statement: a call, or an assignment to an attribute or item."""

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        if node.parent is not None and node.parent.type == "simple_stmt" and _acts(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        prefix = node.get_first_leaf().prefix
        return parso.python.tree.Keyword("pass", node.start_pos, prefix)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("f()\n", "pass\n"), Example("a.b = 1\n", "pass\n"))


def _acts(node: Any) -> bool:
    if node.type == "expr_stmt":
        function = node.search_ancestor("funcdef")
        if function is not None and function.name.value == "__init__":
            return False  # any test finds a missing attribute
        return node.children[0].type in ("atom_expr", "power") and len(node.children) > 2
    if node.type in ("atom_expr", "power"):
        return bool(node.children[-1].get_code().strip().startswith("("))
    return bool(node.type == "del_stmt")


def operators() -> Iterator[tuple[str, Operator]]:
    for name in plugins.operator_names():
        operator = plugins.get_operator(name)
        name = name.rpartition("/")[2]
        if name == ExceptionReplacer.__name__:
            operator = ExceptionReplacer
        kind, _, change = name.partition("Operator_")
        # without a decorator, the module cannot be imported
        if operator.arguments() or name == "RemoveDecorator":
            continue
        if kind == "ReplaceBinary" and change not in BINARY:
            continue
        if kind == "ReplaceComparison":
            # For most values, `is` in place of `==` has the same result, or fails like a type
            # error.
            before, after = (part.startswith("Is") for part in change.split("_"))
            if before != after:
                continue
        yield name, operator()
    yield StatementRemover.__name__, StatementRemover()


class Untouched(ast.NodeVisitor):
    """Collector of positions where a change is not a defect.

    These are texts, log calls, types and crash points.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.spans.append(
                    ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
                )

    def visit_Module(self, node: ast.Module) -> None:
        for statement in node.body:
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Assign | ast.AnnAssign) and _for_readers(value):
                self.add(statement)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.add(node.returns)
        if node.name in ("__repr__", "__str__"):
            self.add(node)
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_arg(self, node: ast.arg) -> None:
        self.add(node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.add(node.annotation)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if _last(node.test) == "TYPE_CHECKING":
            self.add(node)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if _last(node.exc) == "NotImplementedError":
            self.add(node)
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.add(node)

    def visit_Call(self, node: ast.Call) -> None:
        owner = getattr(node.func, "value", None)
        if (_last(owner) or "").strip("_").lower() in LOGS or _last(node) == "crashpoint":
            self.add(node)
        elif _last(node) == "cast":
            self.add(node.args[0])
        self.generic_visit(node)


def _last(node: Any) -> str | None:
    """Return the last name of `a.b.c` or of its call."""
    if isinstance(node, ast.Call):
        node = node.func
    return getattr(node, "attr", None) or getattr(node, "id", None)


def _for_readers(value: Any) -> bool:
    """Return whether a constant of a module is a text or a type."""
    if isinstance(value, ast.Call):
        return _last(value) in ("TypeVar", "ParamSpec", "NewType")
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr | ast.Add):
        return _for_readers(value.left) or _for_readers(value.right)
    return isinstance(value, ast.JoinedStr | ast.Subscript) or (
        isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, str))
    )


class File:
    """A file and the places in it that mutants can change."""

    def __init__(self, tree: Path, name: str, kinds: list[tuple[str, Operator]]) -> None:
        self.name = name
        self.source = (tree / name).read_text(encoding="utf-8")
        self.lines = sum(bool(line.strip()) for line in self.source.splitlines())
        parsed = ast.parse(self.source)
        self._same = ast.dump(parsed)
        untouched = Untouched()
        untouched.visit(parsed)
        nodes = list(ast_nodes(get_ast(self.source)))
        self.places: dict[Span, list[tuple[str, Operator, int]]] = {}
        for kind, operator in kinds:
            number = 0
            for node in nodes:
                for span in operator.mutation_positions(node):
                    if not any(start <= span[0] < end for start, end in untouched.spans):
                        self.places.setdefault(span, []).append((kind, operator, number))
                    number += 1

    def mutants(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Return at most `count` random mutants, on different lines as far as possible."""
        dice = random.Random(f"{seed} {self.name}")
        spans = sorted(self.places)
        dice.shuffle(spans)
        lines: set[int] = set()
        first, others = [], []
        for span in spans:
            (others if span[0][0] in lines else first).append(span)
            lines.add(span[0][0])
        mutants: list[dict[str, Any]] = []
        for span in first + others:
            if len(mutants) == count:
                break
            ways = list(self.places[span])
            dice.shuffle(ways)
            for kind, operator, number in ways:
                code = mutating.mutate_code(self.source, operator, number)
                if code is not None and self._differs(code):
                    line = span[0][0]
                    mutants.append(
                        {"name": self.name, "line": line, "operator": kind, "code": code}
                    )
                    break
        return mutants

    def _differs(self, code: str) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                compile(code, self.name, "exec")
        except (SyntaxError, SyntaxWarning, ValueError):
            return False
        return ast.dump(ast.parse(code)) != self._same


def shares(sizes: list[int], count: int) -> list[int]:
    """Divide `count` in proportion to `sizes`."""
    total = sum(sizes) or 1
    exact = [size * count / total for size in sizes]
    counts = [int(share) for share in exact]
    rest = sorted(range(len(sizes)), key=lambda number: counts[number] - exact[number])
    for number in rest[: count - sum(counts)]:
        counts[number] += 1
    return counts


def answer(request: dict[str, Any]) -> dict[str, Any]:
    kinds = list(operators())
    files = [File(Path(request["tree"]), name, kinds) for name in sorted(request["files"])]
    files = [file for file in files if file.places]
    counts = shares([file.lines for file in files], request["sample"])
    mutants = [
        mutant
        for file, count in zip(files, counts, strict=True)
        for mutant in file.mutants(count, request["seed"])
    ]
    return {"places": sum(len(file.places) for file in files), "mutants": mutants}


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)

"""Documents, messages, docstrings, comments and test names use plain English."""

from __future__ import annotations

import ast
import io
import pathlib
import re
import tokenize
from collections.abc import Iterator

import pytest

from . import imports

#: Words and phrases that texts must not contain, at most 30.
FORBIDDEN = (
    "whoever", "whomever", "nobody", "somebody", "anybody", "anew", "for ever", "all the same",
    "put aside", "held up", "is told", "are told", "told of", "tells of", "hears of", "heard of",
    "was heard", "goes on with", "go on with", "becomes of", "came of", "comes of", "look after",
    "looks after", "is gone", "went away", "is no more", "who has it", "of ours", "so long as",
)  # fmt: skip
#: Parts of test names that say nothing about the subject.
UNCLEAR_NAME = re.compile(
    r"test_(?:it|that|what|who|whoever|whose|nobody|somebody)_"
    r"|test_\w*_(?:what|who|whoever|nobody|somebody|told|anew|gone)(?:_|$)"
)
TEST_NAME = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
MAX_NAME_LENGTH = 70
PATTERN = re.compile(rf"\b(?:{'|'.join(FORBIDDEN)})\b", re.IGNORECASE)
#: Directives of reStructuredText whose block is code.
CODE = re.compile(r" *\.\. (?:code-block|literalinclude|raw)::")
#: A string literal with at least this many spaces reads like a sentence.
SENTENCE_SPACES = 3


def documents() -> list[pathlib.Path]:
    root = imports.ROOT
    return sorted([*root.glob("*.md"), *root.glob("doc/**/*.rst"), *root.glob("doc/**/*.md")])


def prose(path: pathlib.Path) -> str:
    """Return the text of a document; lines of code blocks are empty."""
    lines, indent, fenced = [], None, False
    for line in path.read_text(encoding="utf-8").splitlines():
        current = len(line) - len(line.lstrip())
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if indent is not None and line.strip() and current <= indent:
            indent = None
        if CODE.match(line):
            indent = current
        lines.append("" if fenced or indent is not None else line)
    return "\n".join(lines)


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that reads like a sentence, without docstrings."""
    tree = ast.parse(source)
    others = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and not is_command(node):
            others |= {id(each.value) for each in body if isinstance(each, ast.Expr)}
        if isinstance(node, ast.JoinedStr):
            others |= {id(value) for value in node.values}
    for node in ast.walk(tree):
        if id(node) in others:
            continue
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [each.value if isinstance(each, ast.Constant) else "x" for each in node.values]
            text = "".join(map(str, parts))
        if text.count(" ") >= SENTENCE_SPACES:
            yield node.lineno, text  # type: ignore[attr-defined]


def code_files() -> list[pathlib.Path]:
    """Return the modules of the package, the tools, the examples and the tests."""
    root, folders = imports.ROOT, ("wbengine", "tools", "examples", "tests")
    scripts = [
        path
        for path in (root / "tools").iterdir()
        if path.is_file()
        and not path.suffix
        and path.read_text("utf-8").startswith("#!/usr/bin/env python")
    ]
    modules = [path for name in folders for path in root.glob(f"{name}/**/*.py")]
    this = pathlib.Path(__file__).resolve()  # its samples contain the words
    return sorted(path for path in [*modules, *scripts] if path != this)


def docstrings_and_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring and comment."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            value = each.value if isinstance(each, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield each.lineno, value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def is_command(node: ast.AST) -> bool:
    """Return True for a function of click, whose docstring is its help text."""
    decorators = getattr(node, "decorator_list", [])
    return any(
        "command" in ast.unparse(each) or "group" in ast.unparse(each) for each in decorators
    )


def hits(text: str, name: str, first: int = 1) -> list[str]:
    return [
        f"{name}:{number}: {match[0]!r} in {line.strip()!r}"
        for number, line in enumerate(text.splitlines(), first)
        for match in PATTERN.finditer(line)
    ]


def test_documents_are_plain() -> None:
    paths = documents()
    assert imports.ROOT / "README.md" in paths and len(paths) > 20
    found = [hit for path in paths for hit in hits(prose(path), path.name)]
    assert not found, "\n" + "\n".join(found)


def test_messages_are_plain() -> None:
    found, count = [], 0
    for path in sorted((imports.ROOT / "wbengine").rglob("*.py")):
        for line, text in messages(path.read_text(encoding="utf-8")):
            count += 1
            found += hits(text, str(path.relative_to(imports.ROOT)), line)
    assert count > 1_000
    assert not found, "\n" + "\n".join(found)


def test_docstrings_and_comments_are_plain() -> None:
    paths, found = code_files(), []
    assert len(paths) > 1_000
    for path in paths:
        source = path.read_text(encoding="utf-8")
        if PATTERN.search(source):  # reading the syntax of all files takes many seconds
            for line, text in docstrings_and_comments(source):
                found += hits(text, str(path.relative_to(imports.ROOT)), line)
    assert not found, "\n" + "\n".join(found)


def unclear_names(source: str) -> list[str]:
    """Return the names of tests that are in dialect or too long."""
    return [
        name
        for name in TEST_NAME.findall(source)
        if UNCLEAR_NAME.match(name) or len(name) > MAX_NAME_LENGTH
    ]


def test_names_of_tests_are_plain_and_short() -> None:
    paths = sorted((imports.ROOT / "tests").rglob("test_*.py"))
    assert len(paths) > 200
    names = [name for path in paths for name in unclear_names(path.read_text("utf-8"))]
    assert names == []


@pytest.mark.parametrize(
    "name",
    ["test_it_is_told", "test_flow_that_is_gone", "test_worker_stops_" + "x" * 60],
    ids=["subject", "word", "length"],
)
def test_unclear_name_of_a_test_is_found(name: str) -> None:
    assert unclear_names(f"def {name}(): ...\ndef test_worker_stops(): ...") == [name]


def test_templates_are_plain() -> None:
    paths = sorted((imports.ROOT / "wbengine").rglob("*.html"))
    assert paths
    found = [hit for path in paths for hit in hits(path.read_text("utf-8"), path.name)]
    assert not found, "\n" + "\n".join(found)


def test_list_has_at_most_30_entries() -> None:
    assert len(set(FORBIDDEN)) == len(FORBIDDEN) <= 30


@pytest.mark.parametrize(
    "source",
    [
        'raise ValueError("Put aside: whoever sent it")',
        'log.warning(f"the worker {name} is gone for ever")',
        '@click.command()\ndef ls():\n    """List what nobody wants any more."""',
    ],
)
def test_message_in_dialect_is_found(source: str) -> None:
    assert any(hits(text, "source") for _, text in messages(source))


def test_docstrings_and_identifiers_are_no_messages() -> None:
    assert list(messages('"""Some text about nobody."""\nx = "nobody"')) == []


@pytest.mark.parametrize(
    "source",
    [
        '"""Whoever reads this."""',
        'def f():\n    """Return the row.\n\n    Nobody has it.\n    """',
        "x = 1\n#: The worker is gone.\ny = 2",
        "x = 1  # put aside",
    ],
)
def test_docstring_or_comment_in_dialect_is_found(source: str) -> None:
    texts = [text for _, text in docstrings_and_comments(source)]
    assert any(hits(text, "source") for text in texts)


def test_code_in_documents_is_not_prose(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text("Say\n\n.. code-block:: python\n\n   nobody()\n\nnobody\n", encoding="utf-8")
    assert hits(prose(page), "page") == ["page:7: 'nobody' in 'nobody'"]

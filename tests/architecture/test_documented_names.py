"""Guides and examples use only names that the reference documents."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
import io
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tests.support import pages

from . import imports, public_api

_SOURCE = imports.ROOT / "doc" / "source"
_LITERALS = {".rst": re.compile(r"``([^`\n]+)``"), ".md": re.compile(r"`([^`\n]+)`")}
#: Members of objects of Python, rich, argparse and Celery.
_FOREIGN = {"capture", "conf", "done", "engine"}.union(
    *(
        dir(each)
        for each in (*vars(builtins).values(), pathlib.Path, io.BufferedReader)
        if isinstance(each, type)
    )
)
_STANDARD = {name: name for name in sys.stdlib_module_names}
#: What guides call objects of these classes.
_VARIABLES = {
    "backend": "wbengine.persistence.base.Backend",
    "board": "wbengine.jobs.base.JobBoard",
    "conductor": "wbengine.conductors.base.Conductor",
    "connection": "wbengine.persistence.base.Connection",
    "detail": "wbengine.persistence.models.FlowDetail",
    "difference": "wbengine.engines.Difference",
    "engine": "wbengine.engines.base.Engine",
    "handle": "wbengine.engines.FlowHandle",
    "history": "wbengine.retry.History",
    "job": "wbengine.jobs.base.Job",
    "notifier": "wbengine.types.notifier.Notifier",
    "server": "wbengine.engines.worker_based.worker.Worker",
    "shared": "wbengine.engines.worker_based.executor.WorkerTaskExecutor",
    "steps": "wbengine.steps.Steps",
    "storage": "wbengine.storage.Storage",
    "view": "wbengine.views.flow_status.FlowView",
    "watcher": "wbengine.views.watcher.FlowWatcher",
    "wbe_broker": "wbengine.testing.Broker",
    "wbe_clock": "wbengine.testing.ManualClock",
    "wbe_store": "wbengine.testing.FaultyBackend",
}


def documents() -> list[pathlib.Path]:
    return [imports.ROOT / "README.md", *sorted(_SOURCE.rglob("*.rst"))]


def is_guide(path: pathlib.Path) -> bool:
    pages_of_guides = (_SOURCE / "tutorial.rst", _SOURCE / "installing.rst")
    return path.parent in (imports.ROOT, _SOURCE / "howto") or path in pages_of_guides


@functools.cache
def programs() -> Mapping[pathlib.Path, ast.Module]:
    """Return the example programs, and the code blocks of each document as one program."""
    found = {
        path: ast.parse("".join(b.text for b in pages.blocks(path) if b.language == "python"))
        for path in documents()
    }
    examples = imports.ROOT.joinpath("examples").rglob("*.py")
    return found | {path: public_api.parse(path) for path in sorted(examples)}


def literals(path: pathlib.Path) -> ast.Module:
    """Return the literals in the text of a guide that are Python expressions."""
    found: list[ast.stmt] = []
    for text in _LITERALS[path.suffix].findall(path.read_text(encoding="utf-8")):
        with contextlib.suppress(SyntaxError):
            found += ast.parse(text.removeprefix("@")).body
    return ast.Module(found, [])


def is_public(name: str) -> bool:
    """Return whether a name, or a name in this module, is documented."""
    return any(each == name or each.startswith(f"{name}.") for each in public_api.documented())


def imported(tree: ast.AST) -> dict[str, str]:
    """Return the dotted names of the imports of a program by their local names."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
        elif isinstance(node, ast.Import):
            names = [(a.asname or a.name.partition(".")[0], a) for a in node.names]
            found.update({local: a.name if a.asname else local for local, a in names})
    return found


def dotted(node: ast.AST, local: Mapping[str, str]) -> str | None:
    """Return the dotted name of an expression that begins with an imported name."""
    if isinstance(node, ast.Name):
        return local.get(node.id)
    if isinstance(node, ast.Attribute) and (base := dotted(node.value, local)) is not None:
        return f"{base}.{node.attr}"
    return None


def undocumented_names(tree: ast.AST, local: Mapping[str, str]) -> set[str]:
    """Return the names in modules of wbengine that are used with the name of the module."""
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return hidden(filter(None, (dotted(node, local) for node in attributes)))


def hidden(names: Iterable[str]) -> set[str]:
    return {name for name in names if exists(name) and not is_public(name)}


def exists(name: str) -> bool:
    """Return whether this is a name in a module of wbengine, or a module."""
    try:
        module, value = public_api.find(name)
    except (AttributeError, ValueError):
        return False
    return name == module or (name.rpartition(".")[0] == module and not inspect.ismodule(value))


@functools.cache
def documented_members(cls: type) -> set[str]:
    """Return the members that are documented for a class or its public bases, and its fields."""
    names = public_api.documented()
    documented = [
        members for name, members in names.items() if public_api.find(name)[1] in cls.__mro__
    ]
    return public_api.fields(cls).union(*documented)


@functools.cache
def hidden_members() -> frozenset[str]:
    """Return the names of members of public classes that are documented for none of them."""
    values = [public_api.find(name)[1] for name in public_api.documented()]
    classes = [value for value in values if isinstance(value, type)]
    members = set[str]().union(*map(public_api.members, classes))
    return frozenset(members.difference(_FOREIGN, *map(documented_members, classes)))


def undocumented_members(tree: ast.AST, local: Mapping[str, str]) -> set[str]:
    """Return the hidden members of public classes that a program uses."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or dotted(node, local) is not None:
            continue
        name = getattr(node.value, "id", None) or getattr(node.value, "attr", None)
        cls = public_api.find(_VARIABLES[name])[1] if name in _VARIABLES else None
        if cls is None and node.attr in hidden_members():
            found.add(node.attr)
        elif cls is not None and node.attr in public_api.members(cls) - documented_members(cls):
            found.add(f"{_VARIABLES[name]}.{node.attr}")
    return found


def undocumented_keywords(tree: ast.AST, local: Mapping[str, str]) -> Iterator[str]:
    """Yield the keywords that a called public function does not have."""
    for node in ast.walk(tree):
        name = dotted(node.func, local) if isinstance(node, ast.Call) else None
        if name is None or name not in public_api.documented():
            continue
        parameters = inspect.signature(public_api.find(name)[1]).parameters.values()
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            continue
        known = {each.name for each in parameters}
        yield from (f"{name}({k.arg}=)" for k in node.keywords if k.arg not in (None, *known))


@functools.cache
def modules() -> Mapping[str, str]:
    """Return the modules of wbengine by the last part of their name, public ones first."""
    found: dict[str, str] = {}
    for name in sorted(public_api.modules(), key=lambda name: (not is_public(name), name)):
        found.setdefault(name.rpartition(".")[2], name)
    return found


@pytest.mark.parametrize("path", programs(), ids=lambda path: str(path.relative_to(imports.ROOT)))
def test_program_uses_documented_names(path: pathlib.Path) -> None:
    tree = programs()[path]
    local = imported(tree)
    assert hidden(local.values()) | undocumented_names(tree, local) == set()
    assert undocumented_members(tree, local) == set()
    assert list(undocumented_keywords(tree, local)) == []


GUIDES = [path for path in documents() if is_guide(path)]


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_text_of_guide_contains_only_documented_names(path: pathlib.Path) -> None:
    text = literals(path)
    local = {**_STANDARD, **modules(), **imported(programs()[path])}
    called = {getattr(node.func, "id", "") for node in ast.walk(text) if isinstance(node, ast.Call)}
    assert undocumented_names(text, local) == set()
    assert undocumented_members(text, local) | called & hidden_members() == set()


@pytest.mark.parametrize(
    ("hidden_name", "member", "text", "found"),
    [
        ("wbengine.engines.base.Engine", "suspend", "engine.suspend()", "{name}.suspend"),
        ("wbengine.storage.Storage", "inject", "e.storage.inject({})", "{name}.inject"),
        ("wbengine.steps.Steps", "now", "steps.now()", "{name}.now"),
        ("wbengine.schedules.Schedules", "skip", "nightly.skip()", "skip"),
        ("wbengine.engines.submit", None, "engines.submit(flow)", "{name}"),
    ],
)
def test_hidden_name_is_found(
    hidden_name: str,
    member: str | None,
    text: str,
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = dict(public_api.documented())
    members = names.pop(hidden_name)
    if member is not None:
        names[hidden_name] = tuple(each for each in members if each != member)
    monkeypatch.setattr(public_api, "documented", lambda: names)
    for cached in (documented_members, hidden_members):
        monkeypatch.setitem(globals(), cached.__name__, cached.__wrapped__)
    tree = ast.parse(f"from wbengine import engines\n{text}")
    local = imported(tree)
    result = undocumented_names(tree, local) | undocumented_members(tree, local)
    assert result == {found.format(name=hidden_name)}


def test_unknown_keyword_of_public_function_is_found() -> None:
    tree = ast.parse(
        "from wbengine.persistence import base\nbase.unfinished_flows(backend=1, of=2)"
    )
    expected = ["wbengine.persistence.base.unfinished_flows(of=)"]
    assert list(undocumented_keywords(tree, imported(tree))) == expected

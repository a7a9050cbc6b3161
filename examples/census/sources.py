"""Which files make up which module, and how they are grouped into tasks."""

from __future__ import annotations

import heapq
import os
import platform
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: So many files make up one map task at most.
GROUP_LIMIT: Final = 50

#: Belongs to the standard library's folder, but is not in `sys.stdlib_module_names`.
_ALSO_STANDARD: Final = frozenset({"test", "__hello__", "__phello__"})
_NOT_SOURCES: Final = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})
_LONGEST_NAME: Final = 100


@dataclass(frozen=True, slots=True)
class SourceFile:
    """`path` is relative to the root, with `/`; `size` is in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Tree:
    """The sources under `root` by top-level module, both sorted by name."""

    title: str
    root: Path
    modules: dict[str, tuple[SourceFile, ...]]


@dataclass(frozen=True, slots=True)
class Group:
    """What one map task measures: files of one module.  `name` is unique, also as a file name."""

    name: str
    module: str
    files: tuple[str, ...]
    size: int


def standard_library() -> Tree:
    """The standard library of the interpreter that runs this, as far as it is Python source."""
    root = Path(sysconfig.get_path("stdlib"))
    title = f"the standard library of Python {platform.python_version()}"
    modules = {
        name: files
        for name, files in _modules(root)
        if name in sys.stdlib_module_names
        or name in _ALSO_STANDARD
        or name.startswith("_sysconfigdata")
    }
    return Tree(title, root, modules)


def folder(root: Path) -> Tree:
    """Any folder: its `.py` files and the folders that hold some are its top-level modules."""
    root = root.resolve()
    return Tree(_printable(root.name) or "/", root, dict(_modules(root)))


def groups(tree: Tree, limit: int = GROUP_LIMIT) -> list[Group]:
    """Cut every module into as few groups of at most `limit` files as possible, of similar size."""
    taken: set[str] = set()
    found = []
    for module, files in tree.modules.items():
        parts = _split(files, limit)
        for number, part in enumerate(parts, 1):
            name = module if len(parts) == 1 else f"{module}.{number:0{len(str(len(parts)))}}"
            size = sum(file.size for file in part)
            paths = tuple(sorted(file.path for file in part))
            found.append(Group(_unique(name, taken), module, paths, size))
    return found


def _split(files: tuple[SourceFile, ...], limit: int) -> list[list[SourceFile]]:
    parts: list[list[SourceFile]] = [[] for _ in range(-(-len(files) // limit))]
    lightest = [(0, number) for number in range(len(parts))]
    for file in sorted(files, key=lambda file: (-file.size, file.path)):
        size, number = heapq.heappop(lightest)
        parts[number].append(file)
        if len(parts[number]) < limit:
            heapq.heappush(lightest, (size + file.size, number))
    return parts


def _modules(root: Path) -> Iterator[tuple[str, tuple[SourceFile, ...]]]:
    modules: dict[str, list[SourceFile]] = {}
    with os.scandir(root) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = _printable(entry.name)
            if entry.name.endswith(".py") and entry.is_file():
                file = SourceFile(name, entry.stat().st_size)
                modules.setdefault(name.removesuffix(".py"), []).append(file)
            elif _is_source_folder(entry) and (files := list(_walk(Path(entry.path), name))):
                modules.setdefault(name, []).extend(files)
    for name in sorted(modules):
        yield name, tuple(sorted(modules[name], key=lambda file: file.path))


def _walk(top: Path, prefix: str) -> Iterator[SourceFile]:
    todo = [(str(top), prefix)]
    while todo:
        path, prefix = todo.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    name = f"{prefix}/{_printable(entry.name)}"
                    if entry.name.endswith(".py") and entry.is_file():
                        yield SourceFile(name, entry.stat().st_size)
                    elif _is_source_folder(entry):
                        todo.append((entry.path, name))
        except OSError:
            continue  # a folder that may not be read holds nothing for us


def _is_source_folder(entry: os.DirEntry[str]) -> bool:
    return (
        entry.is_dir(follow_symlinks=False)
        and not entry.name.startswith(".")
        and entry.name not in _NOT_SOURCES
        and not os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))
    )


def _printable(name: str) -> str:
    """`name`, with bytes that are no text written as escapes.

    Such a path leads nowhere, so its file is reported as unparsed: JSON could not carry the bytes.
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _unique(name: str, taken: set[str]) -> str:
    """A file name for a group, also where upper and lower case are the same."""
    safe = "".join(char if char.isalnum() or char in "._- " else "_" for char in name)
    base = candidate = safe[:_LONGEST_NAME]
    number = 1
    while candidate.casefold() in taken:
        number += 1
        candidate = f"{base}~{number}"
    taken.add(candidate.casefold())
    return candidate

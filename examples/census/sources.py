"""The source files of each module, and their groups for tasks."""

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

MAX_FILES_PER_GROUP: Final = 50

#: Modules in the folder of the standard library that `sys.stdlib_module_names` does not contain.
_UNLISTED_STANDARD_MODULES: Final = frozenset({"test", "__hello__", "__phello__"})
_NOT_SOURCES: Final = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})
_MAX_NAME_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source file; `path` is relative to the root, with `/`, and `size` is in bytes."""

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
    """The input of one map task: files of one module. `name` is unique, also as a file name."""

    name: str
    module: str
    files: tuple[str, ...]
    size: int


def standard_library() -> Tree:
    """Return the Python sources of the standard library of this interpreter."""
    root = Path(sysconfig.get_path("stdlib"))
    title = f"the standard library of Python {platform.python_version()}"
    modules = {
        name: files
        for name, files in _modules(root)
        if name in sys.stdlib_module_names
        or name in _UNLISTED_STANDARD_MODULES
        or name.startswith("_sysconfigdata")
    }
    return Tree(title, root, modules)


def folder(root: Path) -> Tree:
    """Return the tree of a folder, whose `.py` files and subfolders are the top-level modules."""
    root = root.resolve()
    return Tree(_printable(root.name) or "/", root, dict(_modules(root)))


def groups(tree: Tree, limit: int = MAX_FILES_PER_GROUP) -> list[Group]:
    """Divide each module into as few groups of at most `limit` files as possible.

    The groups of a module have similar sizes in bytes.
    """
    used_names: set[str] = set()
    result = []
    for module, files in tree.modules.items():
        parts = _split(files, limit)
        for number, part in enumerate(parts, 1):
            name = module if len(parts) == 1 else f"{module}.{number:0{len(str(len(parts)))}}"
            size = sum(file.size for file in part)
            paths = tuple(sorted(file.path for file in part))
            result.append(Group(_unique(name, used_names), module, paths, size))
    return result


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
            continue  # an unreadable folder is skipped


def _is_source_folder(entry: os.DirEntry[str]) -> bool:
    return (
        entry.is_dir(follow_symlinks=False)
        and not entry.name.startswith(".")
        and entry.name not in _NOT_SOURCES
        and not os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))
    )


def _printable(name: str) -> str:
    """Return `name` with escapes for bytes that are not text.

    JSON could not represent those bytes. The resulting path does not exist, so the file is reported
    as unparsed.
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _unique(name: str, used_names: set[str]) -> str:
    """Return a file name for a group that is unique, also on case-insensitive file systems."""
    safe = "".join(char if char.isalnum() or char in "._- " else "_" for char in name)
    base = candidate = safe[:_MAX_NAME_CHARS]
    number = 1
    while candidate.casefold() in used_names:
        number += 1
        candidate = f"{base}~{number}"
    used_names.add(candidate.casefold())
    return candidate

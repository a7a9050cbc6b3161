"""Lua scripts for Redis, from files beside the modules that run them.

A folder contains one file for each script, and its subfolder `shared` the functions that several
scripts use. A file begins with a comment: for a script its arguments, result and guarantee, for a
shared file its functions. The line `-- include NAME` inserts a shared file, unless it was inserted.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_INCLUDE: Final = re.compile(r"^-- include (\w+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """A script and its SHA-1, by which a server that has loaded the script runs it."""

    text: str
    digest: str


def load(
    folder: Path, constants: Mapping[str, int | str] | None = None, shared: Sequence[Path] = ()
) -> dict[str, Script]:
    """Read the scripts of a folder, by file name without the suffix.

    :param constants: values of Lua variables that all scripts define.
    :param shared: further folders with shared files.
    """
    libraries: dict[str, str] = {}
    for place in (folder / "shared", *shared):
        libraries.update(_texts(place))
    head = "".join(f"local {name} = {value!r}\n" for name, value in (constants or {}).items())
    return {name: _script(head, text, libraries) for name, text in _texts(folder).items()}


@functools.cache
def _texts(folder: Path) -> Mapping[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.lua")}


def _script(head: str, text: str, libraries: Mapping[str, str]) -> Script:
    included: set[str] = set()

    def insert(include: re.Match[str]) -> str:
        name = include[1]
        if name in included:
            return ""
        included.add(name)
        return _INCLUDE.sub(insert, libraries[name])

    text = head + _INCLUDE.sub(insert, text)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

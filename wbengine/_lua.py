"""Lua scripts for Redis, from files beside the modules that run them.

A folder contains one file for each script, and its subfolder `shared` the functions that several
scripts use. A file begins with a comment: for a script its arguments, result and guarantee, for a
shared file its functions. The line `-- include NAME` inserts a shared file, unless it was inserted.
"""

from __future__ import annotations

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

    :param constants: values of Lua variables. A script begins with those that it uses.
    :param shared: further folders with shared files.
    """
    libraries = {
        path.stem: path.read_text(encoding="utf-8")
        for place in (folder / "shared", *shared)
        for path in place.glob("*.lua")
    }
    return {
        path.stem: _script(path.read_text(encoding="utf-8"), libraries, constants or {})
        for path in folder.glob("*.lua")
    }


def _script(text: str, libraries: Mapping[str, str], constants: Mapping[str, int | str]) -> Script:
    included: set[str] = set()

    def insert(include: re.Match[str]) -> str:
        name = include[1]
        if name in included:
            return ""
        included.add(name)
        return _INCLUDE.sub(insert, libraries[name])

    text = _INCLUDE.sub(insert, text)
    used = set(re.findall(r"\b[A-Z_]+\b", text))
    values = [f"local {name} = {constants[name]!r}\n" for name in constants if name in used]
    text = "".join(values) + text
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

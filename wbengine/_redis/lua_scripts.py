"""Lua scripts for Redis, from files beside the modules that run them.

A folder contains one file for each script, and its subfolder `shared` the functions that several
scripts use. A file begins with a comment: for a script its result and guarantee, for a shared file
its functions. The line `-- include NAME` inserts a shared file, unless it was inserted.

The function that declares a script has its name, names and types its arguments, and converts its
reply::

    @SCRIPTS.declare
    def release(reply: Any, id: str, epoch: int) -> bool:
        return bool(reply)

    step = release("a", epoch=1)  # runs release.lua, which has the local variables `id` and `epoch`

Arguments are strings in Lua, also numbers. A bool is a boolean, a sequence is a list, a tuple is a
list, and a named tuple is a table. None is '', and nil if the type is optional and a tuple.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_INCLUDE: Final = re.compile(r"^-- include (\w+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """A script and its SHA-1, by which a server that has loaded the script runs it."""

    name: str
    text: str
    digest: str

    @classmethod
    def of(cls, name: str, text: str) -> Script:
        return cls(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(slots=True)
class Step(Generic[T_co]):
    """A script with its arguments, and the function that converts its reply.

    :ivar values: further arguments of this function.
    """

    script: Script
    arguments: list[Any]
    convert: Callable[..., T_co]
    values: tuple[Any, ...]

    def read(self, reply: Any) -> T_co:
        return self.convert(reply, *self.values)

    def command(self, *keys: str) -> tuple[Any, ...]:
        """Return the command for a server that has loaded the script."""
        return "EVALSHA", self.script.digest, len(keys), *keys, *self.arguments


class Scripts(dict[str, Script]):
    """The declared scripts of a folder, by name."""

    def __init__(self, folder: Path, constants: Mapping[str, int | str] | None = None) -> None:
        """Create an empty mapping.

        :param constants: values of Lua variables that all scripts define.
        """
        super().__init__()
        self._folder = folder
        self._head = "".join(
            f"local {name} = {value!r}\n" for name, value in (constants or {}).items()
        )

    def declare(self, function: Callable[Concatenate[Any, P], T]) -> Callable[P, Step[T]]:
        """Declare the script with the name of a function.

        :param function: converts a reply. Its other parameters are the arguments of the script.
        """
        name, hints = function.__name__, typing.get_type_hints(function)
        _, *parameters = inspect.signature(function).parameters.values()
        kinds = {each.name: _kind(hints[each.name]) for each in parameters}
        reading = "".join(f"local {each}\n{kind.read(each)}" for each, kind in kinds.items())
        script = self[name] = Script.of(
            name, f"{self._head}local at = 1\n{reading}{_text(self._folder, name)}"
        )
        names = [*kinds]
        defaults = {
            each.name: each.default for each in parameters if each.default is not each.empty
        }
        words = ", ".join(kind.write(each) for each, kind in kinds.items())
        # As `dataclasses` does: calls of functions for each value would take longer.
        write: Callable[..., list[Any]] = eval(f"lambda {', '.join(names)}: [{words}]")

        @functools.wraps(function)
        def step(*args: P.args, **kwargs: P.kwargs) -> Step[T]:
            values: tuple[Any, ...] = args
            if len(args) < len(names):
                values += (*map({**defaults, **kwargs}.__getitem__, names[len(args) :]),)
            return Step(script, write(*values), function, values)

        return step


class _Kind(NamedTuple):
    """How the values of a type are passed to a script.

    :ivar write: returns the words of the value of an expression, as items of a list in Python.
    :ivar read: returns Lua statements that assign the value at the position `at` to a variable.
    :ivar word: format of this value in Lua; '': the number of its words varies.
    """

    write: Callable[[str], str]
    read: Callable[[str], str]
    word: str = ""


def _single(written: str, word: str) -> _Kind:
    def read(target: str) -> str:
        return f"{target} = {word.format('at')}\nat = at + 1\n"

    return _Kind(written.format, read, word)


_VALUE: Final = _single("{0}", "ARGV[{}]")
_OPTIONAL_VALUE: Final = _single("'' if {0} is None else {0}", "ARGV[{}]")
_FLAG: Final = _single("int({0})", "ARGV[{}] == '1'")


def _kind(hint: Any) -> _Kind:
    if hint is bool:
        return _FLAG
    origin, hints = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kind = _kind(hints[0])
        if types.NoneType not in hints:
            return kind
        return _OPTIONAL_VALUE if kind is _VALUE else _optional(kind)
    if origin is tuple:
        return _tuple({f"[{index}]": each for index, each in enumerate(hints, 1)})
    if isinstance(origin, type) and issubclass(origin, Collection):
        return _list(_kind(hints[0]))
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _tuple({f".{name}": each for name, each in typing.get_type_hints(hint).items()})
    return _VALUE


def _tuple(fields: Mapping[str, Any]) -> _Kind:
    """Return the kind of a tuple, whose fields have these names in Lua, with '.' or brackets."""
    kinds = {name: _kind(each) for name, each in fields.items()}
    first = list(itertools.takewhile(lambda name: kinds[name].word, kinds))
    constructor = ", ".join(
        (f"{name[1:]} = " if name[0] == "." else "") + kinds[name].word.format(f"at + {offset}")
        for offset, name in enumerate(first)
    )

    def read(target: str) -> str:
        others = "".join(
            kind.read(target + name) for name, kind in kinds.items() if name not in first
        )
        return f"{target} = {{{constructor}}}\nat = at + {len(first)}\n{others}"

    def write(value: str) -> str:
        if all(kind is _VALUE for kind in kinds.values()):
            return f"*{value}"
        return ", ".join(
            kind.write(f"{value}[{index}]") for index, kind in enumerate(kinds.values())
        )

    return _Kind(write, read)


def _list(item: _Kind) -> _Kind:
    def write(value: str) -> str:
        if item is _VALUE:
            return f"len({value}), *{value}"
        return f"len({value}), *[word for item in {value} for word in ({item.write('item')},)]"

    def read(target: str) -> str:
        if item is _VALUE:
            return (
                f"{target} = {{}}\nfor i = 1, ARGV[at] do {target}[i] = ARGV[at + i] end\n"
                f"at = at + 1 + #{target}\n"
            )
        name = re.sub(r"\W", "_", target) + "_item"
        return (
            f"{target} = {{}}\nat = at + 1\nfor i = 1, ARGV[at - 1] do\n"
            f"local {name}\n{item.read(name)}{target}[i] = {name}\nend\n"
        )

    return _Kind(write, read)


def _optional(kind: _Kind) -> _Kind:
    """Pass a tuple or None as a list of at most one tuple."""
    return _Kind(
        lambda value: f"*([0] if {value} is None else [1, {kind.write(value)}])",
        lambda target: f"{_list(kind).read(target)}{target} = {target}[1]\n",
    )


@functools.cache
def _files(folder: Path) -> Mapping[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.lua")}


def _text(folder: Path, name: str) -> str:
    """Return the text of a script with the shared files that it includes."""
    libraries = _files(folder / "shared")
    included: set[str] = set()

    def insert(include: re.Match[str]) -> str:
        name = include[1]
        if name in included:
            return ""
        included.add(name)
        return _INCLUDE.sub(insert, libraries[name])

    return _INCLUDE.sub(insert, _files(folder)[name])

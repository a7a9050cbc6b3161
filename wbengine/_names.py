"""Names: of Python objects, near misses, and labels that reach brokers and file systems."""

from __future__ import annotations

import difflib
import functools
import importlib
import re
import types
from collections.abc import Callable, Iterable
from typing import Any, Final

#: What an exchange, topic or queue may be called: safe as a file name and in every broker.
_LABEL: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,120}")

#: Whether a string may name an exchange, topic, queue, holder or request: truthy if it may.
is_label: Final = _LABEL.fullmatch
#: The same, for a JSON Schema.
LABEL_PATTERN: Final = rf"^{_LABEL.pattern}\Z"
_PATTERN: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.*-]{1,120}")

#: More names than so many are not compared each with each.
_MOST_COMPARED: Final = 50

_ROUTINES: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
)


def dotted(obj: Any) -> str:
    """The full name of a class or callable, of any other object its class's name.

    Names of builtins are bare: `'ValueError'`, `'len'`.  A partial has the name of what it calls, a
    bound method that of its class.
    """
    while isinstance(obj, functools.partial):
        obj = obj.func
    if isinstance(obj, types.MethodType):
        owner = obj.__self__ if isinstance(obj.__self__, type) else type(obj.__self__)
        return f"{dotted(owner)}.{obj.__name__}"
    if not isinstance(obj, type) and not isinstance(obj, _ROUTINES):
        obj = type(obj)
    name = getattr(obj, "__qualname__", None) or obj.__name__
    module = getattr(obj, "__module__", None)
    if not isinstance(module, str) or module == "builtins":
        return str(name)
    return f"{module}.{name}"


def class_name(cls: type) -> str:
    """`dotted` of a class, for hot paths."""
    module = cls.__module__
    if isinstance(module, str) and module != "builtins":
        return f"{module}.{cls.__qualname__}"
    return dotted(cls)


def words(what: str, names: str | Iterable[str] | None) -> tuple[str, ...]:
    """`names` as a tuple; a string is one name, None is none.

    :raises TypeError: neither a string nor an iterable of strings; `what` says what it is for.
    """
    if names is None:
        return ()
    found = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    for name in found:
        if not isinstance(name, str):
            raise TypeError(f"{what} takes a str or several, not {name!r}")
    return found


def module_of(obj: Any) -> str:
    """The name of the module that a class, a callable or an object's class comes from."""
    while isinstance(obj, functools.partial):
        obj = obj.func
    if isinstance(obj, types.MethodType):
        obj = obj.__self__
    if not isinstance(obj, type) and not isinstance(obj, _ROUTINES):
        obj = type(obj)
    return str(getattr(obj, "__module__", None) or "builtins")


def load(name: str, wanted: Callable[[Any], bool] | None = None) -> Any:
    """The object behind `'pkg.mod:Attr.x'`, `'pkg.mod.Attr'` or `'pkg.mod'`.

    What an error message suggests is `wanted`, where that is given.

    :raises ValueError: the name is empty or holds empty parts.
    :raises ImportError: no such module, or the module has no such attribute (with a near name); an
        error raised inside the module goes through as it is.
    """
    module_name, colon, path = name.partition(":")
    parts = path.split(".") if path else []
    if not all(module_name.split(".")) or not all(parts) or (colon and not parts):
        raise ValueError(
            f"{name!r} is not of the form 'package.module:Name' or 'package.module.Name'"
        )
    module, rest = (
        (importlib.import_module(module_name), []) if colon else _import_longest(module_name)
    )
    found: Any = module
    path_to_it = rest + parts
    for depth, part in enumerate(path_to_it, 1):
        try:
            found = getattr(found, part)
        except AttributeError:
            choices = dir(found)
            if wanted is not None and depth == len(path_to_it):
                known = getattr(found, "__dict__", {})
                choices = [choice for choice in choices if wanted(known.get(choice))]
            raise ImportError(
                f"{name!r} cannot be loaded: {_owner(found)} has no {part!r}{hint(part, choices)}"
            ) from None
    return found


def _owner(obj: Any) -> str:
    return f"module {obj.__name__!r}" if isinstance(obj, types.ModuleType) else repr(dotted(obj))


def _import_longest(name: str) -> tuple[types.ModuleType, list[str]]:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module_name = ".".join(parts[:length])
        try:
            return importlib.import_module(module_name), parts[length:]
        except ModuleNotFoundError as error:
            # Only "this very name is no module" may be tried shorter; a missing import *inside* a
            # module is the module's own error.
            missing = error.name or ""
            if length == 1 or not (module_name == missing or module_name.startswith(missing + ".")):
                raise
    raise AssertionError("unreachable")


def near(word: str, choices: Iterable[str], n: int = 3) -> list[str]:
    """At most `n` of `choices` that look like `word`, the nearest first; case does not count."""
    by_fold: dict[str, str] = {}
    for choice in choices:
        by_fold.setdefault(choice.casefold(), choice)
    found = difflib.get_close_matches(word.casefold(), by_fold, n)
    return [by_fold[fold] for fold in found]


def renamed(gone: Iterable[str], come: Iterable[str]) -> dict[str, str]:
    """Which of the names that are `gone` probably became which of those that have `come`.

    Those with the same last part first: a class that moved to another module; then near ones, if
    there are few enough to compare all of them.
    """
    old, new = list(gone), list(come)
    ends: dict[str, list[str]] = {}
    for name in reversed(new):
        ends.setdefault(name.rpartition(".")[2], []).append(name)
    found: dict[str, str] = {}
    for name in old:
        same = ends.get(name.rpartition(".")[2])
        if same:
            found[name] = same.pop()
    used = set(found.values())
    old = [name for name in old if name not in found]
    new = [name for name in new if name not in used]
    if len(old) <= _MOST_COMPARED and len(new) <= _MOST_COMPARED:
        for name in old:
            for nearest in near(name, new, 1):
                found[name] = nearest
                new.remove(nearest)
    return found


def hint(word: str, choices: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for the end of an error message, or `''`."""
    found = near(word, choices, 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def _check(kind: str, value: str, form: re.Pattern[str], allowed: str) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        shown = repr(value)
        if len(shown) > 150:
            shown = shown[:150] + "..."
        raise ValueError(f"{kind} {shown} is not allowed: use 1 to 120 of {allowed}")
    return value


def check_label(kind: str, value: str) -> str:
    """`value`, if it may name an exchange, topic or queue.

    :raises ValueError: naming `kind` and the value.
    """
    return _check(kind, value, _LABEL, "A-Z a-z 0-9 _ . -, but not '.' or '..'")


def check_pattern(kind: str, value: str) -> str:
    """As `check_label`, for the topics of an engine, which may also hold `*`."""
    return _check(kind, value, _PATTERN, "A-Z a-z 0-9 _ . - *, but not '.' or '..'")

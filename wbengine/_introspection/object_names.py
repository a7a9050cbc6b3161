"""Names of Python objects, similar names, and labels for brokers and file systems."""

from __future__ import annotations

import difflib
import functools
import importlib.machinery
import importlib.util
import pkgutil
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from wbengine._imports import search_path

#: Maximum length of names that users choose, as in TaskFlow's columns. It also fits into an index
#: of MySQL, which needs four bytes for each character.
MAX_NAME_LENGTH: Final = 255
_MAX_LABEL_LENGTH: Final = 120
_MAX_SHOWN_CHARS: Final = 40

#: Valid names of exchanges, topics and queues: safe as file names and for all brokers.
_LABEL: Final = re.compile(rf"(?!\.{{1,2}}\Z)[A-Za-z0-9_.-]{{1,{_MAX_LABEL_LENGTH}}}")

_MAX_CODE_LENGTH: Final = 100
_CODE: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.+-]{{0,{_MAX_CODE_LENGTH - 1}}}")

#: Match a valid name of an exchange, topic, queue, owner or request.
is_label: Final = _LABEL.fullmatch
#: Pattern of such a name for JSON Schemas.
LABEL_PATTERN: Final = rf"^{_LABEL.pattern}\Z"
_LABEL_OR_WILDCARD: Final = re.compile(rf"(?!\.{{1,2}}\Z)[A-Za-z0-9_.*-]{{1,{_MAX_LABEL_LENGTH}}}")

_MAX_COMPARED_NAMES: Final = 50

#: Minimum similarity at which a word is probably a misspelling of another one.
CLOSE_SIMILARITY: Final = 0.75

_ROUTINES: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
)


def dotted(obj: Any) -> str:
    """Return the full name of a class or callable. For other objects, use their class.

    Names of builtins have no module: `'ValueError'`, `'len'`. A partial has the name of its
    function. A bound method has the name of its class as prefix.
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
    """Do the same as `dotted`, faster, for a class."""
    module = cls.__module__
    if isinstance(module, str) and module != "builtins":
        return f"{module}.{cls.__qualname__}"
    return dotted(cls)


def as_tuple(what: str, names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return `names` as a tuple. A string is a single name, None is empty.

    :raises TypeError: if it is neither a string nor an iterable of strings; the message contains
        `what`.
    """
    if names is None:
        return ()
    result = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    for name in result:
        if not isinstance(name, str):
            raise TypeError(f"{what} must be a str or several, got {name!r}")
    return result


def module_of(obj: Any) -> str:
    """Return the module name of a class or callable. For other objects, use their class."""
    while isinstance(obj, functools.partial):
        obj = obj.func
    if isinstance(obj, types.MethodType):
        obj = obj.__self__
    if not isinstance(obj, type) and not isinstance(obj, _ROUTINES):
        obj = type(obj)
    return str(getattr(obj, "__module__", None) or "builtins")


def load(name: str, wanted: Callable[[Any], bool] | None = None) -> Any:
    """Return the object with a name such as `'pkg.mod:Attr.x'`, `'pkg.mod.Attr'` or `'pkg.mod'`.

    :param wanted: filter for the objects that an error message may suggest.
    :raises ValueError: if the name or one of its parts is empty.
    :raises ImportError: if there is no such module or attribute; the message contains a similar
        name. An exception raised inside the module propagates.
    """
    module_name, colon, path = name.partition(":")
    parts = path.split(".") if path else []
    if not all(module_name.split(".")) or not all(parts) or (colon and not parts):
        raise ValueError(
            f"Name must have the form 'package.module:Name' or 'package.module.Name', got {name!r}"
        )
    module, rest = (import_module(module_name), []) if colon else _import_longest(module_name)
    target: Any = module
    path_to_it = rest + parts
    for depth, part in enumerate(path_to_it, 1):
        try:
            target = getattr(target, part)
        except AttributeError:
            choices = [*_modules_in(getattr(target, "__path__", None)), *dir(target)]
            if wanted is not None and depth == len(path_to_it):
                members = getattr(target, "__dict__", {})
                choices = [choice for choice in choices if wanted(members.get(choice))]
            raise ImportError(
                f"Cannot load {name!r}: {_owner(target)} has no {part!r}{hint(part, choices)}"
            ) from None
    return target


def import_module(name: str) -> types.ModuleType:
    """Import a module.

    :raises ModuleNotFoundError: if it does not exist; the message contains a similar name.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # An import inside the module failed.
        raise ModuleNotFoundError(no_module(error.name), name=error.name) from None


def _owner(obj: Any) -> str:
    return f"module {obj.__name__!r}" if isinstance(obj, types.ModuleType) else repr(dotted(obj))


def _import_longest(name: str) -> tuple[types.ModuleType, list[str]]:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module_name = ".".join(parts[:length])
        try:
            return import_module(module_name), parts[length:]
        except ModuleNotFoundError as error:
            # Try a shorter name only if this name is not a module. An import that fails inside
            # a module is an error of that module.
            missing = error.name or ""
            if length == 1 or not (module_name == missing or module_name.startswith(missing + ".")):
                raise
    raise AssertionError("unreachable")


def missing(name: str) -> str | None:
    """Return why no module, function or class has this dotted name, or None if one has it.

    Nothing is imported. If a module is not loaded, its code is searched for the name.
    """
    parts = name.split(".")
    spec = _spec(parts[0])
    if spec is None:
        return no_module(parts[0])
    for depth, part in enumerate(parts[1:], 1):
        inner = ".".join(parts[: depth + 1])
        search_paths = spec.submodule_search_locations
        child_spec = (
            None
            if search_paths is None
            else importlib.machinery.PathFinder.find_spec(inner, search_paths)
        )
        if child_spec is None:
            names = _names_in(spec)
            if names is None or part in names:
                return None
            suggestion = hint(part, [*_modules_in(search_paths), *names])
            return f"module {spec.name!r} has no {part!r}{suggestion}"
        spec = child_spec
    return None


def no_module(name: str) -> str:
    """Return the message that a module does not exist, with the most similar name."""
    package, _, last = name.rpartition(".")
    if package in sys.modules:
        matches = near(last, _modules_in(getattr(sys.modules[package], "__path__", None)), 1)
        suggestion = f" (did you mean '{package}.{matches[0]}'?)" if matches else ""
    else:
        installed = set(_modules_in(sys.path)) - sys.stdlib_module_names
        here = filter(None, [search_path.current_folder()])
        suggestion = hint(name, _modules_in(here)) or hint(name, installed, cutoff=CLOSE_SIMILARITY)
    return f"no module {name!r} found{suggestion}"


def _modules_in(folders: Iterable[str] | None) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(folders)] if folders else []


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # The module is loaded but was not created by an import.
        return importlib.machinery.ModuleSpec(name, None)
    return spec


def _names_in(spec: importlib.machinery.ModuleSpec) -> Collection[str] | None:
    """Return the names that a module may define. None: they are known only after an import."""
    if spec.name in sys.modules:
        module = sys.modules[spec.name]
        return None if hasattr(module, "__getattr__") else dir(module)
    try:
        code = getattr(spec.loader, "get_code", lambda name: None)(spec.name)
    except (ImportError, OSError, SyntaxError):
        return None
    if code is None or ("*",) in code.co_consts or {"__getattr__", "globals"} & {*code.co_names}:
        return None
    return [each for each in code.co_names if each.isidentifier()]


def near(word: str, choices: Iterable[str], n: int = 3, *, cutoff: float = 0.6) -> list[str]:
    """Return at most `n` of `choices` similar to `word`, most similar first, ignoring case.

    :param cutoff: minimum similarity, from 0 to 1.
    """
    by_fold: dict[str, list[str]] = {}
    for choice in choices:
        by_fold.setdefault(choice.casefold(), []).append(choice)
    matches = difflib.get_close_matches(word.casefold(), by_fold, n, cutoff)
    # If names differ only in case, select the most similar one.
    return [difflib.get_close_matches(word, by_fold[fold], 1, 0.0)[0] for fold in matches]


def renamed(removed: Iterable[str], added: Iterable[str]) -> dict[str, str]:
    """Return probable renames, as `{removed name: added name}`.

    Names with the same last part (a class that moved to another module) take precedence over other
    similar names. Those are compared only if there are few.
    """
    old, new = list(removed), list(added)
    ends: dict[str, list[str]] = {}
    for name in reversed(new):
        ends.setdefault(name.rpartition(".")[2], []).append(name)
    renames: dict[str, str] = {}
    for name in old:
        same = ends.get(name.rpartition(".")[2])
        if same:
            renames[name] = same.pop()
    used = set(renames.values())
    old = [name for name in old if name not in renames]
    new = [name for name in new if name not in used]
    if len(old) <= _MAX_COMPARED_NAMES and len(new) <= _MAX_COMPARED_NAMES:
        for name in old:
            for nearest in near(name, new, 1):
                renames[name] = nearest
                new.remove(nearest)
    return renames


def hint(word: str, choices: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `" (did you mean 'x'?)"` for the end of an error message, or `''`."""
    matches = near(word, choices, 1, cutoff=cutoff)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def check_length(what: str, name: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return `name` if it has at most `max_length` characters.

    :raises ValueError: if it is longer; the message contains `what` and the start of the name.
    """
    if len(name) > max_length:
        raise ValueError(
            f"{what} must have at most {max_length:,} characters, got {len(name):,}:"
            f" {name[:_MAX_SHOWN_CHARS] + '...'!r}"
        )
    return name


def _check(
    kind: str,
    value: str,
    form: re.Pattern[str],
    allowed: str,
    max_length: int = _MAX_LABEL_LENGTH,
) -> str:
    if not isinstance(value, str) or not form.fullmatch(check_length(kind, value, max_length)):
        raise ValueError(
            f"{kind} must be 1 to {max_length} characters of {allowed}, got {value!r:.150}"
        )
    return value


def check_label(kind: str, value: str) -> str:
    """Return `value` if it is a valid name of an exchange, topic or queue.

    :raises ValueError: if it is invalid; the message contains `kind` and the value.
    """
    return _check(kind, value, _LABEL, "A-Z a-z 0-9 _ . -, but not '.' or '..'")


def check_pattern(kind: str, value: str) -> str:
    """Check a topic of an engine like `check_label`. It may also contain `*`."""
    return _check(kind, value, _LABEL_OR_WILDCARD, "A-Z a-z 0-9 _ . - *, but not '.' or '..'")


def check_code(kind: str, value: str) -> str:
    """Return `value` if it is a valid name of an application or of a version of its code.

    :raises ValueError: as `check_label`.
    """
    return _check(kind, value, _CODE, "A-Z a-z 0-9 _ . + -", _MAX_CODE_LENGTH)

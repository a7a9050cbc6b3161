"""From the signature of a body to the stored names it needs.

A body (`execute` or `revert`) is called by keyword.  A *binding* says which stored name each of its
arguments is filled from, which of those names it cannot do without, and which it merely likes.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from wbengine import _names

Rebind = Mapping[str, str] | Sequence[str]

NO_NAMES: Final[frozenset[str]] = frozenset()


class Signature(NamedTuple):
    """What a callable takes by keyword; `takes_any` means it has `**kwargs`.

    `is_async`: what it returns is a coroutine, which somebody has to await.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    takes_any: bool
    is_async: bool = False
    #: All that it names.
    names: frozenset[str] = NO_NAMES

    def takes(self, name: str) -> bool:
        return self.takes_any or name in self.names


class Binding(NamedTuple):
    """`rebind` maps argument to stored name, in the order of the signature."""

    rebind: dict[str, str]
    requires: frozenset[str]
    optional: frozenset[str]


# Of functions, and of those that are bound.
_Known = weakref.WeakKeyDictionary[types.FunctionType, Signature]
_signatures: Final[tuple[_Known, _Known]] = _Known(), _Known()


def signature_of(body: Callable[..., Any]) -> Signature:
    """The signature of `body`; looked at once per function.

    :raises ValueError: it has positional-only parameters, is an asynchronous generator, or cannot
        be inspected.
    """
    bound = isinstance(body, types.MethodType)
    function = body.__func__ if isinstance(body, types.MethodType) else body
    if not isinstance(function, types.FunctionType):
        return _inspect(body)
    known = _signatures[bound]
    found = known.get(function)
    if found is None:
        found = known[function] = _inspect(body)
    return found


def _inspect(body: Callable[..., Any]) -> Signature:
    if _is_any(body, inspect.isasyncgenfunction):
        raise ValueError(
            f"{_names.dotted(body)} is an asynchronous generator (an 'async def' with a 'yield'),"
            " which has no result: return the values, as a list for example"
        )
    try:
        parameters = inspect.signature(body).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The signature of {_names.dotted(body)} cannot be read: {error}"
        ) from None
    strict = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    if strict:
        raise ValueError(
            f"{_names.dotted(body)} takes {strict} by position only, but arguments of atoms are"
            f" passed by name: remove the '/' from its signature"
        )
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Signature(
        tuple(p.name for p in named if p.default is p.empty),
        tuple(p.name for p in named if p.default is not p.empty),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
        _is_any(body, inspect.iscoroutinefunction),
        frozenset(p.name for p in named),
    )


def _is_any(body: Any, test: Callable[[Any], bool]) -> bool:
    """Does `test` hold for what is really called, behind partials and `__call__`?"""
    while isinstance(body, functools.partial):
        body = body.func
    if test(body):
        return True
    return not (isinstance(body, type) or inspect.isroutine(body)) and test(type(body).__call__)


def is_async(function: Callable[..., Any]) -> bool:
    """Would calling `function` give something that has to be awaited or gone through?"""
    return _is_any(function, inspect.iscoroutinefunction) or _is_any(
        function, inspect.isasyncgenfunction
    )


def async_among(**bodies: Signature) -> frozenset[str]:
    """The names of those that are asynchronous."""
    found = [name for name in bodies if bodies[name].is_async]
    return frozenset(found) if found else NO_NAMES


def names_of(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """`names` as a tuple; a string is one name.

    :raises TypeError: not an iterable of strings.
    """
    if names is None:
        return ()
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, Iterable):
        raise TypeError(f"Required and ignored names should be a str or an iterable, not {names!r}")
    found = tuple(names)
    check_names("Required and ignored names", found)
    return found


def check_names(what: str, names: Iterable[Any]) -> None:
    """Refuse names that are no strings.

    :raises TypeError: naming `what` and the first such name.
    """
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what} should hold names of type str, not {name!r}")


def rebind_map(required: Sequence[str], rebind: Rebind) -> Mapping[str, str]:
    """`rebind` as a dict: a list is laid on `required` by position, what is left maps to itself.

    :raises TypeError: neither a dict nor a list or tuple.
    """
    if type(rebind) is dict or isinstance(rebind, Mapping):  # the first is asked faster
        check_names("Rebind", rebind.values())
        return rebind
    if not isinstance(rebind, list | tuple):
        raise TypeError(
            f"Invalid rebind value {rebind!r}: expected a dict, list or tuple,"
            f" not {type(rebind).__name__}"
        )
    check_names("Rebind", rebind)
    mapped = dict(zip(required, rebind, strict=False))
    mapped.update((name, name) for name in rebind[len(required) :])
    return mapped


def bind(
    atom_name: str | None,
    method: str,
    signature: Signature,
    *,
    requires: Sequence[str] = (),
    rebind: Rebind | None = None,
    infer: bool = True,
    ignore: Collection[str] = (),
    injected: Collection[str] = (),
) -> Binding:
    """Bind the arguments of one body.

    `infer` takes arguments from the signature, `requires` adds some, `rebind` renames; those in
    `ignore` are not inferred; stored names in `injected` need no provider.

    :raises ValueError: an argument is asked for that the body does not take, or one that it needs
        is left out.
    """
    required: Sequence[str] = signature.required
    if required and ignore:
        required = [name for name in required if name not in ignore]
    bound = {name: name for name in required} if infer else {}
    if requires:
        bound.update((name, name) for name in requires)
    if rebind is not None:
        bound.update(rebind_map(required, rebind))
    if not (signature.takes_any or bound.keys() <= signature.names):
        _refuse_extra(atom_name, method, bound, signature)
    if not infer:  # else all of them are bound
        _refuse_missing(atom_name, method, bound, required)
    needed = frozenset(bound.values()) if bound else NO_NAMES
    optional = NO_NAMES
    if infer and signature.optional:
        liked = [name for name in signature.optional if name not in bound and name not in ignore]
        bound.update((name, name) for name in liked)
        optional = frozenset(liked)
    if injected:
        needed, optional = needed.difference(injected), optional.difference(injected)
    return Binding(bound, needed, optional)


def _refuse_missing(
    atom_name: str | None, method: str, bound: Collection[str], required: Iterable[str]
) -> None:
    missing = [name for name in required if name not in bound]
    if missing:
        raise ValueError(
            f"Missing arguments for atom {atom_name}: {method}() needs {_listed(missing, bound)}"
        )


def _refuse_extra(
    atom_name: str | None, method: str, bound: Iterable[str], signature: Signature
) -> NoReturn:
    extra = [name for name in bound if name not in signature.names]
    known = (*signature.required, *signature.optional)
    raise ValueError(
        f"Extra arguments given to atom {atom_name}: {method}() takes no {_listed(extra, known)}"
    )


def _listed(names: Iterable[str], choices: Iterable[str]) -> str:
    choices = list(choices)
    return ", ".join(f"{name!r}{_names.hint(str(name), choices)}" for name in names)


def for_revert(
    execute: Signature, revert: Signature, ignore: Collection[str], rebind: Rebind | None
) -> Rebind | None:
    """What of execute's `rebind` the revert takes over when it was given none of its own.

    A list means the positions of revert's own parameters if it fits them, else execute's; what
    revert does not take is left out.
    """
    if not rebind:
        return None
    if revert.takes_any:
        return rebind
    if not isinstance(rebind, Mapping):
        required = [name for name in revert.required if name not in ignore]
        if len(rebind) <= len(required):
            return rebind
        rebind = rebind_map(execute.required, rebind)
    return {name: stored for name, stored in rebind.items() if revert.takes(name)}

"""Derivation of the stored names that a method needs from its signature.

A *body* is the method `execute` or `revert` (or the function of a task). It is called with keyword
arguments. A *binding* maps its arguments to stored names.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from wbengine._introspection import annotated, object_names

Rebind = Mapping[str, str] | Sequence[str]

NO_NAMES: Final[frozenset[str]] = frozenset()


class Signature(NamedTuple):
    """The keyword parameters of a callable.

    `takes_any`: whether it has `**kwargs`. `is_async`: whether it returns a coroutine.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    takes_any: bool
    is_async: bool = False
    #: All named parameters.
    names: frozenset[str] = NO_NAMES
    #: Parameters that can also be passed by position.
    positional: tuple[str, ...] = ()
    #: The signature of the function without `*args`.
    inspected: inspect.Signature = inspect.Signature()

    def takes(self, name: str) -> bool:
        return self.takes_any or name in self.names

    def without(self, names: Collection[str]) -> Signature:
        """Return the signature without these parameters."""
        if self.names.isdisjoint(names):
            return self
        parameters = self.inspected.parameters
        return self._replace(
            required=tuple(name for name in self.required if name not in names),
            optional=tuple(name for name in self.optional if name not in names),
            names=self.names.difference(names),
            positional=tuple(name for name in self.positional if name not in names),
            inspected=inspect.Signature(
                [parameters[name] for name in parameters if name not in names]
            ),
        )

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, as Python binds them; some may be missing.

        :raises TypeError: if the function does not accept an argument.
        """
        arguments = {**dict(zip(self.positional, args, strict=False)), **kwargs}
        is_unique = len(arguments) == len(args) + len(kwargs)
        if not (is_unique and (self.takes_any or arguments.keys() <= self.names)):
            self.inspected.bind_partial(*args, **kwargs)  # It is slow, and raises the error.
        return arguments


class Binding(NamedTuple):
    """`rebind` maps arguments to stored names, in the order of the signature."""

    rebind: dict[str, str]
    requires: frozenset[str]
    optional: frozenset[str]


# Caches for functions, and for bound methods.
_SignatureCache = weakref.WeakKeyDictionary[types.FunctionType, Signature]
_signatures: Final[tuple[_SignatureCache, _SignatureCache]] = _SignatureCache(), _SignatureCache()


def signature_of(body: Callable[..., Any]) -> Signature:
    """Return the signature of `body`, cached for each function.

    :raises ValueError: if it has positional-only parameters, is an asynchronous generator, or has
        no signature.
    """
    bound = isinstance(body, types.MethodType)
    function = body.__func__ if isinstance(body, types.MethodType) else body
    if not isinstance(function, types.FunctionType):
        return _inspect(body)
    signatures = _signatures[bound]
    cached_signature = signatures.get(function)
    if cached_signature is None:
        cached_signature = signatures[function] = _inspect(body)
        annotated.note(function)
    return cached_signature


def _inspect(body: Callable[..., Any]) -> Signature:
    if _is_any(body, inspect.isasyncgenfunction):
        raise ValueError(
            f"{object_names.dotted(body)} is an asynchronous generator (an 'async def' with a"
            " 'yield'), which has no result; return the values, for example as a list"
        )
    try:
        whole = inspect.signature(body)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Cannot read the signature of {object_names.dotted(body)}: {error}"
        ) from None
    parameters = [p for p in whole.parameters.values() if p.kind is not p.VAR_POSITIONAL]
    strict = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    if strict:
        raise ValueError(
            f"{object_names.dotted(body)} must accept {strict} by name, because arguments of atoms"
            " are passed by name; remove the '/' from its signature"
        )
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Signature(
        tuple(p.name for p in named if p.default is p.empty),
        tuple(p.name for p in named if p.default is not p.empty),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
        _is_any(body, inspect.iscoroutinefunction),
        frozenset(p.name for p in named),
        tuple(p.name for p in named if p.kind is p.POSITIONAL_OR_KEYWORD),
        inspect.Signature(parameters),
    )


def _is_any(body: Any, test: Callable[[Any], bool]) -> bool:
    """Apply `test` to the function that is called, behind partials and `__call__`."""
    while isinstance(body, functools.partial):
        body = body.func
    if test(body):
        return True
    return not (isinstance(body, type) or inspect.isroutine(body)) and test(type(body).__call__)


def is_async(function: Callable[..., Any]) -> bool:
    return _is_any(function, inspect.iscoroutinefunction) or _is_any(
        function, inspect.isasyncgenfunction
    )


def async_among(**bodies: Signature) -> frozenset[str]:
    """Return the names of the asynchronous bodies."""
    async_names = [name for name in bodies if bodies[name].is_async]
    return frozenset(async_names) if async_names else NO_NAMES


def names_of(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return `names` as a tuple. A string is a single name.

    :raises TypeError: if `names` is not an iterable of strings.
    """
    if names is None:
        return ()
    if isinstance(names, str):
        names = (names,)
    if not isinstance(names, Iterable):
        raise TypeError(f"Required and ignored names must be a str or an iterable, got {names!r}")
    name_tuple = tuple(names)
    check_names("Required and ignored names", name_tuple)
    return name_tuple


def check_names(what: str, names: Iterable[Any]) -> None:
    """Check names of values.

    :raises TypeError: if a name is not a string; the message contains `what` and the name.
    :raises ValueError: if a name is too long.
    """
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what} must contain names of type str, got {name!r}")
        object_names.check_length(f"{what}: value name", name)


def rebind_map(required: Sequence[str], rebind: Rebind) -> Mapping[str, str]:
    """Return `rebind` as a dict.

    A list renames the `required` arguments in order. Each further entry maps to itself.

    :raises TypeError: if `rebind` is neither a dict nor a list or tuple.
    """
    if type(rebind) is dict or isinstance(rebind, Mapping):  # The first test is faster.
        check_names("Rebind", rebind.values())
        return rebind
    if not isinstance(rebind, list | tuple):
        raise TypeError(
            f"rebind must be a dict, list or tuple, got {type(rebind).__name__}: {rebind!r}"
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
    """Bind the arguments of a body.

    :param rebind: other stored names of arguments.
    :param ignore: arguments to omit from the signature.
    :param injected: stored names that need no provider.
    :raises ValueError: if the body does not accept an argument, or a required one is missing.
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
        _reject_extra(atom_name, method, bound, signature)
    if not infer:  # Otherwise all of them are bound.
        _reject_missing(atom_name, method, bound, required)
    required_names = frozenset(bound.values()) if bound else NO_NAMES
    optional = NO_NAMES
    if infer and signature.optional:
        optional_names = [
            name for name in signature.optional if name not in bound and name not in ignore
        ]
        bound.update((name, name) for name in optional_names)
        optional = frozenset(optional_names)
    if injected:
        required_names, optional = (
            required_names.difference(injected),
            optional.difference(injected),
        )
    return Binding(bound, required_names, optional)


def _reject_missing(
    atom_name: str | None, method: str, bound: Collection[str], required: Iterable[str]
) -> None:
    missing = [name for name in required if name not in bound]
    if missing:
        raise ValueError(
            f"Missing arguments for atom {atom_name}: {method}() needs {_listed(missing, bound)}"
        )


def _reject_extra(
    atom_name: str | None, method: str, bound: Iterable[str], signature: Signature
) -> NoReturn:
    extra = [name for name in bound if name not in signature.names]
    parameter_names = (*signature.required, *signature.optional)
    raise ValueError(
        f"Extra arguments given to atom {atom_name}: {method}() takes no"
        f" {_listed(extra, parameter_names)}"
    )


def _listed(names: Iterable[str], choices: Iterable[str]) -> str:
    choices = list(choices)
    return ", ".join(f"{name!r}{object_names.hint(str(name), choices)}" for name in names)


def for_revert(
    execute: Signature, revert: Signature, ignore: Collection[str], rebind: Rebind | None
) -> Rebind | None:
    """Return the part of execute's `rebind` that applies to revert, if revert has no own `rebind`.

    A list refers to the parameters of revert if it is not longer than these, otherwise to the
    parameters of execute. Arguments that revert does not accept are omitted.
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

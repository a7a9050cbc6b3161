"""Values for the arguments of an atom.

Order of sources: values injected for the atom, values injected for the flow, then values of visible
providers, nearest first. A provider without the value is skipped (it was ignored, or its result is
too short).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from wbengine import exceptions
from wbengine._introspection import object_names

__all__ = ["MISSING", "Bindings", "Provider", "element", "gather", "unsatisfied"]

#: Stands for a missing value, because None is a value.
MISSING: Final = object()

#: The index or key of a provider's value in its result. None: the whole result.
Index = Any

#: `(node, index) -> value or MISSING`: read the value that the atom of a node provided.
Reader = Callable[[int, Index], Any]


class Provider(Protocol):
    """A node that provides a value, and the index of the value in its result."""

    @property
    def node(self) -> int: ...

    @property
    def index(self) -> Index: ...


class Bindings(Protocol):
    """The providers of all atoms, implemented by a compiled plan."""

    @property
    def by_name(self) -> Mapping[str, int]:
        """Node by name of the atom."""

    @property
    def firsts(self) -> Mapping[int, Mapping[str, Provider | None]]:
        """For each node, the results of `first` for the names that its atom binds."""

    def first(self, node: int, name: str) -> Provider | None:
        """Return the nearest visible provider of `name`. O(1)."""

    def candidates(self, node: int, name: str) -> Iterator[Provider]:
        """Iterate over all visible providers, nearest first."""


def element(value: Any, index: Index) -> Any:
    """Return the part `index` of a result, or MISSING if the part does not exist."""
    if index is None:
        return value
    try:
        return value[index]
    except Exception:  # A result may have any type, so indexing may raise any exception.
        return MISSING


def gather(
    rebind: Mapping[str, str],
    optional: Collection[str],
    sources: Sequence[Mapping[str, Any]],
    bindings: Bindings | None,
    node: int,
    read: Reader,
) -> dict[str, Any]:
    """Return the values of the arguments in `rebind` (argument to stored name).

    Arguments in `optional` without a value are omitted, so that their defaults apply.

    :raises NotFound: if another argument has no value; the message contains the argument and the
        stored name.
    """
    values: dict[str, Any] = {}
    for argument, name in rebind.items():
        for source in sources:
            if name in source:
                values[argument] = source[name]
                break
        else:
            value = _provided(bindings, node, name, read)
            if value is not MISSING:
                values[argument] = value
            elif argument not in optional:
                raise exceptions.NotFound(_explain(argument, name, sources, bindings, node))
    return values


def unsatisfied(
    rebind: Mapping[str, str],
    optional: Collection[str],
    sources: Sequence[Mapping[str, Any]],
    bindings: Bindings | None,
    node: int,
) -> dict[str, str]:
    """Return the arguments that nothing in the flow provides, as `{argument: stored name}`.

    Without `bindings`, only injected values count.
    """
    missing: dict[str, str] = {}
    for argument, name in rebind.items():
        if argument in optional:
            continue
        if bindings is not None and bindings.first(node, name) is not None:
            continue
        if not any(name in source for source in sources):
            missing[argument] = name
    return missing


def _provided(bindings: Bindings | None, node: int, name: str, read: Reader) -> Any:
    if bindings is None:
        return MISSING
    bound = bindings.firsts.get(node)
    nearest = bound[name] if bound and name in bound else bindings.first(node, name)
    if nearest is None:
        return MISSING
    value = read(nearest.node, nearest.index)
    if value is not MISSING:
        return value
    for provider in bindings.candidates(node, name):
        value = read(provider.node, provider.index)
        if value is not MISSING:
            return value
    return MISSING


def _explain(
    argument: str,
    name: str,
    sources: Iterable[Mapping[str, Any]],
    bindings: Bindings | None,
    node: int,
) -> str:
    text = f"No value for {name!r}, which argument {argument!r} asks for"
    if bindings is not None and bindings.first(node, name) is not None:
        return f"{text}: its providers were ignored, or their results do not contain it"
    injected = sorted({key for source in sources for key in source})
    return f"{text}: nothing visible provides it{object_names.hint(name, injected)}"

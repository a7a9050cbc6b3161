"""Find values for the arguments of an atom.

Pure: values come from the given mappings and reader. Precedence of sources: values injected for the
atom, values injected for the flow, then values of visible providers, nearest first, except for
providers without the name (ignored ones, and results that are too short).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from wbengine import _names, exceptions

__all__ = ["MISSING", "Bindings", "Provider", "element", "gather", "unsatisfied"]

#: Stands for a missing value (None is a value).
MISSING: Final = object()

#: The part of a provider's result; None: the whole result.
Index = Any

#: `(node, index) -> value or MISSING`: reads the value that the atom of a node provided.
Reader = Callable[[int, Index], Any]


class Provider(Protocol):
    """A node that provides a value, and the part of its result."""

    @property
    def node(self) -> int: ...

    @property
    def index(self) -> Index: ...


class Bindings(Protocol):
    """The providers of all atoms. A compiled plan implements it."""

    @property
    def by_name(self) -> Mapping[str, int]:
        """Nodes by name of atom."""

    @property
    def firsts(self) -> Mapping[int, Mapping[str, Provider | None]]:
        """For each node, the result of `first` for the names that its atom binds."""

    def first(self, node: int, name: str) -> Provider | None:
        """Return the nearest visible provider of `name`. O(1)."""

    def candidates(self, node: int, name: str) -> Iterator[Provider]:
        """Iterate over all visible providers, nearest first."""


def element(value: Any, index: Index) -> Any:
    """Return the part `index` of a result, or MISSING if there is no such part."""
    if index is None:
        return value
    try:
        return value[index]
    except Exception:  # a result may have any type, and its indexing may raise any exception
        return MISSING


def gather(
    rebind: Mapping[str, str],
    optional: Collection[str],
    sources: Sequence[Mapping[str, Any]],
    bindings: Bindings | None,
    node: int,
    read: Reader,
) -> dict[str, Any]:
    """Return values for the arguments in `rebind` (argument to stored name).

    Arguments in `optional` without a value are omitted, so that their defaults apply.

    :raises NotFound: if another argument has no value; the message names the argument and the
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
    """Return the arguments that nothing in the flow can provide, as `{argument: stored name}`.

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
    return f"{text}: nothing visible provides it{_names.hint(name, injected)}"

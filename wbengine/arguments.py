"""From the names an atom asks for to the keyword arguments it is called with.

Pure: the values come from the mappings and the reader that are passed in.  The order of the
sources, first one wins: what was injected for the atom, what was injected for the flow, then what
the visible providers made, nearest first, leaving out those that have nothing under that name
(ignored ones, and results that turned out too short).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from wbengine import _names, exceptions

__all__ = ["MISSING", "Bindings", "Provider", "element", "gather", "unsatisfied"]

#: Stands for a value that is not there (None is a value).
MISSING: Final = object()

#: What a provider's index selects from its result; None is the whole of it.
Index = Any

#: `(node, index) -> value or MISSING`: reads what a node's atom provided.
Reader = Callable[[int, Index], Any]


class Provider(Protocol):
    """Which node makes a value, and which part of its result that value is."""

    @property
    def node(self) -> int: ...

    @property
    def index(self) -> Index: ...


class Bindings(Protocol):
    """Who can provide what to whom; a compiled plan is one."""

    @property
    def by_name(self) -> Mapping[str, int]:
        """The nodes of atoms, by the atoms' names."""

    @property
    def firsts(self) -> Mapping[int, Mapping[str, Provider | None]]:
        """What `first` answers for the names that each node's atom binds."""

    def first(self, node: int, name: str) -> Provider | None:
        """The nearest provider of `name` that `node` sees; O(1)."""

    def candidates(self, node: int, name: str) -> Iterator[Provider]:
        """All of them, nearest first."""


def element(value: Any, index: Index) -> Any:
    """Select what `index` names from a result; MISSING when the result has no such part."""
    if index is None:
        return value
    try:
        return value[index]
    except Exception:  # a result may be of any type, and its indexing raise anything
        return MISSING


def gather(
    rebind: Mapping[str, str],
    optional: Collection[str],
    sources: Sequence[Mapping[str, Any]],
    bindings: Bindings | None,
    node: int,
    read: Reader,
) -> dict[str, Any]:
    """Find a value for every argument in `rebind` (argument -> stored name).

    An argument in `optional` that has no value is left out: the default applies.

    :raises NotFound: any other argument has none; the text names the argument and the stored name.
    """
    found: dict[str, Any] = {}
    for argument, name in rebind.items():
        for source in sources:
            if name in source:
                found[argument] = source[name]
                break
        else:
            value = _provided(bindings, node, name, read)
            if value is not MISSING:
                found[argument] = value
            elif argument not in optional:
                raise exceptions.NotFound(_explain(argument, name, sources, bindings, node))
    return found


def unsatisfied(
    rebind: Mapping[str, str],
    optional: Collection[str],
    sources: Sequence[Mapping[str, Any]],
    bindings: Bindings | None,
    node: int,
) -> dict[str, str]:
    """Find the arguments nothing in the flow can provide, as `{argument: stored name}`.

    Without `bindings` only what is injected counts.
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
        return f"{text}: its providers were ignored, or their results have no such part"
    injected = sorted({key for source in sources for key in source})
    return f"{text}: nothing visible provides it{_names.hint(name, injected)}"

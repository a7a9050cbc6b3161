"""Flows: named collections of tasks and nested flows.

The patterns (`linear_flow`, `unordered_flow`, `graph_flow`) define the dependencies of members.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, Union

from wbengine import atom
from wbengine import retry as retry_module
from wbengine._introspection import object_names

#: Keys in the metadata of links (`iter_links`).
LINK_INVARIANT: Final = "invariant"
LINK_MANUAL: Final = "manual"
LINK_RETRY: Final = "retry"
LINK_REASONS: Final = "reasons"
LINK_DECIDER: Final = "decider"
LINK_DECIDER_DEPTH: Final = "decider_depth"
#: Key in the metadata of members (`iter_nodes`): the join rule, unless it is ALL.
NODE_JOIN: Final = "join"

Node = Union[atom.Atom, "Flow"]
Link = tuple[Node, Node, dict[str, Any]]
_F = TypeVar("_F", bound="Flow")


class Symbols(NamedTuple):
    """The names that a member requires and provides."""

    requires: AbstractSet[str]
    provides: AbstractSet[str]


class Flow(abc.ABC):
    """A named collection of members with an optional retry controller.

    Members are tasks and flows. Adding the same object again has no effect. A flow may be changed
    until it is compiled, even after it was added to another flow.
    """

    #: `'linear'`, `'unordered'` or `'graph'`.
    kind: ClassVar[str]

    #: Limits of flows, as for tasks (`Task.rate_limit`): starts per period and concurrent runs.
    #: Only the limits of the outermost flow apply. `concurrency_key` receives inputs by name. Flows
    #: with the same name, or the same `limit`, share a limit.
    rate_limit: str | None = None
    concurrency: int | None = None
    concurrency_key: Callable[..., Any] | None = None
    limit: str | None = None
    cost: Callable[..., Any] | float | None = None

    #: Function of inputs, by name, that returns the key of a submitted flow: conductors take flows
    #: of different keys in turn. The argument of `engines.submit` takes precedence.
    fair_key: Callable[..., str | None] | None = None

    #: Whether inputs are checked by all annotations of the parameters that receive them, not only
    #: by those with classes. Only that of the outermost flow applies.
    validate: bool = False

    def __init__(self, name: str, retry: retry_module.Retry | None = None) -> None:
        """Create an empty flow.

        :param retry: the retry controller. If it has no name, its name becomes `<flow name>_retry`.
        :raises ValueError: if the name is too long.
        """
        self._name = object_names.check_length("Flow name", str(name))
        if retry is not None and not isinstance(retry, retry_module.Retry):
            raise TypeError(f"Retry of flow {self._name!r} must be a Retry, got {retry!r}")
        self._retry = retry
        if retry is not None and retry.name is None:
            retry.name = object_names.check_length("Retry name", f"{self._name}_retry")
        # Members in the order of addition, by `id`, because objects are compared by identity.
        self._nodes: dict[int, Any] = {}
        # Flows that contain this flow. They are notified when its symbols may have changed.
        self._surrounding_flows: list[weakref.ref[Flow]] = []
        # False if the symbols have been read since the last change.
        self._changed = True
        # The cached symbols, if they are current and not too many.
        self._cached_symbols: Symbols | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def retry(self) -> retry_module.Retry | None:
        return self._retry

    def add(self: _F, *nodes: Any) -> _F:
        """Add members in order. Return the flow itself.

        :raises TypeError: if an argument is neither a task nor a flow.
        """
        added = self._new(nodes)
        self._nodes.update(added)
        self._adopt(added.values())
        return self

    def _new(self, nodes: Sequence[Any]) -> dict[int, Any]:
        valid_types: set[type] = set()
        for node in nodes:
            if type(node) in valid_types:
                continue
            if not isinstance(node, (atom.Atom, Flow)) or isinstance(node, retry_module.Retry):
                raise TypeError(
                    f"Members of flow {self._name!r} must be tasks or flows, got"
                    f" {node!r}{_mistake_hint(node)}"
                )
            valid_types.add(type(node))
        members = self._nodes
        return {id(node): node for node in nodes if id(node) not in members}

    def __len__(self) -> int:
        return len(self._nodes)

    def __bool__(self) -> bool:
        return True

    def iter_nodes(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Iterate over `(member, metadata)`, without members of nested flows."""
        for node in self._nodes.values():
            yield node, {}

    @abc.abstractmethod
    def iter_links(self) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        """Iterate over `(from, to, metadata)` of each link between two members."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the members in the order of `iter_nodes`, without those of nested flows."""
        for node, _ in self.iter_nodes():
            yield node

    @property
    def provides(self) -> frozenset[str]:
        """Names that the retry controller or a member, including nested members, provides."""
        return frozenset(symbols_of(self).provides)

    @property
    def requires(self) -> frozenset[str]:
        """Names that the retry controller or a member requires and no other member provides."""
        return frozenset(symbols_of(self).requires)

    @abc.abstractmethod
    def _combine(self, symbols: Mapping[int, Symbols]) -> Symbols:
        """Return the symbols of this flow, given the symbols of its members by `id`."""

    def _retry_symbols(self) -> Symbols:
        retry = self._retry
        return _NO_SYMBOLS if retry is None else Symbols(retry.requires, retry.provides)

    def _adopt(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            if isinstance(node, Flow):
                node._surrounding_flows.append(weakref.ref(self))
        self._touch()

    def _touch(self) -> None:
        """Notify the surrounding flows, once, that the symbols may have changed."""
        pending = [self]
        while pending:
            flow = pending.pop()
            if flow._changed:
                continue
            flow._changed = True
            for reference in flow._surrounding_flows:
                surrounding_flow = reference()
                if surrounding_flow is not None:
                    surrounding_flow._member_changed(flow)
                    pending.append(surrounding_flow)

    def _member_changed(self, member: Flow) -> None:  # noqa: B027
        """Update caches after a possible change of the symbols of a member."""

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # An `id` is not portable. Surrounding flows must not be pickled with their content.
        del state["_surrounding_flows"]
        state["_nodes"] = list(self._nodes.values())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._surrounding_flows = []
        self._nodes = {id(node): node for node in state["_nodes"]}
        for node in self._nodes.values():
            if isinstance(node, Flow):
                node._surrounding_flows.append(weakref.ref(self))

    def __str__(self) -> str:
        cls = type(self)
        kind = f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
        return f'"{kind}: {self.name}(len={len(self)})"'

    def __repr__(self) -> str:
        return f"<{str(self)[1:-1]}>"


def _mistake_hint(node: Any) -> str:
    if isinstance(node, retry_module.Retry):
        return " (pass a retry to its flow: Flow(name, retry=...))"
    if isinstance(node, type):
        return f" (add an instance: {node.__name__}(...))"
    if isinstance(node, list | tuple | set):
        return " (add them one by one: add(*members))"
    return " (wrap it: task.FunctorTask(...))" if callable(node) else ""


_MAX_CACHED_SYMBOLS: Final = 64
_NO_SYMBOLS: Final = Symbols(frozenset(), frozenset())


def symbols_of(node: Any) -> Symbols:
    """Return the names that `node` requires and provides, without recursion.

    :raises ValueError: if a flow contains itself.
    """
    if not isinstance(node, Flow):
        return Symbols(node.requires, node.provides)
    symbols_by_id: dict[int, Symbols] = {}
    for flow in _innermost_first(node):
        if flow._changed or flow._cached_symbols is None:
            flow._changed = False
            symbols_by_id[id(flow)] = _cache_symbols(flow, flow._combine(symbols_by_id))
        else:
            symbols_by_id[id(flow)] = flow._cached_symbols
        # Remove the sets of the members, because `_combine` may have modified them.
        for member in flow._nodes:
            symbols_by_id.pop(member, None)
    return symbols_by_id[id(node)]


def _cache_symbols(flow: Flow, symbols: Symbols) -> Symbols:
    # Without this cache, each level of nested graph flows would be walked again. Without the limit
    # `_MAX_CACHED_SYMBOLS`, each level would store the names of all inner levels.
    if len(symbols.requires) + len(symbols.provides) > _MAX_CACHED_SYMBOLS:
        flow._cached_symbols = None
        return symbols
    flow._cached_symbols = Symbols(frozenset(symbols.requires), frozenset(symbols.provides))
    return flow._cached_symbols


def _innermost_first(root: Flow) -> Iterator[Flow]:
    visited: set[int] = set()
    finished: set[int] = set()
    pending = [root]
    while pending:
        flow = pending[-1]
        if id(flow) not in visited:
            visited.add(id(flow))
            if not flow._changed and flow._cached_symbols is not None:
                continue
            for member in flow._nodes.values():
                if isinstance(member, Flow) and id(member) not in finished:
                    if id(member) in visited:
                        raise ValueError(f"Flow {member.name!r} contains itself")
                    pending.append(member)
            continue
        pending.pop()
        if id(flow) not in finished:
            finished.add(id(flow))
            yield flow


# `symbols_of` owns the sets (not the frozensets) below. Functions modify and return them instead of
# copying them, so that a thousand nested levels stay cheap.


def own_symbols(node: Any, known: Mapping[int, Symbols]) -> Symbols:
    """Return the symbols of a member. For use in `_combine`."""
    return known.get(id(node)) or Symbols(node.requires, node.provides)


def merged(sets: Iterable[AbstractSet[str]]) -> AbstractSet[str]:
    """Return the union of `sets`."""
    union: set[str] = set()
    for names in sets:
        union = grown(union, names)
    return union


def grown(names: set[str], more: AbstractSet[str]) -> set[str]:
    """Return the union of two sets. May modify either of them."""
    if isinstance(more, set) and len(more) > len(names):
        names, more = more, names
    names |= more
    return names


def without(names: AbstractSet[str], others: AbstractSet[str]) -> AbstractSet[str]:
    """Return the `names` that are not in `others`. May modify `names`."""
    if names.isdisjoint(others):
        return names
    if isinstance(names, set) and len(others) < len(names):
        names.difference_update(others)
        return names
    return {name for name in names if name not in others}

"""Flows: named collections of tasks and other flows.

The patterns (`linear_flow`, `unordered_flow`, `graph_flow`) say how members depend on each other.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, Union

from wbengine import atom
from wbengine import retry as retry_module

#: Keys of the metadata of a link, as `iter_links` gives it.
LINK_INVARIANT: Final = "invariant"
LINK_MANUAL: Final = "manual"
LINK_RETRY: Final = "retry"
LINK_REASONS: Final = "reasons"
LINK_DECIDER: Final = "decider"
LINK_DECIDER_DEPTH: Final = "decider_depth"
#: Key of the metadata of a member, as `iter_nodes` gives it: its join rule, when it is not ALL.
NODE_JOIN: Final = "join"

Node = Union[atom.Atom, "Flow"]
Link = tuple[Node, Node, dict[str, Any]]
_F = TypeVar("_F", bound="Flow")


class Symbols(NamedTuple):
    """The names that something needs from outside, and those it offers to others."""

    requires: AbstractSet[str]
    provides: AbstractSet[str]


class Flow(abc.ABC):
    """A named collection of members, and perhaps a retry.

    Members are tasks and flows; each object is a member once, adding it again changes nothing.
    A flow may be changed until it is compiled, also after it was added to another flow.
    """

    #: `'linear'`, `'unordered'` or `'graph'`.
    kind: ClassVar[str]

    #: How many of these flows may begin in a time, and how many be under way at once, as for tasks
    #: (`Task.rate_limit`): of the outermost flow only.  `concurrency_key` takes inputs by name; by
    #: default flows of the same name are limited together, or else those of the same `limit`.
    rate_limit: str | None = None
    concurrency: int | None = None
    concurrency_key: Callable[..., Any] | None = None
    limit: str | None = None

    def __init__(self, name: str, retry: retry_module.Retry | None = None) -> None:
        """
        :param retry: decides what to do when a member fails; gets the name `<flow name>_retry`
            unless it has one.
        """
        self._name = str(name)
        if retry is not None and not isinstance(retry, retry_module.Retry):
            raise TypeError(f"The retry of flow {self._name!r} must be a Retry, not {retry!r}")
        self._retry = retry
        if retry is not None and retry.name is None:
            retry.name = f"{self._name}_retry"
        # All members in the order added, by `id`: it is the object that counts, not its equality.
        self._nodes: dict[int, Any] = {}
        # Flows that this one is in; told when its symbols may have changed.
        self._holders: list[weakref.ref[Flow]] = []
        # False between the moment somebody relies on our symbols and the next change.
        self._changed = True
        # Our symbols, while they are unchanged and not too many to keep.
        self._summary: Symbols | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def retry(self) -> retry_module.Retry | None:
        return self._retry

    def add(self: _F, *nodes: Any) -> _F:
        """Add members, in order; returns the flow itself.

        :raises TypeError: one of them is neither a task nor a flow.
        """
        added = self._new(nodes)
        self._nodes.update(added)
        self._adopt(added.values())
        return self

    def _new(self, nodes: Sequence[Any]) -> dict[int, Any]:
        """Those of `nodes` that are no members yet, by `id`.

        :raises TypeError: one of them is neither a task nor a flow.
        """
        fit: set[type] = set()
        for node in nodes:
            if type(node) in fit:
                continue
            if not isinstance(node, (atom.Atom, Flow)) or isinstance(node, retry_module.Retry):
                raise TypeError(
                    f"Flow {self._name!r} takes tasks and flows, not {node!r}{_instead(node)}"
                )
            fit.add(type(node))
        known = self._nodes
        return {id(node): node for node in nodes if id(node) not in known}

    def __len__(self) -> int:
        """How many members there are, not counting those of members."""
        return len(self._nodes)

    def __bool__(self) -> bool:
        """A flow is a thing, not a container: true also when it is empty."""
        return True

    def iter_nodes(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """`(member, metadata)`, one level only."""
        for node in self._nodes.values():
            yield node, {}

    @abc.abstractmethod
    def iter_links(self) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        """`(from, to, metadata)` for each link between two members."""

    def __iter__(self) -> Iterator[Any]:
        """The members, one level only, in the order of `iter_nodes`."""
        for node, _ in self.iter_nodes():
            yield node

    @property
    def provides(self) -> frozenset[str]:
        """Every name that the retry or a member, nested ones included, provides."""
        return frozenset(symbols_of(self).provides)

    @property
    def requires(self) -> frozenset[str]:
        """Every name that the retry or a member needs and that no other member provides to it."""
        return frozenset(symbols_of(self).requires)

    @abc.abstractmethod
    def _combine(self, symbols: Mapping[int, Symbols]) -> Symbols:
        """This flow's symbols from those of its members (by `id`)."""

    def _retry_symbols(self) -> Symbols:
        retry = self._retry
        return _NO_SYMBOLS if retry is None else Symbols(retry.requires, retry.provides)

    def _adopt(self, nodes: Iterable[Any]) -> None:
        """To be called with the members just added."""
        for node in nodes:
            if isinstance(node, Flow):
                node._holders.append(weakref.ref(self))
        self._touch()

    def _touch(self) -> None:
        """Our symbols may have changed: tell the flows around us, once."""
        pending = [self]
        while pending:
            flow = pending.pop()
            if flow._changed:
                continue
            flow._changed = True
            for reference in flow._holders:
                holder = reference()
                if holder is not None:
                    holder._member_changed(flow)
                    pending.append(holder)

    def _member_changed(self, member: Flow) -> None:  # noqa: B027
        """Called when a member's symbols may have changed since they were last asked for."""

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # An `id` means nothing elsewhere, and what is inside must not drag along what is around.
        del state["_holders"]
        state["_nodes"] = list(self._nodes.values())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._holders = []
        self._nodes = {id(node): node for node in state["_nodes"]}
        for node in self._nodes.values():
            if isinstance(node, Flow):
                node._holders.append(weakref.ref(self))

    def __str__(self) -> str:
        cls = type(self)
        kind = f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
        return f'"{kind}: {self.name}(len={len(self)})"'

    def __repr__(self) -> str:
        return f"<{str(self)[1:-1]}>"


def _instead(node: Any) -> str:
    """What to write for something that is often added by mistake."""
    if isinstance(node, retry_module.Retry):
        return " (a retry sits on a flow: Flow(name, retry=...))"
    if isinstance(node, type):
        return f" (add an instance: {node.__name__}(...))"
    if isinstance(node, list | tuple | set):
        return " (add them one by one: add(*members))"
    return " (wrap it: task.FunctorTask(...))" if callable(node) else ""


#: Flows with more names than this are looked at anew whenever they are asked.
_MAX_KEPT: Final = 64
_NO_SYMBOLS: Final = Symbols(frozenset(), frozenset())


def symbols_of(node: Any) -> Symbols:
    """What `node` needs and offers; a flow is walked without recursion.

    :raises ValueError: a flow contains itself.
    """
    if not isinstance(node, Flow):
        return Symbols(node.requires, node.provides)
    known: dict[int, Symbols] = {}
    for flow in _innermost_first(node):
        if flow._changed or flow._summary is None:
            flow._changed = False
            known[id(flow)] = _kept(flow, flow._combine(known))
        else:
            known[id(flow)] = flow._summary
        # What was taken over may have been changed by it.
        for member in flow._nodes:
            known.pop(member, None)
    return known[id(node)]


def _kept(flow: Flow, symbols: Symbols) -> Symbols:
    # Without this, flows put into graph flows from the inside out would be walked at every level;
    # with no limit, names that many levels share would be kept at every level.
    if len(symbols.requires) + len(symbols.provides) > _MAX_KEPT:
        flow._summary = None
        return symbols
    flow._summary = Symbols(frozenset(symbols.requires), frozenset(symbols.provides))
    return flow._summary


def _innermost_first(root: Flow) -> Iterator[Flow]:
    entered: set[int] = set()
    left: set[int] = set()
    pending = [root]
    while pending:
        flow = pending[-1]
        if id(flow) not in entered:
            entered.add(id(flow))
            if not flow._changed and flow._summary is not None:
                continue
            for member in flow._nodes.values():
                if isinstance(member, Flow) and id(member) not in left:
                    if id(member) in entered:
                        raise ValueError(f"Flow {member.name!r} contains itself")
                    pending.append(member)
            continue
        pending.pop()
        if id(flow) not in left:
            left.add(id(flow))
            yield flow


# Sets (not frozensets) in the following are owned by the walk of `symbols_of`: they are handed on
# and changed rather than copied, so that nesting a thousand deep stays cheap.


def own_symbols(node: Any, known: Mapping[int, Symbols]) -> Symbols:
    """The symbols of a member, in `_combine`."""
    return known.get(id(node)) or Symbols(node.requires, node.provides)


def merged(sets: Iterable[AbstractSet[str]]) -> AbstractSet[str]:
    """The union of `sets`."""
    union: set[str] = set()
    for names in sets:
        union = grown(union, names)
    return union


def grown(names: set[str], more: AbstractSet[str]) -> set[str]:
    """`names` with `more`."""
    if isinstance(more, set) and len(more) > len(names):
        names, more = more, names
    names |= more
    return names


def without(names: AbstractSet[str], others: AbstractSet[str]) -> AbstractSet[str]:
    """`names` that are not in `others`."""
    if names.isdisjoint(others):
        return names
    if isinstance(names, set) and len(others) < len(names):
        names.difference_update(others)
        return names
    return {name for name in names if name not in others}

"""Flows whose order follows from names and links."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from wbengine import deciders, exceptions, flow
from wbengine import retry as retry_module
from wbengine._introspection import binding, object_names

if TYPE_CHECKING:
    # Imported locally where it is used: workers that only load tasks do not need it.
    import networkx as nx

LOG: Final = logging.getLogger(__name__)

_OPTIONS: Final = ("resolve_requires", "resolve_existing")

_F = TypeVar("_F", bound="Flow")
_Decider = Callable[..., Any]


class Flow(flow.Flow):
    """A flow whose members depend on each other by the names that they provide and require.

    A member runs after the members that provide its required names, whatever the order of addition.
    `link` adds further dependencies. Adding a member costs time proportional to its links.
    """

    kind: ClassVar[str] = "graph"

    def __init__(self, name: str, retry: retry_module.Retry | None = None) -> None:
        import networkx as nx

        super().__init__(name, retry)
        self._graph: nx.DiGraph[Any] = nx.DiGraph()
        # Required and provided names of each member, by `id`, as last read from the member.
        self._symbols: dict[int, flow.Symbols] = {}
        self._providers: dict[str, list[Any]] = {}
        # Members with a required name that no linked member provides, by name and `id`.
        self._unmet_members: dict[str, dict[int, Any]] = {}
        # Members that have changed since their names were read.
        self._stale: dict[int, Any] = {}

    # Building.

    def add(
        self: _F,
        *nodes: Any,
        resolve_requires: bool = True,
        resolve_existing: bool = True,
        **others: Any,
    ) -> _F:
        """Add members, and link them to the members on which they depend.

        :param resolve_requires: link the new members after the providers of their required names.
        :param resolve_existing: link existing members after new members that provide their names.
        :param others: ignored with a log message, as in TaskFlow.
        :raises AmbiguousDependency: if a required name has several providers.
        :raises DependencyFailure: if the links would form a cycle.
        :raises TypeError: if one of the others is a misspelled option.

        If an error is raised, the flow is unchanged.
        """
        for name in others:
            near = object_names.hint(name, _OPTIONS, cutoff=object_names.CLOSE_SIMILARITY)
            if near:
                raise TypeError(f"add() of flow {self.name!r} has no option {name!r}{near}")
            LOG.warning("add() of flow %r ignores the unknown option %s=", self.name, name)
        new = list(self._new(nodes).values())
        if not new:
            return self
        self._refresh()
        newly_met: list[tuple[str, Any]] = []
        waiting: list[tuple[str, Any]] = []
        try:
            for node in new:
                self._nodes[id(node)] = node
                self._graph.add_node(node)
                symbols = self._symbols[id(node)] = _frozen(flow.symbols_of(node))
                for name in self._unmet_by_retry(symbols):
                    if not resolve_requires:
                        waiting.append((name, node))
                    elif not self._link_to_provider(node, name):
                        self._mark_unmet(name, node)
                if resolve_existing:
                    self._link_unmet(node, frozenset(symbols.provides), newly_met)
                for name in symbols.provides:
                    self._providers.setdefault(name, []).append(node)
        except BaseException:
            self._undo(new, newly_met)
            raise
        for name, node in waiting:
            self._mark_unmet(name, node)
        self._adopt(new)
        return self

    def link(
        self: _F,
        u: Any,
        v: Any,
        decider: _Decider | None = None,
        decider_depth: deciders.Depth | str | None = None,
    ) -> _F:
        """Make `v` run after `u`. Repeated calls merge the metadata of the link.

        :param decider: called with `history={name: result}` of the linked sources before `v` runs.
            If it returns a false value, `v` is ignored.
        :param decider_depth: atoms that are ignored with `v`; default: everything after it.
        :raises ValueError: if `u` or `v` is not a member, the decider is not callable, or the depth
            is unknown or given without a decider.
        :raises DependencyFailure: if the links would form a cycle; the flow is unchanged.
        """
        if id(u) not in self._nodes:
            raise ValueError(f"The source of a link must be a member: {self._no_member(u)}")
        if id(v) not in self._nodes:
            raise ValueError(f"The target of a link must be a member: {self._no_member(v)}")
        meta: dict[str, Any] = {flow.LINK_MANUAL: True}
        if decider is None:
            if decider_depth is not None:
                raise ValueError("decider_depth requires a decider")
        elif not callable(decider):
            raise ValueError(f"A decider must be callable, got {decider!r}")
        elif binding.is_async(decider):
            raise ValueError(
                f"Decider {object_names.dotted(decider)} must be a plain function, got an 'async"
                " def': the engine calls deciders in its own thread, without await"
            )
        else:
            meta[flow.LINK_DECIDER] = decider
            meta[flow.LINK_DECIDER_DEPTH] = (
                deciders.Depth.ALL
                if decider_depth is None
                else deciders.Depth.translate(decider_depth)
            )
        self._connect(u, v).update(meta)
        self._touch()
        return self

    def join(self: _F, node: Any, rule: deciders.Join | str) -> _F:
        """Set whether a member runs after ignored members. It replaces an earlier rule.

        :param rule: `ALL` (the default behaviour), `ANY` or `NONE_FAILED`; see `deciders.Join`.
        :raises ValueError: if `node` is not a member or the rule is unknown.
        :raises TypeError: if the rule is neither a `Join` nor a string.
        """
        if id(node) not in self._nodes:
            raise ValueError(self._no_member(node))
        join_rule = deciders.Join.translate(rule)
        if join_rule == deciders.Join.ALL:
            self._graph.nodes[node].pop(flow.NODE_JOIN, None)
        else:
            self._graph.nodes[node][flow.NODE_JOIN] = join_rule
        self._touch()
        return self

    def _no_member(self, node: Any) -> str:
        member_names = [str(member.name) for member in self._nodes.values()]
        name = str(getattr(node, "name", node))
        if name in member_names:
            return (
                f"flow {self.name!r} contains another object with the name of {node!r};"
                " pass the object that was added"
            )
        return (
            f"flow {self.name!r} does not contain {node!r}{object_names.hint(name, member_names)}"
        )

    def _connect(self, u: Any, v: Any) -> dict[str, Any]:
        """Return the metadata of the link from `u` to `v`. Create the link if necessary."""
        graph = self._graph
        edge_data: dict[str, Any] | None = graph.get_edge_data(u, v)
        if edge_data is None:
            self._reject_cycle(u, v)
            graph.add_edge(u, v)
            edge_data = graph.get_edge_data(u, v)
        return edge_data

    def _reject_cycle(self, u: Any, v: Any) -> None:
        graph = self._graph
        if u is not v and not (graph.succ[v] and graph.pred[u]):
            return
        import networkx as nx

        try:
            # Searching from both ends costs no more than searching the smaller side.
            back = nx.bidirectional_shortest_path(graph, v, u)
        except nx.NetworkXNoPath:
            return
        cycle = " -> ".join(str(node.name) for node in (u, *back))
        raise exceptions.DependencyFailure(
            f"Flow {self.name!r} cannot be ordered: its members depend on each other in a"
            f" circle: {cycle}"
        )

    def _unmet_by_retry(self, symbols: flow.Symbols) -> list[str]:
        offered = self._retry_symbols().provides
        return sorted(name for name in symbols.requires if name not in offered)

    def _link_to_provider(self, node: Any, name: str) -> bool:
        providers = self._providers.get(name)
        if not providers:
            return False
        if len(providers) > 1:
            several = ", ".join(repr(str(provider.name)) for provider in providers)
            raise exceptions.AmbiguousDependency(
                f"{node.name!r} requires {name!r}, but several members of flow"
                f" {self.name!r} provide it: {several}"
            )
        self._add_reason(providers[0], node, name)
        return True

    def _add_reason(self, u: Any, v: Any, name: str) -> None:
        self._connect(u, v).setdefault(flow.LINK_REASONS, set()).add(name)

    def _mark_unmet(self, name: str, node: Any) -> None:
        self._unmet_members.setdefault(name, {})[id(node)] = node

    def _link_unmet(
        self, provider: Any, names: frozenset[str], newly_met: list[tuple[str, Any]]
    ) -> None:
        """Link existing members that lack one of `names` after the new `provider`."""
        # Collect them first: a new link for one name may connect a member to another provider.
        unmet = [
            (name, node)
            for name in sorted(names.intersection(self._unmet_members))
            for node in self._unmet_members[name].values()
            if node is not provider and not self._is_met(node, name)
        ]
        for name, node in unmet:
            self._add_reason(provider, node, name)
            self._mark_met(name, node)
            newly_met.append((name, node))

    def _mark_met(self, name: str, node: Any) -> None:
        members = self._unmet_members.get(name)
        if members is not None:
            members.pop(id(node), None)
            if not members:
                del self._unmet_members[name]

    def _is_met(self, node: Any, name: str) -> bool:
        providers = self._providers.get(name)
        if not providers or not self._graph.pred[node]:
            return False
        import networkx as nx

        before = nx.ancestors(self._graph, node)
        return any(provider in before for provider in providers)

    def _undo(self, new: list[Any], newly_met: list[tuple[str, Any]]) -> None:
        # Each link that `add` creates has a new member at one end, and is removed with it.
        removed_ids = {id(node) for node in new if self._nodes.pop(id(node), None) is not None}
        for node in new:
            if id(node) not in removed_ids:
                continue
            self._graph.remove_node(node)
            symbols = self._symbols.pop(id(node), _NOTHING)
            self._forget(node, symbols)
        for name, node in newly_met:
            if id(node) not in removed_ids:
                self._mark_unmet(name, node)

    def _forget(self, node: Any, symbols: flow.Symbols) -> None:
        for name in symbols.requires:
            self._mark_met(name, node)
        for name in symbols.provides:
            providers = [
                provider for provider in self._providers.get(name, ()) if provider is not node
            ]
            if providers:
                self._providers[name] = providers
            else:
                self._providers.pop(name, None)

    def _member_changed(self, member: flow.Flow) -> None:
        if id(member) in self._symbols:
            self._stale[id(member)] = member

    def _refresh(self) -> None:
        """Read the names of changed members again. Their links remain."""
        while self._stale:
            _, node = self._stale.popitem()
            symbols = _frozen(flow.symbols_of(node))
            self._forget(node, self._symbols[id(node)])
            self._symbols[id(node)] = symbols
            for name in symbols.provides:
                self._providers.setdefault(name, []).append(node)
            linked = self._linked_names(node)
            for name in self._unmet_by_retry(symbols):
                if name not in linked:
                    self._mark_unmet(name, node)

    def _linked_names(self, node: Any) -> set[str]:
        return {
            name
            for meta in self._graph.pred[node].values()
            for name in meta.get(flow.LINK_REASONS, ())
        }

    # Reading.

    def _active(self) -> nx.DiGraph[Any]:
        return self._graph

    def __len__(self) -> int:
        return len(self._active())

    def iter_nodes(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield `(member, metadata)` in an order in which dependencies come first."""
        import networkx as nx

        graph = self._active()
        for node in nx.topological_sort(graph):
            yield node, graph.nodes[node]

    def iter_links(self) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        yield from self._active().edges(data=True)

    def _combine(self, symbols: Mapping[int, flow.Symbols]) -> flow.Symbols:
        requires, offered = self._retry_symbols()
        graph = self._active()
        # Copies, because the sets of each member are read several times.
        members = {id(node): _frozen(flow.own_symbols(node, symbols)) for node in graph}
        providers: dict[str, list[Any]] = {}
        for node in graph:
            for name in members[id(node)].provides:
                providers.setdefault(name, []).append(node)
        needed = set(requires)
        for node in graph:
            own = members[id(node)].requires
            if own:
                needed |= self._unmet(graph, node, own - offered, providers)
        return flow.Symbols(needed, set(offered).union(providers))

    def _unmet(
        self,
        graph: nx.DiGraph[Any],
        node: Any,
        names: AbstractSet[str],
        providers: Mapping[str, list[Any]],
    ) -> set[str]:
        unmet = set(names).difference(self._linked_names(node))
        doubtful = [name for name in unmet if name in providers]
        if doubtful and graph.pred[node]:
            import networkx as nx

            before = nx.ancestors(graph, node)
            unmet.difference_update(
                name for name in doubtful if any(p in before for p in providers[name])
            )
        return unmet

    # Pickling.

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        nodes = self._nodes
        state["_symbols"] = [(nodes[key], symbols) for key, symbols in self._symbols.items()]
        state["_unmet_members"] = [
            (name, node) for name, nodes in self._unmet_members.items() for node in nodes.values()
        ]
        state["_stale"] = list(self._stale.values())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._symbols = {id(node): symbols for node, symbols in state["_symbols"]}
        self._stale = {id(node): node for node in state["_stale"]}
        self._unmet_members = {}
        for name, node in state["_unmet_members"]:
            self._mark_unmet(name, node)


_NOTHING = flow.Symbols(frozenset(), frozenset())


def _frozen(symbols: flow.Symbols) -> flow.Symbols:
    return flow.Symbols(frozenset(symbols.requires), frozenset(symbols.provides))


class TargetedFlow(Flow):
    """A graph flow that runs only a target and its dependencies, or everything without a target."""

    def __init__(self, name: str, retry: retry_module.Retry | None = None) -> None:
        super().__init__(name, retry)
        self._target: Any = None
        self._part: nx.DiGraph[Any] | None = None

    def set_target(self, target_node: Any) -> None:
        """Run only `target_node` and its dependencies.

        :raises ValueError: if `target_node` is not a member.
        """
        if id(target_node) not in self._nodes:
            reason = self._no_member(target_node)
            raise ValueError(f"The target of a flow must be a member: {reason}")
        self._target = target_node
        self._touch()

    def reset_target(self) -> None:
        """Run all members again."""
        self._target = None
        self._touch()

    def _touch(self) -> None:
        self._part = None
        super()._touch()

    def _active(self) -> nx.DiGraph[Any]:
        if self._target is None:
            return self._graph
        if self._part is None:
            import networkx as nx

            ancestors = nx.ancestors(self._graph, self._target)
            ancestors.add(self._target)
            # A copy in the order of addition, so that iteration does not depend on hashes.
            part: nx.DiGraph[Any] = nx.DiGraph()
            part.add_nodes_from(
                (n, data) for n, data in self._graph.nodes.items() if n in ancestors
            )
            part.add_edges_from(
                (u, v, data) for u, v, data in self._graph.edges(data=True) if v in ancestors
            )
            self._part = part
        return self._part

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_part": None}

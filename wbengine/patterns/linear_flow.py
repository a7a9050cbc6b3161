"""Flows whose members run one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from wbengine import flow


class Flow(flow.Flow):
    """A flow whose members run in the order of addition, and revert in the opposite order."""

    kind: ClassVar[str] = "linear"

    def iter_links(self) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        before: Any = None
        for node in self._nodes.values():
            if before is not None:
                yield before, node, {flow.LINK_INVARIANT: True}
            before = node

    def _combine(self, symbols: Mapping[int, flow.Symbols]) -> flow.Symbols:
        requires, offered = self._retry_symbols()
        provides: set[str] = set(offered)
        needed = [requires]
        for node in self._nodes.values():
            own = flow.own_symbols(node, symbols)
            needed.append(flow.without(own.requires, provides))
            provides = flow.grown(provides, own.provides)
        return flow.Symbols(flow.merged(needed), provides)

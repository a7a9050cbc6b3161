"""Flows whose members run independently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from wbengine import flow


class Flow(flow.Flow):
    """A flow whose members do not depend on each other.

    They may run at the same time and in any order. A member cannot use the results of another.
    """

    kind: ClassVar[str] = "unordered"

    def iter_links(self) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        return iter(())

    def _combine(self, symbols: Mapping[int, flow.Symbols]) -> flow.Symbols:
        requires, offered = self._retry_symbols()
        needed = [requires]
        provided = [offered]
        for node in self._nodes.values():
            own = flow.own_symbols(node, symbols)
            needed.append(flow.without(own.requires, offered))
            provided.append(own.provides)
        return flow.Symbols(flow.merged(needed), flow.merged(provided))

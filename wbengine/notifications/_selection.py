"""The events that a destination receives."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping

from wbengine.notifications import _event
from wbengine.types import _tags

__all__ = ["Selection"]


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """Kinds of events, and conditions for them.

    :ivar flows: patterns of names of flows; empty: all.
    :ivar tags: tags that a flow must have.
    :ivar backlog_after: age in seconds at which a flow that no engine has started is a backlog.
    :ivar missed_after: seconds after which a due firing is missing.
    """

    kinds: frozenset[str] = frozenset(_event.KINDS)
    flows: tuple[str, ...] = ()
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    backlog_after: float = 600.0
    missed_after: float = 300.0

    def includes(self, *kinds: str) -> bool:
        return not self.kinds.isdisjoint(kinds)

    def matches_flow(self, name: str, tags: Mapping[str, _tags.Value]) -> bool:
        is_named = not self.flows or any(
            fnmatch.fnmatchcase(name, pattern) for pattern in self.flows
        )
        return is_named and _tags.has_texts(tags, self.tags)

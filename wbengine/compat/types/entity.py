"""Who takes part: a conductor or worker as job boards and listings describe it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Entity:
    """Something of a `kind`, with a `name`, and `metadata` about it."""

    __slots__ = ("kind", "metadata", "name")

    def __init__(self, kind: str, name: str, metadata: Mapping[str, Any]) -> None:
        self.kind = kind
        self.name = name
        self.metadata = metadata

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "metadata": self.metadata}

    def __repr__(self) -> str:
        return f"Entity(kind={self.kind!r}, name={self.name!r}, metadata={self.metadata!r})"

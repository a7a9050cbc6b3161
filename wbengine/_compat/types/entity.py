"""The description of a conductor or worker in job boards and listings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Entity:
    """An entity of a `kind`, with a `name` and `metadata`."""

    __slots__ = ("kind", "metadata", "name")

    def __init__(self, kind: str, name: str, metadata: Mapping[str, Any]) -> None:
        self.kind = kind
        self.name = name
        self.metadata = metadata

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "metadata": self.metadata}

    def __repr__(self) -> str:
        return f"Entity(kind={self.kind!r}, name={self.name!r}, metadata={self.metadata!r})"

"""What exists in a world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Contents", "Effect"]


@dataclass(eq=False)
class Effect:
    """Something that exists outside, until it is undone.

    :ivar key: what it is, for example "charge 17".
    :ivar id: the identity that the outside system gave it, for example "bank-1".
    :ivar data: the data that the caller passed.
    """

    key: str
    id: str
    data: Mapping[str, Any]


@dataclass(eq=False)
class Contents:
    """What exists in a world."""

    active: dict[str, list[Effect]] = field(default_factory=dict)
    by_idempotency_key: dict[str, Effect] = field(default_factory=dict)
    number: int = 0
    #: What a subclass keeps.
    state: dict[str, Any] = field(default_factory=dict)

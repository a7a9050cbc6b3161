"""The effects that exist in a world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Contents", "Effect"]


@dataclass(eq=False)
class Effect:
    """An effect in an outside system, until it is undone.

    :ivar key: its name, for example "charge 17".
    :ivar id: the identity that the outside system gave it, for example "bank-1".
    :ivar data: the data that the caller passed.
    """

    key: str
    id: str
    data: Mapping[str, Any]


@dataclass(eq=False)
class Contents:
    """The effects and the state of a world."""

    active: dict[str, list[Effect]] = field(default_factory=dict)
    by_idempotency_key: dict[str, Effect] = field(default_factory=dict)
    number: int = 0
    #: State of a subclass.
    state: dict[str, Any] = field(default_factory=dict)

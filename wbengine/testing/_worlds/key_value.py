"""A simulated key-value store."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from wbengine.testing._worlds.values import MISSING, ValueWorld

__all__ = ["KeyValueWorld"]


class KeyValueWorld(ValueWorld):
    """A key-value store for `crash_everywhere`, such as Redis. Thread-safe.

    A value that is not the initial one is an effect: it must be the initial one again when the flow
    is reverted. It may be set again, but after faults that the flow survives, each key must have
    the same value as without them.

    :param name: its name in reports.
    :param initial: values at the begin of each run.
    """

    def __init__(self, name: str, initial: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, initial)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of the value of a key."""
        value = self._value(key)
        return default if value is MISSING else copy.deepcopy(value)

    def set(self, key: str, value: Any) -> None:
        """Set the value of a key."""
        self._change(key, value)

    def set_if_missing(self, key: str, value: Any) -> bool:
        """Set the value of a key that has none. Return whether it had none."""
        with self._lock:
            current = self._value(key)
            self._change(key, value if current is MISSING else current)
            return current is MISSING

    def delete(self, key: str) -> None:
        """Delete a key, if it has a value."""
        self._change(key, MISSING)

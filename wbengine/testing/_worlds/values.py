"""Worlds that contain one value by name, such as key-value stores and folders."""

from __future__ import annotations

import copy
import enum
import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal

from wbengine.testing._worlds.contents import Effect
from wbengine.testing._worlds.world import DO, UNDO, World

__all__ = ["MISSING", "ValueWorld"]


class _Missing(enum.Enum):
    MISSING = "missing"


#: The value of a name that has none.
MISSING: Final = _Missing.MISSING

#: Maximum length of a value in a key. Of longer ones, the key contains a digest.
_MAX_VALUE: Final = 80


class ValueWorld(World):
    """Values by name. A value that is not the initial one is an effect.

    Its key contains name and value, so that a run with faults has to end with the same values.
    """

    def __init__(self, name: str, initial: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, repeatable=True)
        self._initial: Final = copy.deepcopy(dict(initial or {}))

    def _value(self, name: str) -> Any:
        with self._lock:
            return self._contents.state.get(name, self._initial.get(name, MISSING))

    def _names(self) -> list[str]:
        """Return the names that have a value."""
        with self._lock:
            names = self._initial | self._contents.state
            return [name for name in names if self._value(name) is not MISSING]

    def _change(self, name: str, value: Any, moved_from: str | None = None) -> None:
        """Set or remove the value of a name, and remove that of another one, in one operation."""
        kind: Literal["effect", "undo"]
        with self._lock:
            changed = {name: value} if moved_from is None else {moved_from: MISSING, name: value}
            old = {each: self._label(each, self._value(each)) for each in changed}
            key = self._label(name, value)
            is_known = all(self._label(each, new) == old[each] for each, new in changed.items())
            initial = {
                each: self._label(each, self._initial.get(each, MISSING)) for each in changed
            }
            replaced = (
                [] if is_known else [old[each] for each in changed if old[each] != initial[each]]
            )
            kind = DO
            if not is_known and key == initial[name]:
                kind, key = UNDO, old[name]
            line = self._begin(kind, key)
            contents = self._contents
            for each, new in changed.items():
                contents.state[each] = copy.deepcopy(new)
            for each in replaced:
                del contents.active[each]
            if kind == DO and not is_known:
                contents.number += 1
                contents.active[key] = [Effect(key, f"{self.name}-{contents.number}", {})]
            self._apply(changed)
        result: Literal["done", "duplicate"] = "duplicate" if is_known else "done"
        if kind == UNDO:  # This ends the effect with the key.
            replaced = [each for each in replaced if each != key]
        self._end(kind, key, result, line, replaced=tuple(replaced))

    def _apply(self, changed: Mapping[str, Any]) -> None:
        """Change what reflects the values."""

    def _label(self, name: str, value: Any) -> str:
        if value is MISSING:
            return f"{name} deleted"
        text = repr(value)
        if len(text) > _MAX_VALUE:
            digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]
            text = f"{text[:_MAX_VALUE]}... (SHA-256 {digest})"
        return f"{name} = {text}"

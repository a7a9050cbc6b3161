"""Variables of the modules under test, which are lost when their process ends."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["ProcessMemory"]

_IMMUTABLE: Final = (int, float, complex, str, bytes, bool, type(None))
_CONTAINERS: Final = (list, dict, set, deque)


class ProcessMemory:
    """The values that plain variables of modules had when it was created.

    Variables that contain numbers, text, None, and lists, dicts, sets and deques of anything are
    restored; other objects stay as they are.
    """

    def __init__(self, modules: Iterable[str] = ()) -> None:
        self._variables: list[tuple[dict[str, Any], str, Any, Any]] = []
        for name in sorted(set(modules)):
            module = sys.modules.get(name)
            if module is None:
                continue
            space = vars(module)
            for variable, value in list(space.items()):
                if variable.startswith("__"):
                    continue
                if isinstance(value, _IMMUTABLE) or type(value) in _CONTAINERS:
                    self._variables.append((space, variable, value, _copy(value)))

    def restore(self) -> None:
        """Set all variables to the values that they had."""
        for space, variable, value, copy in self._variables:
            if space.get(variable, self) is not value:
                space[variable] = value
            if type(value) in _CONTAINERS and not _equals(value, copy):
                _refill(value, copy)


def _copy(value: Any) -> Any:
    """Return a copy in which containers are new, and other objects are the same."""
    kind = type(value)
    if kind is dict:
        return {key: _copy(each) for key, each in value.items()}
    if kind in (list, deque):
        return kind(map(_copy, value))
    return set(value) if kind is set else value


def _equals(value: Any, copy: Any) -> bool:
    """Compare the containers of two values, and the identity of everything else."""
    kind = type(value)
    if kind is not type(copy):
        return False
    if kind is dict:
        return list(value) == list(copy) and all(_equals(value[key], copy[key]) for key in value)
    if kind in (list, deque):
        return len(value) == len(copy) and all(map(_equals, value, copy))
    return value == copy if kind is set else value is copy


def _refill(value: Any, copy: Any) -> None:
    fresh = _copy(copy)
    value.clear()
    if type(value) in (list, deque):
        value.extend(fresh)
    else:
        value.update(fresh)

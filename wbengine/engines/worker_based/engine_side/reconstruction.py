"""Detect task attributes that are lost when a worker creates the task from its class name."""

from __future__ import annotations

from typing import Any, Final

from wbengine import _names, atom, task


class _Plain(task.Task):
    def execute(self) -> None:
        """Do nothing."""


#: Attributes of a task that only the engine reads, or that it sends to the worker.
_ENGINE_ATTRIBUTES: Final = frozenset(vars(_Plain("plain"))).union(
    name for name in dir(task.Task) if not callable(getattr(task.Task, name, None))
)

_MISSING: Final = object()


def lost_attributes(original: task.Task) -> str | None:
    """Return the reason why a worker cannot recreate this task; None if it can.

    The task is created in the way in which workers create it. Attributes that differ between
    two constructions (a lock, a client, the time) are ignored.
    """
    cls = type(original)
    if cls.__init__ in _PLAIN_CONSTRUCTORS and cls.__new__ is object.__new__:
        return None
    try:
        other = cls(name=original.name)
        lost = _differing(original, other)
        if lost:
            lost -= _differing(cls(name=original.name), other)
    except Exception as error:
        return f"{_names.dotted(cls)}(name=...) raises {type(error).__name__}: {error}"
    if not lost:
        return None
    names = " and ".join(map(repr, sorted(lost)))
    return f"{_names.dotted(cls)}(name=...) must restore {names}, got another value"


#: Constructors that set only attributes that the engine reads.
_PLAIN_CONSTRUCTORS: Final = frozenset({atom.Atom.__init__, task.FunctionTask.__init__})


def _differing(one: task.Task, other: task.Task) -> set[str]:
    """Return the attributes in which two tasks differ, without those of `_ENGINE_ATTRIBUTES`."""
    first_values, second_values = vars(one), vars(other)
    return {
        name
        for name in (first_values.keys() | second_values.keys()) - _ENGINE_ATTRIBUTES
        if not _same(first_values.get(name, _MISSING), second_values.get(name, _MISSING))
    }


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # Arrays, for example, have no truth value.
        return True

"""What of a task would be lost on a worker, which makes it anew from the name of its class."""

from __future__ import annotations

from typing import Any, Final

from wbengine import _names, atom, task


class _Plain(task.Task):
    def execute(self) -> None:
        """Nothing: only its attributes count."""


#: What the engine itself reads of a task, and sends as far as a worker needs it.
_READ_HERE: Final = frozenset(vars(_Plain("plain"))).union(
    name for name in dir(task.Task) if not callable(getattr(task.Task, name, None))
)

_NONE: Final = object()


def what_is_lost(made: task.Task) -> str | None:
    """Why a worker cannot make a task as it is here; None: it can.

    A task whose class has a constructor of its own is made once as a worker would make it, and once
    more where that one differs: what every construction makes anew (a lock, a client, the time) is
    not lost.
    """
    cls = type(made)
    if cls.__init__ in _CONSTRUCTORS and cls.__new__ is object.__new__:
        return None
    try:
        other = cls(name=made.name)
        lost = _differing(made, other)
        if lost:
            lost -= _differing(cls(name=made.name), other)
    except Exception as error:
        return f"{_names.dotted(cls)}(name=...) raises {type(error).__name__}: {error}"
    if not lost:
        return None
    return f"{_names.dotted(cls)}(name=...) has another {' and '.join(map(repr, sorted(lost)))}"


#: Those that keep nothing but what the engine reads.
_CONSTRUCTORS: Final = frozenset({atom.Atom.__init__, task.FunctionTask.__init__})


def _differing(one: task.Task, other: task.Task) -> set[str]:
    """The attributes in which two tasks of a class differ, but for those that the engine reads."""
    mine, theirs = vars(one), vars(other)
    return {
        name
        for name in (mine.keys() | theirs.keys()) - _READ_HERE
        if not _same(mine.get(name, _NONE), theirs.get(name, _NONE))
    }


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # arrays, say, have no answer to that
        return True

"""Tasks of steps that a record names, and tasks that the code of a workflow can name.

Everyone who can write to the store can change the name of a task in the record of a step. A task is
only created if the function of the workflow could have called it.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from wbengine._calls import invocation
from wbengine._introspection import object_names
from wbengine._runtime.workflows import guards
from wbengine._tasks import commands
from wbengine.task import Task

__all__ = ["check", "find"]

_PACKAGE: Final = __name__.partition(".")[0]
_CONTAINERS: Final = (dict, list, tuple, set, frozenset, types.MappingProxyType)

#: The functions of workflows whose code can name a task, for each class.
_known: Final = weakref.WeakKeyDictionary[type[Task], weakref.WeakSet[Callable[..., Any]]]()


def find(path: str, function: Callable[..., Any]) -> Task | None:
    """Return a task of the class at `module:name`, or None if `function` cannot name this class.

    Modules are not imported, because the path comes from a record.
    """
    task = commands.task_class_at(path)
    return None if task is None or not _can_name(function, task) else task()


def check(function: Callable[..., Any], command: commands.Command) -> None:
    """Check that a later process can find the task of a step to revert it.

    :raises TypeError: if the task has a `revert` and the code of the workflow cannot name it.
    """
    if command.task is None or command.task.is_wait:
        return
    task = type(command.task)
    if not (invocation.reverts_nothing(task) or _can_name(function, task)):
        raise TypeError(
            f"Task {object_names.dotted(task)} has a revert, so the code of the workflow must name"
            f" it: import it in module {function.__module__!r}"
        )


def _can_name(function: Callable[..., Any], task: type[Task]) -> bool:
    functions = _known.setdefault(task, weakref.WeakSet())
    if function not in functions:
        if not _is_reachable(function, task):
            return False
        functions.add(function)
    return True


def _is_reachable(function: Callable[..., Any], task: type[Task]) -> bool:
    """Return whether a module that the code of a function uses contains a task.

    These are the modules of the function, and of the functions, classes and modules that its code
    names, and so on. The modules of Python and wbengine are not examined.
    """
    outermost = getattr(sys.modules.get(task.__module__), task.__qualname__.partition(".")[0], task)
    examined: dict[int, Any] = {}
    values: deque[Any] = deque([function])
    while values:
        value = values.popleft()
        if value is task or value is outermost:
            return True
        if id(value) in examined:
            continue
        examined[id(value)] = value
        if isinstance(value, _CONTAINERS):
            members = value.values() if isinstance(value, dict | types.MappingProxyType) else value
            values.extend(each for each in members if callable(each) or type(each) in _CONTAINERS)
        elif isinstance(value, functools.partial):
            values.append(value.func)
        elif isinstance(value, staticmethod | classmethod | types.MethodType):
            values.append(value.__func__)
        elif isinstance(value, types.ModuleType):
            if not _is_foreign(value.__name__):
                values.extend(each for each in list(vars(value).values()) if each is outermost)
        elif _is_foreign(object_names.module_of(value)):
            continue
        elif isinstance(value, types.FunctionType):
            values.append(sys.modules.get(value.__module__))
            values.extend(loaded for loaded, _, _ in guards.loaded_objects(value))
        elif isinstance(value, type):
            values.extend(vars(value).values())
        else:
            values.append(type(value))
    return False


def _is_foreign(module: str) -> bool:
    top = module.partition(".")[0]
    return top == _PACKAGE or top in sys.stdlib_module_names

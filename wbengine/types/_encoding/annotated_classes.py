"""Classes that the annotations of functions and fields name."""

from __future__ import annotations

import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

from wbengine.types._encoding import kinds

#: Methods of tasks and retries whose annotations describe values.
_METHODS: Final = ("execute", "revert")


def classes_of(item: Any) -> Iterator[type]:
    """Yield the classes of values that the annotations of a function or class name.

    An annotation that cannot be evaluated is ignored.
    """
    seen: set[int] = set()
    hints = list(_hints_of(item))
    while hints:
        hint = hints.pop()
        if id(hint) in seen:
            continue
        seen.add(id(hint))
        origin = typing.get_origin(hint)
        if origin is typing.ClassVar or origin is type or origin is Callable:
            continue
        if origin is typing.Literal:
            yield from {type(each) for each in typing.get_args(hint) if isinstance(each, enum.Enum)}
        elif origin is not None:
            arguments = typing.get_args(hint)
            hints += [origin, *(arguments[:1] if origin is typing.Annotated else arguments)]
        elif isinstance(hint, type):
            if typing.is_typeddict(hint):
                hints += _hints_of(hint)
            elif kinds.of_class(hint) is not None:
                yield hint
        elif isinstance(hint, typing.TypeVar):
            hints += [hint.__bound__, *hint.__constraints__]
        else:  # a `NewType`, or an alias of a `type` statement
            for attribute in ("__supertype__", "__value__"):
                hints += _attribute(hint, attribute)


def evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    """Return an annotation; a text is evaluated with these names.

    :raises Exception: errors of the evaluation, such as NameError.
    """
    owner = types.SimpleNamespace(__annotations__={"annotation": annotation})
    return typing.get_type_hints(owner, names, include_extras=True)["annotation"]


def _hints_of(item: Any) -> Iterator[Any]:
    if not isinstance(item, type):
        yield from _evaluated(item, getattr(item, "__globals__", {}))
        return
    if kinds.of_class(item) == kinds.MODEL:
        if not item.__pydantic_complete__:  # type: ignore[attr-defined]
            item.model_rebuild(raise_errors=False)  # type: ignore[attr-defined]
        for field in item.__pydantic_fields__.values():  # type: ignore[attr-defined]
            yield field.annotation
    elif kinds.of_class(item) is not None or typing.is_typeddict(item):
        yield from _evaluated(item, getattr(sys.modules.get(item.__module__), "__dict__", {}))
    for name in _METHODS:
        method = inspect.getattr_static(item, name, None)
        function = getattr(method, "__func__", method)
        if isinstance(function, types.FunctionType):
            yield from _hints_of(function)


def _evaluated(item: Any, names: dict[str, Any]) -> Iterator[Any]:
    try:
        yield from typing.get_type_hints(item, include_extras=True).values()
        return
    except Exception:
        pass
    for hint in getattr(item, "__annotations__", {}).values():
        try:
            yield evaluated(hint, names)
        except Exception:  # The annotation names a class that exists only for type checkers.
            continue


def _attribute(hint: Any, name: str) -> list[Any]:
    try:
        return [getattr(hint, name)]
    except Exception:  # none, or the value of an alias cannot be evaluated
        return []

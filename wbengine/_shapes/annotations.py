"""Shapes of annotations."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from wbengine._shapes import choices, containers, library_models, plain, records
from wbengine._shapes.base import Shape
from wbengine.types._encoding import annotated_classes

__all__ = ["evaluated", "shape_of"]

_PLAIN: Final = (bool, int, float, str, type(None))
#: Qualifiers of fields, which have no effect on the shape.
_QUALIFIERS: Final = frozenset({"Required", "NotRequired", "ReadOnly", "Final", "ClassVar"})

#: By generic class: the creation of a value, and the types of Python that fit.
_ITEMS: Final[Mapping[Any, tuple[Callable[[list[Any]], Any], type]]] = {
    list: (list, list), set: (set, set), frozenset: (frozenset, frozenset), tuple: (tuple, tuple),
    collections.abc.Sequence: (list, collections.abc.Sequence),
    collections.abc.MutableSequence: (list, collections.abc.MutableSequence),
    collections.abc.Iterable: (list, collections.abc.Iterable),
    collections.abc.Collection: (list, collections.abc.Collection),
    collections.abc.Set: (frozenset, collections.abc.Set),
    collections.abc.MutableSet: (set, collections.abc.MutableSet),
}  # fmt: skip
_MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)

_Variables = Mapping[Any, Any]


def evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return an annotation of a function; a text is evaluated in its module.

    :raises NameError: if the text contains an unknown name.
    :raises Exception: other errors of the evaluation.
    """
    return annotated_classes.evaluated(annotation, getattr(function, "__globals__", {}))


def shape_of(annotation: Any, variables: _Variables = types.MappingProxyType({})) -> Shape:
    """Return the shape of an evaluated annotation.

    :param variables: the values of type variables.
    """
    if annotation is Any or annotation is object or isinstance(annotation, str | typing.ForwardRef):
        return plain.Anything()
    if annotation is None:
        annotation = type(None)
    if isinstance(annotation, typing.TypeVar):
        return _of_variable(annotation, variables)
    if isinstance(annotation, typing.NewType):
        return shape_of(annotation.__supertype__, variables)
    if type(annotation).__name__ == "TypeAliasType":
        return shape_of(annotation.__value__, variables)
    if isinstance(annotation, dataclasses.InitVar):
        return shape_of(annotation.type, variables)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is None:
        return _of_class(annotation, (), variables)
    if origin is typing.Annotated or getattr(origin, "_name", None) in _QUALIFIERS:
        return shape_of(arguments[0], variables)
    if origin is typing.Literal:
        return choices.Literals(arguments)
    if origin is typing.Union or origin is types.UnionType:
        return containers.Union(shape_of(each, variables) for each in arguments)
    return _of_class(origin, arguments, variables)


def _of_variable(variable: typing.TypeVar, variables: _Variables) -> Shape:
    if variable in variables:
        return shape_of(variables[variable])
    if variable.__constraints__:
        return containers.Union(map(shape_of, variable.__constraints__))
    return shape_of(object if variable.__bound__ is None else variable.__bound__)


def _of_class(cls: Any, arguments: tuple[Any, ...], variables: _Variables) -> Shape:
    """Return the shape of a class, or of a generic class with arguments."""
    if cls in _PLAIN:
        return plain.Plain(cls)
    if cls in plain.TEXT_CLASSES:
        return plain.Text(cls, *plain.TEXT_CLASSES[cls])
    if cls is tuple and arguments and arguments[-1] is not Ellipsis:
        return containers.Tuple(shape_of(each, variables) for each in arguments if each != ())
    if cls in _ITEMS:
        item = shape_of(arguments[0], variables) if arguments else plain.Anything()
        return containers.Items(item, *_ITEMS[cls])
    if cls in _MAPPINGS:
        key, value = arguments or (object, object)
        return containers.Dict(shape_of(key, variables), shape_of(value, variables))
    if not isinstance(cls, type):  # For example ParamSpec, Callable or Self.
        return plain.Anything()
    if issubclass(cls, enum.Enum):
        return choices.Enumeration(cls)
    if hasattr(cls, "__pydantic_validator__") and "pydantic" in sys.modules:
        return library_models.Model(cls)
    if hasattr(cls, "__struct_fields__") and "msgspec" in sys.modules:
        return library_models.Struct(cls)
    names = [getattr(each, "__name__", str(each)) for each in arguments]
    name = f"{cls.__name__}[{', '.join(names)}]" if names else cls.__name__
    inner = _with_arguments(cls, arguments, variables)
    if hasattr(cls, "__required_keys__"):  # A TypedDict, also of typing_extensions.
        return records.Record(cls, name, lambda: _typed_dict_fields(cls, inner), None)
    if dataclasses.is_dataclass(cls):
        return records.Record(cls, name, lambda: _dataclass_fields(cls, inner), cls)
    if hasattr(cls, "__attrs_attrs__"):
        return records.Record(cls, name, lambda: _attrs_fields(cls, inner), cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return records.Record(cls, name, lambda: _named_tuple_fields(cls, inner), cls)
    if cls in (collections.abc.Callable, type):
        return plain.Anything()
    return plain.Opaque(cls)


def _with_arguments(cls: type, arguments: tuple[Any, ...], variables: _Variables) -> dict[Any, Any]:
    """Return the values of the type variables of a generic class."""
    parameters = getattr(cls, "__parameters__", ())
    known = [variables.get(each, each) if _is_variable(each) else each for each in arguments]
    return dict(zip(parameters, known, strict=False))


def _is_variable(annotation: Any) -> bool:
    return isinstance(annotation, typing.TypeVar)


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, None, {cls.__name__: cls}, include_extras=True)
    except Exception as error:  # Texts are evaluated as code of the user.
        raise TypeError(
            f"The annotations of {cls.__name__} cannot be evaluated: {error}"
        ) from error


def _dataclass_fields(cls: Any, variables: _Variables) -> dict[str, records.Field]:
    hints = _hints(cls)
    fields = {}
    for name, each in cls.__dataclass_fields__.items():  # With InitVar.
        is_class_variable = typing.get_origin(hints[name]) is typing.ClassVar
        if not each.init or is_class_variable or hints[name] is typing.ClassVar:
            continue
        is_required = (
            each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        )
        fields[name] = _field(hints[name], variables, is_required, each.default)
    return fields


def _attrs_fields(cls: Any, variables: _Variables) -> dict[str, records.Field]:
    hints, fields = _hints(cls), {}
    for each in cls.__attrs_attrs__:
        if each.init:
            nothing = type(each.default).__name__ == "_Nothing"
            hint = hints.get(each.name, object)
            fields[each.alias] = _field(hint, variables, nothing, each.default)
    return fields


def _named_tuple_fields(cls: Any, variables: _Variables) -> dict[str, records.Field]:
    hints, defaults = _hints(cls), cls._field_defaults
    return {
        name: _field(
            hints.get(name, object), variables, name not in defaults,
            defaults.get(name, records.SOME_DEFAULT),
        )
        for name in cls._fields
    }  # fmt: skip


def _typed_dict_fields(cls: Any, variables: _Variables) -> dict[str, records.Field]:
    fields = {}
    for name, hint in _hints(cls).items():
        # With `from __future__ import annotations`, `__required_keys__` ignores these qualifiers.
        qualifiers = _qualifiers(hint)
        is_required = "NotRequired" not in qualifiers and (
            "Required" in qualifiers or name in cls.__required_keys__
        )
        fields[name] = _field(hint, variables, is_required)
    return fields


def _qualifiers(hint: Any) -> set[str]:
    """Return the qualifiers of a field, which may be nested in each other and in Annotated."""
    found: set[str] = set()
    while (origin := typing.get_origin(hint)) is not None:
        name = getattr(origin, "_name", None)
        if origin is not typing.Annotated and name not in _QUALIFIERS:
            break
        found.add(str(name))
        hint = typing.get_args(hint)[0]
    return found


def _field(
    hint: Any, variables: _Variables, is_required: bool, default: Any = records.SOME_DEFAULT
) -> records.Field:
    return records.Field(shape_of(hint, variables), is_required, default)

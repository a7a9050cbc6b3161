"""Encode and decode values like TaskFlow's peers: JSON with the type marks of kombu.

Tuples become lists, and keys become strings. Bytes, `Decimal`, `UUID`, dates and times have type
marks. Other types are not supported.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine._introspection import object_names
from wbengine._text import json_text
from wbengine.types import codec

_TYPE: Final = "__type__"
_VALUE: Final = "__value__"
_MARKED: Final = {_TYPE, _VALUE}

#: Types and their marks. The order matters: a datetime is also a date.
_WRITERS: Final[tuple[tuple[type, str, Callable[[Any], Any]], ...]] = (
    (dt.datetime, "datetime", lambda value: value.isoformat()),
    (dt.date, "date", lambda value: value.isoformat()),
    (dt.time, "time", lambda value: value.isoformat()),
    (decimal.Decimal, "decimal", str),
    (uuid.UUID, "uuid", lambda value: {"hex": value.hex}),
)

_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "datetime": dt.datetime.fromisoformat,
    "date": lambda text: dt.datetime.fromisoformat(text).date(),
    "time": dt.time.fromisoformat,
    "decimal": decimal.Decimal,
    "uuid": lambda value: uuid.UUID(**value),
    "bytes": lambda text: text.encode(),
    "base64": lambda text: base64.b64decode(text, validate=True),
}


def pack(value: Any, where: str = "result", depth: int = codec.MAX_DEPTH) -> Any:
    """Return the JSON tree for a value; `unpack` decodes it as TaskFlow does.

    :param depth: maximum number of nested containers.
    :raises NotEncodable: if a part of the value cannot be encoded; the error contains its path.
    """
    if value is None or isinstance(value, bool | int | float):
        return value  # Python's JSON accepts NaN and infinities.
    if isinstance(value, str):
        if not (value.isascii() or json_text.is_text(value)):
            raise _refused(value, where, "contains lone surrogates")
        return value
    if isinstance(value, list | tuple | dict) and not depth:
        raise _refused(value, where, f"is nested more than {codec.MAX_DEPTH} levels deep")
    if isinstance(value, list | tuple):
        return [pack(item, f"{where}[{n}]", depth - 1) for n, item in enumerate(value)]
    if isinstance(value, dict):
        return {
            _key(key, where): pack(item, f"{where}[{key!r}]", depth - 1)
            for key, item in value.items()
        }
    for kind, mark, write in _WRITERS:
        if isinstance(value, kind):
            return {_TYPE: mark, _VALUE: write(value)}
    if isinstance(value, bytes):
        try:
            return {_TYPE: "bytes", _VALUE: value.decode()}
        except UnicodeDecodeError:
            return {_TYPE: "base64", _VALUE: base64.b64encode(value).decode("ascii")}
    raise _refused(value, where, "is a type that TaskFlow's peers cannot read")


def _key(key: Any, where: str) -> str:
    if isinstance(key, str) and (key.isascii() or json_text.is_text(key)):
        return key
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(key)
    raise _refused(key, where, "is a type of key that TaskFlow's peers cannot read")


def _refused(value: Any, where: str, why: str) -> exc.NotEncodable:
    kind = object_names.dotted(type(value))
    return exc.NotEncodable(f"{where}: {kind} {why}", path=where, type_name=kind)


def unpack(tree: Any) -> Any:
    """Return the value of a JSON tree. A dict with an unknown or invalid mark remains a dict."""
    if isinstance(tree, list):
        return [unpack(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == _MARKED and isinstance(tree[_TYPE], str) and tree[_TYPE] in _READERS:
        try:
            return _READERS[tree[_TYPE]](tree[_VALUE])
        except (TypeError, ValueError, AttributeError, ArithmeticError):
            pass
    return {key: unpack(item) for key, item in tree.items()}


def parse(data: bytes | str, depth: int) -> Any:
    """Return the JSON tree of a body, also with NaN and infinities.

    :raises InvalidFormat: if the body is not JSON in UTF-8, or is nested deeper than `depth`.
    """
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise exc.InvalidFormat(f"invalid JSON: {str(error)[:200]}") from None
    if json_text.is_deeper(tree, depth):
        raise exc.InvalidFormat(f"nested more than {depth} levels deep")
    return tree

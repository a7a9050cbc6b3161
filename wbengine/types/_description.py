"""Failures as plain JSON data, version 1: the form that TaskFlow peers write and read as well."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from wbengine import exceptions
from wbengine.types.schemas import Schema

BASE_EXCEPTIONS: Final = ("Exception", "BaseException")

SCHEMA: Final[dict[str, Any]] = {
    "$ref": "#/definitions/cause",
    "definitions": {
        "cause": {
            "type": "object",
            "properties": {
                "version": {"type": "integer", "minimum": 0},
                "exc_args": {"type": "array", "minItems": 0},
                "exception_str": {"type": "string"},
                "traceback_str": {"type": ["string", "null"]},
                "exc_type_names": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                "causes": {"type": "array", "items": {"$ref": "#/definitions/cause"}},
            },
            "required": ["exception_str", "traceback_str", "exc_type_names"],
            "additionalProperties": True,
        }
    },
}

#: How many causes are read from one description.
MAX_CAUSES: Final = 100
#: How deep arguments of exceptions may be nested and still be written out.
_MAX_ARGS_DEPTH: Final = 8
#: So many characters of an exception's message or traceback travel and are kept, and so many bytes
#: of its arguments.
LONGEST_TEXT: Final = 65536
#: Integers are written that have so many bits, for Python itself reads no longer ones.
_MAX_INT_BITS: Final = 14_000

#: One level of a description: it may nest deeper than Python recurses.
_LEVEL: Final = Schema({**SCHEMA["definitions"]["cause"], "definitions": {"cause": {}}}, "failure")


def validate(data: Any) -> None:
    """Check the form of a description and of all its causes, without recursion.

    :raises InvalidFormat: it is not of that form.
    """
    queue: list[tuple[Any, str]] = [(data, "failure")]
    for item, where in queue:
        # `Failure.to_dict` has arguments in a tuple.
        if type(item) is dict and type(item.get("exc_args")) is tuple:
            item = {**item, "exc_args": list(item["exc_args"])}
        _LEVEL.check(item, where)
        root = item["exc_type_names"][-1]
        if root not in BASE_EXCEPTIONS:
            raise exceptions.InvalidFormat(
                f"{where}['exc_type_names'] must end in {' or '.join(BASE_EXCEPTIONS)},"
                f" not in {root!r}"
            )
        for place, cause in enumerate(item.get("causes", ())):
            queue.append((cause, f"{where[-100:]}['causes'][{place}]"))


def sendable(text: str) -> str:
    """`text` as what every JSON writer and reader takes: without lone surrogates."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shorten(data: dict[str, Any]) -> None:
    """Cut a description and those of its causes to what may travel, and be kept: `LONGEST_TEXT`."""
    for part in (data, *data.get("causes", ())):
        for key in ("exception_str", "traceback_str"):
            text = part[key]
            if text is not None and len(text) > LONGEST_TEXT:
                part[key] = f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"
        arguments = part.get("exc_args")
        if arguments and len(json.dumps(arguments, ensure_ascii=False).encode()) > LONGEST_TEXT:
            part["exc_args"] = []


def are_json(args: tuple[Any, ...]) -> bool:
    return all(_is_json(arg, _MAX_ARGS_DEPTH) for arg in args)


def _is_json(value: Any, depth: int) -> bool:
    """Does `value` survive JSON as it is, type and all?"""
    kind = type(value)
    if kind is str:
        return bool(value.isascii()) or sendable(value) == value
    if kind is float:
        return math.isfinite(value)
    if kind is int:
        return bool(value.bit_length() < _MAX_INT_BITS)
    if kind is bool or value is None:
        return True
    if depth == 0:
        return False
    if kind is list:
        return all(_is_json(item, depth - 1) for item in value)
    return kind is dict and all(
        type(key) is str and _is_json(key, 1) and _is_json(item, depth - 1)
        for key, item in value.items()
    )


def flat_causes(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All causes of a description, nearest first, however they are nested."""
    flat: list[Mapping[str, Any]] = []
    causes = data.get("causes")
    while causes and len(flat) < MAX_CAUSES:
        flat.extend(causes)
        causes = flat[-1].get("causes")
    return flat[:MAX_CAUSES]


def read(data: Mapping[str, Any], version: int) -> list[dict[str, Any]]:
    """What a failure and its causes are made from, nearest first.

    :raises ValueError: the description is of another version.
    :raises InvalidFormat: it is none, or something is missing.
    """
    if not isinstance(data, Mapping):
        raise exceptions.InvalidFormat(f"A failure's description is a dict, not {data!r:.80}")
    found = data.get("version")
    if found != version:
        raise ValueError(
            f"A failure's description of version {found!r} cannot be read, only of version"
            f" {version}"
        )
    try:
        return [_parts_of(item) for item in (data, *flat_causes(data))]
    except KeyError as error:
        raise exceptions.InvalidFormat(f"A failure's description lacks {error}") from None


def _parts_of(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "exception_str": data["exception_str"],
        "exc_type_names": data.get("exc_type_names", ()),
        "traceback_str": data.get("traceback_str"),
        "exc_args": data.get("exc_args"),
    }

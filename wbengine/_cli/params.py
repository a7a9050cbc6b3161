"""Types of option values."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import exceptions
from wbengine._cli import errors
from wbengine._introspection import object_names
from wbengine._text import durations, rates

if TYPE_CHECKING:
    Kind = click.ParamType[Any]
    Words = click.Choice[str]
else:  # older versions of click have no generic types here
    Kind = click.ParamType
    Words = click.Choice

__all__ = [
    "ADDRESS", "ASSIGNMENT", "DURATION", "ENGINE", "ENGINE_KIND", "INPUTS", "JSON", "LIFETIME",
    "NEW_FILE", "RATE", "TAG", "TAG_CONDITION", "TIMESTAMP", "WAIT", "Choice", "Parsed",
    "file_text", "once",
]  # fmt: skip


class Choice(Words):
    """One of several words. The error message contains the most similar word."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            words = ", ".join(self.choices)
            near = object_names.hint(str(value), self.choices)
            self.fail(f"must be one of {words}, got {value!r}{near}", param, ctx)


class Parsed(Kind):
    """The result of a function that parses a text and raises `ValueError` if the text is invalid.

    >>> Parsed("N", int).convert("3", None, None)
    3
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _duration(text: str) -> float:
    seconds = durations.seconds(text)
    if seconds is None:
        raise ValueError(f"must be a duration such as 30, 1.5h or 30d, got {text!r}")
    return seconds


def _engine(text: str) -> str:
    from wbengine.engines import _engine_choice

    try:
        _engine_choice.check_engine_uri(text)
    except (exceptions.NotFound, TypeError) as error:
        raise ValueError(str(error)) from error
    return text


def _engine_kind(text: str) -> str:
    if ":" in text:
        raise ValueError(f"must be a kind without options, got {text!r}")
    return _engine(text)


def _wait(text: str) -> float:
    seconds = _duration(text)
    if not seconds:
        raise ValueError(f"must be a duration above 0, got {text!r}")
    return seconds


def _lifetime(text: str) -> float | str:
    seconds = durations.seconds(text)
    if not seconds and text != "forever":
        raise ValueError(f"must be a duration above 0, such as 24h, or forever, got {text!r}")
    return seconds or text


def _rate(text: str) -> float:
    seconds = rates.interval(text)
    if seconds is None:
        raise ValueError(f"must be a number per s, m, h or d, such as 20/s, got {text!r}")
    return 1 / seconds


def _tag(text: str, form: str) -> Any:
    from wbengine.types import _written_tags

    return _written_tags.READERS[form](text)


def once(context: click.Context, option: click.Parameter, pairs: Any) -> dict[str, Any]:
    """Return the pairs of an option as a dict, and reject repeated keys."""
    values: dict[str, Any] = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise click.BadParameter(
            f"must contain each key once, got {twice!r} twice", context, option
        )
    return values


def _timestamp(text: str) -> float:
    seconds: float = object_names.load("wbengine._text.timestamps:unix_seconds")(text)
    return seconds


def _address(text: str) -> Any:
    from wbengine.telemetry import _serving

    return _serving.address(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be JSON: {error}") from error


def _inputs(text: str) -> dict[str, Any]:
    inputs = _json(file_text(text[1:]) if text.startswith("@") else text)
    if not isinstance(inputs, dict):
        raise ValueError(f"must be a JSON object, got {type(inputs).__name__}")
    return inputs


def _assignment(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise ValueError("must be NAME=JSON or NAME=@FILE, such as amount=12 or card='\"x\"'")
    return name, _json(file_text(value[1:]) if value.startswith("@") else value)


def file_text(path: str) -> str:
    """Return the text of a file, or of the standard input for '-'.

    :raises ValueError: if it cannot be read.
    """
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"cannot read {path!r}: {errors.reason(error)}") from error


class _NewFile(click.Path):
    """A file that can be written: its folder exists."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        path = str(super().convert(value, param, ctx))
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            self.fail(f"must be a path in an existing folder, got {path!r}", param, ctx)
        return path


#: A kind of engine, or a URI with options.
ENGINE: Final = Parsed("KIND", _engine)
#: A kind of engine without options.
ENGINE_KIND: Final = Parsed("KIND", _engine_kind)
ADDRESS: Final = Parsed("HOST:PORT", _address)
#: Seconds, or a number with one of the units s m h d w.
DURATION: Final = Parsed("DURATION", _duration)
#: A duration above 0.
WAIT: Final = Parsed("DURATION", _wait)
RATE: Final = Parsed("RATE", _rate)
#: A duration above 0, or 'forever'.
LIFETIME: Final = Parsed("DURATION", _lifetime)
#: Unix seconds of a date and time, or of a time that lies a duration before now.
TIMESTAMP: Final = Parsed("WHEN", _timestamp)
JSON: Final = Parsed("JSON", _json)
#: A JSON object, or `@file` that contains one ('@-': the standard input).
INPUTS: Final = Parsed("JSON", _inputs)
#: A name, '=', and JSON or `@file` that contains it ('@-': the standard input).
ASSIGNMENT: Final = Parsed("NAME=JSON", _assignment)
TAG: Final = Parsed("KEY=VALUE", functools.partial(_tag, form="value"))
#: A tag as JSON, and one that is a text.
JSON_TAG: Final = Parsed("KEY=VALUE", functools.partial(_tag, form="json"))
TEXT_TAG: Final = Parsed("KEY=VALUE", functools.partial(_tag, form="text"))
#: A tag, or a comparison with one.
TAG_CONDITION: Final = Parsed("KEY=VALUE", functools.partial(_tag, form="condition"))
NEW_FILE: Final = _NewFile()

"""Kinds of values that options take."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine.cli import errors

if TYPE_CHECKING:
    Kind = click.ParamType[Any]
else:  # older releases take no argument there
    Kind = click.ParamType

__all__ = [
    "ADDRESS", "DURATION", "INPUTS", "JSON", "MOMENT", "NEW_FILE", "TAG", "WAIT", "Parsed",
    "duration", "tags_of",
]  # fmt: skip

_UNITS: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|d|w)?", re.ASCII)
_LONGEST: Final = 100 * 365 * 86400.0


def duration(text: str) -> float | None:
    """The seconds that `text` means: '90', '1.5h', '30d'; None if it means none."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        return None
    seconds = float(found[1]) * _UNITS[found[2] or "s"]
    return seconds if seconds <= _LONGEST else None


class Parsed(Kind):
    """What a function makes of a text, of which it says by a `ValueError` that it is none such.

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
    found = duration(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration such as 30, 1.5h or 30d")
    return found


def _wait(text: str) -> float:
    found = _duration(text)
    if not found:
        raise ValueError(f"{text!r} is no time at all")
    return found


def _tag(text: str) -> tuple[str, str]:
    from wbengine.persistence import listing

    key, found, told = text.partition("=")
    if not found:
        raise ValueError(f"{text!r} is no tag such as team=billing")
    listing.check_tags({key: told})
    return key, told


def tags_of(context: click.Context, option: click.Parameter, told: Any) -> dict[str, str]:
    """The tags that an option was given, each key once."""
    found: dict[str, str] = dict(told)
    if len(found) < len(told):
        keys = [key for key, _ in told]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise click.BadParameter(f"{twice!r} is given twice", context, option)
    return found


def _moment(text: str) -> float:
    if (ago := duration(text)) is not None:
        return time.time() - ago
    try:
        told = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a time such as 2026-11-21T08:00 (UTC) nor a duration such as 2h"
            " (ago)"
        ) from None
    return (told if told.tzinfo else told.replace(tzinfo=timezone.utc)).timestamp()


def _address(text: str) -> Any:
    from wbengine.telemetry import serving

    return serving.address(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from error


def _inputs(text: str) -> dict[str, Any]:
    found = _json(_file(text[1:]) if text.startswith("@") else text)
    if not isinstance(found, dict):
        raise ValueError(f"it must be a JSON object, not {type(found).__name__}")
    return found


def _file(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{path!r} cannot be read: {errors.reason(error)}") from error


class _NewFile(click.Path):
    """A file that can be written: its folder is there."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        path = str(super().convert(value, param, ctx))
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            self.fail(f"{path!r}: there is no folder {folder!r}", param, ctx)
        return path


#: Where to listen.
ADDRESS: Final = Parsed("HOST:PORT", _address)
#: Seconds, or a number with one of the units s m h d w.
DURATION: Final = Parsed("DURATION", _duration)
#: A duration above 0.
WAIT: Final = Parsed("DURATION", _wait)
#: Unix seconds of a date and time, or of so long ago.
MOMENT: Final = Parsed("WHEN", _moment)
JSON: Final = Parsed("JSON", _json)
#: A JSON object, or `@file` that holds one ('@-': the standard input).
INPUTS: Final = Parsed("JSON", _inputs)
#: A key and a value.
TAG: Final = Parsed("KEY=VALUE", _tag)
NEW_FILE: Final = _NewFile()

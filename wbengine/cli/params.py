"""Kinds of values that options take."""

from __future__ import annotations

import json
import os
import re
import sys
import time
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
    "DURATION", "INPUTS", "MOMENT", "NEW_FILE", "TAG", "WAIT", "Kind", "duration", "new_file",
    "tags_of",
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


class _Duration(Kind):
    """Seconds, or a number with one of the units s m h d w."""

    name = "DURATION"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        found = duration(str(value))
        if found is None:
            self.fail(f"{value!r} is no duration such as 30, 1.5h or 30d", param, ctx)
        return found


class _Wait(_Duration):
    """A duration above 0."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        found = super().convert(value, param, ctx)
        if not found:
            self.fail(f"{value!r} is no time at all", param, ctx)
        return found


class _Tag(Kind):
    """A key and a value."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        from wbengine.persistence import listing

        if isinstance(value, tuple):
            return value
        key, found, told = str(value).partition("=")
        if not found:
            self.fail(f"{value!r} is no tag such as team=billing", param, ctx)
        try:
            listing.check_tags({key: told})
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return key, told


def tags_of(context: click.Context, option: click.Parameter, told: Any) -> dict[str, str]:
    """The tags that an option was given, each key once."""
    found: dict[str, str] = dict(told)
    if len(found) < len(told):
        keys = [key for key, _ in told]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise click.BadParameter(f"{twice!r} is given twice", context, option)
    return found


class _Moment(Kind):
    """Unix seconds of a date and time, or of so long ago."""

    name = "WHEN"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, int | float):
            return float(value)
        if (ago := duration(value)) is not None:
            return time.time() - ago
        try:
            told = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
        except ValueError:
            self.fail(
                f"{value!r} is neither a time such as 2026-11-21T08:00 (UTC) nor a duration such"
                " as 2h (ago)",
                param,
                ctx,
            )
        return (told if told.tzinfo else told.replace(tzinfo=timezone.utc)).timestamp()


class _Address(Kind):
    """Where to listen."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from wbengine.telemetry import serving

        if not isinstance(value, str):
            return value
        try:
            return serving.address(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Inputs(Kind):
    """A JSON object, or `@file` that holds one ('@-': the standard input)."""

    name = "JSON"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        text = self._text(value[1:], param, ctx) if value.startswith("@") else value
        try:
            found = json.loads(text)
        except ValueError as error:
            self.fail(f"it is no JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"it must be a JSON object, not {type(found).__name__}", param, ctx)
        return found

    def _text(self, path: str, param: Any, ctx: Any) -> str:
        try:
            if path == "-":
                return sys.stdin.read()
            return Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            self.fail(f"{path!r} cannot be read: {errors.reason(error)}", param, ctx)


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


def new_file(path: str, data: bytes, *, private: bool = False) -> None:
    """Write what an option of the kind `NEW_FILE` named; if it is `private`, for its owner only.

    :raises Failed: it cannot be written.
    """
    try:
        mode = 0o600 if private else 0o666  # less what the umask takes away
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            if private:
                os.fchmod(file.fileno(), mode)  # it may have been there
            file.write(data)
    except OSError as error:
        raise errors.Failed(f"{path} cannot be written: {errors.reason(error)}") from error


ADDRESS: Final = _Address()
DURATION: Final = _Duration()
NEW_FILE: Final = _NewFile()
WAIT: Final = _Wait()
MOMENT: Final = _Moment()
INPUTS: Final = _Inputs()
TAG: Final = _Tag()

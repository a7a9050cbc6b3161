"""Helper functions for text, numbers, URIs and failures."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.parse
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from wbengine.types import failure

__all__ = ["as_int", "capture_failure", "clamp", "decode_json", "parse_uri"]

_Number = TypeVar("_Number", int, float)


def decode_json(raw_data: str | bytes, root_types: type | Collection[type] = (dict,)) -> Any:
    """Decode a JSON text.

    :param root_types: allowed types of the value; empty: any type.
    :raises ValueError: if the text is not UTF-8 or JSON, or its value has another type.
    """
    try:
        data = json.loads(raw_data.decode() if isinstance(raw_data, bytes) else raw_data)
    except UnicodeDecodeError as error:
        raise ValueError(f"The data must be UTF-8: {error}") from error
    except ValueError as error:
        raise ValueError(f"The data must be JSON: {error}") from error
    allowed_types = (root_types,) if isinstance(root_types, type) else tuple(root_types)
    if allowed_types and not isinstance(data, allowed_types):
        names = " or ".join(kind.__name__ for kind in allowed_types)
        raise ValueError(f"The root of the data must be {names}, got {type(data).__name__}")
    return data


def as_int(obj: Any, quiet: bool = False) -> Any:
    """Convert a value to an int. Fractions are truncated.

    :param quiet: return the value unchanged if it cannot be converted.
    :raises TypeError: if it cannot be converted and `quiet` is False.
    """
    for convert in (int, float):
        try:
            return int(convert(obj))
        except (OverflowError, TypeError, ValueError):
            pass
    if quiet:
        return obj
    raise TypeError(f"{obj!r} cannot be converted to a whole number")


def clamp(
    value: _Number,
    minimum: _Number,
    maximum: _Number,
    on_clamped: Callable[[], Any] | None = None,
) -> _Number:
    """Limit a value to a range. Call `on_clamped()` if the value was outside.

    :raises ValueError: if `minimum` is greater than `maximum`.
    """
    if minimum > maximum:
        raise ValueError(
            f"The minimum must not be more than the maximum, got {minimum!r} and {maximum!r}"
        )
    clamped = min(max(value, minimum), maximum)
    if clamped != value and on_clamped is not None:
        on_clamped()
    return clamped


@contextlib.contextmanager
def capture_failure() -> Iterator[failure.Failure]:
    """Yield the current exception as a `Failure`, for use in the `with` block.

    ::

        try:
            connect()
        except OSError:
            with misc.capture_failure() as fail:
                clean_up()  # may raise and handle other exceptions
                report(fail)

    :raises RuntimeError: if no exception is being handled.
    """
    if sys.exc_info()[1] is None:
        raise RuntimeError("No active exception is being handled")
    yield failure.Failure()


class _Uri(urllib.parse.SplitResult):
    def params(self, collapse: bool = True) -> dict[str, Any]:
        """Return the query as a dict.

        With `collapse`, a repeated name has its last value; otherwise a list of all its values.
        """
        values_by_name = urllib.parse.parse_qs(self.query)
        if not collapse:
            return {name: one if one[1:] else one[0] for name, one in values_by_name.items()}
        return {name: values[-1] for name, values in values_by_name.items()}


def parse_uri(uri: str) -> _Uri:
    """Split a URI.

    :raises TypeError: if it is not a str.
    :raises ValueError: if it does not begin with a scheme.
    """
    if not isinstance(uri, str):
        raise TypeError(f"A URI must be a str, got {uri!r}")
    parts = urllib.parse.urlsplit(uri)
    if not parts.scheme:
        raise ValueError(f"A URI must begin with a scheme (as in 'name://'), got {uri!r}")
    return _Uri(*parts)

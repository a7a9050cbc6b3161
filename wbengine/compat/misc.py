"""Small functions about texts, numbers, URIs and failures."""

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
    """What a JSON text says, if it is of one of `root_types` (nothing: of any).

    :raises ValueError: it is not, or it is no JSON in UTF-8.
    """
    try:
        data = json.loads(raw_data.decode() if isinstance(raw_data, bytes) else raw_data)
    except UnicodeDecodeError as error:
        raise ValueError(f"Expected UTF-8 decodable data: {error}") from error
    except ValueError as error:
        raise ValueError(f"Expected JSON decodable data: {error}") from error
    wanted = (root_types,) if isinstance(root_types, type) else tuple(root_types)
    if wanted and not isinstance(data, wanted):
        names = " or ".join(kind.__name__ for kind in wanted)
        raise ValueError(f"Expected {names} as the root of the data, not {type(data).__name__}")
    return data


def as_int(obj: Any, quiet: bool = False) -> Any:
    """`obj` as a whole number, cut off if need be; `quiet`: or as it is.

    :raises TypeError: it cannot be one, and `quiet` is false.
    """
    for convert in (int, float):
        try:
            return int(convert(obj))
        except (OverflowError, TypeError, ValueError):
            pass
    if quiet:
        return obj
    raise TypeError(f"{obj!r} cannot be made a whole number")


def clamp(
    value: _Number,
    minimum: _Number,
    maximum: _Number,
    on_clamped: Callable[[], Any] | None = None,
) -> _Number:
    """`value`, or the end of the range that it is beyond, and `on_clamped()` is called then.

    :raises ValueError: `minimum` is more than `maximum`.
    """
    if minimum > maximum:
        raise ValueError(f"The minimum {minimum!r} must not be more than the maximum {maximum!r}")
    found = min(max(value, minimum), maximum)
    if found != value and on_clamped is not None:
        on_clamped()
    return found


@contextlib.contextmanager
def capture_failure() -> Iterator[failure.Failure]:
    """Keep the exception being handled as a `Failure`, whatever happens inside.

    ::

        try:
            connect()
        except OSError:
            with misc.capture_failure() as fail:
                clean_up()  # may raise and handle exceptions of its own
                report(fail)

    :raises RuntimeError: no exception is being handled.
    """
    if sys.exc_info()[1] is None:
        raise RuntimeError("No active exception is being handled")
    yield failure.Failure()


class _Uri(urllib.parse.SplitResult):
    """The parts of a URI."""

    def params(self, collapse: bool = True) -> dict[str, Any]:
        """The query; of a name that is there several times the last value, or a list of all."""
        found = urllib.parse.parse_qs(self.query)
        if not collapse:
            return {name: one if one[1:] else one[0] for name, one in found.items()}
        return {name: values[-1] for name, values in found.items()}


def parse_uri(uri: str) -> _Uri:
    """Split a URI.

    :raises TypeError: it is no text.
    :raises ValueError: it does not begin with a scheme.
    """
    if not isinstance(uri, str):
        raise TypeError(f"A URI is a str, not {uri!r}")
    parts = urllib.parse.urlsplit(uri)
    if not parts.scheme:
        raise ValueError(f"URI {uri!r} does not begin with a scheme (as in 'name://')")
    return _Uri(*parts)

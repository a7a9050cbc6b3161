"""Small functions about texts, numbers, URIs and values."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import importlib
import inspect
import io
import json
import os
import socket
import sys
import threading
import types
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

from wbengine import _names
from wbengine.types import failure

__all__ = [
    "BytesIO",
    "NUMERIC_TYPES",
    "StrEnum",
    "StringIO",
    "UNKNOWN_HOSTNAME",
    "as_int",
    "binary_decode",
    "binary_encode",
    "cachedproperty",
    "capture_failure",
    "clamp",
    "countdown_iter",
    "decode_json",
    "decode_msgpack",
    "disallow_when_frozen",
    "extract_driver_and_conf",
    "find_subclasses",
    "fix_newlines",
    "get_hostname",
    "get_version_string",
    "is_iterable",
    "match_type",
    "merge_uri",
    "millis_to_datetime",
    "parse_uri",
    "pick_first_not_none",
    "reverse_enumerate",
    "safe_copy_dict",
    "sequence_minus",
]

_T = TypeVar("_T")
_Number = TypeVar("_Number", int, float)

UNKNOWN_HOSTNAME: Final = "<unknown>"
NUMERIC_TYPES: Final = (int, float)


class StrEnum(str, Enum):
    """An enumeration of texts."""

    __str__ = str.__str__


# -- texts ------------------------------------------------------------------------------------


class StringIO(io.StringIO):
    """A text in memory that can be written line by line."""

    def write_nl(self, value: str, linesep: str = os.linesep) -> None:
        self.write(value + linesep)


class BytesIO(io.BytesIO):
    """Bytes in memory that can be emptied."""

    def reset(self) -> None:
        self.seek(0)
        self.truncate()


def fix_newlines(text: str, replacement: str = os.linesep) -> str:
    """The lines of a text with one kind of end between them, and none behind the last."""
    return replacement.join(text.splitlines())


def binary_encode(text: str | bytes, encoding: str = "utf-8", errors: str = "strict") -> bytes:
    """Bytes of a text; bytes stay as they are.

    :raises TypeError: neither of the two.
    """
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise TypeError(f"A str or bytes can be encoded, not {text!r}")
    return text.encode(encoding, errors)


def binary_decode(data: str | bytes, encoding: str = "utf-8", errors: str = "strict") -> str:
    """The text of bytes; a text stays as it is.

    :raises TypeError: neither of the two.
    """
    if isinstance(data, str):
        return data
    if not isinstance(data, bytes):
        raise TypeError(f"Bytes or a str can be decoded, not {data!r}")
    return data.decode(encoding, errors)


def decode_json(raw_data: str | bytes, root_types: type | Collection[type] = (dict,)) -> Any:
    """What a JSON text says, if it is of one of `root_types` (nothing: of any).

    :raises ValueError: it is not, or it is no JSON in UTF-8.
    """
    try:
        data = json.loads(binary_decode(raw_data))
    except UnicodeDecodeError as error:
        raise ValueError(f"Expected UTF-8 decodable data: {error}") from error
    except ValueError as error:
        raise ValueError(f"Expected JSON decodable data: {error}") from error
    return _checked(data, root_types)


def decode_msgpack(raw_data: bytes, root_types: type | Collection[type] = (dict,)) -> Any:
    """What bytes in the format of msgpack (which has to be installed) say; see `decode_json`.

    :raises ValueError: as `decode_json`.
    """
    unpack = importlib.import_module("msgpack").unpackb
    try:
        data = unpack(raw_data)
    except Exception as error:
        raise ValueError(f"Expected msgpack decodable data: {error}") from error
    return _checked(data, root_types)


def _checked(data: Any, root_types: type | Collection[type]) -> Any:
    wanted = (root_types,) if isinstance(root_types, type) else tuple(root_types)
    if wanted and not isinstance(data, wanted):
        names = " or ".join(kind.__name__ for kind in wanted)
        raise ValueError(f"Expected {names} as the root of the data, not {type(data).__name__}")
    return data


# -- numbers and times ------------------------------------------------------------------------


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


def countdown_iter(start_at: _Number, decr: _Number = 1) -> Iterator[_Number]:
    """From `start_at` down in steps of `decr`, above 0.

    :raises ValueError: `decr` is not above 0.
    """
    if decr <= 0:
        raise ValueError(f"A countdown goes by more than 0, not by {decr!r}")
    while start_at > 0:
        yield start_at
        start_at -= decr


def millis_to_datetime(milliseconds: float | str) -> dt.datetime:
    """The local time so many milliseconds after the beginning of 1970."""
    return dt.datetime.fromtimestamp(float(milliseconds) / 1000)


# -- values -----------------------------------------------------------------------------------


def is_iterable(obj: Any) -> bool:
    """Can one go through it?  A text is no collection here."""
    return isinstance(obj, Iterable) and not isinstance(obj, str)


def match_type(obj: Any, matchers: Iterable[tuple[Any, _T]]) -> _T | None:
    """What the first of `(types, value)` has for the type of `obj`; None: no one has it."""
    return next((value for kinds, value in matchers if isinstance(obj, kinds)), None)


def pick_first_not_none(*values: _T | None) -> _T | None:
    return next((value for value in values if value is not None), None)


def reverse_enumerate(items: Sequence[_T]) -> Iterator[tuple[int, _T]]:
    """`(place, item)`, the last one first."""
    return zip(range(len(items) - 1, -1, -1), reversed(items), strict=True)


def safe_copy_dict(obj: Mapping[Any, Any] | None) -> dict[Any, Any]:
    """A shallow copy; of None, and of nothing, an empty dict."""
    return dict(obj or {})


def sequence_minus(seq1: Iterable[_T], seq2: Iterable[_T]) -> list[_T]:
    """The items of the first in order, each of the second taken away once; they need no hash."""
    left = list(seq1)
    for item in seq2:
        if item in left:
            left.remove(item)
    return left


def get_version_string(obj: Any) -> str | None:
    """`obj.version` as a text: `(1, 0)` is "1.0"; None if it has none."""
    version = getattr(obj, "version", None)
    if isinstance(version, list | tuple):
        return ".".join(map(str, version))
    return None if version is None else str(version)


def get_hostname(unknown_hostname: str = UNKNOWN_HOSTNAME) -> str:
    """The full name of this host."""
    try:
        return socket.getfqdn() or unknown_hostname
    except OSError:
        return unknown_hostname


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


# -- URIs -------------------------------------------------------------------------------------


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


def merge_uri(uri: _Uri, conf: dict[str, Any]) -> dict[str, Any]:
    """Add what a URI says of user, host, port and parameters to `conf`, unless that says it."""
    host = uri.hostname
    if host and uri.port is not None:
        host = f"{host}:{uri.port}"
    told = {"username": uri.username, "password": uri.password, "hostname": host}
    for name, value in told.items():
        if value:
            conf.setdefault(name, value)
    if uri.port is not None:
        conf.setdefault("port", uri.port)
    for name, value in uri.params().items():
        conf.setdefault(name, value)
    return conf


def extract_driver_and_conf(conf: Any, conf_key: str) -> tuple[str, dict[str, Any]]:
    """`(driver, options)` from a dict whose `conf_key` has a name or a URI; or from that alone."""
    known: dict[str, Any] = {conf_key: conf} if isinstance(conf, str) else conf
    try:
        uri = parse_uri(known[conf_key])
    except (TypeError, ValueError):
        return known[conf_key], known
    return uri.scheme, merge_uri(uri, dict(known))


# -- classes ----------------------------------------------------------------------------------


def find_subclasses(
    locations: Iterable[Any], base_cls: type, exclude_hidden: bool = True
) -> set[type]:
    """The subclasses of `base_cls` in modules (or their names), and 'module:class'es or classes.

    :raises TypeError: one of `locations` is something else, or no such class.
    """
    found: set[type] = set()
    for place in locations:
        given = place
        if isinstance(place, str):
            name, colon, cls = place.partition(":")
            given = _names.load(f"{name}.{cls}") if colon else importlib.import_module(name)
        if isinstance(given, types.ModuleType):
            found.update(
                value
                for name, value in inspect.getmembers(given, inspect.isclass)
                if issubclass(value, base_cls) and not (exclude_hidden and name.startswith("_"))
            )
        elif isinstance(given, type) and issubclass(given, base_cls):
            found.add(given)
        else:
            raise TypeError(f"{place!r} is neither a module nor a subclass of {base_cls!r}")
    return found


def disallow_when_frozen(
    excp_cls: type[BaseException],
) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """A decorator of methods that raise `excp_cls` once their object is `frozen`."""

    def decorate(method: Callable[..., _T]) -> Callable[..., _T]:
        @functools.wraps(method)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> _T:
            if self.frozen:
                raise excp_cls()
            return method(self, *args, **kwargs)

        return guarded

    return decorate


class cachedproperty:
    """A property that is computed once, and kept in `_<name>` of the object.

    `@cachedproperty("attribute")` keeps it there; with `require_lock=False` two threads may compute
    it at a time.
    """

    def __init__(self, fget: Any = None, require_lock: bool = True) -> None:
        self._lock: Any = threading.RLock() if require_lock else contextlib.nullcontext()
        self._attribute: str | None = fget if isinstance(fget, str) else None
        self._compute: Callable[[Any], Any]
        if callable(fget):
            self(fget)

    def __call__(self, fget: Callable[[Any], Any]) -> cachedproperty:
        self._compute = fget
        self._attribute = self._attribute or f"_{fget.__name__}"
        self.__doc__ = fget.__doc__
        return self

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        name = str(self._attribute)
        if not hasattr(instance, name):
            with self._lock:
                if not hasattr(instance, name):
                    setattr(instance, name, self._compute(instance))
        return getattr(instance, name)

    def __set__(self, instance: Any, value: Any) -> None:
        raise AttributeError("can't set attribute")

    def __delete__(self, instance: Any) -> None:
        raise AttributeError("can't delete attribute")

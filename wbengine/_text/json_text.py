"""Fast reading and writing of JSON text, with the results of Python's `json`.

orjson is used if it is installed and its result is certainly equal. For writing, its output must
not contain `null`, with which it replaces NaN and infinities. For reading, writing the result again
must return the same text (no rounded numbers, no repeated keys). Otherwise `json` is used.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from wbengine import exceptions

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

#: Maximum number of decimal digits of an integer: Python's default limit.
MAX_DIGITS: Final = 4300

_CONTAINERS: Final = (dict, list)

#: Maximum size of output that is copied to save memory.
_MAX_COPIED_BYTES: Final = 2048


def writer(allow_nan: bool) -> Callable[[Any], str]:
    """Return a function that writes trees as compact JSON text. It keeps lone surrogates."""
    return json.JSONEncoder(
        ensure_ascii=False, check_circular=False, allow_nan=allow_nan, separators=(",", ":")
    ).encode


text_of: Final = writer(allow_nan=False)
_sorted_text: Final = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, allow_nan=False, separators=(",", ":")
).encode


def encode(tree: Any, errors: str = "strict", *, finite: bool = False) -> bytes:
    """Return a tree of dicts, lists, strings, numbers, booleans and None as compact UTF-8 JSON.

    :param errors: the handling of lone surrogates, as for `str.encode`.
    :param finite: whether the tree is known to contain no NaN or infinity. This saves an expensive
        check of long texts.
    :raises ValueError, TypeError, RecursionError: if the tree cannot be written.
    """
    if orjson is not None:
        try:
            data = orjson.dumps(tree, None, _OPTIONS)
            # orjson writes NaN and infinities as null.
            if finite or b"null" not in data or orjson.loads(data) == tree:
                # Objects that orjson creates occupy at least 4 KB, and requests stay in memory.
                return b"%b" % data if len(data) < _MAX_COPIED_BYTES else data
        except (TypeError, ValueError):
            pass  # Long integers, lone surrogates, keys other than strings, or unsupported types.
    return text_of(tree).encode("utf-8", errors)


def canonical(tree: Any) -> bytes:
    """Return compact JSON for signatures. Equal values have equal texts, whatever the key order.

    :raises ValueError, TypeError, RecursionError: if the tree cannot be written, for example an
        infinity.
    """
    if orjson is not None and _is_written_alike((tree,)):
        try:
            return orjson.dumps(tree, None, _SORTED)
        except (TypeError, ValueError):
            pass
    return _sorted_text(tree).encode("utf-8", "surrogatepass")


def _is_written_alike(values: Iterable[Any]) -> bool:
    """Return True if orjson writes the numbers as Python does. It differs for exponents."""
    for value in values:
        kind = type(value)
        if kind is str or kind is int:
            continue
        if kind is float:
            if not (1e-4 <= abs(value) < 1e16 or value == 0.0):
                return False
        elif kind is dict:
            if not _is_written_alike(value.values()):
                return False
        elif (kind is list or kind is tuple) and not _is_written_alike(value):
            return False
    return True


def decode(data: bytes) -> Any:
    """Read JSON that orjson writes identically, so that the result is unambiguous.

    :raises ValueError, TypeError: if it differs, or orjson is not installed.
    """
    if orjson is None:
        raise ValueError("orjson is not there")
    tree = orjson.loads(data)
    if orjson.dumps(tree) != data:
        raise ValueError("not as it is written")
    return tree


def parse(data: bytes | bytearray | memoryview | str) -> tuple[Any, bool]:
    """Return the tree, and whether it may contain lone surrogates.

    :raises InvalidFormat: if the text is not strict JSON in UTF-8, or contains NaN, infinities
        (also by overflow), repeated keys, or integers over 4,300 digits.
    """
    if orjson is not None and type(data) is bytes:
        try:
            return decode(data), False
        except (ValueError, TypeError):
            pass
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise exceptions.InvalidFormat(f"not UTF-8: {error}") from None
    escaped = "\\" in text and ("\\ud" in text or "\\uD" in text)
    # `_reader` is faster. It relies on Python's own limit on digits, if that has its default value.
    reader = _reader if _max_digits() == MAX_DIGITS else _careful_reader
    try:
        tree = reader.decode(text)
    except (ValueError, RecursionError) as error:
        raise exceptions.InvalidFormat(f"not acceptable JSON: {str(error)[:200]}") from None
    return tree, escaped or isinstance(data, str)


def is_text(value: str) -> bool:
    """Return True if UTF-8 can encode the string, so that it contains no lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def has_more_containers(data: bytes, max_count: int) -> bool:
    """Return True if JSON text may contain more than `most` containers."""
    opening_count = 0
    for mark in (b"{", b"["):  # `find` is faster than counting all bytes.
        position = data.find(mark)
        while position >= 0 and opening_count <= max_count:
            opening_count += 1
            position = data.find(mark, position + 1)
    return opening_count > max_count


def is_deeper(tree: Any, depth: int) -> bool:
    level = [tree] if type(tree) in _CONTAINERS else []
    for _ in range(depth):
        if not level:
            return False
        items = itertools.chain.from_iterable(
            container.values() if type(container) is dict else container for container in level
        )
        level = [item for item in items if type(item) in _CONTAINERS]
    return bool(level)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"key {twice[:100]!r} is repeated")
    return result


def read_float(text: str) -> float:
    """Read a number.

    :raises ValueError: if it overflows.
    """
    value = float(text)
    if value - value != 0.0:
        raise ValueError(f"{text[:100]} is not a JSON number")
    return value


def _read_int(text: str) -> int:
    if len(text) > MAX_DIGITS + text.startswith("-"):
        raise ValueError(f"an integer has more than {MAX_DIGITS} digits")
    return int(text)


_max_digits: Callable[[], int | None] = getattr(sys, "get_int_max_str_digits", lambda: None)

_reader: Final = json.JSONDecoder(
    object_pairs_hook=_read_object, parse_constant=_no_constant, parse_float=read_float
)
_careful_reader: Final = json.JSONDecoder(
    object_pairs_hook=_read_object,
    parse_constant=_no_constant,
    parse_float=read_float,
    parse_int=_read_int,
)

_OPTIONS: Final = (
    0
    if orjson is None
    else orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
_SORTED: Final = 0 if orjson is None else _OPTIONS | orjson.OPT_SORT_KEYS

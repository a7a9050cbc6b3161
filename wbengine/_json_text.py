"""JSON text: written and read by the fastest that makes of it what Python's own does.

orjson does, if it is there, wherever that can be told at once: what it wrote without a `null` has
no number left out, and what it reads and writes again as it was has nothing rounded or repeated.
All else is done by Python's own.
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

#: Longest integer, in decimal digits: what Python itself reads by default.
MAX_DIGITS: Final = 4300

_CONTAINERS: Final = (dict, list)

#: Texts below so many bytes are copied into as much memory as they need.
_ROOM: Final = 2048


def writer(allow_nan: bool) -> Callable[[Any], str]:
    """What writes trees as compact JSON text, which may hold lone surrogates where they do."""
    return json.JSONEncoder(
        ensure_ascii=False, check_circular=False, allow_nan=allow_nan, separators=(",", ":")
    ).encode


text_of: Final = writer(allow_nan=False)
_sorted_text: Final = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, allow_nan=False, separators=(",", ":")
).encode


def encode(tree: Any, errors: str = "strict", *, finite: bool = False) -> bytes:
    """Compact UTF-8 JSON of a tree of dicts, lists, strings, numbers, booleans and None.

    `errors`: what becomes of lone surrogates.  `finite`: it holds no NaN and no infinities, as what
    `_codec.pack` makes; that takes a while to find out of a long text.

    :raises ValueError, TypeError, RecursionError: it cannot be written.
    """
    if orjson is not None:
        try:
            data = orjson.dumps(tree, None, _OPTIONS)
            # Of what is no number it makes null.
            if finite or b"null" not in data or orjson.loads(data) == tree:
                # What orjson gives is never less than 4 KB of memory, and requests are kept.
                return b"%b" % data if len(data) < _ROOM else data
        except (TypeError, ValueError):
            pass  # long integers, lone surrogates, keys that are no strings, or what is no tree
    return text_of(tree).encode("utf-8", errors)


def canonical(tree: Any) -> bytes:
    """As `encode`, the same for the same values, whatever the order of keys; it is not read again.

    :raises ValueError, TypeError, RecursionError: it cannot be written, such as an infinity.
    """
    if orjson is not None and _is_written_alike((tree,)):
        try:
            return orjson.dumps(tree, None, _SORTED)
        except (TypeError, ValueError):
            pass
    return _sorted_text(tree).encode("utf-8", "surrogatepass")


def _is_written_alike(values: Iterable[Any]) -> bool:
    """Whether orjson writes the numbers in trees as Python does: those without an exponent."""
    for value in values:
        kind = type(value)
        if kind is str or kind is int:  # nearly all
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
    """The tree of JSON that is as orjson writes it, and as nothing else could be read.

    :raises ValueError, TypeError: it is not so, or orjson is not there.
    """
    if orjson is None:
        raise ValueError("orjson is not there")
    tree = orjson.loads(data)
    if orjson.dumps(tree) != data:
        raise ValueError("not as it is written")
    return tree


def parse(data: bytes | bytearray | memoryview | str) -> tuple[Any, bool]:
    """The tree, and whether lone surrogates may be in it.

    :raises InvalidFormat: it is not strict JSON in UTF-8, or holds NaN or infinities (also by
        overflow), repeated keys, or integers over 4,300 digits.
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
    # Python's own limit is faster than ours, where it is there and not changed.
    reader = _reader if _max_digits() == MAX_DIGITS else _careful_reader
    try:
        tree = reader.decode(text)
    except (ValueError, RecursionError) as error:
        raise exceptions.InvalidFormat(f"not acceptable JSON: {str(error)[:200]}") from None
    return tree, escaped or isinstance(data, str)


def is_text(value: str) -> bool:
    """Whether UTF-8 can have it: there are no lone surrogates in it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def opens_more(data: bytes, most: int) -> bool:
    """Whether JSON text may open more than so many containers."""
    found = 0
    for mark in (b"{", b"["):  # counting looks at each byte, finding does not
        place = data.find(mark)
        while place >= 0 and found <= most:
            found += 1
            place = data.find(mark, place + 1)
    return found > most


def is_deeper(tree: Any, depth: int) -> bool:
    """Whether more than `depth` containers stand inside each other."""
    level = [tree] if type(tree) in _CONTAINERS else []
    for _ in range(depth):
        if not level:
            return False
        items = itertools.chain.from_iterable(
            one.values() if type(one) is dict else one for one in level
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
    """
    :raises ValueError: it overflows.
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

"""Options of engines and backends, given by name: in a dict, or in a URI, where all are words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import _names

__all__ = [
    "Reader", "anything", "check_known", "choice", "complete", "flag", "number", "read", "text",
    "whole",
]  # fmt: skip

#: What makes of an option, by its name and the value that was given, the value that is used.
Reader = Callable[[str, Any], Any]

#: The least number that is too much for a float.
_TOO_MUCH: Final = 2**1024

_FLAGS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "t", "true", "on", "y", "yes"), True),
    **dict.fromkeys(("0", "f", "false", "off", "n", "no"), False),
}


def check_known(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names of options that `what` does not know; their values are not looked at.

    :raises ValueError: naming the first of them, the nearest there is, and those there are.
    """
    choices = sorted(known)
    for name in given:
        if name not in choices:
            raise ValueError(
                f"{what} has no option {name!r}{_names.hint(str(name), choices)};"
                f" it knows: {', '.join(choices)}"
            )


def read(what: str, given: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Options that were given, each as its reader returns it; those that are None are left out.

    :raises ValueError: `what` has no such option, or a reader refuses a value.
    """
    check_known(what, given, readers)
    return {name: readers[name](name, value) for name, value in given.items() if value is not None}


def flag(name: str, value: Any) -> bool:
    """Read a boolean option, which may be a word ('true', 'no', ...) when it came by URI.

    :raises ValueError: another word.
    """
    if isinstance(value, str):
        try:
            return _FLAGS[value.strip().lower()]
        except KeyError:
            raise ValueError(
                f"Option {name}={value!r} is neither true nor false ({', '.join(_FLAGS)})"
            ) from None
    return bool(value)


def whole(name: str, value: Any, least: int = 0) -> int:
    """Read an integer option, which may be a word.

    :raises ValueError: it is no integer, or less than `least`.
    """
    try:
        found = int(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if isinstance(found, bool) or not isinstance(found, int) or found < least:
        raise ValueError(f"Option {name}={value!r} is no whole number of {least} or more")
    return found


def choice(name: str, value: Any, known: Sequence[str]) -> str:
    """Read an option that is one of some words.

    :raises ValueError: it is none of them.
    """
    if value not in known:
        near = _names.hint(value, known) if isinstance(value, str) else ""
        raise ValueError(f"Option {name} is one of {', '.join(known)}, not {value!r}{near}")
    return str(value)


def number(name: str, value: Any) -> float:
    """Read an option that is a number of none or more, which may be a word.

    :raises ValueError: it is none, or it is negative, infinite or NaN.
    """
    try:
        found = float(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < _TOO_MUCH:
        raise ValueError(f"Option {name}={value!r:.80} is no number of 0 or more")
    return float(found)


def text(name: str, value: Any) -> str:
    """Read an option that is a text, and not an empty one.

    :raises ValueError: it is not.
    """
    if not isinstance(value, str) or not value:
        raise ValueError(f"Option {name}={value!r} is no text")
    return value


def anything(name: str, value: Any) -> Any:
    """An option that is taken as it is given."""
    return value


def complete(what: str, given: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were given, as a dict, and for the others their defaults.

    :raises TypeError: they are no dict.
    :raises ValueError: there is no such option.
    """
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"{what} must be a dict, not {given!r}")
    check_known(what, given or (), defaults)
    return {**defaults, **(given or {})}

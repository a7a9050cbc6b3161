"""Named options of engines and backends, from a dict, or as strings from a URI."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine._introspection import object_names

__all__ = [
    "Reader", "anything", "check_known", "choice", "complete", "flag", "number", "option",
    "option_names", "read", "text", "whole",
]  # fmt: skip

#: Converts the value of an option, given its name and this value.
Reader = Callable[[str, Any], Any]

#: The smallest integer that a float cannot represent.
_FLOAT_LIMIT: Final = 2**1024

_FLAGS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "t", "true", "on", "y", "yes"), True),
    **dict.fromkeys(("0", "f", "false", "off", "n", "no"), False),
}


def check_known(
    what: str, given: Iterable[str], known: Iterable[str], arguments: Iterable[str] = ()
) -> None:
    """Reject unknown option names.

    :param arguments: names of other arguments of the caller, for suggestions.
    :raises ValueError: if a name is unknown; the message contains the closest match and all valid
        names.
    """
    choices = sorted(known)
    for name in given:
        if name not in choices:
            near = object_names.hint(str(name), [*choices, *arguments])
            raise ValueError(
                f"{what}: unknown option {name!r}{near}; known options:"
                f" {', '.join(choices) or 'none'}"
            )


def read(what: str, given: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return the given options, converted by their readers. Omit options that are None.

    :raises ValueError: if an option is unknown or a reader rejects its value.
    """
    check_known(what, given, readers)
    return {name: readers[name](name, value) for name, value in given.items() if value is not None}


def flag(name: str, value: Any) -> bool:
    """Read a boolean option. In a URI it is a word ('true', 'no', ...).

    :raises ValueError: for any other word.
    """
    if isinstance(value, str):
        try:
            return _FLAGS[value.strip().lower()]
        except KeyError:
            raise ValueError(
                f"Option {name} must be true or false ({', '.join(_FLAGS)}), got {value!r}"
            ) from None
    return bool(value)


def whole(name: str, value: Any, least: int = 0) -> int:
    """Read an integer option, which may be a string.

    :raises ValueError: if it is not an integer, or less than `least`.
    """
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ValueError(f"Option {name} must be a whole number of {least} or more, got {value!r}")
    return number


def choice(name: str, value: Any, known: Sequence[str]) -> str:
    """Read an option that must be one of several words.

    :raises ValueError: for any other value.
    """
    if value not in known:
        near = object_names.hint(value, known) if isinstance(value, str) else ""
        raise ValueError(f"Option {name} must be one of {', '.join(known)}, got {value!r}{near}")
    return str(value)


def number(name: str, value: Any) -> float:
    """Read a number option of at least 0, which may be a string.

    :raises ValueError: if it is not a finite number of at least 0.
    """
    try:
        converted = float(value) if isinstance(value, str) else value
    except ValueError:
        converted = None
    if (
        isinstance(converted, bool)
        or not isinstance(converted, int | float)
        or not 0 <= converted < _FLOAT_LIMIT
    ):
        raise ValueError(f"Option {name} must be a number of 0 or more, got {value!r:.80}")
    return float(converted)


def text(name: str, value: Any) -> str:
    """Read an option that must be a non-empty string.

    :raises ValueError: for any other value.
    """
    if not isinstance(value, str) or not value:
        raise ValueError(f"Option {name} must be a non-empty string, got {value!r}")
    return value


def anything(name: str, value: Any) -> Any:
    """Return the value of an option unchanged."""
    return value


def complete(what: str, given: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options as a dict, completed by defaults.

    :raises TypeError: if they are not a dict.
    :raises ValueError: if an option is unknown.
    """
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"{what} must be a dict, got {given!r}")
    check_known(what, given or (), defaults)
    return {**defaults, **(given or {})}


def option(default: object, doc: str) -> Any:
    """Return a field of a dataclass of options.

    :param doc: its description in the documentation.
    """
    return dataclasses.field(default=default, metadata={"doc": doc})


def option_names(options: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass of options."""
    return tuple(each.name for each in dataclasses.fields(options))

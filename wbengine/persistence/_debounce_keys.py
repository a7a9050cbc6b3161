"""Keys of submissions of which only the last one in a time runs."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Self

from wbengine._configuration import named_options
from wbengine._introspection import object_names
from wbengine._text import terminal_text

__all__ = ["DebounceKey", "pair"]

#: Start of stored names. Names of unique keys have no leading blank.
_PREFIX: Final = " debounce "


class DebounceKey(NamedTuple):
    """A key of submissions that replace each other until their flow starts.

    :ivar name: the stored name, in the table of unique keys.
    :ivar seconds: time from a submission to the start.
    :ivar max_seconds: maximum time from the first submission to the start; None: unlimited.
    """

    name: str
    seconds: float
    max_seconds: float | None

    @classmethod
    def of(cls, debounce: Any, max_seconds: Any) -> Self | None:
        """Create the key from the options of a submission; return None without `debounce`.

        :raises ValueError: if an option is invalid.
        """
        if debounce is None:
            if max_seconds is not None:
                raise ValueError("debounce_max= requires debounce=")
            return None
        if not isinstance(debounce, tuple | list) or len(debounce) != 2:
            raise ValueError(f"debounce must be a key and seconds, got {debounce!r:.80}")
        key, delay = debounce
        if not (isinstance(key, str) and terminal_text.is_trimmed(key)):
            raise ValueError(
                "Key of debounce must be printable characters without surrounding blanks, got"
                f" {key!r:.80}"
            )
        max_length = object_names.MAX_NAME_LENGTH - len(_PREFIX)
        object_names.check_length("Key of debounce", key, max_length)
        seconds = named_options.number("debounce", delay)
        if max_seconds is None:
            return cls(_PREFIX + key, seconds, None)
        return cls(_PREFIX + key, seconds, named_options.number("debounce_max", max_seconds))

    def delay(self, remaining: float | None) -> float:
        """Return the seconds from now to the start, if this many remain of the maximum."""
        return self.seconds if remaining is None else max(0.0, min(self.seconds, remaining))


def pair(key: str | None, seconds: float | None) -> tuple[str, float] | None:
    """Return the argument `debounce` of a submission from two parameters.

    :raises ValueError: if one of them is missing.
    """
    if key is None and seconds is None:
        return None
    if key is None or seconds is None:
        raise ValueError("debounce and debounce_for must be given together")
    return key, seconds

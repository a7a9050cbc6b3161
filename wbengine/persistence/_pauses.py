"""Pauses of task types: operators hold back the tasks of a type in all flows of a store."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

__all__ = [
    "MAX_PATTERN_CHARACTERS",
    "MAX_REASON_CHARACTERS",
    "PATTERN_SCHEMA",
    "QueuePause",
    "TaskPause",
    "pause_of",
    "patterns_of",
]

MAX_PATTERN_CHARACTERS: Final = 200
MAX_REASON_CHARACTERS: Final = 500

_SURROGATE: Final = re.compile("[\\ud800-\\udfff]")
#: Letters and digits of all scripts, and `_.*?[]!<>-`. In JSON schemas, \w has only ASCII letters.
_PATTERN: Final = re.compile(r"[^\x00-\x20\"-)+,/:;=@\\^`{-\xa0\u2028-\u202f\u2066-\u2069]+")
#: JSON schema of a pattern.
PATTERN_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": "the dotted name of a class or function, which may contain * and ?, with at"
    f" most {MAX_PATTERN_CHARACTERS} characters",
    "pattern": f"^{_PATTERN.pattern}$",
    "maxLength": MAX_PATTERN_CHARACTERS,
}


class QueuePause(NamedTuple):
    """A pause of a queue of flows, or of all queues (`name` is then '*').

    :ivar since: start, in Unix seconds.
    """

    name: str
    since: float
    by: str | None = None
    reason: str | None = None


class TaskPause(NamedTuple):
    """A pause of the task types that match a pattern. Running tasks continue.

    :ivar pattern: dotted name of a class or function, with the wildcards of `fnmatch`
        (`billing.*`).
    :ivar since: start, in Unix seconds.
    :ivar until: end, in Unix seconds; None: until `remove_pause`.
    """

    pattern: str
    reason: str | None = None
    by: str | None = None
    since: float = 0.0
    until: float | None = None

    def matches(self, task_type: str) -> bool:
        return fnmatch.fnmatchcase(task_type, self.pattern)

    def is_over(self, now: float) -> bool:
        return self.until is not None and self.until <= now

    def check(self) -> None:
        """Validate the pause.

        :raises ValueError: if the pattern or a time is invalid.
        :raises TypeError: if a value has a wrong type.
        """
        for name, value in (("pattern", self.pattern), ("reason", self.reason), ("by", self.by)):
            if not isinstance(value, str) and (value is not None or name == "pattern"):
                raise TypeError(f"The {name} of a pause must be a str, got {value!r:.80}")
            if value is not None and not value.isascii() and _SURROGATE.search(value):
                raise ValueError(f"The {name} of a pause must be valid Unicode, got {value!r:.80}")
        if not _PATTERN.fullmatch(self.pattern) or len(self.pattern) > MAX_PATTERN_CHARACTERS:
            raise ValueError(
                f"The pattern of a pause must be {PATTERN_SCHEMA['description']},"
                f" got {self.pattern!r:.220}"
            )
        if self.reason is not None and len(self.reason) > MAX_REASON_CHARACTERS:
            raise ValueError(
                f"The reason of a pause must have at most {MAX_REASON_CHARACTERS} characters,"
                f" got {len(self.reason)}"
            )

    def describe(self) -> str:
        sender = f" by {self.by}" if self.by else ""
        length = "" if self.until is None else f" for {self.until - self.since:.0f} s"
        return f"paused{sender}{length}{f': {self.reason}' if self.reason else ''}"

    @property
    def text(self) -> str:
        """The pattern, and by whom and why it is paused."""
        sender = f" by {self.by}" if self.by else ""
        return f"{self.pattern}{sender}{f': {self.reason}' if self.reason else ''}"

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


def pause_of(task_type: str, pauses: tuple[TaskPause, ...], now: float) -> TaskPause | None:
    """Return the pause that holds back a task type longest, or None."""
    matching = [pause for pause in pauses if pause.matches(task_type) and not pause.is_over(now)]
    return max(matching, key=lambda pause: pause.until or float("inf"), default=None)


def patterns_of(value: object) -> tuple[str, ...]:
    """Return the patterns in a field of `meta`, which can contain any value."""
    patterns = value if isinstance(value, list | tuple) else ()
    return tuple(pattern for pattern in patterns if isinstance(pattern, str))

"""The place of a job among those that wait: its queue, its key, its weight and its priority."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from wbengine._introspection import object_names
from wbengine._tasks import limit_attributes
from wbengine._text import terminal_text

__all__ = [
    "ALL_QUEUES", "DEFAULT_QUEUE", "QUEUE_PATTERN", "JobPriority", "Place", "check_queue",
    "check_queues",
]  # fmt: skip

DEFAULT_QUEUE: Final = "default"
#: Stands for all queues.
ALL_QUEUES: Final = "*"
#: Pattern of the names of queues.
QUEUE_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$"

_MIN_WEIGHT: Final = 0.001
_MAX_WEIGHT: Final = 1000.0


class JobPriority(enum.Enum):
    """The priority of a job. The highest comes first."""

    VERY_HIGH = "VERY_HIGH"
    HIGH = "HIGH"
    NORMAL = "NORMAL"
    LOW = "LOW"
    VERY_LOW = "VERY_LOW"

    @property
    def rank(self) -> int:
        """Position in the order; 0 is the highest priority."""
        return _RANKS[self]

    @classmethod
    def convert(cls, value: JobPriority | str) -> JobPriority:
        """Return the priority with this name, in upper or lower case.

        :raises ValueError: if the name is unknown; the message lists the known ones.
        """
        if isinstance(value, cls):
            return value
        try:
            return cls(str(value).upper())
        except ValueError:
            known = [each.value for each in cls]
            raise ValueError(
                f"priority must be one of {', '.join(known)}, got"
                f" {value!r}{object_names.hint(str(value), known)}"
            ) from None

    @classmethod
    def reorder(cls, *values: tuple[JobPriority | str, Any]) -> Any:
        """Return the values of pairs (priority, value), highest priority first, or a single value.

        :raises ValueError: if there is no pair, or a priority is unknown.
        """
        if not values:
            raise ValueError("At least one pair (priority, value) is required")
        ranked = sorted(values, key=lambda pair: cls.convert(pair[0]).rank)
        return ranked[0][1] if len(ranked) == 1 else tuple(value for _, value in ranked)


_PRIORITIES: Final = tuple(JobPriority)
_RANKS: Final = {priority: rank for rank, priority in enumerate(JobPriority)}


class Place(NamedTuple):
    """Where a job waits.

    :ivar queue: name of the queue.
    :ivar fair_key: conductors take jobs of different keys in turn.
    :ivar fair_weight: share of the key, relative to that of other keys.
    """

    priority: JobPriority = JobPriority.NORMAL
    queue: str = DEFAULT_QUEUE
    fair_key: str = ""
    fair_weight: float = 1.0

    @classmethod
    def of(
        cls,
        priority: JobPriority | str = JobPriority.NORMAL,
        queue: str | None = None,
        fair_key: str | None = None,
        fair_weight: float | None = None,
    ) -> Place:
        """Return the place with these attributes; None: the default.

        :raises ValueError, TypeError: if one is invalid.
        """
        return cls(
            JobPriority.convert(priority),
            DEFAULT_QUEUE if queue is None else check_queue(queue),
            "" if fair_key is None else check_key(fair_key),
            1.0 if fair_weight is None else check_weight(fair_weight),
        )

    @classmethod
    def convert(cls, value: Place | JobPriority | str) -> Place:
        """Return a place, or the place with this priority.

        :raises ValueError: if the priority is unknown.
        """
        return value if isinstance(value, cls) else cls.of(cast("JobPriority | str", value))

    def check_plain(self) -> None:
        """Check that it has only a priority, which each board can store.

        :raises ValueError: if it has a queue or a key.
        """
        if self != Place(self.priority):
            name = "fair_key" if self.queue == DEFAULT_QUEUE else "queue"
            raise ValueError(f"{name}= requires a job board in a database or in Redis")

    def to_dict(self) -> dict[str, Any]:
        """Return the note in a flow's record."""
        note: dict[str, Any] = {"rank": self.priority.rank}
        if self.queue != DEFAULT_QUEUE:
            note["queue"] = self.queue
        if self.fair_key or self.fair_weight != 1.0:
            note["fair"] = [self.fair_key, self.fair_weight]
        return note

    @classmethod
    def from_dict(cls, note: Mapping[str, Any]) -> Place:
        """Read the note of this or a later version."""
        rank, queue = note.get("rank"), note.get("queue")
        priority = JobPriority.NORMAL
        if isinstance(rank, int) and 0 <= rank < len(_PRIORITIES):
            priority = _PRIORITIES[rank]
        place = cls(priority, queue if isinstance(queue, str) else DEFAULT_QUEUE)
        fair = note.get("fair")
        return place._replace(fair_key=fair[0], fair_weight=fair[1]) if fair else place


def check_queue(name: str) -> str:
    """Check the name of a queue.

    :raises ValueError: if it is invalid.
    """
    if not isinstance(name, str) or not re.fullmatch(QUEUE_PATTERN, name):
        raise ValueError(
            "queue must be 1 to 64 letters, digits, '_', '.', ':' or '-', the first of them a"
            f" letter or a digit, got {name!r:.80}"
        )
    return name


def check_queues(names: Iterable[str]) -> tuple[str, ...]:
    """Check names of queues, and return each once, sorted.

    :raises ValueError: if one is invalid.
    """
    return tuple(sorted({check_queue(name) for name in names}))


def check_key(key: str) -> str:
    """Check a fair key, and shorten a long one.

    :raises ValueError: if it is invalid.
    """
    # MySQL ignores blanks at the end of a text.
    if not isinstance(key, str) or not terminal_text.is_trimmed(key):
        got = repr(key)[:80] if isinstance(key, str) else type(key).__name__
        raise ValueError(f"fair_key must be a printable str without outer blanks, got {got}")
    return limit_attributes.shorten(key)


def check_weight(weight: float) -> float:
    """Check the weight of a fair key.

    :raises ValueError: if it is invalid.
    """
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not (is_number and math.isfinite(weight) and _MIN_WEIGHT <= weight <= _MAX_WEIGHT):
        raise ValueError(
            f"fair_weight must be a number from {_MIN_WEIGHT} to {_MAX_WEIGHT:g},"
            f" got {weight!r:.80}"
        )
    return float(weight)

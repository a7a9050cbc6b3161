"""Changes of limits by operators, which replace the values in the code.

A limit with a key has the name `NAME[KEY]`. A change of `NAME` applies to all its keys, and a
change of `NAME[KEY]` to this key before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from wbengine._tasks import limit_attributes
from wbengine._tasks.limit_attributes import Quota
from wbengine._text import json_text, rates

__all__ = ["MAX_NAME_CHARACTERS", "LimitChange", "applying", "apply", "names_of"]

MAX_NAME_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A change of one limit, or of all keys of a limit.

    :ivar rate: such as 100/m; None: unchanged.
    :ivar concurrency: None: unchanged.
    :ivar at: time of the change, in Unix seconds.
    """

    name: str
    rate: str | None = None
    concurrency: int | None = None
    reason: str | None = None
    by: str | None = None
    at: float = 0.0

    def check(self) -> None:
        """Check the name and the values.

        :raises ValueError: if one is invalid; the message contains it.
        """
        name = self.name
        if not (name and name.isprintable() and len(name) <= MAX_NAME_CHARACTERS):
            raise ValueError(
                f"The name of a limit must be a printable text with at most"
                f" {MAX_NAME_CHARACTERS} characters, got {name!r:.220}"
            )
        if self.reason is not None and not json_text.is_text(self.reason):
            raise ValueError(
                f"The reason of a change must be valid Unicode, got {self.reason!r:.80}"
            )
        if self.rate is None and self.concurrency is None:
            raise ValueError("A change of a limit requires rate or concurrency")
        limit_attributes.check(f"limit {name!r}", self.rate, self.concurrency, None, None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def names_of(limits: Iterable[str]) -> list[str]:
    """Return the names of changes that can apply to these limits, ordered."""
    return sorted({name for limit in limits for name in _names(limit)})


def applying(limit: str, changes: Mapping[str, LimitChange]) -> list[LimitChange]:
    """Return the changes that apply to a limit, that of its key first."""
    return [changes[name] for name in _names(limit) if name in changes]


def apply(limit: str, quota: Quota, changes: Mapping[str, LimitChange]) -> Quota:
    """Return the quota in force of a limit with this quota in the code."""
    for change in reversed(applying(limit, changes)):
        if change.rate is not None:
            quota = quota._replace(rate=change.rate, interval=rates.interval(change.rate))
        if change.concurrency is not None:
            quota = quota._replace(concurrency=change.concurrency)
    return quota


def _names(limit: str) -> tuple[str, ...]:
    name, bracket, _ = limit.partition("[")
    return (limit, name) if bracket and name else (limit,)

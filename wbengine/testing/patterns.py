"""What may happen, in which order: sequences, and sets whose members come in any order."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from wbengine import states

__all__ = ["Mismatch", "Pattern", "match", "read"]


@dataclass(frozen=True)
class Event:
    """One thing that happens."""

    text: str

    @functools.cached_property
    def firsts(self) -> frozenset[str]:
        """What it may begin with."""
        return frozenset((self.text,))


@dataclass(frozen=True)
class Row:
    """One part after the other."""

    parts: tuple[Pattern, ...]

    @functools.cached_property
    def firsts(self) -> frozenset[str]:
        found: set[str] = set()
        for part in self.parts:
            found |= part.firsts
            if not _may_end(part):
                break
        return frozenset(found)


@dataclass(frozen=True)
class Heap:
    """All parts at once: each in its own order, and whatever comes of the others in between."""

    parts: tuple[Pattern, ...]

    @functools.cached_property
    def firsts(self) -> frozenset[str]:
        return frozenset().union(*(part.firsts for part in self.parts))


Pattern = Event | Row | Heap

_WELL: Final = (states.RUNNING, states.SUCCESS)


@dataclass(frozen=True)
class Mismatch:
    """Where it went another way: after so many events something else was expected."""

    place: int
    expected: tuple[str, ...]


def read(told: Any) -> Pattern:
    """What somebody wrote: a text is `'atom STATE'`, or `'atom'`, which runs and succeeds; lists
    and tuples are in order, sets in any.

    :raises TypeError: it is something else.
    """
    if isinstance(told, str):
        _, space, state = told.rpartition(" ")
        if space and state in states.ATOM_STATES:
            return Event(told)
        return Row(tuple(Event(f"{told} {each}") for each in _WELL))
    if isinstance(told, AbstractSet):
        return Heap(tuple(read(part) for part in sorted(told, key=repr)))
    if isinstance(told, Sequence):
        return Row(tuple(map(read, told)))
    raise TypeError(f"a trace is made of texts, lists, tuples and sets, not of {told!r}")


def match(pattern: Pattern, events: Sequence[str]) -> Mismatch | None:
    """Whether this is just what happened; None: it is."""
    left = [pattern]
    for place, event in enumerate(events):
        after = [rest for each in left for rest in _after(each, event)]
        if not after:
            return Mismatch(place, _expected(left))
        # To compare what is large takes long, and there is mostly one way only.
        left = after if len(after) == 1 else list(dict.fromkeys(after))
    if any(map(_may_end, left)):
        return None
    return Mismatch(len(events), _expected(left))


def _after(pattern: Pattern, event: str) -> Iterator[Pattern]:
    """What is still to come of it after `event`, in every way in which that may be its next."""
    if isinstance(pattern, Event):
        if pattern.text == event:
            yield Row(())
    elif isinstance(pattern, Row):
        for number, part in enumerate(pattern.parts):
            for rest in _after(part, event) if event in part.firsts else ():
                yield Row((*_some(rest), *pattern.parts[number + 1 :]))
            if not _may_end(part):
                return
    else:
        for number, part in enumerate(pattern.parts):
            for rest in _after(part, event) if event in part.firsts else ():
                others = pattern.parts[:number], pattern.parts[number + 1 :]
                yield Heap((*others[0], *_some(rest), *others[1]))


def _some(pattern: Pattern) -> tuple[Pattern, ...]:
    return (pattern,) if isinstance(pattern, Event) or pattern.parts else ()


def _may_end(pattern: Pattern) -> bool:
    return not isinstance(pattern, Event) and all(map(_may_end, pattern.parts))


def _expected(patterns: Sequence[Pattern]) -> tuple[str, ...]:
    return tuple(sorted({text for pattern in patterns for text in pattern.firsts}))

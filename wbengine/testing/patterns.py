"""What may happen, in which order: sequences, and sets whose members come in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from wbengine import states

__all__ = ["Mismatch", "Pattern", "match", "read"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens."""

    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One part after the other."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Heap:
    """All parts at once: each in its own order, and whatever comes of the others in between."""

    parts: tuple[Pattern, ...]


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
    left = {pattern}
    for place, event in enumerate(events):
        after = {rest for each in left for rest in _after(each, event)}
        if not after:
            return Mismatch(place, _expected(left))
        left = after
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
            for rest in _after(part, event):
                yield Row((*_some(rest), *pattern.parts[number + 1 :]))
            if not _may_end(part):
                return
    else:
        for number, part in enumerate(pattern.parts):
            for rest in _after(part, event):
                others = pattern.parts[:number], pattern.parts[number + 1 :]
                yield Heap((*others[0], *_some(rest), *others[1]))


def _some(pattern: Pattern) -> tuple[Pattern, ...]:
    return (pattern,) if isinstance(pattern, Event) or pattern.parts else ()


def _may_end(pattern: Pattern) -> bool:
    return not isinstance(pattern, Event) and all(map(_may_end, pattern.parts))


def _first(pattern: Pattern) -> Iterator[str]:
    if isinstance(pattern, Event):
        yield pattern.text
        return
    for part in pattern.parts:
        yield from _first(part)
        if isinstance(pattern, Row) and not _may_end(part):
            return


def _expected(patterns: AbstractSet[Pattern]) -> tuple[str, ...]:
    return tuple(sorted({text for pattern in patterns for text in _first(pattern)}))

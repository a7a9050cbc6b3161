"""Iterators beside those of `itertools`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")
_D = TypeVar("_D")


def _iterable(it: Iterable[_T]) -> Iterable[_T]:
    if not isinstance(it, Iterable):
        raise ValueError(f"Iterable expected, but {it!r} is not iterable")
    return it


def fill(it: Iterable[_T], desired_len: int, filler: _D | None = None) -> Iterator[_T | _D | None]:
    """The first `desired_len` of `it`, and fillers where it has fewer.

    :raises ValueError: `it` is not iterable.
    """
    return itertools.islice(
        itertools.chain(_iterable(it), itertools.repeat(filler)), max(0, desired_len)
    )


def count(it: Iterable[Any]) -> int:
    """How many there are; they are used up.

    :raises ValueError: `it` is not iterable.
    """
    return sum(1 for _ in _iterable(it))


def generate_delays(delay: float, max_delay: float, multiplier: float = 2) -> Iterator[float]:
    """`delay`, and each time as much as before times `multiplier`, but no more than `max_delay`.

    :raises ValueError: a delay is negative, or the multiplier less than 1.
    """
    for name, value, least in (("delay (max)", max_delay, 0), ("delay", delay, 0)):
        if value < least:
            raise ValueError(f"Provided {name} must be at least zero, not {value!r}")
    if multiplier < 1:
        raise ValueError(f"Provided multiplier must be at least 1.0, not {multiplier!r}")
    return itertools.accumulate(
        itertools.repeat(min(delay, max_delay)),
        lambda before, _: min(before * multiplier, max_delay),
    )


def unique_seen(
    its: Iterable[Iterable[_T]], seen_selector: Callable[[_T], Any] | None = None
) -> Iterator[_T]:
    """The values of all, in order, each once; `seen_selector(value)` says by what they are told.

    :raises ValueError: one of `its` is not iterable.
    """
    values = itertools.chain.from_iterable([_iterable(it) for it in its])
    seen: set[Any] = set()

    def is_new(value: _T) -> bool:
        known = value if seen_selector is None else seen_selector(value)
        return not (known in seen or seen.add(known))  # type: ignore[func-returns-value]

    return filter(is_new, values)


def find_first_match(
    it: Iterable[_T], matcher: Callable[[_T], Any], not_found_value: _D | None = None
) -> _T | _D | None:
    """The first value that `matcher` accepts.

    :raises ValueError: `it` is not iterable.
    """
    return next((value for value in _iterable(it) if matcher(value)), not_found_value)


def while_is_not(it: Iterable[_T], stop_value: Any) -> Iterator[_T]:
    """The values up to `stop_value` (that very object), which is the last one.

    :raises ValueError: `it` is not iterable.
    """
    for value in _iterable(it):
        yield value
        if value is stop_value:
            return


def iter_forever(limit: int) -> Iterator[int]:
    """0, 1, 2... below `limit`; a negative one is none."""
    return itertools.count() if limit < 0 else iter(range(limit))

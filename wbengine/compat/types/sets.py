"""Sets that remember the order in which their members came."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Hashable)


class OrderedSet(AbstractSet[_T], Hashable):
    """An immutable set whose members stay in the order of their first appearance.

    Equal to any set with the same members, and hashed like one: the order is only for looking.
    """

    __slots__ = ("_members",)

    def __init__(self, iterable: Iterable[_T] | None = None) -> None:
        self._members: dict[_T, None] = dict.fromkeys(iterable or ())

    def __contains__(self, value: object) -> bool:
        return value in self._members

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[_T]:
        return iter(self._members)

    def __hash__(self) -> int:
        return self._hash()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._members)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (tuple(self._members),)

    def copy(self) -> OrderedSet[_T]:
        """The same members in the same order."""
        return type(self)(self)

    def union(self, *others: Iterable[_T]) -> OrderedSet[_T]:
        """Ours, then what the others add, in their order."""
        return type(self)([*self, *(value for other in others for value in other)])

    def intersection(self, *others: Iterable[_T]) -> OrderedSet[_T]:
        """Those of ours that are in all others, in our order."""
        sets = [set(other) for other in others]
        return type(self)(value for value in self if all(value in other for other in sets))

    def difference(self, *others: Iterable[_T]) -> OrderedSet[_T]:
        """Those of ours that are in no other, in our order."""
        gone = {value for other in others for value in other}
        return type(self)(value for value in self if value not in gone)

    def issubset(self, other: Iterable[_T]) -> bool:
        """Is every member of ours in `other`?"""
        return self._members.keys() <= set(other)

    def issuperset(self, other: Iterable[_T]) -> bool:
        """Is all that is in `other` ours?"""
        return all(value in self._members for value in other)

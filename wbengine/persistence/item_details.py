"""The records of a Map's items (see `persistence.models`, where users find them).

A Map may have 100,000 of them, so that what is written of one must not cost what all of them cost:
each is a record of its own, beside the row of its atom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from wbengine import exceptions, states
from wbengine.persistence import attempts, pictures, values
from wbengine.types import failure as ft

__all__ = ["ItemDetail", "Items"]

#: Where the outcome is kept that leads to a state.
_FIELDS: Final[Mapping[str, str]] = {
    states.SUCCESS: "results",
    states.FAILURE: "failure",
    states.REVERTED: "revert_results",
    states.REVERT_FAILURE: "revert_failure",
}
_PLAIN: Final = (
    "attempt", "index", "order", "state", "worker", "submitted", "started", "ended",
)  # fmt: skip
_VALUES: Final = ("value", "results", "revert_results")
_FAILURES: Final = ("failure", "revert_failure")


class ItemDetail:
    """What is known of one item of a `Map`: its value, its state, what it came to.

    `attempt` is the execution of the atom that the item belongs to, also while it is reverted.
    `order` says as which of them it finished, from 1 (0: it has not).  States and results are those
    of a task, without the ones in which something is under way: the atom's own state tells that.
    `worker`, `submitted`, `started` and `ended` mean what they mean in an `Attempt`.
    """

    __slots__ = (
        "attempt",
        "ended",
        "failure",
        "index",
        "order",
        "results",
        "revert_failure",
        "revert_results",
        "started",
        "state",
        "submitted",
        "value",
        "worker",
    )

    def __init__(self, index: int, value: Any, attempt: int) -> None:
        self.index = index
        self.value = value
        self.attempt = attempt
        self.order = 0
        self.state: str = states.PENDING
        self.results: Any = None
        self.failure: ft.Failure | None = None
        self.revert_results: Any = None
        self.revert_failure: ft.Failure | None = None
        self.worker: str | None = None
        self.submitted: float | None = None
        self.started: float | None = None
        self.ended: float | None = None

    @property
    def runtime(self) -> float | None:
        """Seconds from the start to the end of what was done last, never less than none."""
        return attempts.runtime(self.started, self.ended)

    def put(self, state: str, result: Any) -> None:
        """Enter `state` with `result`: a value, or the failure when `state` is a failed one."""
        self.state = state
        if state != states.REVERT_FAILURE:  # that may be reverted again
            self.results = None
        setattr(self, _FIELDS[state], result)

    def revert_again(self) -> None:
        """If its revert failed, go back to where it was before that."""
        if self.state == states.REVERT_FAILURE:
            self.state = states.SUCCESS if self.failure is None else states.FAILURE
            self.revert_failure = None

    def update(self, other: ItemDetail) -> ItemDetail:
        """Take over everything `other` says; values are shared."""
        for slot in ItemDetail.__slots__:
            setattr(self, slot, getattr(other, slot))
        return self

    def merge(self, other: ItemDetail, deep_copy: bool = False) -> ItemDetail:
        """Like `update`; `deep_copy` shares no value."""
        return self if other is self else self.update(other.copy() if deep_copy else other)

    def copy(self, deep: bool = True) -> ItemDetail:
        """Copy the record, and (`deep`) its values too; failures are shared: they never change."""
        clone = ItemDetail(self.index, self.value, self.attempt).update(self)
        if deep:
            for slot in _VALUES:
                setattr(clone, slot, values.deep(getattr(self, slot)))
        return clone

    def to_dict(self) -> dict[str, Any]:
        """Describe the record as plain data; values are left as they are."""
        found = {slot: getattr(self, slot) for slot in (*_PLAIN, *_VALUES)}
        for slot in _FAILURES:
            found[slot] = values.failure_to_dict(getattr(self, slot))
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ItemDetail:
        """Make the record that `to_dict` described; keys that are missing keep their defaults.

        :raises InvalidFormat: there is no 'index' or no 'attempt'.
        """
        try:
            record = cls(data["index"], data.get("value"), data["attempt"])
        except (LookupError, TypeError, AttributeError):
            raise exceptions.InvalidFormat(
                f"The description of an item has an 'index' and an 'attempt', not {data!r:.80}"
            ) from None
        for slot in (*_PLAIN, *_VALUES):
            if slot in data:
                setattr(record, slot, data[slot])
        for slot in _FAILURES:
            setattr(record, slot, values.failure_from_dict(data.get(slot)))
        return record

    def pformat(self, indent: int = 0, linesep: str = "\n") -> str:
        """Describe the record in a few readable lines; long values are cut."""
        head, lines = f"ItemDetail: {self.index}", pictures.lines_of_item(self)
        return pictures.picture(head, lines, (), indent, linesep)

    def __repr__(self) -> str:
        return f"<ItemDetail {self.index} {self.state} #{self.attempt}>"


class Items:
    """The items of one attempt of a `Map`, by index.

    The list was fixed when the attempt began.  `attempt` and `resumed` (how often it went on after
    an interruption) belong to the row of the atom, the items are written on their own.
    """

    __slots__ = ("_details", "attempt", "resumed")

    def __init__(self, attempt: int, values: Iterable[Any] = (), resumed: int = 0) -> None:
        self.attempt = attempt
        self.resumed = resumed
        self._details = [ItemDetail(index, value, attempt) for index, value in enumerate(values)]

    def __len__(self) -> int:
        return len(self._details)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[ItemDetail]:
        return iter(self._details)

    def __getitem__(self, index: int) -> ItemDetail:
        return self._details[index]

    def put(self, item: ItemDetail) -> None:
        """Add the next item, or replace the one of the same index.

        One of another attempt is of the past, and left out.

        :raises ValueError: the items before it are missing.
        """
        if item.attempt != self.attempt:
            return
        if item.index == len(self._details):
            self._details.append(item)
        elif item.index < len(self._details):
            self._details[item.index] = item
        else:
            raise ValueError(f"Item {item.index} came before item {len(self._details)}")

    def copy(self, deep: bool = True) -> Items:
        """Copy the items, and (`deep`) their values too."""
        clone = self.emptied()
        clone._details = [item.copy(deep) for item in self._details]
        return clone

    def emptied(self) -> Items:
        """What the row of the atom says of them, without any."""
        return Items(self.attempt, (), self.resumed)

    def to_dict(self) -> dict[str, int]:
        """Describe what belongs to the row of the atom."""
        return {"attempt": self.attempt, "resumed": self.resumed}

    @classmethod
    def from_dict(cls, data: Mapping[str, int]) -> Items:
        """Make what `to_dict` described; the items are to be `put`."""
        return cls(data["attempt"], (), data.get("resumed", 0))

    def __repr__(self) -> str:
        return f"<Items {len(self)} #{self.attempt}>"

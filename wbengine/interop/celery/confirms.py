"""What a RabbitMQ has confirmed of what was published to it over one channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["Confirms"]

_T = TypeVar("_T")


class Confirms(Generic[_T]):
    """Counts what is published, as the broker does, and tells what became of it.

    `settled(what, kept)` is called once for each message, in the order of their publishing where
    the broker answers for several; `kept` is False if it refused one.  That happens whenever
    somebody reads from the connection, in that thread, and may publish again.
    """

    def __init__(self, channel: Any, settled: Callable[[_T, bool], object]) -> None:
        self._settled = settled
        self._open: dict[int, _T] = {}
        self._number = 0
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)

    def expect(self, what: _T) -> int:
        """The next message that is published is `what`; its number."""
        self._number += 1
        self._open[self._number] = what
        return self._number

    def take_back(self, number: int) -> None:
        """The message that was expected last was not published."""
        del self._open[number]
        self._number = number - 1

    def __contains__(self, number: int) -> bool:
        """Whether the message of this number is neither confirmed nor refused."""
        return number in self._open

    def __len__(self) -> int:
        """How many are neither confirmed nor refused."""
        return len(self._open)

    def _on_ack(self, number: int, multiple: bool) -> None:
        self._answered(number, multiple, True)

    def _on_nack(self, number: int, multiple: bool) -> None:
        self._answered(number, multiple, False)

    def _answered(self, number: int, multiple: bool, kept: bool) -> None:
        if not multiple:
            numbers = [number] if number in self._open else []
        else:
            numbers = []
            for known in self._open:  # in their order
                if known > number:
                    break
                numbers.append(known)
        for what in [self._open.pop(known) for known in numbers]:
            self._settled(what, kept)

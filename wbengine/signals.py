"""Signals: named values that are sent to a flow from outside.

A flow receives the first signal of each name that its tasks wait for. A flow with a workflow
receives all signals of all names. Those of one name are numbered from 1, in the order in which they
are stored.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._text import json_text, terminal_text
from wbengine.types import codec

if TYPE_CHECKING:
    from wbengine._payloads.payloads import Payloads

__all__ = [
    "CHILD_PREFIX", "MAX_VALUE_BYTES", "NAME_SCHEMA", "OR", "Signal", "check_name", "child_of",
    "end_of_child", "label", "not_awaited", "oldest_first", "stored_name",
]  # fmt: skip

#: Maximum size of a signal's value as JSON.
MAX_VALUE_BYTES: Final = 65_536
#: JSON schema of the name of a signal.
NAME_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": f"1 to {object_names.MAX_NAME_LENGTH} printable characters",
    "pattern": terminal_text.PRINTABLE,
    "maxLength": object_names.MAX_NAME_LENGTH,
}

#: Stored names of signals after the first one: name, separator, number. Names are printable, so
#: they contain no separator.
_SEPARATOR: Final = "\x1f"
#: Start of the names of signals that report the end of a child flow. Names of other signals are
#: printable, so users cannot send these.
CHILD_PREFIX: Final = "\x1echild:"
#: Text between the names of a wait for one of several signals.
OR: Final = " or "
_NUMBERED: Final = re.compile(rf"(.+){_SEPARATOR}([2-9]|[1-9][0-9]{{1,17}})", re.DOTALL)

#: White space that JSON allows after a value, and its length in texts of `Signal.distinct`.
_JSON_SPACES: Final = " \t\n\r"
_MARK_LENGTH: Final = 32


def check_name(name: Any, what: str = "Signal name") -> str:
    """Check and return the name of a signal.

    :param what: the name of the argument, for error messages.
    :raises TypeError: if it is not a string.
    :raises ValueError: if it is empty, too long or not printable.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, got {name!r:.80}")
    if not terminal_text.is_printable(name):
        raise ValueError(f"{what} must be {NAME_SCHEMA['description']}, got {name!r:.80}")
    return object_names.check_length(what, name)


def label(name: str, number: int) -> str:
    """Return the displayed name of a signal: `approved`, or `approved #2` for the second one."""
    return name if number == 1 else f"{name} #{number}"


def not_awaited(name: str, awaited: Collection[str]) -> str | None:
    """Return why a signal is not used now, with the awaited ones; None if it is awaited.

    :param awaited: names, or texts with several names, of `Connection.awaited_signals`.
    """
    if any(name == text or name in text.split(OR) for text in awaited):
        return None
    listed = f"awaited signals: {', '.join(awaited)}" if awaited else "no signal is awaited"
    return f"nothing waits for signal {name!r} now{object_names.hint(name, awaited)}; {listed}"


def stored_name(name: str, number: int) -> str:
    """Return the name under which stores contain a signal: unique in its flow."""
    return name if number == 1 else f"{name}{_SEPARATOR}{number}"


def name_of(stored_name: str) -> str:
    """Return the name of a signal, without its number."""
    return stored_name.partition(_SEPARATOR)[0]


class Signal(NamedTuple):
    """A stored signal: its value as typed JSON (`text`), and its sending time in Unix seconds.

    :ivar number: 1 for the first signal of its name.
    """

    name: str
    text: str
    at: float
    number: int = 1

    @classmethod
    def of(
        cls, name: str, value: Any, at: float, payloads: Payloads | None = None, flow: str = ""
    ) -> Signal:
        """Create a signal.

        :param payloads: where a value that is too long is stored, for the flow with this uuid.
        :raises TypeError: if the name is not a string.
        :raises ValueError: if the name is invalid.
        :raises NotEncodable: if the value cannot be sent or is too long.
        """
        tree = codec.pack_to_send(value, f"signal {check_name(name)!r}")
        text = json_text.encode(tree, finite=True).decode()
        if len(text) > MAX_VALUE_BYTES and payloads is not None:
            where = f"signal {name!r}"
            value = payloads.store_large(value, where, flow, MAX_VALUE_BYTES)
            text = json_text.encode(codec.pack_to_send(value, where), finite=True).decode()
        if len(text.encode()) > MAX_VALUE_BYTES:
            raise exceptions.NotEncodable(
                f"Value of signal {name!r} must have at most {MAX_VALUE_BYTES:,} bytes as JSON"
            )
        return cls(name, text, at)

    @classmethod
    def from_stored(cls, stored_name: str, text: str, at: float) -> Signal:
        """Return the signal with this `stored_name`."""
        match = _NUMBERED.fullmatch(stored_name)
        if match is None:
            return cls(stored_name, text, at)
        return cls(match[1], text, at, int(match[2]))

    @property
    def stored_name(self) -> str:
        """The name under which stores contain the signal: unique in its flow."""
        return stored_name(self.name, self.number)

    def numbered(self, number: int) -> Signal:
        """Return this signal with another number.

        :raises ValueError: if the stored name would be too long, or the name ends with a space.
        """
        # For MySQL, names that differ only in such spaces are the same key.
        if self.name.endswith(" "):
            raise ValueError(
                "Signal name must not end with a space in a flow with a workflow, got"
                f" {self.name!r}"
            )
        signal = self._replace(number=number)
        extra_length = len(signal.stored_name) - len(self.name)
        object_names.check_length(
            f"Name of signal number {number:,}",
            self.name,
            object_names.MAX_NAME_LENGTH - extra_length,
        )
        return signal

    def distinct(self) -> Signal:
        """Return this signal with random white space after its value.

        So it differs from a signal with the same name, value and time of another sender.
        """
        mark = "".join(random.SystemRandom().choices(_JSON_SPACES, k=_MARK_LENGTH))
        return self._replace(text=self.text + mark)

    @property
    def value(self) -> Any:
        """The value of the signal.

        :raises InvalidFormat: if it cannot be decoded in this process.
        """
        return codec.loads(self.text)


def end_of_child(uuid: str, epoch: int, at: float) -> Signal:
    """Return the signal that a child flow has ended.

    :param epoch: epoch of the lease under which it ended. Two ends have different signals, and a
        repeated write of an end the same one.
    :param at: Unix seconds.
    """
    return Signal(f"{CHILD_PREFIX}{uuid}", "null", at, max(1, epoch))


def child_of(signal: Signal) -> str | None:
    """Return the uuid of the child flow whose end a signal reports, or None."""
    name = signal.name
    return name.removeprefix(CHILD_PREFIX) if name.startswith(CHILD_PREFIX) else None


def oldest_first(signals: Iterable[Signal]) -> list[Signal]:
    """Return the signals of a flow in the order in which stores return them."""
    return sorted(signals, key=lambda signal: (signal.at, signal.name, signal.number))

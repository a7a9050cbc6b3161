"""Signals: named values that are sent to a flow from outside, once for each name."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from wbengine import _json_text, _names, exceptions
from wbengine.types import codec

__all__ = ["MAX_VALUE_BYTES", "Signal", "check_name"]

#: Maximum size of a signal's value as JSON.
MAX_VALUE_BYTES: Final = 65_536


def check_name(name: Any) -> str:
    """Check and return the name of a signal.

    :raises TypeError: if it is not a string.
    :raises ValueError: if it is empty, too long or not printable.
    """
    if not isinstance(name, str):
        raise TypeError(f"Signal name must be a str, got {name!r:.80}")
    if not (name and name.isprintable() and _json_text.is_text(name)):
        raise ValueError(
            f"Signal name must have 1 to {_names.MAX_NAME_LENGTH} printable characters, got"
            f" {name!r:.80}"
        )
    return _names.check_length("Signal name", name)


class Signal(NamedTuple):
    """A stored signal: its value as typed JSON (`text`), and its sending time in Unix seconds."""

    name: str
    text: str
    at: float

    @classmethod
    def of(cls, name: str, value: Any, at: float) -> Signal:
        """Create a signal.

        :raises TypeError: if the name is not a string.
        :raises ValueError: if the name is invalid.
        :raises NotEncodable: if the value cannot be sent or is too long.
        """
        tree = codec.pack_to_send(value, f"signal {check_name(name)!r}")
        text = _json_text.encode(tree, finite=True).decode()
        if len(text.encode()) > MAX_VALUE_BYTES:
            raise exceptions.NotEncodable(
                f"Value of signal {name!r} must have at most {MAX_VALUE_BYTES:,} bytes as JSON"
            )
        return cls(name, text, at)

    @property
    def value(self) -> Any:
        """The value of the signal.

        :raises InvalidFormat: if it cannot be decoded in this process.
        """
        return codec.loads(self.text)

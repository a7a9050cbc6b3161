"""What is said to a flow from outside: a value under a name, once."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from wbengine import _codec, _json_text, exceptions

__all__ = ["LONGEST_NAME", "MOST_BYTES", "Signal", "check_name"]

#: So many characters the name of a signal may have.
LONGEST_NAME: Final = 255

#: So many bytes the value of a signal may have, as JSON.
MOST_BYTES: Final = 65_536


def check_name(name: Any) -> str:
    """The name of a signal.

    :raises TypeError, ValueError: it can be none.
    """
    if not isinstance(name, str):
        raise TypeError(f"The name of a signal is a text, not {name!r:.80}")
    if not (0 < len(name) <= LONGEST_NAME and name.isprintable() and _json_text.is_text(name)):
        raise ValueError(
            f"The name of a signal has 1 to {LONGEST_NAME} printable characters, not {name!r:.80}"
        )
    return name


class Signal(NamedTuple):
    """A signal as it is kept: its value as typed JSON, and when it was given (unix seconds)."""

    name: str
    text: str
    at: float

    @classmethod
    def of(cls, name: str, value: Any, at: float) -> Signal:
        """A new one.

        :raises TypeError, ValueError: the name can be none.
        :raises NotEncodable: the value cannot be sent, or is too long.
        """
        tree = _codec.pack_to_send(value, f"signal {check_name(name)!r}")
        text = _json_text.encode(tree, finite=True).decode()
        if len(text.encode()) > MOST_BYTES:
            raise exceptions.NotEncodable(
                f"The value of signal {name!r} has more than {MOST_BYTES:,} bytes as JSON"
            )
        return cls(name, text, at)

    @property
    def value(self) -> Any:
        """What was given.

        :raises InvalidFormat: it cannot be read here.
        """
        return _codec.loads(self.text)

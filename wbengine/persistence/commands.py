"""Commands to the engine that runs a flow. The store contains them until the engine reads them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from wbengine import exceptions

__all__ = ["CANCEL", "COMMANDS", "SUSPEND", "FlowCommand"]

SUSPEND: Final = "suspend"
CANCEL: Final = "cancel"
COMMANDS: Final = (SUSPEND, CANCEL)


class FlowCommand(NamedTuple):
    """A request to suspend or cancel a run, with a `reason` and a sender (`by`).

    `at` is the time of sending in Unix seconds. The store sets `epoch`: only the run under the
    lease with this epoch executes the command.
    """

    what: str
    reason: str | None = None
    by: str | None = None
    at: float = 0.0
    epoch: int = 0

    @property
    def explanation(self) -> str | None:
        """The reason and the sender of the command, in one line, or None."""
        sender = f"by {self.by}" if self.by else ""
        return (
            f"{self.reason} ({sender})" if self.reason and sender else self.reason or sender or None
        )

    def describe(self) -> str:
        result = "suspended" if self.what == SUSPEND else "cancelled"
        sender = f" by {self.by}" if self.by else ""
        return f"{result}{sender}{f': {self.reason}' if self.reason else ''}"

    def check(self) -> None:
        """Validate the command.

        :raises ValueError: if the command is unknown.
        :raises TypeError: if the reason or the sender is not a str.
        """
        if self.what not in COMMANDS:
            raise ValueError(f"A command must be one of {', '.join(COMMANDS)}, got {self.what!r}")
        for field, value in (("reason", self.reason), ("by", self.by)):
            if not isinstance(value, str | None):
                raise TypeError(
                    f"The {field} of a command must be a str or None, got {value!r:.80}"
                )

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_dict(cls, data: Any) -> FlowCommand:
        """Create the command from a dict.

        :raises InvalidFormat: if the data is not a valid command.
        """
        try:
            command = cls(**{key: data[key] for key in cls._fields})
            command.check()
        except (LookupError, TypeError, ValueError) as error:
            raise exceptions.InvalidFormat(f"invalid command: {error}") from error
        return command
